//! A lock that answers with an error where it is not to be taken: after a panic, and while its owner has closed it.

// Not modelled by loom: no model goes on after a panic.
use core::sync::atomic::{AtomicU8, Ordering};
use portcullis::QueueError;
use portcullis::platform::Lock;

const OPEN: u8 = 0;
/// The owner has closed it.
const CLOSED: u8 = 1;
/// A panic has come out of it: what is protected may be half changed.
const BROKEN: u8 = 2;

/// A lock of the platform with a note of whether it may be taken. After a panic the lock itself would answer with another, in a drop
/// perhaps. Only a CPU that waits for the lock meanwhile has passed the note.
pub(crate) struct Unbroken<L> {
    lock: L,
    /// Relaxed: a CPU that reads it too early is turned away by the lock, or is as one that came before the lock was closed.
    state: AtomicU8,
}

impl<L> Unbroken<L> {
    pub(crate) fn new(lock: L) -> Self {
        Self { lock, state: AtomicU8::new(OPEN) }
    }

    /// One that is not taken until it is [opened](Self::open).
    pub(crate) fn closed(lock: L) -> Self {
        Self { lock, state: AtomicU8::new(CLOSED) }
    }

    /// Refuses the lock from now on. This takes no lock, so any CPU may hold this one meanwhile.
    pub(crate) fn close(&self) {
        let _ = self.state.compare_exchange(OPEN, CLOSED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// From now on it is taken again.
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
    /// [`QueueError::Panicked`] where an earlier one has panicked: what is protected may be half changed. [`QueueError::Halted`] where it
    /// is closed.
    #[inline]
    pub(crate) fn with<T, R>(&self, critical: impl FnOnce(&mut T) -> R) -> Result<R, QueueError>
    where
        L: Lock<T>,
    {
        if self.state.load(Ordering::Relaxed) == OPEN { Ok(self.hold(critical)) } else { Err(self.why()) }
    }

    /// Why it is not to be taken.
    #[cold]
    fn why(&self) -> QueueError {
        if self.state.load(Ordering::Relaxed) == BROKEN { QueueError::Panicked } else { QueueError::Halted }
    }

    #[inline]
    fn hold<T, R>(&self, critical: impl FnOnce(&mut T) -> R) -> R
    where
        L: Lock<T>,
    {
        /// Notes the panic.
        struct Unwinding<'l>(&'l AtomicU8);
        impl Drop for Unwinding<'_> {
            fn drop(&mut self) {
                self.0.store(BROKEN, Ordering::Relaxed);
            }
        }
        // Outside for a lock that panics itself, and inside for a CPU that comes while the lock is being let go.
        let outside = Unwinding(&self.state);
        let result = self.lock.with(|value| {
            let inside = Unwinding(&self.state);
            let result = critical(value);
            core::mem::forget(inside);
            result
        });
        core::mem::forget(outside);
        result
    }
}
