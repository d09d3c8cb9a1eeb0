//! Records by number. A record is made at its first use and kept as long as the tree: a radix tree that is read
//! without locks.
//!
//! There is a tree for each height, and a number is in the lowest tree that reaches it. Addresses below 4 GiB are
//! used first, so their records are near the root, however wide the address space is.
//!
//! The memory is bounded by the numbers ever used: 64 records at a time, and 4 KiB for each 32,768 neighbouring
//! numbers.

use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::{ptr, slice};
use portcullis::error::NoMemory;
use portcullis::platform::memory::try_fill;
use portcullis::platform::{Context, Platform};

/// log2 of the records in a leaf. The model checker uses small nodes, because it explores each of their entries.
const LEAF_BITS: u32 = if cfg!(loom) { 1 } else { 6 };
/// log2 of the entries of a branch.
const BRANCH_BITS: u32 = if cfg!(loom) { 6 } else { 9 };
const RECORDS: usize = 1 << LEAF_BITS;
const ENTRIES: usize = 1 << BRANCH_BITS;
/// The number of branches on the longest path: enough for a record per page of 48-bit addresses.
const HEIGHT_MAX: usize = 4;

/// Null, a pointer to the first record of a leaf, or a pointer to the first entry of a branch. Written once.
type Entry = AtomicPtr<()>;

/// A `T` for each number that was used.
pub(super) struct RadixTree<T> {
    /// The root entries: first that of the tree with one branch on each path, then that with two, and so on.
    roots: [Entry; HEIGHT_MAX],
    /// Bytes in nodes. A statistic, so Relaxed.
    bytes: AtomicUsize,
    records: PhantomData<Box<T>>,
}

/// The number of branches on the path to `number`.
const fn height(number: u64) -> usize {
    let bits = (u64::BITS - number.leading_zeros()).saturating_sub(LEAF_BITS);
    if bits <= BRANCH_BITS { 1 } else { bits.div_ceil(BRANCH_BITS) as usize }
}

/// The index of the entry of a branch that leads to `number`. Branches directly above leaves have level 0.
const fn index(number: u64, level: usize) -> usize {
    (number >> (LEAF_BITS + level as u32 * BRANCH_BITS)) as usize % ENTRIES
}

/// The index of the record of `number` in its leaf.
const fn place(number: u64) -> usize {
    number as usize % RECORDS
}

/// The items of a node.
///
/// # Safety
/// `node` is a leaf and `N` is the type of records, or it is a branch and `N` is [`Entry`]. `count` is the number of
/// its items. The node is not freed within `'n`.
unsafe fn items<'n, N>(node: *mut (), count: usize) -> &'n [N] {
    // SAFETY: `grow` has made the node as a slice of `count` items.
    unsafe { slice::from_raw_parts(node.cast::<N>(), count) }
}

impl<T: Default + Send + Sync> RadixTree<T> {
    /// An empty tree.
    pub(super) fn new() -> Self {
        Self {
            roots: core::array::from_fn(|_| Entry::new(ptr::null_mut())),
            bytes: AtomicUsize::new(0),
            records: PhantomData,
        }
    }

    /// The record of `number`, if it was ever made.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&T> {
        let height = height(number);
        // Acquire, here and below: the contents of the node are visible with the pointer.
        let mut node = self.roots.get(height - 1)?.load(Ordering::Acquire);
        for level in (0..height).rev() {
            if node.is_null() {
                return None;
            }
            // SAFETY: at this level above the leaves the node is a branch. Nodes live as long as the tree.
            node = unsafe { items::<Entry>(node, ENTRIES) }[index(number, level)].load(Ordering::Acquire);
        }
        if node.is_null() {
            return None;
        }
        // SAFETY: below the last branch the node is a leaf.
        Some(&unsafe { items::<T>(node, RECORDS) }[place(number)])
    }

    /// The record of `number`, made now if necessary.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Panics
    /// If `number` is too large for a page of a 48-bit address.
    pub(super) fn get_or_make<P: Platform>(&self, platform: &P, number: u64) -> Result<&T, NoMemory> {
        let height = height(number);
        let mut entry = &self.roots[height - 1];
        for level in (0..height).rev() {
            let branch = self.grow(platform, entry, ENTRIES, || Entry::new(ptr::null_mut()))?;
            entry = &branch[index(number, level)];
        }
        Ok(&self.grow(platform, entry, RECORDS, T::default)?[place(number)])
    }

    /// The node behind `entry`, made now if necessary. Its items must be of the kind that its level requires.
    fn grow<N, P: Platform>(
        &self,
        platform: &P,
        entry: &Entry,
        count: usize,
        make: impl FnMut() -> N,
    ) -> Result<&[N], NoMemory> {
        let mut node = entry.load(Ordering::Acquire);
        if node.is_null() {
            let new = Box::into_raw(try_fill(platform, Context::Atomic, count, make)?.into_boxed_slice());
            // Release: a CPU that finds the node finds it filled in.
            let installed = entry.compare_exchange(ptr::null_mut(), new.cast(), Ordering::AcqRel, Ordering::Acquire);
            node = match installed {
                Ok(_) => {
                    self.bytes.fetch_add(count * size_of::<N>(), Ordering::Relaxed);
                    new.cast()
                }
                Err(winner) => {
                    // SAFETY: made above and never shared.
                    drop(unsafe { Box::from_raw(new) });
                    winner
                }
            };
        }
        // SAFETY: every caller names the type of the items behind `entry`. Nodes live as long as the tree.
        Ok(unsafe { items(node, count) })
    }

    /// Visits every record, including those that were made but never used.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&T)) {
        for (root, height) in self.roots.iter().zip(1..) {
            walk(root, height, &mut visit);
        }
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Visits every record behind `entry`, which is `height` branches above the leaves.
fn walk<T>(entry: &Entry, height: usize, visit: &mut impl FnMut(&T)) {
    let node = entry.load(Ordering::Acquire);
    if node.is_null() {
        return;
    }
    if height == 0 {
        // SAFETY: behind the last branch the node is a leaf. Nodes live as long as the tree.
        unsafe { items::<T>(node, RECORDS) }.iter().for_each(visit);
    } else {
        // SAFETY: above the leaves the node is a branch.
        let branch = unsafe { items::<Entry>(node, ENTRIES) };
        branch.iter().for_each(|entry| walk(entry, height - 1, visit));
    }
}

