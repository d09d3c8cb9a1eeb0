//! Memory that may not be there.

use super::{Context, NoMemory, Platform};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

/// A vector with room for `capacity`, and with nothing in it.
pub(crate) fn try_reserve<T, P: Platform>(platform: &P, context: Context, capacity: usize) -> Result<Vec<T>, NoMemory> {
    try_reserve_by(|allocate| platform.allocate(context, allocate), capacity)
}

/// The same, where `host` tells the host that the global allocator is asked, and runs what asks it.
pub(crate) fn try_reserve_by<T>(host: impl FnOnce(&mut dyn FnMut()), capacity: usize) -> Result<Vec<T>, NoMemory> {
    let (mut all, mut reserved) = (Vec::new(), Err(NoMemory));
    host(&mut || reserved = all.try_reserve_exact(capacity).map_err(|_| NoMemory));
    reserved.map(|()| all)
}

/// Adds to a list for which room was made before. It never grows that: so it asks for no memory, perhaps with a lock held, and takes none of
/// the stack that this would.
///
/// # Panics
/// If there is no room.
#[inline]
pub(crate) fn push_within<T>(to: &mut Vec<T>, value: T) {
    assert!(to.len() < to.capacity(), "room was made before");
    to.push(value);
}

/// The same at the end of a queue.
///
/// # Panics
/// If there is no room.
#[inline]
pub(crate) fn push_back_within<T>(to: &mut VecDeque<T>, value: T) {
    assert!(to.len() < to.capacity(), "room was made before");
    to.push_back(value);
}

/// A vector of `count` of what `make` makes.
pub(crate) fn try_fill<T, P: Platform>(
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

/// A box of so many of what `make` makes, each of which is made there.
pub(crate) fn try_slice<T, P: Platform>(
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

/// `Box::new` that reports exhaustion.
pub(crate) fn try_box<T, P: Platform>(platform: &P, context: Context, value: T) -> Result<Box<T>, NoMemory> {
    Ok(boxed(try_reserve(platform, context, 1)?, value))
}

/// A box with room for a value, which is not moved there.
pub(crate) fn try_room<T, P: Platform>(platform: &P, context: Context) -> Result<Box<MaybeUninit<T>>, NoMemory> {
    let mut room = try_reserve::<MaybeUninit<T>, P>(platform, context, 1)?;
    // SAFETY: reserved, and room may be of any bytes.
    unsafe { room.set_len(1) };
    Ok(of_one(room))
}

/// Moves `value` into `room`, which is for one value exactly.
pub(crate) fn boxed<T>(mut room: Vec<T>, value: T) -> Box<T> {
    debug_assert!(room.is_empty());
    push_within(&mut room, value);
    of_one(room)
}

/// The memory of a vector of one value.
fn of_one<T>(room: Vec<T>) -> Box<T> {
    assert_eq!(room.len(), 1);
    let slice: Box<[T]> = room.into_boxed_slice();
    // SAFETY: a slice of one value has the layout of the value, so the box may own it as such.
    unsafe { Box::from_raw(Box::into_raw(slice).cast::<T>()) }
}

/// Memory that something under a lock may want: made while no lock is held, for host allocators may take their time.
pub(crate) struct Spare<M> {
    made: Option<M>,
    /// How much that is for.
    amount: usize,
    /// It was asked for, and not there.
    is_wanting: bool,
}

impl<M> Spare<M> {
    /// What was made already, for an amount of one.
    pub(crate) const fn of(made: M) -> Self {
        Self { made: Some(made), amount: 1, is_wanting: false }
    }

    /// Nothing is spare: what needs memory fails.
    pub(crate) const fn none() -> Self {
        Self { made: None, amount: 0, is_wanting: false }
    }

    /// The memory that was made for this amount.
    ///
    /// # Errors
    /// [`NoMemory`] where nothing was made yet, or for another amount; that is noted.
    #[cold]
    pub(crate) fn take(&mut self, amount: usize) -> Result<M, NoMemory> {
        let made = if self.amount == amount { self.made.take() } else { None };
        self.amount = amount;
        self.is_wanting = made.is_none();
        made.ok_or(NoMemory)
    }
}

/// Runs `act`, in which locks are held, as often as it finds that it needs memory; between that it has `make` make it.
///
/// # Errors
/// Those of `act` and `make`.
#[inline(always)]
pub(crate) fn with_spare<M, R, E: From<NoMemory>>(
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

/// Moves what `all` has into `larger`, if that has more room; then `larger` has what `all` was.
pub(crate) fn move_into<T>(all: &mut Vec<T>, larger: &mut Vec<T>) {
    if larger.capacity() > all.capacity() {
        assert!(larger.capacity() - larger.len() >= all.len(), "it is empty");
        larger.append(all);
        core::mem::swap(all, larger);
    }
}

/// A block of values for a list of such, and a list with more room where the old one is full.
pub(crate) struct Block<T> {
    block: Vec<T>,
    larger: Vec<Vec<T>>,
}

impl<T> Block<T> {
    /// A block of `len` values, and room for `blocks` such blocks.
    pub(crate) fn new<P: Platform>(
        platform: &P,
        context: Context,
        len: usize,
        blocks: usize,
    ) -> Result<Self, NoMemory> {
        Ok(Self { block: try_reserve(platform, context, len)?, larger: try_reserve(platform, context, blocks)? })
    }

    /// How many blocks the next one is to have room for: more than the list has, where that is full.
    pub(crate) fn room_wanted(blocks: &Vec<Vec<T>>) -> usize {
        if blocks.len() < blocks.capacity() { 0 } else { (2 * blocks.len()).max(4) }
    }

    /// Adds it to the list that has asked for it.
    pub(crate) fn add_to(mut self, blocks: &mut Vec<Vec<T>>) {
        move_into(blocks, &mut self.larger);
        push_within(blocks, self.block);
    }
}
