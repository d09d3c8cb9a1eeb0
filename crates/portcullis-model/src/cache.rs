//! A set-associative cache that is fast enough to be looked up for every transaction of a device.
//!
//! A lookup is one hash, whatever the associativity. Recency is a linked list through the slots of a set. Nothing is
//! allocated after construction.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// How a full cache makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// Evicts the entry of the set that was used longest ago.
    Lru,
    /// Evicts all entries of the cache, as QEMU does.
    ClearWhenFull,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot<V> {
    key: u64,
    value: V,
    /// The next slot towards the most recent one of the set.
    newer: u32,
    /// The next slot towards the least recent one of the set. In a free slot, the next free slot.
    older: u32,
}

#[derive(Clone, Copy)]
struct Set {
    newest: u32,
    oldest: u32,
    free: u32,
}

/// A cache from `u64` keys to values. The set of a key is the key modulo the number of sets.
pub struct Cache<V> {
    index: FxHashMap<u64, u32>,
    slots: Box<[Slot<V>]>,
    sets: Box<[Set]>,
    ways: usize,
    replacement: Replacement,
    /// The slot used last. It is the newest of its set, so finding it again changes nothing.
    last: u32,
}

impl<V: Copy + Default> Cache<V> {
    /// A cache of `entries` in sets of `ways`. If `ways` is 0 or at least `entries`, the cache is fully associative.
    /// Entries that do not fill a set are left out. A cache with no entries never holds anything.
    pub fn new(entries: usize, ways: usize, replacement: Replacement) -> Self {
        let ways = if ways == 0 { entries } else { ways.min(entries) };
        let sets = entries.checked_div(ways).unwrap_or(0);
        let empty = Slot { key: 0, value: V::default(), newer: NONE, older: NONE };
        let mut index = FxHashMap::default();
        // With twice the capacity, deletions never make the map grow; it rehashes in place.
        index.reserve(2 * sets * ways);
        let mut cache = Self {
            index,
            slots: vec![empty; sets * ways].into(),
            sets: vec![Set { newest: NONE, oldest: NONE, free: NONE }; sets].into(),
            ways,
            replacement,
            last: NONE,
        };
        cache.clear();
        cache
    }

    /// The number of entries held now.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether the cache holds no entry.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The number of entries that fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The value of `key`, which becomes the most recent of its set.
    #[inline]
    pub fn get(&mut self, key: u64) -> Option<V> {
        if let Some(slot) = self.slots.get(self.last as usize)
            && slot.key == key
        {
            return Some(slot.value);
        }
        let at = *self.index.get(&key)?;
        self.touch(at);
        Some(self.slots[at as usize].value)
    }

    /// The value of `key`. Does not change the recency.
    #[inline]
    pub fn peek(&self, key: u64) -> Option<V> {
        self.index.get(&key).map(|&at| self.slots[at as usize].value)
    }

    /// Stores `value` under `key` as the most recent entry of its set. It replaces the old value of `key`; otherwise
    /// it makes room if needed. Returns the evicted key, or none if all entries were evicted.
    pub fn insert(&mut self, key: u64, value: V) -> Option<u64> {
        if self.slots.is_empty() {
            return None;
        }
        if let Some(&at) = self.index.get(&key) {
            self.slots[at as usize].value = value;
            self.touch(at);
            return None;
        }
        if self.replacement == Replacement::ClearWhenFull && self.index.len() == self.slots.len() {
            self.clear();
        }
        let set = self.set_of(key);
        let gone = (self.sets[set].free == NONE).then(|| self.slots[self.sets[set].oldest as usize].key);
        if let Some(oldest) = gone {
            self.remove(oldest);
        }
        let at = self.sets[set].free;
        self.sets[set].free = self.slots[at as usize].older;
        self.slots[at as usize] = Slot { key, value, newer: NONE, older: NONE };
        self.index.insert(key, at);
        self.push_newest(set, at);
        gone
    }

