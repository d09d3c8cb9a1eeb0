//! The order in which the tables of a log are filled again.
//!
//! Tables are filled like a log. The open table hands out its chunks one after the other to all streams
//! ([`OpenTables`](super::open_tables::OpenTables)), so the pages that streams fill at the same time, and that their
//! devices will walk to at the same time, lie in few tables. When most of a table has come back, it is ready. Ready
//! tables are opened again in the order in which they became so.

use super::table_list::TableList;
use super::table_records::TableRecords;

/// The number of tables that are looked at for one of which enough has come back. It bounds the time under the lock.
pub(super) const LOOKS: u32 = 8;
/// The number of ready tables that are left to a log in use. It needs the first of them next, and has their entries in
/// its caches.
const LEFT: usize = 2;

/// The ready tables of a log. [`OpenTables`](super::open_tables::OpenTables) has the one that is open.
#[derive(Default)]
pub(super) struct TableLog {
    ready: TableList,
    /// Whether it has opened a table since the last sweep, and since the one before.
    is_used: bool,
    was_used: bool,
}

impl TableLog {
    /// Adds a table that has become ready.
    pub(super) fn add(&mut self, records: &TableRecords, number: u32) {
        self.ready.push_back(records, number);
    }

    /// Adds a table to be opened next.
    pub(super) fn add_first(&mut self, records: &TableRecords, number: u32) {
        self.ready.push_front(records, number);
    }

    /// Removes the next table with room for a chunk of `units` units, to open it.
    pub(super) fn next(&mut self, records: &TableRecords, units: u32) -> Option<u32> {
        let number = self.find(records, units)?;
        self.ready.remove(records, number);
        self.is_used = true;
        Some(number)
    }

    /// Removes a table for another log, if this one does not need it: if it was not used of late, or has more tables
    /// than it will need next. If no table can be added, `is_short`, it gives any.
    pub(super) fn spare(&mut self, records: &TableRecords, units: u32, is_short: bool) -> Option<u32> {
        let number = match is_short || self.is_idle() {
            true => self.find(records, units),
            false if self.ready.len() > LEFT => self.ready.last().filter(|last| records.get(*last).fits(units)),
            false => None,
        }?;
        self.ready.remove(records, number);
        Some(number)
    }

    fn find(&self, records: &TableRecords, units: u32) -> Option<u32> {
        let mut number = self.ready.first()?;
        for _ in 1..LOOKS {
            if records.get(number).fits(units) {
                return Some(number);
            }
            number = TableList::behind(records, number)?;
        }
        records.get(number).fits(units).then_some(number)
    }

    /// Whether it has opened no table since the last sweep but one.
    pub(super) const fn is_idle(&self) -> bool {
        !self.is_used && !self.was_used
    }

    /// The number of ready tables.
    pub(super) const fn len(&self) -> usize {
        self.ready.len()
    }

    /// Removes the first table if nothing of it is out, and moves it to the back otherwise. After a complete round, all
    /// are in their order again.
    pub(super) fn turn(&mut self, records: &TableRecords) -> Option<u32> {
        let first = self.ready.pop_front(records)?;
        if records.get(first).is_spent() {
            return Some(first);
        }
        self.ready.push_back(records, first);
        None
    }

    /// Ends a sweep.
    pub(super) fn end_sweep(&mut self) {
        self.was_used = core::mem::take(&mut self.is_used);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::geometry::{CHUNK_UNITS, TABLE_UNITS};
    use super::super::tables::ChunkTables;
    use super::*;
    use crate::entry::{Entry, Frame};
    use crate::platform::fake::FakeHost;
    use alloc::boxed::Box;

    /// A log with so many ready tables. The first has a straggler in its first chunk, or none.
    fn log_of(tables: u32, has_straggler: bool) -> (TableRecords, TableLog) {
        let host = FakeHost::default();
        let pointers = ChunkTables::of(&host, 8);
        let (records, mut log) = (TableRecords::of(&host, 8), TableLog::default());
        for number in 0..tables {
            let frame: &Frame = Box::leak(Box::new(core::array::from_fn(|_| Entry::new(0))));
            pointers.link(number, frame);
            let record = records.get(number);
            let firsts = record.open(&host, frame, 1, CHUNK_UNITS);
            assert_eq!(firsts.count_ones(), TABLE_UNITS / CHUNK_UNITS);
            let kept = u32::from(number == 0 && has_straggler);
            let chunks = (kept..TABLE_UNITS / CHUNK_UNITS).map(|at| 15 << (at * CHUNK_UNITS));
            // Exactly one of them makes it ready.
            assert_eq!(
                chunks.filter_map(|units| record.give_back(units, CHUNK_UNITS)).collect::<std::vec::Vec<_>>(),
                [1]
            );
            log.add(&records, number);
        }
        (records, log)
    }

    /// A log in use gives others no table beyond two that it needs next, unless no table can be added.
    #[test]
    fn tables_of_a_log_in_use_are_left_to_it() {
        let spare = |tables: u32, sweeps: usize, is_short: bool| {
            let (records, mut log) = log_of(tables + 1, false);
            assert_eq!(log.next(&records, CHUNK_UNITS), Some(0), "the first that became ready");
            (0..sweeps).for_each(|_| log.end_sweep());
            log.spare(&records, CHUNK_UNITS, is_short)
        };
        let left = LEFT as u32;
        assert_eq!(spare(left, 0, false), None);
        assert_eq!(spare(left, 1, false), None);
        assert_eq!(spare(left, 2, false), Some(1), "it is idle");
        assert_eq!(spare(left, 0, true), Some(1), "no table can be added");
        assert_eq!(spare(left + 1, 0, false), Some(left + 1), "it has more than it needs");
    }

    /// A table with a straggler serves requests of a chunk, and no request of a whole table.
    #[test]
    fn a_straggler_keeps_a_chunk_and_not_a_table() {
        let (records, mut log) = log_of(2, true);
        assert_eq!(log.next(&records, TABLE_UNITS), Some(1));
        assert_eq!(log.next(&records, TABLE_UNITS), None);
        assert_eq!(log.next(&records, CHUNK_UNITS), Some(0));
    }

    /// A sweep takes the tables in which nothing is out, and leaves the others in their order.
    #[test]
    fn a_round_takes_what_is_spent() {
        let (records, mut log) = log_of(3, true);
        let taken: std::vec::Vec<_> = (0..log.len()).filter_map(|_| log.turn(&records)).collect();
        assert_eq!((taken, log.len()), (std::vec![1, 2], 1));
    }
}
