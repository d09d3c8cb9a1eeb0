//! A lock that returns an error when it must not be taken: after a panic, and while its owner has closed it.

use crate::sync::{Ordering, PanicState};
use portcullis::QueueError;
use portcullis::platform::Lock;

const OPEN: u8 = 0;
/// The owner has closed the lock.
const CLOSED: u8 = 1;
/// A critical section has panicked: what the lock protects may be half changed.
const BROKEN: u8 = 2;

/// A lock of the platform with a state that says whether it may be taken. After a panic the lock itself would panic
/// too, possibly in a drop. Only a CPU that was already waiting for the lock gets past the state.
pub(crate) struct ClosableLock<L> {
    lock: L,
    /// Relaxed: a CPU that reads a stale state is turned away by the lock itself, or counts as a CPU that came before
    /// the lock was closed.
    state: PanicState,
}

impl<L> ClosableLock<L> {
    pub(crate) fn new(lock: L) -> Self {
        Self { lock, state: PanicState::new(OPEN) }
    }

    /// A lock that refuses to be taken until it is [opened](Self::open).
    pub(crate) fn closed(lock: L) -> Self {
        Self { lock, state: PanicState::new(CLOSED) }
    }

    /// Refuses the lock from now on. This takes no lock, so another CPU may hold this one.
    pub(crate) fn close(&self) {
        let _ = self.state.compare_exchange(OPEN, CLOSED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Allows the lock to be taken from now on.
    pub(crate) fn open(&self) {
        let _ = self.state.compare_exchange(CLOSED, OPEN, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Runs `critical` with the lock held, even if it is closed.
    ///
    /// # Errors
    /// [`QueueError::Panicked`].
    pub(crate) fn with_closed<T, R>(&self, critical: impl FnOnce(&mut T) -> R) -> Result<R, QueueError>
    where
        L: Lock<T>,
    {
        if self.state.load(Ordering::Relaxed) == BROKEN {
            return Err(QueueError::Panicked);
        }
        Ok(self.hold(critical))
    }

    /// Runs `critical` with the lock held.
    ///
    /// # Errors
    /// [`QueueError::Panicked`] if an earlier critical section has panicked: what the lock protects may be half
    /// changed. [`QueueError::Halted`] if the lock is closed.
    #[inline]
    pub(crate) fn with<T, R>(&self, critical: impl FnOnce(&mut T) -> R) -> Result<R, QueueError>
    where
        L: Lock<T>,
    {
        match self.state.load(Ordering::Relaxed) {
            OPEN => Ok(self.hold(critical)),
            _ => Err(self.why()),
        }
    }

    /// Runs `critical` with the lock held, unless another CPU holds it: then it returns `None`.
    ///
    /// # Errors
    /// Those of [`with`](Self::with).
    #[inline(always)]
    pub(crate) fn try_with<T, R>(&self, critical: impl FnOnce(&mut T) -> R) -> Result<Option<R>, QueueError>
    where
        L: Lock<T>,
    {
        match self.state.load(Ordering::Relaxed) {
            OPEN => Ok(self.guard(|| self.lock.try_with(|value| self.guard(|| critical(value))))),
            _ => Err(self.why()),
        }
    }

    /// Why it is not to be taken.
    #[cold]
    fn why(&self) -> QueueError {
        if self.state.load(Ordering::Relaxed) == BROKEN { QueueError::Panicked } else { QueueError::Halted }
    }

    // The outer guard covers a lock that panics itself; the inner one covers a CPU that comes while the lock is being
    // released.
    #[inline(always)]
    fn hold<T, R>(&self, critical: impl FnOnce(&mut T) -> R) -> R
    where
        L: Lock<T>,
    {
        self.guard(|| self.lock.with(|value| self.guard(|| critical(value))))
    }

    /// Runs `act`, and records a panic in it.
    #[inline(always)]
    fn guard<R>(&self, act: impl FnOnce() -> R) -> R {
        struct Unwinding<'l>(&'l PanicState);
        impl Drop for Unwinding<'_> {
            fn drop(&mut self) {
                self.0.store(BROKEN, Ordering::Relaxed);
            }
        }
        let unwinding = Unwinding(&self.state);
        let result = act();
        core::mem::forget(unwinding);
        result
    }
}
