//! A spin lock.

use portcullis::platform::Lock;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Turns that a waiter spins before it lets another thread have its CPU. In a kernel it would never have to: whoever holds a
/// spin lock runs.
const SPINS: u32 = 1 << 12;

/// A spin lock of a program, whose holder may be kept from running.
pub struct SpinLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` lets one thread at a time reach the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// After the lock was found taken.
    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..SPINS {
                // Read before it is written, so that waiters share the line.
                if !self.held.load(Ordering::Relaxed) && !self.held.swap(true, Ordering::Acquire) {
                    return;
                }
                hint::spin_loop();
            }
            thread::yield_now();
        }
    }
}

impl<T: Send> Lock<T> for SpinLock<T> {
    #[inline]
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        /// Lets go, after a panic too.
        struct Held<'l>(&'l AtomicBool);
        impl Drop for Held<'_> {
            #[inline]
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        if self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        let _held = Held(&self.held);
        // SAFETY: the lock is held, so this is the only reference.
        critical(unsafe { &mut *self.value.get() })
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").field("held", &self.held).finish_non_exhaustive()
    }
}
