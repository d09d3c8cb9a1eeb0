//! FreeBSD's lock around its table. Table pages that are counted need it.

use portcullis::IovaRange;
use portcullis::mapper::Locking;
use portcullis::platform::{Lock, LockClass, Platform};

/// One lock around all work on the table (FreeBSD).
pub struct TableLock<P: Platform>(P::Lock<()>);

impl<P: Platform> TableLock<P> {
    /// Makes the lock.
    pub fn new(platform: &P) -> Self {
        Self(platform.lock(LockClass::Table, ()))
    }
}

// SAFETY: every closure runs with the one lock held.
unsafe impl<P: Platform> Locking for TableLock<P> {
    const TABLE_EXCLUSIVE: bool = true;
    const IS_HELD: bool = true;

    fn table<R>(&self, _range: IovaRange, run: impl FnOnce() -> R) -> R {
        self.0.with(|()| run())
    }
}