/// Frees the node behind `entry`, and those behind it.
///
/// # Safety
/// The entry is `height` branches above the leaves, the records have type `T`, and nothing uses the nodes any more.
unsafe fn free<T>(entry: &Entry, height: usize) {
    let node = entry.load(Ordering::Acquire);
    if node.is_null() {
        return;
    }
    if height == 0 {
        // SAFETY: a leaf, which `grow` has made as a boxed slice of this many records. This call alone owns it.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(node.cast::<T>(), RECORDS)) });
    } else {
        // SAFETY: a branch, made in the same way.
        let branch = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(node.cast::<Entry>(), ENTRIES)) };
        for entry in &branch {
            // SAFETY: the caller's promise, one branch further down.
            unsafe { free::<T>(entry, height - 1) };
        }
    }
}

impl<T> Drop for RadixTree<T> {
    fn drop(&mut self) {
        for (root, height) in self.roots.iter().zip(1..) {
            // SAFETY: with `&mut self`, no reference to a record is left. The position of a root is the height of its
            // tree.
            unsafe { free::<T>(root, height) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use portcullis::platform::fake::FakeHost;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::sync::{Arc, LazyLock};

    /// The first and last number of every height, and neighbours that share a leaf or a branch.
    const NUMBERS: [u64; 11] =
        [0, 1, 63, 64, (1 << 15) - 1, 1 << 15, (1 << 24) - 1, 1 << 24, (1 << 33) - 1, 1 << 33, (1 << 36) - 1];

    #[test]
    fn every_number_has_a_record_of_its_own() {
        let tree = RadixTree::<AtomicU64>::new();
        for number in NUMBERS {
            assert!(tree.get(number).is_none_or(|record| record.load(Ordering::Relaxed) == 0), "{number:#x}");
            tree.get_or_make(&FakeHost::default(), number).unwrap().store(number + 1, Ordering::Relaxed);
        }
        for number in NUMBERS {
            let made = tree.get_or_make(&FakeHost::default(), number).unwrap();
            assert!(ptr::eq(made, tree.get(number).unwrap()), "{number:#x}");
            assert_eq!(made.load(Ordering::Relaxed), number + 1);
        }
        let mut seen = Vec::new();
        tree.for_each(|record| seen.push(record.load(Ordering::Relaxed)));
        seen.retain(|number| *number > 0);
        assert_eq!(seen, NUMBERS.map(|number| number + 1));
    }

    #[test]
    fn what_was_never_made_is_not_there() {
        let tree = RadixTree::<AtomicU64>::new();
        assert_eq!((tree.bytes(), NUMBERS.map(|number| tree.get(number).is_some())), (0, [false; 11]));
        tree.get_or_make(&FakeHost::default(), 64).unwrap();
        assert_eq!(tree.bytes(), (RECORDS + ENTRIES) * 8, "a branch and a leaf");
        assert!(tree.get(63).is_none() && tree.get(127).is_some() && tree.get(128).is_none());
        assert!(tree.get(u64::MAX).is_none());
    }

    /// A record that is counted. Making it may be interrupted by a request for a record of the same node.
    struct Counted(#[expect(dead_code, reason = "it counts by being there")] Arc<()>);
    static COUNT: LazyLock<Arc<()>> = LazyLock::new(Arc::default);
    static DIRECTORY: LazyLock<RadixTree<Counted>> = LazyLock::new(RadixTree::new);
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);

    impl Default for Counted {
        fn default() -> Self {
            if !INTERRUPTED.swap(true, Ordering::Relaxed) {
                DIRECTORY.get_or_make(&FakeHost::default(), 1).unwrap();
            }
            Self(Arc::clone(&COUNT))
        }
    }

    #[test]
    fn of_two_that_make_a_node_one_frees_its_own() {
        let record = DIRECTORY.get_or_make(&FakeHost::default(), 0).unwrap();
        assert!(ptr::eq(record, DIRECTORY.get(0).unwrap()) && DIRECTORY.get(1).is_some());
        assert_eq!(Arc::strong_count(&COUNT), 1 + RECORDS);
        // All of them are freed with the tree.
        let another = RadixTree::<Counted>::new();
        for number in NUMBERS {
            another.get_or_make(&FakeHost::default(), number).unwrap();
        }
        assert_eq!(Arc::strong_count(&COUNT), 1 + RECORDS + 9 * RECORDS);
        drop(another);
        assert_eq!(Arc::strong_count(&COUNT), 1 + RECORDS);
    }
}
