//! Claims that the table decides. The leaf of a mapping's first page and that of its last page carry a mark. The CPU
//! that clears the first mark has claimed the mapping for an unmap.

use super::TableRule;
use super::cursor::{Cursor, each_table};
use super::second_level::SecondLevelTable;
use super::walker::Walker;
use crate::address::{IovaRange, PhysAddr};
use crate::entry::{Entry, EntryValue};
use crate::error::UnmapError;
use crate::platform::{Platform, Step};

impl SecondLevelTable {
    /// Marks a completely written mapping of several tables or of large leaves. The first page is marked last: a CPU
    /// that sees its mark sees the whole mapping.
    pub(super) fn mark<P: Platform>(&self, walker: Walker<'_, P>, range: IovaRange) {
        // The walker ignores marks, so nothing has to be flushed.
        for (pfn, first, last) in [(range.end_pfn() - 1, false, true), (range.first_pfn(), true, false)] {
            let at = self.find(walker, pfn).expect("it has just been written");
            // Until the mapping is marked, only its maker uses it, so a plain store suffices.
            at.entry().store(at.entry().load().marked(first, last));
        }
    }

    /// Claims the mapping at exactly `range` by its marks, and clears it as [`unmap`](Self::unmap) does. No table
    /// page is freed.
    ///
    /// It finds only mappings that were made with marks.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`] if no marked mapping begins there, [`UnmapError::Partial`] if it does not end with
    /// `range`.
    ///
    /// # Panics
    /// Unless the table keeps its pages.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. Marked mappings are claimed in no other way.
    pub unsafe fn claim_and_unmap<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        range: IovaRange,
    ) -> Result<(), UnmapError> {
        assert!(self.rule == TableRule::Kept, "a table page that may be freed must not be walked without a claim");
        let not_mapped = UnmapError::NotMapped(range.start());
        let at = self.find(walker, range.first_pfn()).ok_or(not_mapped)?;
        let leaves = at.leaves();
        walker.platform().probe(Step::TableClaim);
        let seen = at.entry().load();
        if !(seen.is_present() && seen.is_first() && range.first_pfn().is_multiple_of(at.span())) {
            return Err(not_mapped);
        }
        // The end is checked before the claim, so that a claim with a wrong length disturbs no claim with the right
        // one. It is checked again afterwards: in between, another CPU may have unmapped the mapping and made a new
        // one.
        self.check_extent(walker, at, leaves, range)?;
        if !at.entry().claim(seen) {
            return Err(not_mapped);
        }
        if let Err(error) = self.check_extent(walker, at, leaves, range) {
            at.entry().unclaim(seen);
            return Err(error);
        }
        match leaves.get(..range.pages() as usize) {
            Some(entries) if at.level == 1 => self.clear(walker, entries),
            // SAFETY: just claimed.
            _ => unsafe { self.unmap_kept(walker, range) },
        }
        Ok(())
    }

    /// Claims the mapping of the one page `pfn` by its marks, if its leaf is `leaf`, and leaves the translation as it
    /// is. From now on no unmap finds the mapping, and the caller alone may clear it. Returns whether it was claimed.
    ///
    /// # Panics
    /// Unless the table keeps its pages.
    ///
    /// # Safety
    /// That of [`claim_and_unmap`](Self::claim_and_unmap).
    pub unsafe fn claim_and_keep<P: Platform>(&self, walker: Walker<'_, P>, pfn: u64, leaf: EntryValue) -> bool {
        assert!(self.rule == TableRule::Kept, "a table page that may be freed must not be walked without a claim");
        let Some(at) = self.find(walker, pfn).filter(|at| at.level == 1) else { return false };
        walker.platform().probe(Step::TableClaim);
        // The exchange compares memory and rights too. If a wrong unmap has taken the mapping and another has its
        // address, that other mapping is left alone.
        at.entry().claim(leaf.marked(true, true))
    }

    /// The memory behind page `pfn`, if a leaf of 4 KiB translates it and no mapping begins there that an unmap could
    /// claim by its marks.
    ///
    /// # Panics
    /// Unless the table keeps its pages.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with.
    pub unsafe fn claimed_page<P: Platform>(&self, walker: Walker<'_, P>, pfn: u64) -> Option<PhysAddr> {
        assert!(self.rule == TableRule::Kept, "a table page that may be freed must not be walked without a claim");
        let at = self.find(walker, pfn)?;
        let value = at.entry().load();
        (at.level == 1 && value.is_present() && !value.is_first()).then_some(value.phys())
    }

    /// Calls `visit` with every marked mapping that is not claimed.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. No CPU maps or unmaps meanwhile.
    pub unsafe fn for_each_marked<P: Platform>(&self, walker: Walker<'_, P>, visit: &mut impl FnMut(IovaRange)) {
        each_table(walker, self.root, self.levels, |_, first| {
            for at in first.along() {
                let value = at.entry().load();
                if at.is_leaf(value) && value.is_first() {
                    visit(self.extent(walker, at, at.leaves()).expect("a mapping that begins has an end"));
                }
            }
        });
    }

    /// Checks that the mapping that begins at the leaf `at` is exactly `range`.
    #[inline(always)]
    fn check_extent<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        at: Cursor<'_>,
        leaves: &[Entry],
        range: IovaRange,
    ) -> Result<(), UnmapError> {
        let mapped = self.extent(walker, at, leaves).ok_or(UnmapError::NotMapped(range.start()))?;
        if mapped == range { Ok(()) } else { Err(UnmapError::Partial { asked: range, mapped }) }
    }

    /// The mapping that begins at the leaf `at`. `None` if the mapping is not whole, because other CPUs are working on
    /// it.
    #[inline(always)]
    fn extent<'p, P: Platform>(
        &self,
        walker: Walker<'p, P>,
        mut at: Cursor<'p>,
        mut leaves: &'p [Entry],
    ) -> Option<IovaRange> {
        let first_pfn = at.pfn;
        let mut pfn = first_pfn;
        loop {
            for value in leaves.iter().map(Entry::load) {
                // Pages beyond an absent entry belong to another mapping.
                if !value.is_present() {
                    return None;
                }
                pfn += at.span();
                if value.is_last() {
                    return IovaRange::new(first_pfn, pfn - first_pfn);
                }
            }
            at = self.find(walker, pfn)?;
            leaves = at.leaves();
        }
    }
}
