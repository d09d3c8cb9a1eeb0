//! Leaves that mappings share (dynamic identity mapping, ATC'15, §4.1).
//!
//! If the address of a page follows from the page and the rights, every later map of the page finds it at that
//! address. The leaf therefore counts its mappings, in bits that the hardware ignores. The first map writes the leaf
//! and the last unmap clears it. No mapping owns such an entry: the leaf and its count change together, by
//! compare-exchange.
//!
//! A run is counted page by page, and other CPUs may see it partly counted. Every reason for a refusal is checked
//! before the first page is counted. If another CPU changes a page between the check and the count, the count fails,
//! and the counts before it are undone.

use super::cursor::Cursor;
use super::second_level::{SecondLevelTable, TableRule};
use super::walker::Walker;
use crate::address::{Iova, IovaRange, PhysAddr, Segment};
use crate::entry::{ENTRIES, Entry, EntryValue, Rights, SHARES_MAX};
use crate::error::{MapError, UnmapError};
use crate::platform::{Platform, Step};

/// Pages whose addresses are the same in every mapping with these rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedRun {
    /// The addresses.
    pub range: IovaRange,
    /// The number of the first physical page.
    pub phys_pfn: u64,
    /// The rights of devices.
    pub rights: Rights,
}

/// The result of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// Every page has one more mapping.
    Counted,
    /// A page already has as many mappings as can be counted. Nothing has changed.
    Full,
    /// A page was found full after these pages had been counted. The counts were undone. But devices may have used
    /// these pages meanwhile, and other unmaps may have relied on this mapping to invalidate them. They must
    /// therefore be invalidated before the map returns.
    Undone(IovaRange),
}

/// The result of an unmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unshare {
    /// Every page still has other mappings, so nothing has to be invalidated.
    StillShared,
    /// For some pages this was the last mapping, and their leaves are cleared.
    Cleared,
    /// This page had a mapping when it was checked, and has none now: another driver has unmapped pages that it had
    /// not mapped. The pages before it were already counted and have their counts back. If absent entries are cached,
    /// they must be invalidated as after a map.
    Undone(Iova),
}

/// The direction of a count: one mapping more, or one less.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    Up,
    Down,
}

/// Splits `range` into parts that lie in one leaf table each.
fn parts(range: IovaRange) -> impl Iterator<Item = IovaRange> {
    let mut next = range.first_pfn();
    core::iter::from_fn(move || {
        let end = (next | (ENTRIES as u64 - 1)) + 1;
        let part = IovaRange::new(next, end.min(range.end_pfn()) - next)?;
        next = part.end_pfn();
        Some(part)
    })
}

impl SharedRun {
    fn leaf(&self, pfn: u64) -> EntryValue {
        EntryValue::leaf(PhysAddr::from_pfn(self.phys_pfn + (pfn - self.range.first_pfn())), self.rights, false)
    }
}

impl Count {
    /// Counts a mapping of `leaf`. Returns the new number of mappings, or `None` if there are too many, or none to
    /// subtract.
    fn apply(self, entry: &Entry, leaf: EntryValue) -> Option<u64> {
        match self {
            Self::Up => entry.count_up(leaf),
            Self::Down => entry.count_down(),
        }
    }

    fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

impl SecondLevelTable {
    /// Adds a mapping of `run` to the counts, writes missing leaves, and makes them visible. All leaves are of 4 KiB.
    ///
    /// A refused map leaves no translation that a device might have used (S6). Table pages that it added stay, empty.
    ///
    /// # Errors
    /// [`MapError::NoMemory`], [`MapError::PhysicalRange`].
    ///
    /// # Panics
    /// Unless the table keeps its pages.
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. The table translates all of `run`. Its addresses are in no
    /// mapping that is not shared, and all mappings that share one of them have the same memory and the same rights.
    pub unsafe fn share<P: Platform>(&self, walker: Walker<'_, P>, run: &SharedRun) -> Result<Share, MapError> {
        self.assert_kept();
        let phys = PhysAddr::from_pfn(run.phys_pfn);
        self.check_physical(&Segment { phys, len: run.range.pages() * crate::PAGE_SIZE })?;
        let mut last: &[Entry] = &[];
        for part in parts(run.range) {
            last = self.entries_made(walker, part)?;
            if last.iter().any(|entry| entry.load().shares() == SHARES_MAX) {
                return Ok(Share::Full);
            }
        }
        Ok(match self.count(walker, run, last, Count::Up) {
            Ok(_) => Share::Counted,
            Err(full) => match before(run.range, full) {
                Some(counted) => {
                    self.undo(walker, run, counted, Count::Up);
                    Share::Undone(counted)
                }
                None => Share::Full,
            },
        })
    }

