//! Fallible memory allocation.

use super::{Context, NoMemory, Platform};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

/// An empty vector with capacity for `capacity` values.
///
/// # Errors
/// [`NoMemory`].
pub fn try_reserve<T, P: Platform>(platform: &P, context: Context, capacity: usize) -> Result<Vec<T>, NoMemory> {
    try_reserve_by(|allocate| platform.allocate(context, allocate), capacity)
}

/// Reserves as `try_reserve` does. `host` tells the host that the global allocator is about to be called, and runs the
/// call.
pub(crate) fn try_reserve_by<T>(host: impl FnOnce(&mut dyn FnMut()), capacity: usize) -> Result<Vec<T>, NoMemory> {
    let (mut all, mut reserved) = (Vec::new(), Err(NoMemory));
    host(&mut || reserved = all.try_reserve_exact(capacity).map_err(|_| NoMemory));
    reserved.map(|()| all)
}

/// Pushes to a list that already has the capacity. It never grows the list, so it allocates nothing, perhaps with a
/// lock held, and needs none of the stack that allocating takes.
///
/// # Panics
/// If there is no room.
#[inline]
pub fn push_within<T>(to: &mut Vec<T>, value: T) {
    assert!(to.len() < to.capacity(), "the list has no room left");
    to.push(value);
}

/// Pushes to the back of a queue in the same way.
///
/// # Panics
/// If there is no room.
#[inline]
pub fn push_back_within<T>(to: &mut VecDeque<T>, value: T) {
    assert!(to.len() < to.capacity(), "the list has no room left");
    to.push_back(value);
}

/// A vector of `count` values from `make`.
///
/// # Errors
/// [`NoMemory`].
pub fn try_fill<T, P: Platform>(
    platform: &P,
    context: Context,
    count: usize,
    mut make: impl FnMut() -> T,
) -> Result<Vec<T>, NoMemory> {
    let mut all = try_reserve(platform, context, count)?;
    for _ in 0..count {
        push_within(&mut all, make());
    }
    Ok(all)
}

/// A boxed slice of `count` values from `make`, each made in place.
///
/// # Errors
/// [`NoMemory`].
pub fn try_slice<T, P: Platform>(
    platform: &P,
    context: Context,
    count: usize,
    mut make: impl FnMut() -> Result<T, NoMemory>,
) -> Result<Box<[T]>, NoMemory> {
    let mut all = try_reserve(platform, context, count)?;
    for _ in 0..count {
        push_within(&mut all, make()?);
    }
    Ok(all.into_boxed_slice())
}

/// A fallible `Box::new`.
///
/// # Errors
/// [`NoMemory`].
pub fn try_box<T, P: Platform>(platform: &P, context: Context, value: T) -> Result<Box<T>, NoMemory> {
    Ok(boxed(try_reserve(platform, context, 1)?, value))
}

/// A box with uninitialized memory for a value, so that the value is made in place.
pub(crate) fn try_room<T, P: Platform>(platform: &P, context: Context) -> Result<Box<MaybeUninit<T>>, NoMemory> {
    let mut room = try_reserve::<MaybeUninit<T>, P>(platform, context, 1)?;
    // SAFETY: the capacity was reserved, and `MaybeUninit` may hold any bytes.
    unsafe { room.set_len(1) };
    Ok(of_one(room))
}

/// Moves `value` into `room`, whose capacity is exactly one value.
pub fn boxed<T>(mut room: Vec<T>, value: T) -> Box<T> {
    debug_assert!(room.is_empty());
    push_within(&mut room, value);
    of_one(room)
}

/// Turns a vector of one value into a box.
fn of_one<T>(room: Vec<T>) -> Box<T> {
    assert_eq!(room.len(), 1);
    let slice: Box<[T]> = room.into_boxed_slice();
    // SAFETY: a slice of one value has the layout of the value, so the box may own it as such.
    unsafe { Box::from_raw(Box::into_raw(slice).cast::<T>()) }
}

/// Memory that code under a lock may need. It is allocated while no lock is held, because the host's allocator may be
/// slow.
pub struct Spare<M> {
    made: Option<M>,
    /// The amount that it was made for.
    amount: usize,
    /// Memory was needed and was not available.
    is_wanting: bool,
}

impl<M> Spare<M> {
    /// Memory that is already allocated, for an amount of one.
    pub const fn of(made: M) -> Self {
        Self { made: Some(made), amount: 1, is_wanting: false }
    }

    /// No memory: code that needs some fails.
    pub const fn none() -> Self {
        Self { made: None, amount: 0, is_wanting: false }
    }

    /// Takes the memory, which must have been made for this amount.
    ///
    /// # Errors
    /// [`NoMemory`] if there is none, or if it was made for another amount; the need is recorded.
    #[cold]
    pub fn take(&mut self, amount: usize) -> Result<M, NoMemory> {
        let made = if self.amount == amount { self.made.take() } else { None };
        self.amount = amount;
        self.is_wanting = made.is_none();
        made.ok_or(NoMemory)
    }
}

/// Runs `act`, which takes locks. If `act` finds that it needs memory, allocates it with `make` while no lock is held,
/// and runs `act` again.
///
/// # Errors
/// Those of `act` and `make`.
#[inline(always)]
pub fn with_spare<M, R, E: From<NoMemory>>(
    mut make: impl FnMut(usize) -> Result<M, NoMemory>,
    mut act: impl FnMut(&mut Spare<M>) -> Result<R, E>,
) -> Result<R, E> {
    let mut spare = Spare::none();
    loop {
        match act(&mut spare) {
            Err(_) if spare.is_wanting => {
                spare.made = Some(make(spare.amount)?);
                spare.is_wanting = false;
            }
            done => return done,
        }
    }
}

/// Moves the values of `all` into `larger` if that has the larger capacity, and swaps the two.
pub fn move_into<T>(all: &mut Vec<T>, larger: &mut Vec<T>) {
    if larger.capacity() > all.capacity() {
        assert!(larger.capacity() - larger.len() >= all.len(), "the larger list has no room");
        larger.append(all);
        core::mem::swap(all, larger);
    }
}

/// A block of values to be added to a list of blocks, with a larger list in case the old one is full.
pub struct Block<T> {
    block: Vec<T>,
    larger: Vec<Vec<T>>,
}

impl<T> Block<T> {
    /// A block of `len` values, and a list with capacity for `blocks` blocks.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new<P: Platform>(platform: &P, context: Context, len: usize, blocks: usize) -> Result<Self, NoMemory> {
        Ok(Self { block: try_reserve(platform, context, len)?, larger: try_reserve(platform, context, blocks)? })
    }

    /// The capacity that the next [`Block`] must bring for the list: 0 if the list is not full.
    pub fn room_wanted(blocks: &Vec<Vec<T>>) -> usize {
        if blocks.len() < blocks.capacity() { 0 } else { (2 * blocks.len()).max(4) }
    }

    /// Adds the block to the list that needed it.
    pub fn add_to(mut self, blocks: &mut Vec<Vec<T>>) {
        move_into(blocks, &mut self.larger);
        push_within(blocks, self.block);
    }
}
