//! Leaf tables by number. Every map and unmap finds its table here, without a lock or a search.

use crate::error::NoMemory;
use crate::platform::memory::{try_box, try_fill};
use crate::platform::{Context, Platform, Walk};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::table::{ENTRIES, Entry, Frame};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::{self, NonNull};

/// The length of the first array. Under the model checker it is small, so that it is outgrown.
const TABLES_FIRST: usize = if cfg!(loom) { 1 } else { 64 };

/// Pointers to tables, which are never null.
struct PointerArray {
    tables: Box<[AtomicPtr<Frame>]>,
    /// The shorter array that this one has replaced, or null. It may still be read.
    outgrown: *mut PointerArray,
}

/// An array that is not published yet: no CPU reads it.
pub(super) struct NewArray(Box<PointerArray>);

/// The leaf tables, by number.
///
/// No pointer on the path to a table is null: a number that is not linked leads to an empty table. When the array is
/// full, an array of twice the length replaces it. The old arrays, which together are about as long as the new one,
/// stay until the domain is dropped. This is the only list of chunks that is one piece of memory, because pieces would
/// cost each map and each unmap two instructions. It takes 8 bytes for each table. If the host has no longer array, no
/// table is added, and maps go elsewhere.
///
/// A reader that has loaded an old array finds in it every table that was linked before, and needs no other. A table
/// that was linked later, perhaps under a number that another table had before, is known only to CPUs that have
/// acquired it from the CPU that linked it, and these see the new array. Walks may still find a table after it was
/// unlinked, so its page is kept, and its number is not used again before these walks have ended. After that, no
/// reader of an old array is left that could find a pointer to a freed page there.
pub(super) struct ChunkTables {
    /// The pointers of the current array. Every map and unmap reads this and `length`, so they are not behind `array`.
    tables: AtomicPtr<AtomicPtr<Frame>>,
    /// A lower bound on the number of pointers: written after `tables`, and read before it.
    length: AtomicUsize,
    array: AtomicPtr<PointerArray>,
    /// The entries of a table in which nothing is mapped, and one more. Numbers that are not linked lead to them: to
    /// the first if their addresses are held for chunks, and to the second otherwise. It is never written.
    no_table: Vec<Entry>,
    /// The memory of all arrays, in bytes. Relaxed, as a statistic.
    array_bytes: AtomicUsize,
}

