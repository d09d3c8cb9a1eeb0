//! Table pages that are freed when they are empty, as FreeBSD does it (ATC'15, §3.4; EiovaR, FAST'15, §7).
//!
//! The entry that points to a table page counts the present entries of that page (see `entry.rs`). The root stays, so
//! its entries need no count. Walkers ignore the count, so changing it needs no flush. A map or unmap has the table
//! to itself: the lock is the caller's ([`TableLock`](super::TableLock)).
//!
//! An unmap that clears the last entry of a table page takes the page out of the table, and continues upwards in the
//! same way. The page is freed after an all-levels invalidation of the unmapped range, which lies below it (S4).
//! Until that is complete, hardware may still walk the page. It finds nothing there, even for addresses that were
//! mapped in the meantime. This can happen because the page is removed when one mapping goes, while the other
//! addresses below it have long been free and may be handed out at once. A map that finds such pages outstanding
//! therefore invalidates its own range before it returns ([`note_detached`](SecondLevelTable::note_detached)).
//!
//! A map is made as a whole or not at all: the table pages that it needs are counted and allocated before the first
//! entry is written. Table pages of a refused map were never in the table, so they are given back at once, and no
//! page in the table is ever empty.

use core::ops::Range;
use portcullis::error::{MapError, NoMemory};
use portcullis::platform::{Context, Platform, Step};
use portcullis::proof::Proof;
use portcullis::table::{
    Cursor, ENTRIES, Entry, EntryValue, Frame, FreedTables, LEVELS_MAX, Rights, SecondLevelTable, Walker, index,
    release_page, span,
};
use portcullis::{Iova, IovaRange, PhysAddr, Segment};

/// The tables on the path to a page, from the root down to the lowest one present.
#[derive(Clone, Copy)]
struct Path<'p> {
    /// The place in the lowest table, on the way to the page or to another page of the same leaf table.
    at: Cursor<'p>,
    /// By level. The root stands in for missing tables.
    tables: [&'p Frame; LEVELS_MAX + 1],
    /// The level of the root.
    levels: u8,
}

impl<'p> Path<'p> {
    fn leads_to(&self, pfn: u64) -> bool {
        pfn / ENTRIES as u64 == self.at.pfn / ENTRIES as u64
    }

    fn table(&self, level: u8) -> &'p Frame {
        self.tables[usize::from(level)]
    }

    /// The entry on the path in the table of `level`, above the leaf tables.
    fn entry(&self, level: u8) -> &'p Entry {
        &self.table(level)[index(self.at.pfn, level)]
    }

    /// The entry that points to the table of `level`, unless that is the root.
    fn pointer(&self, level: u8) -> Option<&'p Entry> {
        (level < self.levels).then(|| self.entry(level + 1))
    }

    /// Moves on to the table that the lowest entry points to; `value` was read from it.
    fn descend<P: Platform>(&mut self, walker: Walker<'p, P>, value: EntryValue) {
        // SAFETY: the caller has read or written it there, and no other map or unmap runs.
        self.at = unsafe { self.at.below(walker, value) };
        self.tables[usize::from(self.at.level)] = self.at.table;
    }

    /// Records that the table of `level` has `entries` more present entries.
    fn add(&self, level: u8, entries: usize) {
        if let Some(pointer) = self.pointer(level) {
            let value = pointer.load();
            pointer.store(value.with_count(value.count() + entries));
        }
    }
}

/// The rest of a physically contiguous run.
struct Run {
    pfn: u64,
    phys_pfn: u64,
    pages: u64,
}

impl Run {
    /// Whether a leaf of `span` pages fits here.
    const fn fills(&self, span: u64) -> bool {
        self.pages >= span && (self.pfn | self.phys_pfn) & (span - 1) == 0
    }
}

/// The physical pages of some segments, one after the other.
#[derive(Clone, Copy)]
struct Pages<'s> {
    segments: &'s [Segment],
    /// Pages of the first segment that are already done.
    done: u64,
}

impl Pages<'_> {
    /// The next contiguous pages, to be mapped at page `pfn`.
    fn run(&self, pfn: u64) -> Run {
        let segment = &self.segments[0];
        Run { pfn, phys_pfn: segment.phys.pfn() + self.done, pages: segment.pages() - self.done }
    }

    fn skip(&mut self, mut pages: u64) {
        while pages > 0 {
            let left = self.segments[0].pages() - self.done;
            if pages < left {
                self.done += pages;
                return;
            }
            pages -= left;
            (self.segments, self.done) = (&self.segments[1..], 0);
        }
    }
}

