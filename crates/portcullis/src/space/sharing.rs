//! Pages that mappings share, in the space of a domain.

use super::AddressSpace;
use crate::error::{RawMapError, SyncError, UnmapError};
use crate::iommu::Iommu;
use crate::platform::Platform;
use crate::table::{Share, SharedRun, Unshare};

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// Counts a mapping of pages that mappings share ([`SecondLevelTable::share`](crate::table::SecondLevelTable::share)). Returns whether it could: false where a
    /// page has as many as can be counted. [`sync_map`](Self::sync_map) has to follow where it could. Not to be called with a
    /// lock held.
    ///
    /// # Errors
    /// Those of [`SecondLevelTable::share`](crate::table::SecondLevelTable::share); [`SyncError`] where translations that it had to take back could not be invalidated: the
    /// domain is poisoned.
    ///
    /// # Panics
    /// If the table does not keep its pages.
    ///
    /// # Safety
    /// `run` is below what the table translates; its addresses are in no mapping that is not shared, and all that share one of
    /// them mean the same memory and the same rights.
    pub unsafe fn share(&self, run: &SharedRun) -> Result<bool, RawMapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        match unsafe { self.table.share(self.walker(), run) }? {
            Share::Counted => Ok(true),
            Share::Full => Ok(false),
            Share::Undone(counted) => {
                // For a moment these pages had a mapping more, for somebody who had asked for just that; an unmap that came
                // then found it, and left the invalidation to it. So this is an unmap, and strict whatever the protection.
                let command = self.covering(counted, true);
                let _ = self.invalidate(&[command]).map_err(SyncError)?;
                Ok(false)
            }
        }
    }

    /// Counts a mapping less of pages that mappings share ([`SecondLevelTable::unshare`](crate::table::SecondLevelTable::unshare)). Returns whether any translation
    /// went. Not to be called with a lock held.
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
            Unshare::Kept => Ok(false),
            Unshare::Cleared => Ok(true),
            Unshare::Undone(absent) => {
                // Where this fails the domain is poisoned, and the next map says so; the unmap is refused in any case.
                let _ = self.sync_map(run.range);
                Err(UnmapError::NotMapped(absent))
            }
        }
    }
}
