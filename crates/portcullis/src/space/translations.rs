//! Translations of the domain, written and cleared, and what the hardware has to be told of a map.

use super::AddressSpace;
use crate::address::{IovaRange, PhysAddr, Segment};
use crate::error::{MapError, NoMemory, RawMapError, SyncError, UnmapError};
use crate::iommu::Iommu;
use crate::platform::{Phase, Platform, Step};
use crate::request::Access;
use crate::table::{Frame, FreedTables, Share, SharedRun, Unshare};

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// The leaf table that translates page `pfn`, added now if it is not there.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Safety
    /// Nothing larger than 4 KiB is mapped around `pfn`, which is below what the table translates.
    pub(crate) unsafe fn add_leaf_table(&self, pfn: u64) -> Result<&Frame, NoMemory> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.add_leaf_table(self.walker(), pfn) }
    }

    /// Takes out the leaf table that translates page `pfn`, and returns it.
    ///
    /// # Safety
    /// [`add_leaf_table`](Self::add_leaf_table) has added it, and nothing is mapped in it; nobody takes it out at the same time;
    /// the page is freed after an all-levels invalidation, and after the walks of software that may be at it.
    pub(crate) unsafe fn remove_leaf_table(&self, pfn: u64) -> PhysAddr {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.remove_leaf_table(self.walker(), pfn) }
    }

    /// Writes translations, with or without marks ([`SecondLevelTable::map`]). [`sync_map`](Self::sync_map) has to follow.
    ///
    /// # Errors
    /// Those of [`SecondLevelTable::map`].
    ///
    /// # Safety
    /// The segments have as many pages as `range`; `range` is below what the table translates, and the caller's alone until
    /// it is unmapped; where empty table pages are freed, no other map or unmap runs meanwhile.
    pub unsafe fn map(
        &self,
        range: IovaRange,
        segments: &[Segment],
        access: Access,
        marked: bool,
    ) -> Result<(), MapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.map(self.walker(), range, segments, access.rights(), marked) }
    }

    /// The same over a table that frees no empty pages.
    ///
    /// # Errors
    /// Those of [`map`](Self::map).
    ///
    /// # Safety
    /// That of [`map`](Self::map).
    #[inline(always)]
    pub(crate) unsafe fn map_uncounted(
        &self,
        range: IovaRange,
        segments: &[Segment],
        access: Access,
        marked: bool,
    ) -> Result<(), MapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.map_uncounted(self.walker(), range, segments, access.rights(), marked) }
    }

    /// Ends a map: invalidates `range` where the IOMMU caches absent entries, or may still walk table pages that were there
    /// before. Not to be called with a lock held.
    ///
    /// # Errors
    /// [`SyncError`] where that failed: the domain is poisoned, and neither range nor memory must be used again.
    #[inline(always)]
    pub fn sync_map(&self, range: IovaRange) -> Result<(), SyncError> {
        if self.capabilities.caches_absent || self.table.is_unsettled() {
            self.invalidate_mapped(range)?;
        }
        Ok(())
    }

    #[cold]
    fn invalidate_mapped(&self, range: IovaRange) -> Result<(), SyncError> {
        self.platform.probe(Step::Enter(Phase::Invalidate));
        // All levels: the hardware may hold an entry of a directory that was absent, or that led to a table page which is gone.
        let command = self.covering(range, false);
        Ok(self.invalidate(&[command]).map(drop)?)
    }

    /// Clears the translations of a claimed mapping. Returns whether table pages went to `freed`.
    ///
    /// # Safety
    /// `range` is exactly that of a mapping which no other CPU unmaps; where empty table pages are freed, no other map or unmap
    /// runs meanwhile.
    pub unsafe fn unmap(&self, range: IovaRange, freed: &mut FreedTables) -> bool {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.unmap(self.walker(), range, freed) }
    }

    /// The same over a table that frees no empty pages.
    ///
    /// # Safety
    /// That of [`unmap`](Self::unmap).
    pub(crate) unsafe fn unmap_uncounted(&self, range: IovaRange, freed: &mut FreedTables) -> bool {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.unmap_uncounted(self.walker(), range, freed) }
    }

    /// The same over a table that keeps its pages.
    ///
    /// # Safety
    /// That of [`unmap`](Self::unmap).
    pub(crate) unsafe fn unmap_kept(&self, range: IovaRange) {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.unmap_kept(self.walker(), range) }
    }

    /// Claims the mapping at exactly `range` by its marks in the table, and clears its translations.
    ///
    /// # Errors
    /// Those of [`SecondLevelTable::claim_and_unmap`].
    ///
    /// # Panics
    /// If the table does not keep its pages.
    ///
    /// # Safety
    /// Mappings with marks are claimed in no other way.
    pub unsafe fn claim_and_unmap(&self, range: IovaRange) -> Result<(), UnmapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.claim_and_unmap(self.walker(), range) }
    }

    /// Counts a mapping of pages that mappings share ([`SecondLevelTable::share`]). Returns whether it could: false where a
    /// page has as many as can be counted. [`sync_map`](Self::sync_map) has to follow where it could. Not to be called with a
    /// lock held.
    ///
    /// # Errors
    /// Those of [`SecondLevelTable::share`]; [`SyncError`] where translations that it had to take back could not be invalidated: the
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

    /// Counts a mapping less of pages that mappings share ([`SecondLevelTable::unshare`]). Returns whether any translation
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
