//! The tables that belong to no log, and the numbers of tables.

use super::table_list::TableList;
use super::table_records::TableRecords;
use crate::error::NoMemory;
use alloc::vec::Vec;

/// The number of empty tables that are kept for the next chunks. Zero under the model checker, so that it sees every
/// one of them freed.
pub const TABLE_RESERVE: usize = if cfg!(loom) { 0 } else { 16 };
/// The number of tables in which one looks for stragglers before a table is added. It bounds the time under the lock.
pub(super) const LOOKS: usize = 16;

/// The tables that belong to no log, and the numbers of tables.
pub(super) struct TablePool {
    /// Tables with nothing in them.
    idle: TableList,
    /// The smallest length of `idle` since the last sweep.
    idle_min: usize,
    /// The number of linked tables.
    linked: usize,
    /// How many numbers there are for tables, and how many of them were given to tables or skipped.
    numbers: u32,
    numbered: u32,
    /// Numbers that were used before, and whose tables were freed.
    unlinked: TableList,
    /// Ranges of table numbers that contain reserved addresses: first, and one past the last.
    reserved: Vec<(u64, u64)>,
    /// The table that was looked at last for stragglers.
    looked: u32,
    /// Counts the searches before a table is added. It only chooses where to look.
    turn: usize,
}

impl TablePool {
    /// No tables. There may be up to `numbers`, except those that touch a range in `reserved`, which is in order.
    pub(super) fn new(numbers: u32, reserved: Vec<(u64, u64)>) -> Self {
        Self {
            idle: TableList::default(),
            idle_min: 0,
            linked: 0,
            numbers,
            numbered: 0,
            unlinked: TableList::default(),
            reserved,
            looked: 0,
            turn: 0,
        }
    }

    /// A number for another table. The caller then calls [`add`](Self::add) or
    /// [`give_number_back`](Self::give_number_back). `None` if no number is left.
    ///
    /// # Errors
    /// [`NoMemory`] if there is room for no more than `room` numbers.
    pub(super) fn number(&mut self, records: &TableRecords, room: usize) -> Result<Option<u32>, NoMemory> {
        if let Some(number) = self.unlinked.pop_back(records) {
            return Ok(Some(number));
        }
        while self.numbered < self.numbers {
            let number = self.numbered;
            if number as usize >= room {
                return Err(NoMemory);
            }
            self.numbered += 1;
            let is_in = |&(first, end): &(u64, u64)| (first..end).contains(&u64::from(number));
            if !self.reserved.iter().any(is_in) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// How many numbers were given to tables or skipped.
    pub(super) const fn numbered(&self) -> usize {
        self.numbered as usize
    }

    /// How many numbers will have been given or skipped after `tables` more tables, or after all that are left.
    pub(super) fn numbered_after(&self, tables: usize) -> usize {
        let numbered = u64::from(self.numbered);
        let passed_over = |end: u64, &(first, one_past): &(u64, u64)| {
            let is_ahead = one_past > numbered && first < end;
            if is_ahead { end.saturating_add(one_past - first.max(numbered)) } else { end }
        };
        // The ranges are in order.
        let end = self.reserved.iter().fold(numbered.saturating_add(tables as u64), passed_over);
        end.min(u64::from(self.numbers)) as usize
    }

    /// Which of the logs and lines are to be looked at now, by a number.
    pub(super) const fn turn(&self) -> usize {
        self.turn
    }

    /// The same; from now on others are to be looked at.
    pub(super) fn next_turn(&mut self) -> usize {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }

    /// Adds a new table, under a number from [`number`](Self::number).
    pub(super) fn add(&mut self, records: &TableRecords, number: u32) {
        records.get(number).renew();
        self.linked += 1;
        self.idle.push_back(records, number);
    }

    /// Gives back a number that was not used, or whose table was freed.
    pub(super) fn give_number_back(&mut self, records: &TableRecords, number: u32) {
        self.unlinked.push_back(records, number);
    }

    /// Adds a table of which nothing is out.
    pub(super) fn add_idle(&mut self, records: &TableRecords, number: u32) {
        self.idle.push_back(records, number);
    }

    /// Removes the table that has become idle last.
    pub(super) fn take_idle(&mut self, records: &TableRecords) -> Option<u32> {
        let number = self.idle.pop_back(records);
        self.idle_min = self.idle_min.min(self.idle.len());
        number
    }

    /// Finds a table of `log` with stragglers, and with room for a chunk of `units` units beside them. If no table can
    /// be added, `is_short`, it may be of any log. The caller adds it to a log.
    pub(super) fn call_in(&mut self, records: &TableRecords, log: usize, units: u32, is_short: bool) -> Option<u32> {
        for _ in 0..LOOKS.min(self.numbered()) {
            self.looked = if self.looked + 1 < self.numbered { self.looked + 1 } else { 0 };
            let record = records.get(self.looked);
            if (is_short || record.log() == log) && record.fits(units) && record.call_in(is_short) {
                return Some(self.looked);
            }
        }
        None
    }

    /// Removes a table that was not needed since the last sweep, so that it can be freed.
    pub(super) fn take_superfluous(&mut self, records: &TableRecords) -> Option<u32> {
        if self.idle_min <= TABLE_RESERVE {
            return None;
        }
        self.idle_min -= 1;
        self.linked -= 1;
        // The one that has been idle longest: the next chunks come from the tables that were used last.
        self.idle.pop_front(records)
    }

    /// Ends a sweep.
    pub(super) fn end_sweep(&mut self) {
        self.idle_min = self.idle.len();
    }

    /// Whether there are more tables than the reserve.
    pub(super) const fn is_large(&self) -> bool {
        self.linked > TABLE_RESERVE
    }

    /// Whether the next sweep will find a table to free, unless the table is needed before that.
    pub(super) const fn has_superfluous(&self) -> bool {
        self.idle.len() > TABLE_RESERVE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::Context;
    use crate::platform::fake::FakeHost;

    #[test]
    fn numbers_passed_over_are_seen_ahead() {
        let (host, records) = (FakeHost::default(), TableRecords::new());
        for room in [0, 8, 24, 56] {
            records.add(room, TableRecords::make(&host, Context::MaySleep, room).expect("memory"));
        }
        for tables in 1..20 {
            let mut pool = TablePool::new(64, std::vec![(0, 2), (5, 6), (9, 20)]);
            let ahead = pool.numbered_after(tables);
            for _ in 0..tables {
                pool.number(&records, 64).expect("room").expect("a number");
            }
            // Numbers that are skipped directly after the last one are counted with the next table.
            assert!((pool.numbered()..=pool.numbered_after(1)).contains(&ahead), "{tables}: {ahead}");
            assert_eq!(pool.numbered_after(0), pool.numbered());
        }
    }

    #[test]
    fn numbers_end_with_the_room_and_with_the_address_space() {
        let (host, records) = (FakeHost::default(), TableRecords::new());
        records.add(0, TableRecords::make(&host, Context::MaySleep, 0).expect("memory"));
        let mut pool = TablePool::new(3, std::vec![(1, 2)]);
        assert_eq!(pool.number(&records, 0), Err(NoMemory), "no record has room");
        assert_eq!([0; 2].map(|_| pool.number(&records, 8)), [Ok(Some(0)), Ok(Some(2))]);
        assert_eq!(pool.number(&records, 8), Ok(None));
        pool.give_number_back(&records, 2);
        assert_eq!(pool.number(&records, 8), Ok(Some(2)));
        assert_eq!(pool.numbered_after(9), 3);
    }
}
