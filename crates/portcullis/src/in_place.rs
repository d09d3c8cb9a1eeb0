//! Making values in place. A value that is made on the stack and then moved takes several times its size there, and
//! kernel stacks are small.

use crate::error::NewDomainError;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::ptr;

/// Makes a value in place, field by field and in the order written: `field: value` writes a value, and `field <- make`
/// calls a function that makes the field in its memory. Later fields may read earlier ones. If a field cannot be made,
/// `?` returns its error, and the fields before it are dropped. A field that is not named breaks the build.
///
/// ```text
/// in_place!(to => Self { part <- |to| Part::new_in(to, setup), copy: part.len() })
/// ```
#[macro_export]
macro_rules! in_place {
    ($to:expr => $name:path { $($field:ident $way:tt $make:expr),+ $(,)? }) => {{
        let to: &mut core::mem::MaybeUninit<_> = $to;
        $crate::in_place::names_every_field(to, |$name { $($field: _),+ }| {});
        let at = to.as_mut_ptr();
        $(
            // SAFETY: a field of the value in `to`, which nothing else uses. A field that is named twice does not
            // compile.
            let room = unsafe { $crate::in_place::part(&raw mut (*at).$field) };
            let $field = $crate::in_place::in_place!(@ room $way $make);
        )+
        $($field.keep();)+
        // SAFETY: all its fields have been made.
        unsafe { to.assume_init_mut() }
    }};
    (@ $room:ident : $value:expr) => { $crate::in_place::Made::of($room, $value) };
    (@ $room:ident <- $make:expr) => { $crate::in_place::Made::by($room, $make)? };
}
pub use crate::in_place;

/// Compiles only if `fields` matches the type of the value that is to be made in the memory.
pub const fn names_every_field<T>(_: &MaybeUninit<T>, _fields: fn(&T)) {}

/// A part of a value that is being made, as uninitialized memory.
///
/// # Safety
/// `at` points into memory for the whole value that lives for `'r`, and nothing else uses that part of it meanwhile.
pub unsafe fn part<'r, T>(at: *mut T) -> &'r mut MaybeUninit<T> {
    // SAFETY: the caller's promise, passed on; `MaybeUninit` may hold any bytes.
    unsafe { &mut *at.cast::<MaybeUninit<T>>() }
}

/// Makes a value by calling `make` with memory for it, and returns it.
///
/// # Errors
/// Those of `make`.
///
/// # Panics
/// If `make` returns another value than the one that it was to make.
pub fn built<T>(make: impl FnOnce(&mut MaybeUninit<T>) -> Result<&mut T, NewDomainError>) -> Result<T, NewDomainError> {
    let mut room = MaybeUninit::uninit();
    Made::by(&mut room, make)?.keep();
    // SAFETY: made just now.
    Ok(unsafe { room.assume_init() })
}

/// A part that has been made. Dropping this drops the part, unless it was [kept](Self::keep).
pub struct Made<'r, T>(&'r mut T);

impl<'r, T> Made<'r, T> {
    /// Makes a part in `room` by calling `make`, in a stack frame of its own.
    ///
    /// # Errors
    /// Those of `make`; `room` is uninitialized then.
    ///
    /// # Panics
    /// If `make` returns another value than the one in `room`.
    #[inline(never)]
    pub fn by(
        room: &'r mut MaybeUninit<T>,
        make: impl FnOnce(&mut MaybeUninit<T>) -> Result<&mut T, NewDomainError>,
    ) -> Result<Self, NewDomainError> {
        let at = room.as_ptr();
        let made = make(room)?;
        assert!(ptr::eq(made, at), "a value is made in the memory that was given for it");
        Ok(Self(made))
    }

    /// Makes a part in `room` from its value.
    pub const fn of(room: &'r mut MaybeUninit<T>, value: T) -> Self {
        Self(room.write(value))
    }

    /// Keeps the part: the whole value has been made.
    pub const fn keep(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl<T> Deref for Made<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T> Drop for Made<'_, T> {
    fn drop(&mut self) {
        // SAFETY: it was made in memory that drops nothing by itself, and it was not kept.
        unsafe { ptr::drop_in_place(self.0) }
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
            let made = Made::by(&mut *room, |room| Ok(room.write(owner.clone()))).expect("made");
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

    /// The error of a later part comes back, and what was made before it is dropped.
    #[test]
    fn a_value_of_which_a_part_cannot_be_made_is_not_made() {
        struct Pair {
            first: Rc<()>,
            second: u64,
        }
        let owner = Rc::new(());
        let pair = |width: u8| {
            built(|to| {
                Ok(in_place!(to => Pair {
                    first: owner.clone(),
                    second <- |to| match width {
                        64.. => Err(NewDomainError::Width(width)),
                        _ => Ok(to.write(1 << width)),
                    },
                }))
            })
        };
        assert_eq!(pair(64).map(|pair| pair.second), Err(NewDomainError::Width(64)));
        assert_eq!(Rc::strong_count(&owner), 1);
        let Pair { first, second } = pair(3).expect("it fits");
        assert_eq!((Rc::strong_count(&first), second), (2, 8));
    }

    #[test]
    #[should_panic(expected = "made in the memory that was given for it")]
    fn a_value_elsewhere_is_not_taken_for_the_one_to_be_made() {
        let _ = built(|_: &mut MaybeUninit<u64>| Ok(std::boxed::Box::leak(std::boxed::Box::new(1))));
    }
}
