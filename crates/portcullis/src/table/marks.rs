//! Claims that the table decides. The leaf of a mapping's first page and that of its last page carry a mark. The CPU
//! that clears the first mark has claimed the mapping for an unmap.

use super::TableRule;
use super::second_level::{SecondLevelTable, frame, index, span};
use super::walker::Walker;
use crate::address::{IovaRange, PhysAddr};
use crate::entry::{ENTRIES, Entry, EntryValue, LEVEL_BITS};
use crate::error::UnmapError;
use crate::platform::{Platform, Step};

impl SecondLevelTable {
    /// Marks a completely written mapping of several tables or of large leaves. The first page is marked last: a CPU
    /// that sees its mark sees the whole mapping.
    pub(super) fn mark<P: Platform>(&self, walker: Walker<'_, P>, range: IovaRange) {
        // The walker ignores marks, so nothing has to be flushed.
        for (pfn, first, last) in [(range.end_pfn() - 1, false, true), (range.first_pfn(), true, false)] {
            let (entries, _) = self.leaves_from(walker, pfn).expect("it has just been written");
            // Until the mapping is marked, only its maker uses it, so a plain store suffices.
            entries[0].store(entries[0].load().marked(first, last));
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
        let (entries, pages) = self.leaves_from(walker, range.first_pfn()).ok_or(not_mapped)?;
        walker.platform().probe(Step::TableClaim);
        let seen = entries[0].load();
        if !(seen.is_present() && seen.is_first() && range.first_pfn().is_multiple_of(pages)) {
            return Err(not_mapped);
        }
        // The end is checked before the claim, so that a claim with a wrong length disturbs no claim with the right
        // one. It is checked again afterwards: in between, another CPU may have unmapped the mapping and made a new
        // one.
        let ends_with_range = || {
            let mapped = self.extent(walker, range.first_pfn(), entries, pages).ok_or(not_mapped)?;
            if mapped == range { Ok(()) } else { Err(UnmapError::Partial { asked: range, mapped }) }
        };
        ends_with_range()?;
        if !entries[0].claim(seen) {
            return Err(not_mapped);
        }
        if let Err(error) = ends_with_range() {
            entries[0].unclaim(seen);
            return Err(error);
        }
        match entries.get(..range.pages() as usize) {
            Some(entries) if pages == 1 => self.clear(walker, entries),
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
    pub(crate) unsafe fn claim_and_keep<P: Platform>(&self, walker: Walker<'_, P>, pfn: u64, leaf: EntryValue) -> bool {
        assert!(self.rule == TableRule::Kept, "a table page that may be freed must not be walked without a claim");
        let Some((entries, 1)) = self.leaves_from(walker, pfn) else { return false };
        walker.platform().probe(Step::TableClaim);
        // The exchange compares memory and rights too. If a wrong unmap has taken the mapping and another has its
        // address, that other mapping is left alone.
        entries[0].claim(leaf.marked(true, true))
    }

    /// The memory behind page `pfn`, if a leaf of 4 KiB translates it and no mapping begins there that an unmap could
    /// claim by its marks.
    ///
    /// # Panics
    /// Unless the table keeps its pages.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with.
    pub(crate) unsafe fn claimed_page<P: Platform>(&self, walker: Walker<'_, P>, pfn: u64) -> Option<PhysAddr> {
        assert!(self.rule == TableRule::Kept, "a table page that may be freed must not be walked without a claim");
        let (entries, 1) = self.leaves_from(walker, pfn)? else { return None };
        let value = entries[0].load();
        (value.is_present() && !value.is_first()).then_some(value.phys())
    }

    /// Calls `visit` with every marked mapping that is not claimed.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. No CPU maps or unmaps meanwhile.
    pub(crate) unsafe fn for_each_marked<P: Platform>(&self, walker: Walker<'_, P>, visit: &mut impl FnMut(IovaRange)) {
        self.visit_marked(walker, frame(walker, self.root), self.levels, 0, visit);
    }

    fn visit_marked<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        table: &[Entry; ENTRIES],
        level: u8,
        table_pfn: u64,
        visit: &mut impl FnMut(IovaRange),
    ) {
        for (number, entry) in table.iter().enumerate() {
            let (pfn, value) = (table_pfn + number as u64 * span(level), entry.load());
            if !value.is_present() {
                continue;
            }
            if level > 1 && !value.is_large() {
                self.visit_marked(walker, frame(walker, value.phys()), level - 1, pfn, visit);
            } else if value.is_first() {
                let rest = if level == 1 { &table[number..] } else { core::slice::from_ref(entry) };
                visit(self.extent(walker, pfn, rest, span(level)).expect("a mapping that begins has an end"));
            }
        }
    }

    /// The mapping that begins at page `first_pfn`. Its leaves are `entries` and those of the tables behind them.
    /// Each of `entries` spans `pages` pages. `None` if the mapping is not whole, because other CPUs are working on
    /// it.
    fn extent<'p, P: Platform>(
        &self,
        walker: Walker<'p, P>,
        first_pfn: u64,
        mut entries: &'p [Entry],
        mut pages: u64,
    ) -> Option<IovaRange> {
        let mut pfn = first_pfn;
        loop {
            for value in entries.iter().map(Entry::load) {
                // Pages beyond an absent entry belong to another mapping.
                if !value.is_present() {
                    return None;
                }
                pfn += pages;
                if value.is_last() {
                    return IovaRange::new(first_pfn, pfn - first_pfn);
                }
            }
            (entries, pages) = self.leaves_from(walker, pfn)?;
        }
    }

    /// The leaf that translates page `pfn`, with those behind it in its table, and the number of pages that each
    /// spans. A large leaf is returned alone, because there may be tables beside it. `None` if no table leads to page
    /// `pfn`. The leaf itself may be absent.
    fn leaves_from<'p, P: Platform>(&self, walker: Walker<'p, P>, pfn: u64) -> Option<(&'p [Entry], u64)> {
        walker.platform().probe(Step::TableWalk { levels: self.levels });
        if pfn >> (LEVEL_BITS * u32::from(self.levels)) != 0 {
            return None;
        }
        let mut table = frame(walker, self.root);
        for level in (2..=self.levels).rev() {
            let entry = &table[index(pfn, level)];
            let value: EntryValue = entry.load();
            if !value.is_present() {
                return None;
            }
            if value.is_large() {
                return Some((core::slice::from_ref(entry), span(level)));
            }
            table = frame(walker, value.phys());
        }
        Some((&table[index(pfn, 1)..], 1))
    }
}
