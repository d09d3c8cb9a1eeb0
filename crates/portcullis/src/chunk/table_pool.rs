//! The tables that belong to no log, and the numbers of tables.

use super::table_list::TableList;
use super::table_records::TableRecords;
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
    /// How many numbers were given to tables.
    given: usize,
    /// Numbers that have no table now, and whose addresses are held for chunks: their tables were freed.
    unlinked: TableList,
    /// Numbers whose addresses were lent to the allocator of all other mappings, or were in use there.
    lent: TableList,
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
            given: 0,
            unlinked: TableList::default(),
            lent: TableList::default(),
            reserved,
            looked: 0,
            turn: 0,
        }
    }

    /// A number for another table: one that was used before, a new one, or else one that was lent. The caller then
    /// calls [`add`](Self::add) or [`give_number_back`](Self::give_number_back). `None` if no number is left.
    ///
    /// # Errors
    /// The next new number, if it has no room.
    pub(super) fn number(
        &mut self,
        records: &TableRecords,
        has_room: impl FnOnce(u32) -> bool,
    ) -> Result<Option<u32>, u32> {
        if let Some(number) = self.unlinked.pop_back(records) {
            return Ok(Some(number));
        }
        Ok(self.new_number(has_room)?.or_else(|| self.lent.pop_front(records)))
    }

    /// A number that no table had yet, as [`number`](Self::number) does.
    ///
    /// # Errors
    /// That number, if it has no room.
    pub(super) fn new_number(&mut self, has_room: impl FnOnce(u32) -> bool) -> Result<Option<u32>, u32> {
        let number = self.behind_reserved(self.numbered);
        self.numbered = number;
        if number >= self.numbers {
            return Ok(None);
        }
        if !has_room(number) {
            return Err(number);
        }
        (self.numbered, self.given) = (number + 1, self.given + 1);
        Ok(Some(number))
    }

    /// The first number from `number` on that is not reserved.
    fn behind_reserved(&self, number: u32) -> u32 {
        // The reserved ranges are in order.
        self.reserved.iter().fold(number, |number, &(first, end)| match (first..end).contains(&u64::from(number)) {
            true => end.min(self.numbers.into()) as u32,
            false => number,
        })
    }

    /// How often [`call_in`](Self::call_in) has to be asked to look at all tables.
    pub(super) const fn looks(&self) -> usize {
        (self.given + self.reserved.len()).div_ceil(LOOKS)
    }

    /// The number of tables that could be added without another number.
    pub(super) const fn unlinked(&self) -> usize {
        self.unlinked.len()
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

    /// Gives back a number that was not used, or whose table was freed. `is_held` says whether its addresses are still
    /// held for chunks.
    pub(super) fn give_number_back(&mut self, records: &TableRecords, number: u32, is_held: bool) {
        let list = if is_held { &mut self.unlinked } else { &mut self.lent };
        list.push_back(records, number);
    }

    /// Removes a number whose addresses are not needed: one without a table, or that of an idle table.
    pub(super) fn take_unneeded(&mut self, records: &TableRecords) -> Option<u32> {
        if let Some(number) = self.unlinked.pop_back(records) {
            return Some(number);
        }
        let number = self.take_idle(records)?;
        self.linked -= 1;
        Some(number)
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
        for _ in 0..LOOKS.min(self.numbered as usize) {
            self.looked = if self.looked + 1 < self.numbered { self.looked + 1 } else { 0 };
            let behind = self.behind_reserved(self.looked);
            if behind > self.looked {
                // The next look is behind them.
                self.looked = behind - 1;
                continue;
            }
            let Some(record) = records.find(self.looked) else { continue };
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
    use crate::platform::fake::FakeHost;

    #[test]
    fn numbers_end_with_the_room_and_with_the_address_space() {
        let records = TableRecords::of(&FakeHost::default(), 8);
        let mut pool = TablePool::new(6, std::vec![(1, 2), (2, 3), (4, 9)]);
        assert_eq!(pool.number(&records, |_| false), Err(0), "it has no record");
        assert_eq!([0; 2].map(|_| pool.number(&records, |_| true)), [Ok(Some(0)), Ok(Some(3))]);
        assert_eq!(pool.number(&records, |_| true), Ok(None));
        pool.give_number_back(&records, 3, true);
        assert_eq!(pool.number(&records, |_| true), Ok(Some(3)));
    }

    /// Numbers that were lent are the last to be asked for again.
    #[test]
    fn a_number_that_was_lent_comes_after_new_ones() {
        let records = TableRecords::of(&FakeHost::default(), 8);
        let mut pool = TablePool::new(3, std::vec![]);
        let mut number = || pool.number(&records, |_| true).expect("room");
        assert_eq!([number(), number()], [Some(0), Some(1)]);
        pool.give_number_back(&records, 0, false);
        pool.give_number_back(&records, 1, true);
        let mut number = || pool.number(&records, |_| true).expect("room");
        assert_eq!([number(), number(), number(), number()], [Some(1), Some(2), Some(0), None]);
    }
}
