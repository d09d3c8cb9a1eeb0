//! The table of a domain: 3 or 4 levels, leaves of 4 KiB, 2 MiB and 1 GiB.
//!
//! It has no locks. A directory entry is installed by compare-exchange, and the loser of a race uses the winner's
//! page. Leaves are written without synchronisation, because the IOVA allocator gives every page to one mapping at a
//! time, and only one caller claims the unmap of a mapping. For mappings that share pages, see `shared`. The
//! [`TableRule`] says what happens to table pages.

use super::cursor::{Cursor, each_table};
use super::freed::{FreedTables, release_page};
use super::walker::Walker;
use crate::address::{Iova, IovaRange, PAGE_SHIFT, PhysAddr, Segment};
use crate::entry::{ENTRIES, Entry, EntryValue, LEVEL_BITS, Rights};
use crate::error::{MapError, NoMemory};
use crate::iommu::Capabilities;
use crate::platform::{Context, Platform, Step};
use crate::proof::Proof;
use crate::sync::{AtomicUsize, Ordering};

/// When table pages leave the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TableRule {
    /// When one unmap covers everything that they translate, as Linux does it. No other mapping can then be walking
    /// them (S4). They go to the caller, who frees them after an all-levels invalidation.
    FreedWhenCovered,
    /// When the design says: it writes and clears entries itself ([`Locking::write`](crate::mapper::Locking::write)),
    /// and may take any page out that translates nothing any more. Only one map or unmap runs at a time. Pages go to
    /// the caller as above, but others may map in their place before the invalidation is over. Those maps then
    /// invalidate as well.
    FreedByDesign,
    /// Not by an unmap. Every CPU may therefore walk the table at any time, even where nothing is mapped, and claims
    /// can be left to the table. A page is freed with the domain, or earlier if the mapper that added it as a leaf
    /// table takes it out. `portcullis` does so in its half of the addresses, and waits for software walks.
    Kept,
    /// Not before the domain is closed. A map overwrites existing leaves, which unmaps have left behind. All leaves
    /// are of 4 KiB, so that nothing smaller is ever written in the place of a larger one.
    Overwritten,
}

/// The second-level table of one domain.
#[derive(Debug)]
pub struct SecondLevelTable {
    pub(super) root: PhysAddr,
    pub(super) levels: u8,
    leaf_2m: bool,
    leaf_1g: bool,
    physical_bits: u8,
    pub(super) rule: TableRule,
    /// Table pages in use, including the root. A statistic, so Relaxed.
    pub(super) pages: AtomicUsize,
    /// Table pages that left the table and that the hardware may still walk, while others may map in their place.
    pub(super) detached: AtomicUsize,
}

impl SecondLevelTable {
    /// Makes an empty table of `levels` (3 or 4) levels.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no page for the root.
    pub fn new<P: Platform>(
        walker: Walker<'_, P>,
        levels: u8,
        capabilities: &Capabilities,
        rule: TableRule,
    ) -> Result<Self, NoMemory> {
        debug_assert!(levels == 3 || levels == 4);
        walker.platform().probe(Step::TablePage);
        Ok(Self {
            root: walker.allocate_frame(Context::MaySleep)?,
            levels,
            leaf_2m: capabilities.leaf_2m && rule != TableRule::Overwritten,
            leaf_1g: capabilities.leaf_1g && rule != TableRule::Overwritten,
            // An entry holds no more bits, whatever the IOMMU reports.
            physical_bits: capabilities.physical_bits.min(52),
            rule,
            pages: AtomicUsize::new(1),
            detached: AtomicUsize::new(0),
        })
    }

    /// The root page of the table.
    pub const fn root(&self) -> PhysAddr {
        self.root
    }

    /// The number of levels.
    pub const fn levels(&self) -> u8 {
        self.levels
    }

    /// The most table pages that a map of `pages` pages adds, wherever its addresses lie.
    pub(crate) const fn tables_max(&self, pages: u64) -> usize {
        let (mut tables, mut level, mut below) = (0, 1, pages);
        while level < self.levels {
            // A run that begins in the last entry of a table needs one more table.
            below = below.saturating_add(ENTRIES as u64 - 2) / ENTRIES as u64 + 1;
            tables += below as usize;
            level += 1;
        }
        tables
    }