/// Neighbouring leaves of one table.
#[derive(Clone, Copy)]
struct Leaves<'s> {
    /// The page that the first one translates.
    pfn: u64,
    level: u8,
    entries: usize,
    /// The pages that they lead to.
    pages: Pages<'s>,
}

impl Leaves<'_> {
    fn entries<'p>(&self, path: &Path<'p>) -> &'p [Entry] {
        let first = index(self.pfn, self.level);
        &path.table(self.level)[first..first + self.entries]
    }
}

/// Does what [`SecondLevelTable::map`] does. With `flush_whole_page`, the whole page whose entries it writes is
/// flushed.
///
/// # Errors
/// Those of [`SecondLevelTable::map`].
///
/// # Safety
/// That of [`SecondLevelTable::map`], in a table whose rule is
/// [`FreedByDesign`](portcullis::table::TableRule::FreedByDesign). No other map or unmap runs meanwhile.
#[inline(never)]
pub unsafe fn map_counted<P: Platform>(
    table: &SecondLevelTable,
    walker: Walker<'_, P>,
    range: IovaRange,
    segments: &[Segment],
    rights: Rights,
    flush_whole_page: bool,
) -> Result<(), MapError> {
    for segment in segments {
        table.check_physical(segment)?;
    }
    let mut path = path_to(table, walker, range.first_pfn());
    let mut missing = 0;
    visit_leaves(table, walker, &mut path, range, segments, |path, leaves| {
        missing += leaves.missing_tables(path, range.first_pfn());
        leaves.taken(path).map_or(Ok(()), |taken| Err(MapError::Overlap(taken)))
    })?;
    let mut spare = new_tables(walker, missing)?;
    visit_leaves(table, walker, &mut path, range, segments, |path, leaves| {
        while path.at.level > leaves.level {
            link(table, walker, path, flush_whole_page, &mut spare);
        }
        leaves.write(walker, path, rights, flush_whole_page);
        Ok(())
    })?;
    debug_assert!(spare.is_empty(), "the missing tables were counted");
    Ok(())
}

/// Does what [`SecondLevelTable::unmap`] does. Returns whether table pages went to `freed`.
///
/// # Safety
/// That of [`SecondLevelTable::unmap`], as for [`map_counted`].
#[inline(never)]
pub unsafe fn unmap_counted<P: Platform>(
    table: &SecondLevelTable,
    walker: Walker<'_, P>,
    range: IovaRange,
    flush_whole_page: bool,
    freed: &mut FreedTables,
) -> bool {
    let before = freed.pages();
    let mut pfn = range.first_pfn();
    while pfn < range.end_pfn() {
        let path = path_to(table, walker, pfn);
        let mut level = path.at.level;
        let first = index(pfn, level);
        // Above the leaf tables there is one large leaf, which the mapping fills.
        let left = if level == 1 { (range.end_pfn() - pfn) as usize } else { 1 };
        let mut cleared = (ENTRIES - first).min(left);
        clear(walker, path.table(level), first..first + cleared, flush_whole_page);
        pfn += cleared as u64 * span(level);
        while let Some(pointer) = path.pointer(level) {
            let value = pointer.load();
            let present = value.count() - cleared;
            if present > 0 {
                pointer.store(value.with_count(present));
                break;
            }
            (level, cleared) = (level + 1, 1);
            let number = index(path.at.pfn, level);
            clear(walker, path.table(level), number..number + 1, flush_whole_page);
            // SAFETY: the only entry that pointed to the page is cleared, and no other CPU walks the table.
            unsafe { freed.push(walker, value.phys()) };
        }
    }
    table.note_detached(freed.pages() - before)
}

/// The path to page `pfn`, as far as there are tables.
#[inline(always)]
fn path_to<'p, P: Platform>(table: &SecondLevelTable, walker: Walker<'p, P>, pfn: u64) -> Path<'p> {
    // SAFETY: the promise of the callers.
    let at = unsafe { table.cursor(walker, pfn) };
    let mut path = Path { at, tables: [at.table; LEVELS_MAX + 1], levels: table.levels() };
    while path.at.level > 1 {
        let value = path.at.entry().load();
        if !value.is_present() || value.is_large() {
            break;
        }
        path.descend(walker, value);
    }
    path
}

