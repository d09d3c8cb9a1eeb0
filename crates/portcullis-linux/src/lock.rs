//! The kernel's raw spin lock, taken with interrupts off.

use crate::kernel::{HELD, pcs_lock, pcs_lock_init, pcs_try_lock, pcs_unlock};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use portcullis::platform::{Lock, LockClass};

/// Words of a `raw_spinlock_t`; the C half checks that it is no larger.
const LOCK_WORDS: usize = if cfg!(feature = "large-locks") { 16 } else { 1 };
/// The C half has a name for each class, by its number.
const _: () = assert!(LockClass::TableReserve as u32 == 9);

/// The bytes that there are for a `raw_spinlock_t`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcr_lock_bytes() -> usize {
    LOCK_WORDS * size_of::<u64>()
}

pub(crate) struct SpinLock<T> {
    raw: UnsafeCell<[u64; LOCK_WORDS]>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only with the lock held, by one CPU at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked lock. It may be moved until it is first taken, because nothing in it refers to itself.
    pub(crate) fn new(class: LockClass, value: T) -> Self {
        let mut raw = UnsafeCell::new([0; LOCK_WORDS]);
        // SAFETY: there is room for a lock.
        unsafe { pcs_lock_init((&raw mut *raw.get_mut()).cast(), class as u32) };
        Self { raw, value: UnsafeCell::new(value) }
    }

    fn raw(&self) -> *mut c_void {
        self.raw.get().cast()
    }

    /// Runs `critical`, and gives the lock up. A panic ends in `BUG()`, so it is always given up.
    ///
    /// # Safety
    /// The caller has taken the lock, with these flags.
    #[inline(always)]
    unsafe fn hold<R>(&self, flags: usize, critical: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock is held.
        let result = critical(unsafe { &mut *self.value.get() });
        // SAFETY: the caller's promise.
        unsafe { pcs_unlock(self.raw(), flags) };
        result
    }
}

impl<T: Send> Lock<T> for SpinLock<T> {
    #[inline(always)]
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: `new` made the lock.
        let flags = unsafe { pcs_lock(self.raw()) };
        // SAFETY: the lock was taken.
        unsafe { self.hold(flags, critical) }
    }

    #[inline(always)]
    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: `new` made the lock.
        match unsafe { pcs_try_lock(self.raw()) } {
            HELD => None,
            // SAFETY: the lock was taken.
            flags => Some(unsafe { self.hold(flags, critical) }),
        }
    }
}