    /// The keys next to `key` in the recency order of its set: the next newer one and the next older one.
    pub fn neighbours(&self, key: u64) -> (Option<u64>, Option<u64>) {
        let Some(&at) = self.index.get(&key) else { return (None, None) };
        let key_of = |at: u32| self.slots.get(at as usize).map(|slot| slot.key);
        let Slot { newer, older, .. } = self.slots[at as usize];
        (key_of(newer), key_of(older))
    }

    /// The keys, set by set, each set from the least recent on.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.sets.iter().flat_map(|set| {
            let slot = |at: u32| self.slots.get(at as usize);
            std::iter::successors(slot(set.oldest), move |held| slot(held.newer)).map(|held| held.key)
        })
    }

    /// Makes `key`, if present, the least recent of its set, so that it is evicted next.
    pub fn make_oldest(&mut self, key: u64) {
        let Some(&at) = self.index.get(&key) else { return };
        let set = self.set_of(key);
        self.unlink(set, at);
        let second = self.sets[set].oldest;
        self.slots[at as usize].older = NONE;
        self.slots[at as usize].newer = second;
        match second {
            NONE => self.sets[set].newest = at,
            second => self.slots[second as usize].older = at,
        }
        self.sets[set].oldest = at;
        if self.last == at {
            self.last = NONE;
        }
    }

    /// Removes `key`. Returns whether it was present.
    pub fn remove(&mut self, key: u64) -> bool {
        let Some(at) = self.index.remove(&key) else { return false };
        let set = self.set_of(key);
        self.unlink(set, at);
        self.slots[at as usize].older = self.sets[set].free;
        self.sets[set].free = at;
        if self.last == at {
            self.last = NONE;
        }
        true
    }

    /// Removes every key for which `drop` returns true.
    pub fn remove_where(&mut self, mut drop: impl FnMut(u64) -> bool) {
        for set in 0..self.sets.len() {
            let mut at = self.sets[set].newest;
            while at != NONE {
                let Slot { key, older, .. } = self.slots[at as usize];
                if drop(key) {
                    self.remove(key);
                }
                at = older;
            }
        }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.index.clear();
        self.last = NONE;
        for (number, set) in self.sets.iter_mut().enumerate() {
            let first = number * self.ways;
            for at in first..first + self.ways {
                self.slots[at].older = if at + 1 < first + self.ways { at as u32 + 1 } else { NONE };
            }
            *set = Set { newest: NONE, oldest: NONE, free: first as u32 };
        }
    }

    fn set_of(&self, key: u64) -> usize {
        if self.sets.len() == 1 { 0 } else { (key % self.sets.len() as u64) as usize }
    }

    fn touch(&mut self, at: u32) {
        let set = self.set_of(self.slots[at as usize].key);
        if self.sets[set].newest != at {
            self.unlink(set, at);
            self.push_newest(set, at);
        }
        self.last = at;
    }

    fn push_newest(&mut self, set: usize, at: u32) {
        let second = self.sets[set].newest;
        self.slots[at as usize].newer = NONE;
        self.slots[at as usize].older = second;
        match second {
            NONE => self.sets[set].oldest = at,
            second => self.slots[second as usize].newer = at,
        }
        self.sets[set].newest = at;
        self.last = at;
    }

    fn unlink(&mut self, set: usize, at: u32) {
        let Slot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.sets[set].newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.sets[set].oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(cache: &Cache<u64>, keys: impl IntoIterator<Item = u64>) -> Vec<u64> {
        keys.into_iter().filter(|&key| cache.peek(key).is_some()).collect()
    }

    #[test]
    fn lru_evicts_the_least_recent_and_a_peek_is_no_use() {
        let mut cache = Cache::new(3, 0, Replacement::Lru);
        for key in [1, 2, 3] {
            cache.insert(key, key);
        }
        assert_eq!(cache.get(1), Some(1));
        assert_eq!(cache.peek(2), Some(2));
        cache.insert(4, 4);
        assert_eq!(held(&cache, 1..=4), [1, 3, 4]);
    }

    #[test]
    fn a_full_cache_that_clears_keeps_only_the_newcomer() {
        let mut cache = Cache::new(4, 0, Replacement::ClearWhenFull);
        for key in 0..4 {
            cache.insert(key, key);
        }
        cache.insert(2, 9);
        assert_eq!(cache.len(), 4, "replacing a key needs no room");
        cache.insert(7, 7);
        assert_eq!(held(&cache, 0..8), [7]);
    }

    #[test]
    fn sets_compete_among_themselves_only() {
        let mut cache = Cache::new(4, 2, Replacement::Lru);
        for key in [0, 2, 4, 1] {
            cache.insert(key, key);
        }
        assert_eq!(held(&cache, 0..8), [1, 2, 4], "0, 2 and 4 share a set of two");
        assert_eq!(cache.capacity(), 4);
    }

    #[test]
    fn no_entries_hold_nothing() {
        let mut cache = Cache::new(0, 4, Replacement::Lru);
        cache.insert(1, 1);
        assert!(cache.get(1).is_none() && cache.is_empty());
        cache.remove_where(|_| true);
    }

    /// A simple model of the same cache: a list for each set, most recent first.
    struct Plain(Vec<Vec<u64>>, usize);

    impl Plain {
        fn touch(&mut self, key: u64, insert: bool) -> bool {
            let sets = self.0.len() as u64;
            let set = &mut self.0[(key % sets) as usize];
            let found = set.iter().position(|&held| held == key);
            if let Some(at) = found {
                set.remove(at);
            }
            if found.is_some() || insert {
                set.insert(0, key);
                set.truncate(self.1);
            }
            found.is_some()
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_list_does(ways in 1usize..5, sets in 1usize..4, steps in prop::collection::vec((0u8..6, 0u64..24), 1..400)) {
            let mut cache = Cache::new(ways * sets, ways, Replacement::Lru);
            let mut plain = Plain(vec![Vec::new(); sets], ways);
            for (step, key) in steps {
                match step {
                    0 | 1 => {
                        prop_assert_eq!(cache.get(key).is_some(), plain.touch(key, false));
                    }
                    2 => {
                        let before = plain.0.concat();
                        let gone = cache.insert(key, key);
                        plain.touch(key, true);
                        let after = plain.0.concat();
                        prop_assert_eq!(gone, before.into_iter().find(|held| !after.contains(held)));
                    }
                    3 => {
                        let set = &mut plain.0[(key % sets as u64) as usize];
                        let before = set.len();
                        set.retain(|&held| held != key);
                        let dropped = set.len() < before;
                        prop_assert_eq!(cache.remove(key), dropped);
                    }
                    4 => {
                        cache.make_oldest(key);
                        let set = &mut plain.0[(key % sets as u64) as usize];
                        if let Some(at) = set.iter().position(|&held| held == key) {
                            set.remove(at);
                            set.push(key);
                        }
                    }
                    _ => {
                        cache.remove_where(|held| held % 5 == key % 5);
                        plain.0.iter_mut().for_each(|set| set.retain(|held| held % 5 != key % 5));
                    }
                }
                let in_order: Vec<u64> = plain.0.iter().flat_map(|set| set.iter().rev().copied()).collect();
                prop_assert_eq!(cache.keys().collect::<Vec<_>>(), in_order);
                let set = &plain.0[(key % sets as u64) as usize];
                let at = set.iter().position(|&held| held == key);
                let beside = |at: Option<usize>| at.and_then(|at| set.get(at)).copied();
                let neighbours = (beside(at.and_then(|at| at.checked_sub(1))), beside(at.map(|at| at + 1)));
                prop_assert_eq!(cache.neighbours(key), neighbours);
                let expected: Vec<u64> = (0..24).filter(|key| plain.0.iter().flatten().any(|held| held == key)).collect();
                prop_assert_eq!(held(&cache, 0..24), expected);
            }
        }
    }
}
