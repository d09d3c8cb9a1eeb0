//! The record of a leaf table: which of its units are handed out, and which of those have been spent.

#[cfg(test)]
mod tests;

use super::geometry::{TABLE_UNITS, UNIT_PAGES, unit_entries};
use super::page_states::{self, Idle};
use super::tables::ChunkTables;
use crate::platform::{Platform, Step};
use crate::sync::plain;

/// All units of a table.
pub(super) const ALL: u32 = u32::MAX >> (u32::BITS - TABLE_UNITS);

/// The record of a table. Each unit is a bit.
#[derive(Clone, Copy, Default)]
pub(super) struct TableRecord {
    /// Units that are handed out and not known to be spent.
    out: u32,
    /// The generation that each unit is in, of two.
    generation: u32,
    /// Units that were handed out in one chunk with the unit before, which is still out as well. A mapping that begins
    /// in the unit before may end in this one, and the pages that it has here do not show whether it is spent. Joined
    /// units therefore become available in order.
    joined: u32,
    /// For each unit, the index of a page that was not spent when it was last looked at.
    watch: [u8; TABLE_UNITS as usize],
}

impl TableRecord {
    /// Finds the units that are spent by now, and makes them available in the next generation.
    ///
    /// A unit does not become available before the unit that it is joined to (S3): all pages of a mapping except the
    /// first look spent while the device may still have them cached.
    pub(super) fn look<P: Platform>(&mut self, platform: &P, number: u32, tables: &ChunkTables) {
        plain(self, false);
        plain(self, true);
        let entries = tables.linked(number);
        let mut unknown = self.out;
        while unknown != 0 {
            let unit = unknown.trailing_zeros();
            // Together with the units that are joined to it.
            let units = 1 + (u64::from(self.joined) >> (unit + 1)).trailing_ones();
            unknown &= !run(unit, units);
            let generation = if self.generation & (1 << unit) == 0 { Idle::FIRST } else { Idle::FIRST.next() };
            let first = unit as usize * UNIT_PAGES as usize;
            let watched = first + usize::from(self.watch[unit as usize]);
            if !page_states::is_spent(&entries[watched], generation) {
                platform.probe(Step::TableScan { entries: 1 });
                continue;
            }
            let end = first + (u64::from(units) * UNIT_PAGES) as usize;
            let (unspent, looks) = page_states::first_unspent(entries, first, end, generation);
            platform.probe(Step::TableScan { entries: looks });
            let spent_pages = unspent.min(end) - first;
            let spent = run(unit, spent_pages as u32 / UNIT_PAGES as u32);
            self.out &= !spent;
            self.generation ^= spent;
            self.joined &= !(spent | spent << 1);
            if unspent < end {
                let (unit, page) = (unspent / UNIT_PAGES as usize, unspent % UNIT_PAGES as usize);
                self.watch[unit] = page as u8;
            }
        }
    }

    /// Hands out `units`, all of which are spent, as one chunk.
    ///
    /// A mapping may extend over several units, and takes its generation from its first page. All units therefore
    /// begin in the generation of the first one. They may differ before this, because each unit has been used a
    /// different number of times.
    pub(super) fn hand_out<P: Platform>(&mut self, platform: &P, number: u32, tables: &ChunkTables, units: u32) {
        plain(self, true);
        self.out |= units;
        self.joined |= units & (units - 1);
        let first_generation = if self.generation & units & units.wrapping_neg() == 0 { 0 } else { units };
        let mut odd = (self.generation ^ first_generation) & units;
        self.generation ^= odd;
        while odd != 0 {
            let entries = unit_entries(tables.linked(number), odd.trailing_zeros());
            platform.probe(Step::ChunkClear { entries: entries.len() });
            page_states::spend_unused(entries);
            odd &= odd - 1;
        }
    }

    /// Units that can be handed out.
    pub(super) const fn spent(&self) -> u32 {
        ALL & !self.out
    }
}

/// A mask of `units` units from `first` on.
pub(super) const fn run(first: u32, units: u32) -> u32 {
    (((1u64 << units) - 1) << first) as u32
}

/// The units that begin an aligned run of `length` units, all of which are in `units`.
pub(super) const fn runs(mut units: u32, length: u32) -> u32 {
    let mut covered = 1;
    while covered < length {
        units &= units >> covered;
        covered *= 2;
    }
    // Keeps every `length`th bit.
    units & (u32::MAX / ((1u64 << length) - 1) as u32)
}