    /// When pages leave the table.
    pub(super) const fn rule(&self) -> TableRule {
        self.rule
    }

    /// Table pages in use now.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Writes the translations of `range` to `segments`, which together have as many pages, and makes them visible.
    ///
    /// [`claim_and_unmap`](Self::claim_and_unmap) must unmap `marked` mappings, and [`unmap`](Self::unmap) the
    /// others.
    ///
    /// The caller owns `range`: it is in no other mapping. Everything that can fail is done before the first entry is
    /// written, so a refused map leaves no translation that the device might have used (S6). Table pages that it
    /// added stay, empty.
    ///
    /// # Errors
    /// [`MapError::NoMemory`], [`MapError::Overlap`], [`MapError::PhysicalRange`].
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. The segments have as many pages as `range`. The table
    /// translates all of `range`, which belongs to the caller alone until it is unmapped. The rule is not
    /// [`TableRule::FreedByDesign`].
    #[inline(always)]
    pub unsafe fn map<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        range: IovaRange,
        segments: &[Segment],
        rights: Rights,
        marked: bool,
    ) -> Result<(), MapError> {
        debug_assert!(self.rule != TableRule::FreedByDesign, "its design writes itself");
        for segment in segments {
            self.check_physical(segment)?;
        }
        if range.first_pfn() / ENTRIES as u64 == (range.end_pfn() - 1) / ENTRIES as u64
            && range.pages() < ENTRIES as u64
        {
            return self.map_in_one_table(walker, range, segments, rights, marked);
        }
        self.map_runs(walker, range, segments, rights)?;
        if marked {
            self.mark(walker, range);
        }
        Ok(())
    }

    /// The general case. All runs are prepared before any is written.
    #[inline(never)]
    fn map_runs<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        range: IovaRange,
        segments: &[Segment],
        rights: Rights,
    ) -> Result<(), MapError> {
        let (mut pfn, mut next, mut write) = (range.first_pfn(), 0, false);
        loop {
            if let Some(segment) = segments.get(next) {
                let run = Run { pfn, phys_pfn: segment.phys.pfn(), pages: segment.pages() };
                self.visit_run(walker, run, rights, write)?;
                (pfn, next) = (pfn + segment.pages(), next + 1);
            } else if write {
                debug_assert_eq!(pfn, range.end_pfn());
                return Ok(());
            } else {
                (pfn, next, write) = (range.first_pfn(), 0, true);
            }
        }
    }

    /// Refuses memory beyond the addresses of the IOMMU.
    ///
    /// # Errors
    /// [`MapError::PhysicalRange`].
    #[inline(always)]
    pub fn check_physical(&self, segment: &Segment) -> Result<(), MapError> {
        // `Request::new` has ensured that the sum does not wrap.
        match (segment.phys.as_u64() + (segment.len - 1)) >> self.physical_bits {
            0 => Ok(()),
            _ => Err(MapError::PhysicalRange(segment.phys)),
        }
    }

    /// The common case: fewer pages than a leaf table holds, all in one.
    #[inline(never)]
    fn map_in_one_table<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        range: IovaRange,
        segments: &[Segment],
        rights: Rights,
        marked: bool,
    ) -> Result<(), MapError> {
        let run = Run { pfn: range.first_pfn(), phys_pfn: segments[0].phys.pfn(), pages: range.pages() };
        let at = self.descend(walker, &run)?;
        debug_assert_eq!(at.level, 1, "a run this short fills no large leaf");
        let entries = &at.entries()[..range.pages() as usize];
        if let Some(taken) = self.taken(entries) {
            return Err(MapError::Overlap(Iova::from_pfn(range.first_pfn() + taken as u64)));
        }
        walker.platform().probe(Step::TableWrite { entries: entries.len() });
        store_leaves(entries, segments, rights, marked);
        walker.show(entries);
        Ok(())
    }

    /// Visits one physically contiguous run, first to prepare (tables present, entries absent), then to write.
    #[inline(always)]
    fn visit_run<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        mut run: Run,
        rights: Rights,
        write: bool,
    ) -> Result<(), MapError> {
        while run.pages > 0 {
            let at = self.descend(walker, &run)?;
            // Visit neighbours one by one if a large leaf may fit only some of them.
            let entries = at.leaves();
            let entries = &entries[..entries.len().min(run.pages as usize)];
            if write {
                walker.platform().probe(Step::TableWrite { entries: entries.len() });
                for (entry, phys_pfn) in entries.iter().zip(run.phys_pfn..) {
                    entry.store(EntryValue::leaf(PhysAddr::from_pfn(phys_pfn), rights, at.level > 1));
                }
                walker.show(entries);
            } else if let Some(taken) = self.taken(entries) {
                return Err(MapError::Overlap(Iova::from_pfn(run.pfn + taken as u64)));
            }
            run.advance(entries.len() as u64 * at.span());
        }
        Ok(())
    }

    /// A cursor at the root, on the way to page `pfn`. Reports the walk.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. The table outlives the cursor.
    #[inline(always)]
    pub unsafe fn cursor<'p, P: Platform>(&self, walker: Walker<'p, P>, pfn: u64) -> Cursor<'p> {
        walker.platform().probe(Step::TableWalk { levels: self.levels });
        Cursor::at_root(walker, self.root, self.levels, pfn)
    }

    /// The leaf that translates page `pfn`, as [`Cursor::find`] finds it. `None` if the table translates no such page.
    #[inline(always)]
    pub(super) fn find<'p, P: Platform>(&self, walker: Walker<'p, P>, pfn: u64) -> Option<Cursor<'p>> {
        // SAFETY: the promise of each caller.
        let at = unsafe { self.cursor(walker, pfn) };
        if self.translates(pfn) { at.find(walker) } else { None }
    }

    const fn translates(&self, pfn: u64) -> bool {
        pfn >> (LEVEL_BITS * self.levels as u32) == 0
    }

    /// The place of the next leaf of `run`: the largest leaf that the hardware, the alignment and the length allow, and
    /// whose entry does not already point to a table. Missing tables on the way are added.
    #[inline(always)]
    pub(super) fn descend<'p, P: Platform>(&self, walker: Walker<'p, P>, run: &Run) -> Result<Cursor<'p>, MapError> {
        // SAFETY: the promise of each caller.
        let mut at = unsafe { self.cursor(walker, run.pfn) };
        while at.level > 1 {
            let value = at.entry().load();
            if !value.is_present() && self.may_be_leaf(at.level) && run.fills(at.span()) {
                break;
            }
            at = self.make(walker, at, value)?;
        }
        Ok(at)
    }

    /// The leaf table that translates page `pfn`. Missing tables on the way are added.
    #[inline(always)]
    pub(super) fn make_leaf_table<'p, P: Platform>(
        &self,
        walker: Walker<'p, P>,
        pfn: u64,
    ) -> Result<Cursor<'p>, MapError> {
        // A run of one page fills no large leaf.
        self.descend(walker, &Run { pfn, phys_pfn: 0, pages: 1 })
    }

    /// Goes on from `at`, whose entry holds `value`, to the table below. If it is missing, it is added. The pointer to
    /// it is visible afterwards: another CPU, or the code that this interrupt broke into, may have installed it without
    /// flushing it yet, and leaves behind it must be reachable when this map returns.
    #[inline(always)]
    fn make<'p, P: Platform>(
        &self,
        walker: Walker<'p, P>,
        at: Cursor<'p>,
        value: EntryValue,
    ) -> Result<Cursor<'p>, MapError> {
        let value = if value.is_present() { value } else { self.add_table(walker, at.entry())? };
        if value.is_large() {
            return Err(MapError::Overlap(Iova::from_pfn(at.pfn)));
        }
        if !walker.is_coherent() && !value.is_flushed() {
            walker.show(core::slice::from_ref(at.entry()));
        }
        // SAFETY: read from the entry, or installed there. The page stays while its mapping is made.
        Ok(unsafe { at.below(walker, value) })
    }

    /// The first of `entries` that must not be written, if any.
    pub(super) fn taken(&self, entries: &[Entry]) -> Option<usize> {
        if self.rule == TableRule::Overwritten {
            return None;
        }
        entries.iter().position(|entry| entry.load().is_present())
    }

    /// Whether the hardware has leaves of `level`, above the leaf tables, and the rule allows them.
    pub fn may_be_leaf(&self, level: u8) -> bool {
        match level {
            2 => self.leaf_2m,
            3 => self.leaf_1g,
            _ => false,
        }
    }

    /// Makes `entry` point to a table page: a new one, unless another CPU was faster.
    fn add_table<P: Platform>(&self, walker: Walker<'_, P>, entry: &Entry) -> Result<EntryValue, NoMemory> {
        walker.platform().probe(Step::TablePage);
        let new = walker.allocate_frame(Context::Atomic)?;
        walker.platform().probe(Step::TableWrite { entries: 1 });
        match entry.install(EntryValue::table(new)) {
            Ok(()) => {
                walker.show(core::slice::from_ref(entry));
                if !walker.is_coherent() {
                    entry.set_flushed();
                }
                self.pages.fetch_add(1, Ordering::Relaxed);
                Ok(entry.load())
            }
            Err(winner) => {
                // SAFETY: allocated above and never published.
                unsafe { release_page(walker.platform(), new, &Proof::never_visible()) };
                Ok(winner)
            }
        }
    }

    /// Clears the translations of `range`, a whole mapping that the caller has claimed, and makes that visible.
    ///
    /// Table pages that translated nothing else go to `freed`. Returns whether there were any: the invalidation must
    /// then cover all levels.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. `range` is exactly that of a mapping that no other CPU
    /// unmaps. The rule is not [`TableRule::FreedByDesign`].
    #[inline]
    pub unsafe fn unmap<P: Platform>(&self, walker: Walker<'_, P>, range: IovaRange, freed: &mut FreedTables) -> bool {
        debug_assert!(self.rule != TableRule::FreedByDesign, "its design clears itself");
        let before = freed.pages();
        let mut pfn = range.first_pfn();
        while pfn < range.end_pfn() {
            let table;
            (pfn, table) = self.clear_next(walker, pfn, range.end_pfn());
            if let Some((root, level)) = table {
                collect(walker, root, level, freed);
            }
        }
        self.note_gone(freed.pages() - before)
    }

    /// Does what [`unmap`](Self::unmap) does, in a table that keeps its pages.
    ///
    /// # Safety
    /// That of [`unmap`](Self::unmap). The rule is [`TableRule::Kept`] or [`TableRule::Overwritten`].
    pub(crate) unsafe fn unmap_kept<P: Platform>(&self, walker: Walker<'_, P>, range: IovaRange) {
        let mut pfn = range.first_pfn();
        while pfn < range.end_pfn() {
            let gone;
            (pfn, gone) = self.clear_next(walker, pfn, range.end_pfn());
            debug_assert!(gone.is_none(), "pages are kept");
        }
    }

    /// Counts a page that a design has added ([`TableRule::FreedByDesign`]).
    pub fn note_added(&self) {
        self.pages.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts pages that a design has taken out ([`TableRule::FreedByDesign`]), before others map in their place.
    /// Returns whether there are any.
    pub fn note_detached(&self, gone: usize) -> bool {
        // Relaxed: a later map takes the lock after this. See `is_unsettled`.
        self.detached.fetch_add(gone, Ordering::Relaxed);
        self.note_gone(gone)
    }

    /// Whether hardware may still walk table pages that are no longer in the table, in whose place other CPUs may
    /// meanwhile map.
    ///
    /// A map asks this after it has written its entries. If true, it has to invalidate its range at all levels. If
    /// false, it need not: a page that was where it has mapped was counted before the map took the lock, and the
    /// hardware has lost it since.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        // Acquire: pairs with `note_lost`, which comes after the invalidation.
        self.detached.load(Ordering::Acquire) > 0
    }

    /// Records that the hardware has lost `tables`.
    pub(crate) fn note_lost(&self, tables: &FreedTables, _proof: &Proof) {
        if self.rule == TableRule::FreedByDesign {
            // Release: see `is_unsettled`.
            self.detached.fetch_sub(tables.pages(), Ordering::Release);
        }
    }

    /// Subtracts pages that have left the table. Returns whether there are any.
    fn note_gone(&self, gone: usize) -> bool {
        self.pages.fetch_sub(gone, Ordering::Relaxed);
        gone > 0
    }

    pub(super) fn clear<P: Platform>(&self, walker: Walker<'_, P>, entries: &[Entry]) {
        walker.platform().probe(Step::TableClear { entries: entries.len() });
        for entry in entries {
            entry.store(EntryValue::ABSENT);
        }
        walker.show(entries);
    }

    /// Clears from `pfn` on, within one table. Returns the first page not yet cleared and, if tables are freed when
    /// covered, the table page that was taken out, with its level.
    #[inline(always)]
    pub(super) fn clear_next<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        pfn: u64,
        end_pfn: u64,
    ) -> (u64, Option<(PhysAddr, u8)>) {
        // SAFETY: the promise of each caller.
        let mut at = unsafe { self.cursor(walker, pfn) };
        loop {
            if at.level == 1 {
                let entries = at.entries();
                let entries = &entries[..entries.len().min((end_pfn - pfn) as usize)];
                self.clear(walker, entries);
                return (pfn + entries.len() as u64, None);
            }
            let covered =
                self.rule == TableRule::FreedWhenCovered && pfn.is_multiple_of(at.span()) && end_pfn - pfn >= at.span();
            let next = (pfn & !(at.span() - 1)) + at.span();
            let value = at.entry().load();
            if !value.is_present() {
                // A claimed mapping has no hole, so nothing below this entry has to be cleared.
                return (next, None);
            }
            if value.is_large() || covered {
                self.clear(walker, core::slice::from_ref(at.entry()));
                return (next, (!value.is_large()).then_some((value.phys(), at.level - 1)));
            }
            // SAFETY: just read. The caller owns a mapping below.
            at = unsafe { at.below(walker, value) };
        }
    }

    /// The address that `iova` translates to, and the rights, according to the table in memory now.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. Meanwhile no unmap may free a table page around `iova`.
    pub unsafe fn lookup<P: Platform>(&self, walker: Walker<'_, P>, iova: Iova) -> Option<(PhysAddr, Rights)> {
        if !self.translates(iova.pfn()) {
            return None;
        }
        let at = Cursor::at_root(walker, self.root, self.levels, iova.pfn()).find(walker)?;
        let value = at.entry().load();
        let inside = iova.as_u64() & ((at.span() << PAGE_SHIFT) - 1);
        at.is_leaf(value).then(|| (PhysAddr::new(value.phys().as_u64() + inside), value.rights()))
    }

    /// Detaches every page of the table, including the root, and puts it on a list.
    ///
    /// # Safety
    /// No CPU uses the table from now on.
    pub(crate) unsafe fn dismantle<P: Platform>(&self, walker: Walker<'_, P>) -> FreedTables {
        let mut freed = FreedTables::new();
        collect(walker, self.root, self.levels, &mut freed);
        freed
    }
}

