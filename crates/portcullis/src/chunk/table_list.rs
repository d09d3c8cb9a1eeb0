//! Lists of tables, linked through their records. A table is in at most one list, so no list needs memory of its own.

use super::table_records::TableRecords;
use crate::sync::Ordering;

/// A list of tables. The numbers in it are one more than those of the tables; 0 means none. Relaxed accesses: the list
/// lies behind a lock, and so do the links of all tables in it.
#[derive(Default)]
pub(super) struct TableList {
    first: u32,
    last: u32,
    len: u32,
}

impl TableList {
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// The first table.
    pub(super) const fn first(&self) -> Option<u32> {
        self.first.checked_sub(1)
    }

    /// The last table.
    pub(super) const fn last(&self) -> Option<u32> {
        self.last.checked_sub(1)
    }

    /// The table behind `number`, which is in this list.
    pub(super) fn behind(records: &TableRecords, number: u32) -> Option<u32> {
        records.get(number).after.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn push_back(&mut self, records: &TableRecords, number: u32) {
        self.link(records, self.last, number + 1);
        self.link(records, number + 1, 0);
        self.len += 1;
    }

    pub(super) fn push_front(&mut self, records: &TableRecords, number: u32) {
        self.link(records, number + 1, self.first);
        self.link(records, 0, number + 1);
        self.len += 1;
    }

    /// Removes a table that is in this list.
    pub(super) fn remove(&mut self, records: &TableRecords, number: u32) {
        let record = records.get(number);
        self.link(records, record.before.load(Ordering::Relaxed), record.after.load(Ordering::Relaxed));
        self.len -= 1;
    }

    pub(super) fn pop_front(&mut self, records: &TableRecords) -> Option<u32> {
        self.first().inspect(|first| self.remove(records, *first))
    }

    pub(super) fn pop_back(&mut self, records: &TableRecords) -> Option<u32> {
        self.last().inspect(|last| self.remove(records, *last))
    }

    /// Makes two tables neighbours, or one of them the first or the last.
    #[inline]
    fn link(&mut self, records: &TableRecords, before: u32, after: u32) {
        match before.checked_sub(1) {
            Some(number) => records.get(number).after.store(after, Ordering::Relaxed),
            None => self.first = after,
        }
        match after.checked_sub(1) {
            Some(number) => records.get(number).before.store(before, Ordering::Relaxed),
            None => self.last = before,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// As a queue of the standard library does.
        #[test]
        fn it_is_a_queue(script in vec((0..5u8, 0..8u32), 0..100)) {
            let host = FakeHost::default();
            let records = TableRecords::of(&host, 8);
            let (mut list, mut expected) = (TableList::default(), VecDeque::new());
            for (operation, number) in script {
                let is_in = expected.contains(&number);
                match operation {
                    0 if !is_in => {
                        list.push_back(&records, number);
                        expected.push_back(number);
                    }
                    1 if !is_in => {
                        list.push_front(&records, number);
                        expected.push_front(number);
                    }
                    2 if is_in => {
                        list.remove(&records, number);
                        expected.retain(|other| *other != number);
                    }
                    3 => prop_assert_eq!(list.pop_front(&records), expected.pop_front()),
                    4 => prop_assert_eq!(list.pop_back(&records), expected.pop_back()),
                    _ => {}
                }
                let mut found = VecDeque::from_iter(list.first());
                while let Some(next) = found.back().and_then(|last| TableList::behind(&records, *last)) {
                    found.push_back(next);
                }
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(list.len(), expected.len());
            }
        }
    }
}
