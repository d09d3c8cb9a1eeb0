//! What is known of a leaf table of the chunks: which of its units are handed out, and which of these have come back.

#[cfg(test)]
mod tests;

use super::chunks::{TABLE_UNITS, UNIT_PAGES, unit_entries};
use super::page_states::{self, Idle};
use super::tables::ChunkTables;
use crate::platform::{Platform, Step};

/// All units of a table.
pub(super) const ALL: u32 = u32::MAX >> (u32::BITS - TABLE_UNITS);

/// What is known of a table. Its units, the smallest chunks, are bits.
#[derive(Clone, Copy, Default)]
pub(super) struct TableRecord {
    /// Handed out, and not known to be spent.
    out: u32,
    /// In which of the two generations each is.
    generation: u32,
    /// Handed out together with the one before, which is out as well. A mapping that begins there may end here, and of what it
    /// has here nobody sees whether it is spent: so these come back in their order.
    joined: u32,
    /// In each, a page that was not spent when last looked at.
    watch: [u8; TABLE_UNITS as usize],
}

impl TableRecord {
    /// Looks what is spent by now. It is fresh, then.
    ///
    /// What a unit is joined to comes first (S3): all pages of a mapping but the first are as good as spent while the device may
    /// have them cached.
    pub(super) fn look<P: Platform>(&mut self, platform: &P, number: u32, tables: &ChunkTables) {
        let entries = tables.linked(number);
        let mut unknown = self.out;
        while unknown != 0 {
            let unit = unknown.trailing_zeros();
            // With those that were handed out together with it.
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

    /// Hands `units` out, all of which are spent, as one chunk.
    ///
    /// A mapping may lie in several, and takes its generation from its first page: so all of them begin that of the first. Each
    /// has been used as often as chance would have it.
    pub(super) fn hand_out<P: Platform>(&mut self, platform: &P, number: u32, tables: &ChunkTables, units: u32) {
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

    /// Units that may be handed out.
    pub(super) const fn spent(&self) -> u32 {
        ALL & !self.out
    }
}

/// So many units from one on.
pub(super) const fn run(first: u32, units: u32) -> u32 {
    (((1u64 << units) - 1) << first) as u32
}

/// Which of `units` begin an aligned run of `length` of them.
pub(super) const fn runs(mut units: u32, length: u32) -> u32 {
    let mut covered = 1;
    while covered < length {
        units &= units >> covered;
        covered *= 2;
    }
    // Every `length`th bit.
    units & (u32::MAX / ((1u64 << length) - 1) as u32)
}