/// Writes the leaves of a mapping in one leaf table. It is a separate function, so that its loop has all registers.
#[inline(never)]
fn store_leaves(entries: &[Entry], segments: &[Segment], rights: Rights, marked: bool) {
    let mut rest = entries;
    for segment in segments.iter().rev() {
        let (before, own) = rest.split_at(rest.len() - segment.pages() as usize);
        for (entry, pfn) in own.iter().zip(segment.phys.pfn()..) {
            entry.store(EntryValue::leaf(PhysAddr::from_pfn(pfn), rights, false));
        }
        rest = before;
    }
    if let [first, .., last] = entries
        && marked
    {
        last.store(last.load().marked(false, true));
        // The first entry is stored last: a CPU that sees its mark sees the whole mapping.
        first.store(first.load().marked(true, false));
    } else if let [only] = entries
        && marked
    {
        only.store(only.load().marked(true, true));
    }
}

/// Puts the table page `root` of `level`, and all pages below it, on the list.
#[inline(never)]
fn collect<P: Platform>(walker: Walker<'_, P>, root: PhysAddr, level: u8, freed: &mut FreedTables) {
    each_table(walker, root, level, |page, _| {
        // SAFETY: the entry that pointed here is cleared, and no other mapping lay below, so no CPU walks it.
        unsafe { freed.push(walker, page) };
    });
}

/// The rest of a physically contiguous run.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) pfn: u64,
    pub(super) phys_pfn: u64,
    pub(super) pages: u64,
}

impl Run {
    /// Whether a leaf of `span` pages fits here.
    pub(super) const fn fills(&self, span: u64) -> bool {
        self.pages >= span && (self.pfn | self.phys_pfn) & (span - 1) == 0
    }

    const fn advance(&mut self, pages: u64) {
        self.pfn += pages;
        self.phys_pfn += pages;
        self.pages -= pages;
    }
}
