//! Making values in place. A value that is made on the stack and then moved takes several times its size there, and
//! kernel stacks are small.

use core::mem::MaybeUninit;

/// A part of a value that is being made, as uninitialized memory.
///
/// # Safety
/// `at` points into memory for the whole value that lives for `'r`, and nothing else uses that part of it meanwhile.
pub(crate) unsafe fn part<'r, T>(at: *mut T) -> &'r mut MaybeUninit<T> {
    // SAFETY: the caller's promise, passed on; `MaybeUninit` may hold any bytes.
    unsafe { &mut *at.cast::<MaybeUninit<T>>() }
}

/// A part that has been made. Dropping this drops the part, unless it was [kept](Self::keep).
pub(crate) struct Made<'r, T>(&'r mut MaybeUninit<T>);

impl<'r, T> Made<'r, T> {
    /// Makes a part in `room` by calling `make`.
    ///
    /// # Errors
    /// Those of `make`; `room` is uninitialized then.
    ///
    /// # Safety
    /// If `make` returns no error, it has initialized the memory that it was given.
    #[inline(always)]
    pub(crate) unsafe fn by<E>(
        room: &'r mut MaybeUninit<T>,
        make: impl FnOnce(&mut MaybeUninit<T>) -> Result<(), E>,
    ) -> Result<Self, E> {
        make(room)?;
        Ok(Self(room))
    }

    /// The part.
    pub(crate) fn get(&self) -> &T {
        // SAFETY: `by` has made it.
        unsafe { self.0.assume_init_ref() }
    }

    /// The part, mutably.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: `by` has made it.
        unsafe { self.0.assume_init_mut() }
    }

    /// Keeps the part: the whole value has been made.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl<T> Drop for Made<'_, T> {
    fn drop(&mut self) {
        // SAFETY: `by` has made it, and it was not kept.
        unsafe { self.0.assume_init_drop() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::Context;
    use crate::platform::fake::FakeHost;
    use crate::platform::memory::try_room;
    use std::rc::Rc;

    #[test]
    fn what_is_not_kept_is_dropped() {
        let owner = Rc::new(());
        let made = |keeps: bool| {
            let mut room = try_room::<Rc<()>, _>(&FakeHost::default(), Context::MaySleep).expect("memory");
            // SAFETY: the closure initializes it.
            let made = unsafe {
                Made::by(&mut *room, |room| {
                    room.write(owner.clone());
                    Ok::<_, ()>(())
                })
            }
            .expect("made");
            if keeps {
                made.keep();
                // SAFETY: made and kept.
                return Some(*unsafe { room.assume_init() });
            }
            None
        };
        let kept = made(true);
        assert_eq!(Rc::strong_count(&owner), 2);
        assert!(made(false).is_none() && kept.is_some());
        assert_eq!(Rc::strong_count(&owner), 2);
    }
}
