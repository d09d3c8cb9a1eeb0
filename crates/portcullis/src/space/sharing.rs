//! Mappings that share pages, and pages that stay mapped without a mapping, in the address space of a domain.

use super::AddressSpace;
use crate::address::PhysAddr;
use crate::entry::EntryValue;
use crate::error::{RawMapError, SyncError, UnmapError};
use crate::iommu::Iommu;
use crate::platform::Platform;
use crate::table::{Share, SharedRun, Unshare};

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// Adds a mapping to the counts of pages that mappings share
    /// ([`SecondLevelTable::share`](crate::table::SecondLevelTable::share)). Returns false if the count of a page is
    /// full. If it returns true, the caller must then call [`sync_map`](Self::sync_map). Must not be called with a
    /// lock held.
    ///
    /// # Errors
    /// Those of [`SecondLevelTable::share`](crate::table::SecondLevelTable::share); [`SyncError`] if translations that
    /// it had to undo could not be invalidated, which poisons the domain.
    ///
    /// # Panics
    /// If the table does not keep its pages.
    ///
    /// # Safety
    /// `run` lies within what the table translates. No mapping outside the shared ones uses its addresses, and all
    /// mappings that share an address have the same memory and the same rights.
    pub unsafe fn share(&self, run: &SharedRun) -> Result<bool, RawMapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        match unsafe { self.table.share(self.walker(), run) }? {
            Share::Counted => Ok(true),
            Share::Full => Ok(false),
            Share::Undone(counted) => {
                // For a moment these pages had one more mapping, and the same memory and rights were requested for it.
                // An unmap at that moment saw that mapping, and left the invalidation to it. So undoing it is an
                // unmap, which is strict under every protection.
                let command = self.covering(counted, true);
                let _ = self.invalidate(&[command]).map_err(SyncError)?;
                Ok(false)
            }
        }
    }

    /// Subtracts a mapping from the counts of pages that mappings share
    /// ([`SecondLevelTable::unshare`](crate::table::SecondLevelTable::unshare)). Returns whether any translation was
    /// cleared. Must not be called with a lock held.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`]; nothing has changed then.
    ///
    /// # Panics
    /// If the table does not keep its pages.
    ///
    /// # Safety
    /// That of [`share`](Self::share).
    pub unsafe fn unshare(&self, run: &SharedRun) -> Result<bool, UnmapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        match unsafe { self.table.unshare(self.walker(), run) }? {
            Unshare::StillShared => Ok(false),
            Unshare::Cleared => Ok(true),
            Unshare::Undone(absent) => {
                // If this fails, the domain is poisoned and the next map reports it. The unmap is refused in any case.
                let _ = self.sync_map(run.range);
                Err(UnmapError::NotMapped(absent))
            }
        }
    }
    /// Claims the mapping of the one page `pfn`, if its leaf is `leaf`, and leaves its translation
    /// ([`SecondLevelTable::claim_and_keep`](crate::table::SecondLevelTable::claim_and_keep)).
    ///
    /// # Panics
    /// If the table does not keep its pages.
    ///
    /// # Safety
    /// Marked mappings are claimed only by this method and by [`claim_and_unmap`](Self::claim_and_unmap).
    pub unsafe fn claim_and_keep(&self, pfn: u64, leaf: EntryValue) -> bool {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.claim_and_keep(self.walker(), pfn, leaf) }
    }

    /// The memory behind page `pfn`, if no mapping begins there that an unmap could claim
    /// ([`SecondLevelTable::claimed_page`](crate::table::SecondLevelTable::claimed_page)).
    ///
    /// # Panics
    /// If the table does not keep its pages.
    pub fn claimed_page(&self, pfn: u64) -> Option<PhysAddr> {
        // SAFETY: the walker is that of `new`.
        unsafe { self.table.claimed_page(self.walker(), pfn) }
    }
}
