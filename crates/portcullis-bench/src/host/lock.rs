//! A spin lock.

use portcullis::platform::Lock;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

/// Pauses of a waiter before it yields its CPU to another thread. A kernel does not need this, because the holder of a
/// spin lock always runs.
const SPINS: u32 = 1 << 12;

/// The most pauses between two checks of a waiter. It starts with one, and doubles with each check. Every check takes
/// the cache line from the holder, who needs it to release the lock. With fewer checks the holder can finish, and
/// acquire the lock again.
const PAUSES_MAX: u32 = 64;

const FREE: u8 = 0;
const HELD: u8 = 1;
/// A holder has panicked, so the protected value may be inconsistent.
const BROKEN: u8 = 2;

/// A spin lock for a program. Unlike in a kernel, its holder may be preempted.
pub struct SpinLock<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { state: AtomicU8::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits, after the lock was found in state `found`.
    #[cold]
    fn wait(&self, mut found: u8) {
        let mut pauses = 1;
        loop {
            let mut paused = 0;
            while paused < SPINS {
                if found == BROKEN {
                    // The check replaced the state by `HELD`.
                    self.state.store(BROKEN, Ordering::Relaxed);
                    panic!("a lock is not taken again after a panic of its holder");
                }
                // The state is read before it is written, so that waiters share the line.
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
        let found = self.state.swap(HELD, Ordering::Acquire);
        if found != FREE {
            self.wait(found);
        }
        self.hold(critical)
    }

    #[inline]
    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Read before it is written, so that those who try share the line.
        let is_taken = self.state.load(Ordering::Relaxed) == FREE
            && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_taken { Some(self.hold(critical)) } else { self.not_taken() }
    }
}

impl<T> SpinLock<T> {
    /// Why the lock was not taken.
    #[cold]
    fn not_taken<R>(&self) -> Option<R> {
        if self.state.load(Ordering::Relaxed) == BROKEN {
            self.wait(BROKEN);
        }
        None
    }

    /// Runs `critical`. The lock was taken.
    #[inline]
    fn hold<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        /// Tells other threads that the holder panicked.
        struct Unwinding<'l>(&'l AtomicU8);
        impl Drop for Unwinding<'_> {
            #[cold]
            fn drop(&mut self) {
                self.0.store(BROKEN, Ordering::Release);
            }
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