    /// Subtracts a mapping of `run` from the counts, clears the leaves that have no mapping left, and makes that
    /// visible. No table page is freed.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`] with the first page that has no mapping; nothing has changed then.
    ///
    /// # Panics
    /// Unless the table keeps its pages.
    ///
    /// # Safety
    /// That of [`share`](Self::share).
    pub unsafe fn unshare<P: Platform>(&self, walker: Walker<'_, P>, run: &SharedRun) -> Result<Unshare, UnmapError> {
        self.assert_kept();
        let not_mapped = |pfn| UnmapError::NotMapped(Iova::from_pfn(pfn));
        let mut last: &[Entry] = &[];
        for part in parts(run.range) {
            last = self.entries(walker, part).ok_or(not_mapped(part.first_pfn()))?;
            if let Some(absent) = last.iter().position(|entry| entry.load().shares() == 0) {
                return Err(not_mapped(part.first_pfn() + absent as u64));
            }
        }
        match self.count(walker, run, last, Count::Down) {
            Ok(true) => Ok(Unshare::Cleared),
            Ok(false) => Ok(Unshare::StillShared),
            Err(absent) => match before(run.range, absent) {
                Some(counted) => {
                    self.undo(walker, run, counted, Count::Down);
                    Ok(Unshare::Undone(Iova::from_pfn(absent)))
                }
                None => Err(not_mapped(absent)),
            },
        }
    }

    fn assert_kept(&self) {
        assert!(self.rule() == TableRule::Kept, "the table of a shared page must not go while others walk it");
    }

    /// Counts every page of `run`, and makes visible what that writes or clears. `last` are the entries of the last
    /// part of the run. Returns whether a page has no mapping left, or else, as an error, the first page that could
    /// not be counted.
    fn count<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        run: &SharedRun,
        last: &[Entry],
        count: Count,
    ) -> Result<bool, u64> {
        let mut any_cleared = false;
        for part in parts(run.range) {
            let entries = if part.end_pfn() == run.range.end_pfn() { last } else { self.entries_again(walker, part) };
            walker.platform().probe(match count {
                Count::Up => Step::TableShare { entries: entries.len() },
                Count::Down => Step::TableUnshare { entries: entries.len() },
            });
            let mut cleared = false;
            for (pfn, entry) in (part.first_pfn()..).zip(entries) {
                cleared |= count.apply(entry, run.leaf(pfn)).ok_or(pfn)? == 0;
            }
            // A map makes the leaf visible even if another CPU has written it, because that CPU may not have made it
            // visible yet. It does not matter whose count is in memory. An unmap that clears no leaf has nothing to
            // make visible.
            if count == Count::Up || cleared {
                walker.show(entries);
            }
            any_cleared |= cleared;
        }
        Ok(any_cleared)
    }

    /// Undoes the counts of the pages `counted` of `run`, and makes that visible.
    fn undo<P: Platform>(&self, walker: Walker<'_, P>, run: &SharedRun, counted: IovaRange, count: Count) {
        for part in parts(counted) {
            let entries = self.entries_again(walker, part);
            for (pfn, entry) in (part.first_pfn()..).zip(entries) {
                // This fails only if a wrong unmap has taken this very count, or if others have filled it since. In
                // both cases there is nothing to undo.
                let _ = count.opposite().apply(entry, run.leaf(pfn));
            }
            walker.show(entries);
        }
    }

    /// The entries of `part`, which lies in one leaf table. Missing tables are added.
    fn entries_made<'p, P: Platform>(&self, walker: Walker<'p, P>, part: IovaRange) -> Result<&'p [Entry], MapError> {
        self.make_leaf_table(walker, part.first_pfn()).map(|at| entries_in(at, part))
    }

    /// The entries of `part`, which lies in one leaf table, if that table exists.
    fn entries<'p, P: Platform>(&self, walker: Walker<'p, P>, part: IovaRange) -> Option<&'p [Entry]> {
        self.find(walker, part.first_pfn()).filter(|at| at.level == 1).map(|at| entries_in(at, part))
    }

    /// The entries of `part`, whose table has been found before.
    fn entries_again<'p, P: Platform>(&self, walker: Walker<'p, P>, part: IovaRange) -> &'p [Entry] {
        self.entries(walker, part).expect("the table keeps its pages")
    }
}

fn entries_in(first: Cursor<'_>, part: IovaRange) -> &[Entry] {
    &first.entries()[..part.pages() as usize]
}

/// The pages of `range` before `pfn`, if there are any.
fn before(range: IovaRange, pfn: u64) -> Option<IovaRange> {
    IovaRange::new(range.first_pfn(), pfn - range.first_pfn())
}
