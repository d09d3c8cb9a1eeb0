//! Values that are made where they are to lie. One that is made on the stack and moved takes several times its size there, and the
//! stacks of kernels are small.

use core::mem::MaybeUninit;

/// A part of a value that is being made, as room for it.
///
/// # Safety
/// `at` points into room for the whole that lives for `'r`, and nothing else uses that part of it meanwhile.
pub(crate) unsafe fn part<'r, T>(at: *mut T) -> &'r mut MaybeUninit<T> {
    // SAFETY: the caller's promise, passed on; room may be of any bytes.
    unsafe { &mut *at.cast::<MaybeUninit<T>>() }
}

/// A part that was made. It is dropped unless it is [kept](Self::keep).
pub(crate) struct Made<'r, T>(&'r mut MaybeUninit<T>);

impl<'r, T> Made<'r, T> {
    /// What `make` makes in `room`.
    ///
    /// # Errors
    /// Those of `make`, after which nothing is there.
    ///
    /// # Safety
    /// Where `make` returns no error, it has made a value in the room that it was given.
    #[inline(always)]
    pub(crate) unsafe fn by<E>(
        room: &'r mut MaybeUninit<T>,
        make: impl FnOnce(&mut MaybeUninit<T>) -> Result<(), E>,
    ) -> Result<Self, E> {
        make(room)?;
        Ok(Self(room))
    }

    /// What has been made by now.
    pub(crate) fn get(&self) -> &T {
        // SAFETY: `by` has made it.
        unsafe { self.0.assume_init_ref() }
    }

    /// The same, to be changed.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: `by` has made it.
        unsafe { self.0.assume_init_mut() }
    }

    /// The whole is made.
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
            // SAFETY: it writes a value.
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