impl ChunkTables {
    /// No tables yet.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        let no_table = try_fill(platform, Context::MaySleep, ENTRIES + 1, || Entry::new(0))?;
        let all = Self {
            tables: AtomicPtr::new(ptr::null_mut()),
            length: AtomicUsize::new(0),
            array: AtomicPtr::new(ptr::null_mut()),
            no_table,
            array_bytes: AtomicUsize::new(0),
        };
        if let Some(array) = all.make(platform, Context::MaySleep, 0)? {
            all.take(array);
        }
        Ok(all)
    }

    /// The current array, for code that links and unlinks tables.
    fn array(&self) -> &[AtomicPtr<Frame>] {
        // Acquire: the contents of the array become visible with the pointer.
        let array = self.array.load(Ordering::Acquire);
        // SAFETY: the pointer is from `take`, which `new` has called; arrays stay until `self` is dropped.
        &unsafe { &*array }.tables
    }

    /// The pointer to table `number`.
    ///
    /// # Safety
    /// `number` is less than a length that this CPU has read, or the table was linked before its number reached this
    /// CPU.
    #[inline(always)]
    unsafe fn pointer(&self, number: usize) -> &AtomicPtr<Frame> {
        // Acquire: the contents of the array become visible with the pointer.
        let tables = self.tables.load(Ordering::Acquire);
        // SAFETY: arrays stay until `self` is dropped. They only grow, and a length is stored after its array: this
        // array is as long as any length that was read before, and as the array in which the table was linked.
        unsafe { &*tables.add(number) }
    }

    /// The entries from page `page` on, counted from the first page of table 0, to the end of its table. Those of an
    /// empty table if it is not linked, and none beyond the array, where no table is linked.
    #[inline(always)]
    pub(super) fn entries<'w>(&'w self, walk: Walk<'w>, page: u64) -> &'w [Entry] {
        self.get(walk, page).map_or(&[], |table| &table[page as usize % ENTRIES..])
    }

    /// The same, and none if the addresses are not [held](Self::holds) for chunks.
    #[inline(always)]
    pub(super) fn held_entries<'w>(&'w self, walk: Walk<'w>, page: u64) -> Option<&'w [Entry]> {
        let table = self.get(walk, page).filter(|table| !ptr::eq(*table, self.not_held()))?;
        Some(&table[page as usize % ENTRIES..])
    }

    /// The table of page `page`.
    #[inline(always)]
    fn get<'w>(&'w self, _walk: Walk<'w>, page: u64) -> Option<&'w Frame> {
        // SAFETY: the table lies in `no_table`, or is a page that was linked within the walk. A page is freed only when
        // the walks have ended that were running when it was unlinked.
        self.find(page).map(|table| unsafe { table.as_ref() })
    }

    /// Where the table of page `page` is. Outside of a walk it may be freed at any time.
    #[inline(always)]
    fn find(&self, page: u64) -> Option<NonNull<Frame>> {
        let number = usize::try_from(page / ENTRIES as u64).unwrap_or(usize::MAX);
        // Acquire: an array of that length becomes visible with the length.
        if number >= self.length.load(Ordering::Acquire) {
            return None;
        }
        // Acquire: the zeroed page becomes visible with the pointer.
        // SAFETY: `number` is less than a length.
        let table = unsafe { self.pointer(number) }.load(Ordering::Acquire);
        // SAFETY: no pointer of an array is null.
        Some(unsafe { NonNull::new_unchecked(table) })
    }

    /// Whether the addresses of page `page`, counted from the first page of table 0, are held for chunks.
    pub(super) fn holds(&self, page: u64) -> bool {
        // Who has an address there has it from the holder or from another allocator, and sees who that was.
        self.find(page).is_some_and(|table| table.as_ptr() != self.not_held())
    }

    /// A table that must be linked: some of it is out, or the caller has it from a list of tables.
    #[inline(always)]
    pub(super) fn linked(&self, number: u32) -> &Frame {
        debug_assert!(!self.is_of_no_table(self.array()[number as usize].load(Ordering::Relaxed)));
        // SAFETY: a chunk is handed out after its table was linked, and only tables of which nothing is out are
        // unlinked. So the table is linked, in an array that is long enough for it. Acquire as in `get`.
        unsafe { self.pointer(number as usize).load(Ordering::Acquire).as_ref().unwrap_unchecked() }
    }

    /// The numbers for which there is room.
    pub(super) fn numbers(&self) -> core::ops::Range<u32> {
        0..self.len() as u32
    }

    /// Records that the addresses of table `number`, which is not linked, are held for chunks. The caller holds the
    /// lock of the [`TablePool`](super::table_pool::TablePool).
    pub(super) fn hold(&self, number: u32) {
        // Relaxed: CPUs that get addresses there get them after the table was linked.
        self.array()[number as usize].store(self.held(), Ordering::Relaxed);
    }

    /// Records that the addresses of table `number`, of which nothing is out, are not held for chunks any more. Returns
    /// the table, if it is linked. The caller holds the lock of the [`TablePool`](super::table_pool::TablePool).
    pub(super) fn let_go(&self, number: u32) -> Option<&Frame> {
        // Acquire as in `get`. The lock of the allocator that gets the addresses publishes the store.
        let table = self.array()[number as usize].swap(self.not_held(), Ordering::Acquire);
        // SAFETY: a table that was linked. Its page stays in the domain's table until its addresses are held again and
        // it is removed from there.
        (!self.is_of_no_table(table)).then(|| unsafe { &*table })
    }

    /// Links `frame`, which is all zero, as table `number`, for which there is [room](Self::has_room). The caller
    /// holds the lock of the [`TablePool`](super::table_pool::TablePool).
    pub(super) fn link(&self, number: u32, frame: &Frame) {
        // Release: publishes the zeroed page with the pointer.
        self.array()[number as usize].store(ptr::from_ref(frame).cast_mut(), Ordering::Release);
    }

    /// Unlinks table `number`, whose addresses stay held. Walks that had begun before may still find it. The caller
    /// holds the lock of the [`TablePool`](super::table_pool::TablePool).
    pub(super) fn unlink(&self, number: u32) {
        // Relaxed: the walks are waited for.
        self.array()[number as usize].store(self.held(), Ordering::Relaxed);
    }

    /// The pointer of a number that is held and not linked.
    const fn held(&self) -> *mut Frame {
        self.no_table.as_ptr().cast_mut().cast()
    }

    /// The pointer of a number that is not held: to the second entry, where another table of zeros begins.
    fn not_held(&self) -> *mut Frame {
        self.no_table[1..].as_ptr().cast_mut().cast()
    }

    fn is_of_no_table(&self, table: *mut Frame) -> bool {
        table == self.held() || table == self.not_held()
    }

    /// The number of tables there is room for.
    fn len(&self) -> usize {
        // Relaxed: it only grows, and callers that link tables hold the lock under which it grows.
        self.length.load(Ordering::Relaxed)
    }

    /// Whether table `number` may be linked.
    pub(super) fn has_room(&self, number: u32) -> bool {
        (number as usize) < self.len()
    }

    /// An array with room for table `number`, for [`take`](Self::take). `None` if the current one has room.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn make<P: Platform>(
        &self,
        platform: &P,
        context: Context,
        number: u32,
    ) -> Result<Option<NewArray>, NoMemory> {
        if self.has_room(number) {
            return Ok(None);
        }
        let length = (number as usize + 1).next_power_of_two().max(TABLES_FIRST);
        let tables = try_fill(platform, context, length, || AtomicPtr::new(self.not_held()))?.into_boxed_slice();
        try_box(platform, context, PointerArray { tables, outgrown: ptr::null_mut() })
            .map(|array| Some(NewArray(array)))
    }

    /// Replaces the current array if the new one is longer. The caller holds the lock of the
    /// [`TablePool`](super::table_pool::TablePool).
    pub(super) fn take(&self, NewArray(mut new): NewArray) {
        let length = new.tables.len();
        if length <= self.len() {
            return;
        }
        // Relaxed, like the loads of its tables: the lock orders them, and the tables themselves are not read here.
        new.outgrown = self.array.load(Ordering::Relaxed);
        // SAFETY: null at first, and from here later; arrays stay until `self` is dropped.
        let linked = unsafe { new.outgrown.as_ref() }.into_iter().flat_map(|outgrown| &outgrown.tables);
        for (place, table) in new.tables.iter().zip(linked) {
            place.store(table.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let bytes = size_of_val(&*new.tables) + size_of::<PointerArray>();
        let array = Box::into_raw(new);
        // SAFETY: made just now.
        let tables = unsafe { &(*array).tables };
        self.array.store(array, Ordering::Release);
        // Release, both: a reader that finds the array finds its contents, and a reader that finds the length finds
        // the array.
        self.tables.store(tables.as_ptr().cast_mut(), Ordering::Release);
        self.length.store(length, Ordering::Release);
        self.array_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.array_bytes.load(Ordering::Relaxed) + size_of_val(&*self.no_table)
    }
}

impl Drop for ChunkTables {
    fn drop(&mut self) {
        let mut array = self.array.load(Ordering::Acquire);
        while !array.is_null() {
            // SAFETY: a box of `take`; `&mut self` means that no one reads it any more.
            array = unsafe { Box::from_raw(array) }.outgrown;
        }
    }
}

#[cfg(test)]
impl ChunkTables {
    /// Room for tables `0..count`.
    pub(super) fn of<P: Platform>(platform: &P, count: u32) -> Self {
        let tables = Self::new(platform).expect("memory");
        let array = tables.make(platform, Context::MaySleep, count - 1).expect("memory");
        array.into_iter().for_each(|array| tables.take(array));
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;

    fn frame(bits: u64) -> Box<Frame> {
        Box::new(core::array::from_fn(|_| Entry::new(bits)))
    }

    /// The entries of table `number`.
    fn found(tables: &ChunkTables, number: u32) -> Option<u64> {
        let page = u64::from(number) * ENTRIES as u64 + 1;
        Walk::on(&FakeHost::default(), |walk| tables.entries(walk, page).first().map(Entry::load_bits))
    }

    /// The array is outgrown three times, and the first one is read throughout.
    #[test]
    fn tables_are_found_in_every_array_since_they_were_linked() {
        let host = FakeHost::default();
        let frames: Vec<Box<Frame>> = (0..6 * TABLES_FIRST as u64).map(frame).collect();
        let tables = ChunkTables::new(&host).expect("memory");
        let entry = |table: &AtomicPtr<Frame>| {
            // SAFETY: one of `frames`, or in `no_table`; all outlive this.
            let table = unsafe { &*table.load(Ordering::Relaxed) };
            table[1].load_bits()
        };
        let first = tables.array();
        // Table 0 is never linked.
        for (number, frame) in (0..).zip(&frames).skip(1) {
            let array = tables.make(&host, Context::MaySleep, number).expect("memory");
            assert_eq!(array.is_some(), !tables.has_room(number));
            array.into_iter().for_each(|array| tables.take(array));
            tables.link(number, frame);
            assert!((0..=number).all(|number| found(&tables, number) == Some(u64::from(number))));
            assert!(first.iter().map(entry).zip(0..).all(|(is, number)| is == number || is == 0));
        }
        assert_eq!(first.len(), TABLES_FIRST);
        assert_eq!(found(&tables, tables.len() as u32), None);
    }

    /// A number goes through all states that it may have, and keeps them when its array is outgrown.
    #[test]
    fn a_number_that_is_used_again_leads_to_its_new_table() {
        let host = FakeHost::default();
        let (old, new) = (frame(1), frame(2));
        let tables = ChunkTables::new(&host).expect("memory");
        let outgrow = || {
            let array = tables.make(&host, Context::MaySleep, tables.len() as u32).expect("memory");
            tables.take(array.expect("a longer one"));
        };
        let state = || (found(&tables, 0), tables.holds(1));
        assert_eq!(state(), (Some(0), false));
        tables.hold(0);
        outgrow();
        assert_eq!(state(), (Some(0), true));
        tables.link(0, &old);
        outgrow();
        assert_eq!(state(), (Some(1), true));
        tables.unlink(0);
        assert_eq!(state(), (Some(0), true), "its page is not freed yet");
        assert!(tables.let_go(0).is_none());
        outgrow();
        assert_eq!(state(), (Some(0), false));
        tables.link(0, &new);
        assert_eq!(state(), (Some(2), true));
        assert!(tables.let_go(0).is_some_and(|table| ptr::eq(table, &*new)));
        assert_eq!(state(), (Some(0), false));
    }
}
