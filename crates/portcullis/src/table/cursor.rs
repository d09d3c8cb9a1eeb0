//! The cursor: a place in a table, which is an entry of a table page on the way from the root to a page. Only this file
//! follows pointers to table pages.
//!
//! # Rules
//!
//! - A cursor begins at the root, or at a page that an unmap has just taken out, and goes only where entries point.
//! - A page stays where a cursor may be: pages are kept; or the caller works on a mapping below the page, and only the
//!   unmap of everything below takes it out; or no other map or unmap runs ([`TableRule`](super::TableRule)).
//! - Other CPUs change entries at any time. So a step goes by one value that it has read: above the lowest level that
//!   is absent, a pointer to a table page, or a large leaf.
//! - A CPU may find a pointer before the hardware does. A map makes it visible before it writes leaves below
//!   (`SecondLevelTable::make`).
//! - Each way down from the root is reported as one [`Step::TableWalk`](crate::platform::Step::TableWalk)
//!   (`SecondLevelTable::cursor`).

use super::walker::Walker;
use crate::address::PhysAddr;
use crate::entry::{ENTRIES, Entry, EntryValue, Frame, LEVEL_BITS};
use crate::platform::Platform;
use arrayvec::ArrayVec;

/// The most levels of a table.
pub const LEVELS_MAX: usize = 4;

/// Pages that one entry of `level` spans; level 1 holds the 4 KiB leaves.
pub const fn span(level: u8) -> u64 {
    1 << (LEVEL_BITS * (level as u32 - 1))
}

/// Index of the entry of `level` that translates page `pfn`.
pub const fn index(pfn: u64, level: u8) -> usize {
    (pfn >> (LEVEL_BITS * (level as u32 - 1))) as usize % ENTRIES
}

/// A place on the way to page `pfn`: its entry in a table page of `level`.
#[derive(Clone, Copy)]
pub struct Cursor<'p> {
    /// The table page.
    pub table: &'p Frame,
    /// Its level: 1 for leaf tables.
    pub level: u8,
    /// The page on the way to which this is a place.
    pub pfn: u64,
}

impl<'p> Cursor<'p> {
    /// The place in the page `root`, of the highest level.
    #[inline(always)]
    pub(super) fn at_root<P: Platform>(walker: Walker<'p, P>, root: PhysAddr, levels: u8, pfn: u64) -> Self {
        Self { table: frame(walker, root), level: levels, pfn }
    }

    /// The entry.
    #[inline(always)]
    pub fn entry(self) -> &'p Entry {
        &self.table[index(self.pfn, self.level)]
    }

    /// The entry and those behind it in its page.
    #[inline(always)]
    pub fn entries(self) -> &'p [Entry] {
        &self.table[index(self.pfn, self.level)..]
    }

    /// The leaf here, with those behind it in its page. A large leaf is alone, because there may be tables beside it.
    #[inline(always)]
    pub(super) fn leaves(self) -> &'p [Entry] {
        if self.level == 1 { self.entries() } else { core::slice::from_ref(self.entry()) }
    }

    /// The pages that the entry spans.
    #[inline(always)]
    pub(super) const fn span(self) -> u64 {
        span(self.level)
    }

    /// The place in the table page that `value` points to.
    ///
    /// # Safety
    /// `value` was read from the entry, and points to a table page. `walker` is the one that the table was made with.
    /// The page stays, as the rules of this module say.
    #[inline(always)]
    pub unsafe fn below<P: Platform>(self, walker: Walker<'p, P>, value: EntryValue) -> Self {
        debug_assert!(self.level > 1 && value.is_present() && !value.is_large());
        Self { table: frame(walker, value.phys()), level: self.level - 1, ..self }
    }

    /// The place of the leaf that translates the page. `None` if no table leads to it. A leaf of the lowest level may
    /// be absent.
    #[inline(always)]
    pub(super) fn find<P: Platform>(mut self, walker: Walker<'p, P>) -> Option<Self> {
        while self.level > 1 {
            let value = self.entry().load();
            if !value.is_present() {
                return None;
            }
            if value.is_large() {
                break;
            }
            // SAFETY: just read. The page stays for who has asked for this cursor.
            self = unsafe { self.below(walker, value) };
        }
        Some(self)
    }

    /// Whether `value`, which was read from the entry, translates.
    #[inline(always)]
    pub(super) const fn is_leaf(self, value: EntryValue) -> bool {
        value.is_present() && (self.level == 1 || value.is_large())
    }

    /// The entry's place, and those of the entries behind it in its page.
    pub(super) fn along(self) -> impl Iterator<Item = Self> {
        (0..self.entries().len() as u64).map(move |number| Self { pfn: self.pfn + number * self.span(), ..self })
    }
}

/// Visits the table page `root` of `level` and all table pages below it, each after those below it, so that `visit` may
/// overwrite it. The cursor stands at its first entry, and counts from the first page that `root` translates.
pub(super) fn each_table<'p, P: Platform>(
    walker: Walker<'p, P>,
    root: PhysAddr,
    level: u8,
    mut visit: impl FnMut(PhysAddr, Cursor<'p>),
) {
    // The pages on the way down, and how many entries of each were read. A loop takes less stack than recursion.
    let mut way = ArrayVec::<(PhysAddr, Cursor<'p>, usize), LEVELS_MAX>::new_const();
    way.push((root, Cursor::at_root(walker, root, level, 0), 0));
    while let Some((page, first, read)) = way.last_mut() {
        // There are no tables below a leaf table.
        let rest = if first.level == 1 { ENTRIES } else { *read };
        let pointer = first.along().skip(rest).find_map(|at| {
            let value = at.entry().load();
            (value.is_present() && !value.is_large()).then_some((at, value))
        });
        if let Some((at, value)) = pointer {
            *read = index(at.pfn, at.level) + 1;
            // SAFETY: just read. Nothing is taken out meanwhile.
            way.push((value.phys(), unsafe { at.below(walker, value) }, 0));
        } else {
            visit(*page, *first);
            way.pop();
        }
    }
}

/// The contents of a table page that is in the table.
fn frame<'p, P: Platform>(walker: Walker<'p, P>, phys: PhysAddr) -> &'p Frame {
    // SAFETY: an entry points to the page, or it is a root. It stays while it is used: see the rules above. An
    // unmap frees later what it has taken out.
    unsafe { walker.platform().frame(phys) }
}
