//! A map in one block of memory, sorted by key. It allocates nothing itself, so that it can be changed with a lock
//! held. The caller provides memory as [`Room`], which is allocated before the lock is taken and dropped after it is
//! released.

use alloc::boxed::Box;
use alloc::vec::Vec;
use portcullis::platform::{Context, Padded};
use portcullis::{NoMemory, Platform};

/// `count` default values. The host may sleep to allocate them.
pub(crate) fn try_defaults<T: Default, P: Platform>(platform: &P, count: usize) -> Result<Box<[T]>, NoMemory> {
    try_boxed(platform, count, T::default)
}

/// `count` values that `make` makes. The host may sleep to allocate them.
fn try_boxed<T, P: Platform>(platform: &P, count: usize, make: impl Fn() -> T) -> Result<Box<[T]>, NoMemory> {
    let mut all = try_reserve(platform, count)?;
    for _ in 0..count {
        assert!(all.len() < all.capacity(), "it was reserved");
        all.push(make());
    }
    Ok(all.into_boxed_slice())
}

/// One value on the heap, on cache lines of its own.
pub(crate) type OnLines<T> = Box<[Padded<T>; 1]>;

/// One value that `make` makes, on cache lines of its own. The host may sleep to allocate it.
pub(crate) fn try_on_lines<T, P: Platform>(platform: &P, make: impl Fn() -> T) -> Result<OnLines<T>, NoMemory> {
    try_boxed(platform, 1, || Padded(make()))?.try_into().map_err(|_| NoMemory)
}

/// A vector with room for `capacity` elements. The host may sleep to allocate it.
pub(crate) fn try_reserve<T, P: Platform>(platform: &P, capacity: usize) -> Result<Vec<T>, NoMemory> {
    let mut all = Vec::new();
    platform.allocate(Context::MaySleep, || all.try_reserve_exact(capacity)).map_err(|_| NoMemory)?;
    Ok(all)
}

pub(crate) struct SortedMap<K, V>(Vec<(K, V)>);

/// Memory for a map that is full. Empty until a call of [`slot`](SortedMap::slot) has found no room.
pub(crate) struct Room<K, V> {
    memory: Vec<(K, V)>,
    /// The number of entries that the map needs room for.
    wanted: usize,
}

/// Room for one more entry.
pub(crate) struct Slot<'m, K, V>(&'m mut Vec<(K, V)>);

/// Memory has to be obtained before the next attempt.
#[derive(Debug)]
pub(crate) struct Short;

impl<K, V> Default for Room<K, V> {
    fn default() -> Self {
        Self { memory: Vec::new(), wanted: 0 }
    }
}

impl<K, V> Room<K, V> {
    /// Allocates what the last attempt lacked. No lock may be held.
    pub(crate) fn obtain<P: Platform>(&mut self, platform: &P) -> Result<(), NoMemory> {
        if self.memory.capacity() < self.wanted {
            // The old memory holds no entries, so none are moved.
            self.memory = try_reserve(platform, self.wanted)?;
        }
        Ok(())
    }
}

impl<K: Ord + Copy, V> SortedMap<K, V> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Room for one more entry. If the map is full, it takes the memory of `room`, which then holds the map's old
    /// memory.
    ///
    /// # Errors
    /// [`Short`] if `room` has too little memory. `room` then knows how much is needed.
    pub(crate) fn slot(&mut self, room: &mut Room<K, V>) -> Result<Slot<'_, K, V>, Short> {
        /// The smallest number of entries that is allocated.
        const LEAST: usize = 8;
        let len = self.0.len();
        if len == self.0.capacity() {
            if room.memory.capacity() <= len {
                room.wanted = (2 * len).max(LEAST);
                return Err(Short);
            }
            room.wanted = 0;
            // The vector is already empty. `clear` shows the compiler that `append` does not grow it.
            room.memory.clear();
            room.memory.append(&mut self.0);
            core::mem::swap(&mut self.0, &mut room.memory);
        }
        Ok(Slot(&mut self.0))
    }

    fn find(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.find(key).is_ok()
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    pub(crate) fn remove(&mut self, key: K) {
        if let Ok(at) = self.find(key) {
            self.0.remove(at);
        }
    }

    /// Removes the entries whose values `keep` refuses.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&V) -> bool) {
        self.0.retain(|(_, value)| keep(value));
    }

    /// All entries in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// The entries after `key`, or all of them.
    pub(crate) fn iter_after(&self, key: Option<K>) -> impl Iterator<Item = (K, &V)> {
        let first = key.map_or(0, |key| self.0.partition_point(|(other, _)| *other <= key));
        self.0[first..].iter().map(|(key, value)| (*key, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Ord, V> Slot<'_, K, V> {
    /// Stores an entry. It replaces an entry with the same key.
    pub(crate) fn fill(self, key: K, value: V) {
        match self.0.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(at) => self.0[at] = (key, value),
            Err(at) => {
                // The slot has room, so this moves entries and allocates nothing.
                assert!(self.0.len() < self.0.capacity(), "a slot has room for an entry");
                self.0.insert(at, (key, value));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Room, SortedMap};
    use portcullis::platform::fake::FakeHost;
    use std::collections::BTreeMap;

    #[test]
    fn it_holds_what_a_tree_holds() {
        let (mut map, mut tree) = (SortedMap::new(), BTreeMap::new());
        let mut room = Room::default();
        for step in 0..2000_u32 {
            let key = (step * 7919) % 257;
            if step % 5 < 3 {
                if map.slot(&mut room).is_err() {
                    room.obtain(&FakeHost::default()).expect("memory");
                }
                map.slot(&mut room).expect("room was obtained").fill(key, step);
                tree.insert(key, step);
            } else {
                map.remove(key);
                tree.remove(&key);
            }
            assert_eq!(map.get(key), tree.get(&key));
            assert_eq!(map.contains(key + 1), tree.contains_key(&(key + 1)));
        }
        assert!(map.iter().map(|(key, value)| (key, *value)).eq(tree.iter().map(|(key, value)| (*key, *value))));
        assert!(map.iter_after(Some(100)).map(|(key, _)| key).eq(tree.range(101..).map(|(key, _)| *key)));
        map.retain(|value| value % 2 == 0);
        tree.retain(|_, value| *value % 2 == 0);
        assert!(map.iter_after(None).map(|(key, _)| key).eq(tree.keys().copied()));
    }

    /// A full map reports that it is full, and gets memory only from the room.
    #[test]
    fn nothing_is_allocated_without_room() {
        let mut map = SortedMap::<u32, ()>::new();
        let mut room = Room::default();
        assert!(map.slot(&mut room).is_err());
        room.obtain(&FakeHost::default()).expect("memory");
        let capacity = room.memory.capacity();
        for key in 0..capacity as u32 {
            map.slot(&mut room).expect("room").fill(key, ());
        }
        assert_eq!((map.0.capacity(), room.memory.capacity()), (capacity, 0), "it took the memory of the room");
        assert!(map.slot(&mut room).is_err(), "full");
        room.obtain(&FakeHost::default()).expect("memory");
        map.slot(&mut room).expect("room").fill(77, ());
        assert_eq!(room.memory.capacity(), capacity, "the room has the old memory");
    }
}
