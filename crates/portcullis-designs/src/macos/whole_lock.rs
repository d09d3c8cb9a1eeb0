//! XNU's lock around allocator and table (ATC'15, Table 1). Safety needs none: it is here because CPUs wait for it.

use portcullis::mapper::Locking;
use portcullis::platform::{Lock, LockClass, Platform};

/// One lock around all of a short map or unmap, allocator and table together (XNU).
pub struct WholeLock<P: Platform> {
    lock: P::Lock<()>,
    pages_max: u64,
}

impl<P: Platform> WholeLock<P> {
    /// Makes the lock, for mappings of at most `pages_max` pages.
    pub fn new(platform: &P, pages_max: u64) -> Self {
        Self { lock: platform.lock(LockClass::Domain, ()), pages_max }
    }
}

// SAFETY: it promises nothing.
unsafe impl<P: Platform> Locking for WholeLock<P> {
    const IS_HELD: bool = true;

    fn whole<R>(&self, pages: u64, run: impl FnOnce() -> R) -> R {
        if pages <= self.pages_max { self.lock.with(|()| run()) } else { run() }
    }
}
