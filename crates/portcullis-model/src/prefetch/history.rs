//! A bounded table of successors.

use crate::cache::{Cache, Replacement};
use rustc_hash::FxHashMap;

/// For each of the keys used last, its successors, the latest first. The numbers of keys and successors are bounded,
/// and the least recent one is dropped.
pub(super) struct History<V> {
    order: Cache<()>,
    rows: FxHashMap<u64, Vec<V>>,
    slots: usize,
}

impl<V: Copy + PartialEq> History<V> {
    pub(super) fn new(rows: usize, slots: usize) -> Self {
        Self { order: Cache::new(rows, 0, Replacement::Lru), rows: FxHashMap::default(), slots }
    }

    /// Records that `next` followed `key`.
    pub(super) fn note(&mut self, key: u64, next: V) {
        if let Some(gone) = self.order.insert(key, ()) {
            self.rows.remove(&gone);
        }
        let row = self.rows.entry(key).or_default();
        if let Some(at) = row.iter().position(|one| *one == next) {
            row.remove(at);
        } else if row.len() == self.slots {
            row.pop();
        }
        row.insert(0, next);
    }

    /// The successors of `key`, the latest first.
    pub(super) fn after(&mut self, key: u64) -> &[V] {
        match self.order.get(key) {
            Some(()) => self.rows.get(&key).map_or(&[], Vec::as_slice),
            None => &[],
        }
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn forget(&mut self, key: u64) {
        if self.order.remove(key) {
            self.rows.remove(&key);
        }
    }

    /// Removes the successors for which `forget` returns true from every row.
    pub(super) fn forget_followers(&mut self, mut forget: impl FnMut(&V) -> bool) {
        self.rows.values_mut().for_each(|row| row.retain(|next| !forget(next)));
    }

    pub(super) fn forget_where(&mut self, mut forget: impl FnMut(u64) -> bool) {
        self.order.remove_where(&mut forget);
        self.rows.retain(|key, _| !forget(*key));
    }
}

#[cfg(test)]
mod tests {
    use super::History;

    #[test]
    fn rows_and_slots_are_bounded_and_the_least_recent_goes() {
        let mut history = History::new(2, 2);
        for next in [10, 11, 10, 12] {
            history.note(1, next);
        }
        assert_eq!(history.after(1), [12, 10]);
        history.note(2, 20);
        assert_eq!(history.after(1), [12, 10], "this makes row 2 the oldest");
        history.note(3, 30);
        assert_eq!((history.after(1).len(), history.after(2).len(), history.after(3).len()), (2, 0, 1));
        assert_eq!(history.len(), 2);
        history.forget_followers(|next| *next == 12);
        assert_eq!(history.after(1), [10]);
        history.forget(1);
        assert!(history.after(1).is_empty());
        history.forget_where(|key| key == 3);
        assert_eq!(history.len(), 0);
    }
}
