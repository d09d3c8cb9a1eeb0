//! FreeBSD's work on its table: under one lock, with table pages that are counted.

use super::counted::{map_counted, unmap_counted};
use portcullis::error::MapError;
use portcullis::mapper::Locking;
use portcullis::platform::{Lock, LockClass, Platform};
use portcullis::table::FreedTables;
use portcullis::{Access, AddressSpace, Iommu, IovaRange, Segment};

/// One lock around all work on the table (FreeBSD).
pub struct TableLock<P: Platform> {
    lock: P::Lock<()>,
    /// Whether a map flushes the whole table page whose entries it writes, or only those entries, for walkers that do
    /// not snoop; the same for an unmap and the entries that it clears.
    map_flushes_page: bool,
    unmap_flushes_page: bool,
}

impl<P: Platform> TableLock<P> {
    /// Makes the lock.
    pub fn new(platform: &P, map_flushes_page: bool, unmap_flushes_page: bool) -> Self {
        Self { lock: platform.lock(LockClass::Table, ()), map_flushes_page, unmap_flushes_page }
    }
}

// SAFETY: every closure runs with the one lock held. Table pages leave the table empty, and their invalidation covers
// all levels.
unsafe impl<P: Platform> Locking for TableLock<P> {
    const TAKES_PAGES_OUT: bool = true;
    const IS_HELD: bool = true;

    fn table<R>(&self, _range: IovaRange, run: impl FnOnce() -> R) -> R {
        self.lock.with(|()| run())
    }

    unsafe fn write<H: Platform, I: Iommu>(
        &self,
        space: &AddressSpace<H, I>,
        range: IovaRange,
        (segments, access): (&[Segment], Access),
        marked: bool,
    ) -> Result<(), MapError> {
        assert!(!marked, "claims are not left to a table that frees its pages");
        let flushes_page = self.map_flushes_page;
        // SAFETY: the caller's promise, passed on; it holds the lock.
        unsafe { map_counted(space.table(), space.walker(), range, segments, access.rights(), flushes_page) }
    }

    unsafe fn erase<H: Platform, I: Iommu>(
        &self,
        space: &AddressSpace<H, I>,
        range: IovaRange,
        freed: &mut FreedTables,
    ) -> bool {
        // SAFETY: the caller's promise, passed on; it holds the lock.
        unsafe { unmap_counted(space.table(), space.walker(), range, self.unmap_flushes_page, freed) }
    }
}