/// Visits the leaves of a mapping, table by table. Each leaf is the largest that the hardware, the alignment and
/// the length allow and in whose place there is no table yet. `path` initially leads to some page of the table.
fn visit_leaves<'p, 's, P: Platform>(
    table: &SecondLevelTable,
    walker: Walker<'p, P>,
    path: &mut Path<'p>,
    range: IovaRange,
    segments: &'s [Segment],
    mut visit: impl FnMut(&mut Path<'p>, &Leaves<'s>) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let mut pages = Pages { segments, done: 0 };
    let mut pfn = range.first_pfn();
    while pfn < range.end_pfn() {
        if !path.leads_to(pfn) {
            *path = path_to(table, walker, pfn);
        }
        let run = pages.run(pfn);
        let large = (2..=path.at.level).rev().find(|&level| table.may_be_leaf(level) && run.fills(span(level)));
        let (level, entries) = match large {
            Some(level) => (level, 1),
            None => (1, (ENTRIES - index(pfn, 1)).min((range.end_pfn() - pfn) as usize)),
        };
        visit(path, &Leaves { pfn, level, entries, pages })?;
        let done = entries as u64 * span(level);
        pages.skip(done);
        pfn += done;
    }
    Ok(())
}

/// Puts a new table at the end of `path`.
fn link<'p, P: Platform>(
    table: &SecondLevelTable,
    walker: Walker<'p, P>,
    path: &mut Path<'p>,
    flush_whole_page: bool,
    spare: &mut FreedTables,
) {
    let new = spare.pop(walker.platform()).expect("the missing tables were counted");
    let Cursor { table: lowest, level, .. } = path.at;
    let (entry, value) = (path.at.entry(), EntryValue::table(new));
    walker.platform().probe(Step::TableWrite { entries: 1 });
    entry.store(value);
    walker.show(if flush_whole_page { lowest } else { core::slice::from_ref(entry) });
    table.note_added();
    path.add(level, 1);
    path.descend(walker, value);
}

impl Leaves<'_> {
    /// The number of tables that must be added for these leaves, but not for earlier leaves of the mapping that
    /// starts at `first_pfn`.
    fn missing_tables(&self, path: &Path<'_>, first_pfn: u64) -> usize {
        let begins_at = |level: u8| self.pfn == first_pfn || self.pfn.is_multiple_of(span(level + 1));
        (self.level..path.at.level).filter(|level| begins_at(*level)).count()
    }

    /// The first address that already has a translation, if any.
    fn taken(&self, path: &Path<'_>) -> Option<Iova> {
        if path.at.level > self.level {
            // Below an absent entry nothing is mapped. A large leaf translates everything.
            return path.at.entry().load().is_present().then(|| Iova::from_pfn(self.pfn));
        }
        let number = self.entries(path).iter().position(|entry| entry.load().is_present())?;
        Some(Iova::from_pfn(self.pfn + number as u64 * span(self.level)))
    }

    fn write<P: Platform>(&self, walker: Walker<'_, P>, path: &Path<'_>, rights: Rights, flush_whole_page: bool) {
        let entries = self.entries(path);
        walker.platform().probe(Step::TableWrite { entries: entries.len() });
        let mut pages = self.pages;
        for entry in entries {
            let phys = PhysAddr::from_pfn(pages.run(self.pfn).phys_pfn);
            entry.store(EntryValue::leaf(phys, rights, self.level > 1));
            pages.skip(span(self.level));
        }
        walker.show(if flush_whole_page { path.table(self.level) } else { entries });
        path.add(self.level, entries.len());
    }
}

/// Clears entries of a table, and makes that visible.
#[inline(never)]
fn clear<P: Platform>(walker: Walker<'_, P>, table: &Frame, numbers: Range<usize>, flush_whole_page: bool) {
    let entries = &table[numbers];
    walker.platform().probe(Step::TableClear { entries: entries.len() });
    entries.iter().for_each(|entry| entry.store(EntryValue::ABSENT));
    walker.show(if flush_whole_page { table } else { entries });
}

/// Allocates `pages` table pages, or none.
fn new_tables<P: Platform>(walker: Walker<'_, P>, pages: usize) -> Result<FreedTables, NoMemory> {
    let mut tables = FreedTables::new();
    for _ in 0..pages {
        walker.platform().probe(Step::TablePage);
        match walker.allocate_frame(Context::Atomic) {
            Ok(frame) => {
                // SAFETY: the page is new, so nothing points to it and nothing walks it.
                unsafe { tables.push_unshown(walker.platform(), frame) };
            }
            Err(error) => {
                while let Some(page) = tables.pop(walker.platform()) {
                    walker.platform().probe(Step::TablePage);
                    // SAFETY: the page is new, so no hardware has seen it.
                    unsafe { release_page(walker.platform(), page, &Proof::trusted()) };
                }
                return Err(error);
            }
        }
    }
    Ok(tables)
}
