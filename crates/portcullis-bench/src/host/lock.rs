//! A spin lock.

use portcullis::platform::Lock;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

/// Pauses of a waiter before it lets another thread have its CPU. In a kernel that is not needed: the holder of a
/// spin lock runs.
const SPINS: u32 = 1 << 12;

/// Pauses between two looks of a waiter: one at first, then twice as many each time, up to so many. Every look takes the line from the
/// holder, who needs it to let go; a waiter who looks less often lets it finish, and start again.
const PAUSES_MAX: u32 = 64;

const FREE: u8 = 0;
const HELD: u8 = 1;
/// A holder has panicked: what is protected may be half changed.
const BROKEN: u8 = 2;

/// A spin lock of a program, whose holder may be kept from running.
pub struct SpinLock<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: `with` lets one thread at a time reach the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { state: AtomicU8::new(FREE), value: UnsafeCell::new(value) }
    }

    /// After the lock was found in this state.
    #[cold]
    fn wait(&self, mut found: u8) {
        let mut pauses = 1;
        loop {
            let mut paused = 0;
            while paused < SPINS {
                if found == BROKEN {
                    // It was taken by looking.
                    self.state.store(BROKEN, Ordering::Relaxed);
                    panic!("a lock is not taken again after a panic of its holder");
                }
                // Read before it is written, so that waiters share the line.
                found = self.state.load(Ordering::Relaxed);
                if found == FREE {
                    found = self.state.swap(HELD, Ordering::Acquire);
                    if found == FREE {
                        return;
                    }
                }
                for _ in 0..pauses {
                    hint::spin_loop();
                }
                paused += pauses;
                pauses = (2 * pauses).min(PAUSES_MAX);
            }
            thread::yield_now();
        }
    }
}

impl<T: Send> Lock<T> for SpinLock<T> {
    #[inline]
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        /// Lets the others find that there was a panic.
        struct Unwinding<'l>(&'l AtomicU8);
        impl Drop for Unwinding<'_> {
            #[cold]
            fn drop(&mut self) {
                self.0.store(BROKEN, Ordering::Release);
            }
        }
        let found = self.state.swap(HELD, Ordering::Acquire);
        if found != FREE {
            self.wait(found);
        }
        let unwinding = Unwinding(&self.state);
        // SAFETY: the lock is held, so this is the only reference.
        let result = critical(unsafe { &mut *self.value.get() });
        mem::forget(unwinding);
        self.state.store(FREE, Ordering::Release);
        result
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").field("state", &self.state).finish_non_exhaustive()
    }
}
