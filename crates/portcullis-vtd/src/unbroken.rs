//! A lock that a panic has not broken.

// Not modelled by loom: no model goes on after a panic.
use core::sync::atomic::{AtomicBool, Ordering};
use portcullis::QueueError;
use portcullis::platform::Lock;

/// A lock of the platform with a note of whether a panic has come out of it. The lock itself would answer with another panic, in a
/// drop perhaps; this answers with an error. Only a CPU that waits for the lock meanwhile has passed the note, and panics.
pub(crate) struct Unbroken<L> {
    lock: L,
    /// Relaxed: a CPU that reads it too early is turned away by the lock.
    broken: AtomicBool,
}

impl<L> Unbroken<L> {
    pub(crate) fn new(lock: L) -> Self {
        Self { lock, broken: AtomicBool::new(false) }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Runs `critical` with the lock held.
    ///
    /// # Errors
    /// [`QueueError::Panicked`] where an earlier one has panicked: what is protected may be half changed.
    #[inline]
    pub(crate) fn with<T, R>(&self, critical: impl FnOnce(&mut T) -> R) -> Result<R, QueueError>
    where
        L: Lock<T>,
    {
        /// Notes the panic.
        struct Unwinding<'l>(&'l AtomicBool);
        impl Drop for Unwinding<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        if self.is_broken() {
            return Err(QueueError::Panicked);
        }
        // Outside for a lock that panics itself, and inside for a CPU that comes while the lock is being let go.
        let outside = Unwinding(&self.broken);
        let result = self.lock.with(|value| {
            let inside = Unwinding(&self.broken);
            let result = critical(value);
            core::mem::forget(inside);
            result
        });
        core::mem::forget(outside);
        Ok(result)
    }
}
