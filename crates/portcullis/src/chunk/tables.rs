//! Leaf tables by number. Every map and unmap finds its table here, without a lock or a search.

use crate::error::NoMemory;
use crate::platform::memory::{try_box, try_fill};
use crate::platform::{Context, Platform};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::table::{ENTRIES, Entry, Frame};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;

/// The length of the first array. Under the model checker it is small, so that it is outgrown.
const TABLES_FIRST: usize = if cfg!(loom) { 1 } else { 64 };

/// Pointers to tables. A pointer whose number is not linked leads to a table in which nothing is mapped.
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
/// stay until the domain is dropped.
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
    /// The entries of a table in which nothing is mapped. All numbers that are not linked lead to it. It is never
    /// written.
    no_table: Vec<Entry>,
    /// The memory of all arrays, in bytes. Relaxed, as a statistic.
    array_bytes: AtomicUsize,
}

impl ChunkTables {
    /// No tables yet; there may be up to `numbers`.
    pub(super) fn new<P: Platform>(platform: &P, numbers: u32) -> Result<Self, NoMemory> {
        let no_table = try_fill(platform, Context::MaySleep, ENTRIES, || Entry::new(0))?;
        let all = Self {
            tables: AtomicPtr::new(ptr::null_mut()),
            length: AtomicUsize::new(0),
            array: AtomicPtr::new(ptr::null_mut()),
            no_table,
            array_bytes: AtomicUsize::new(0),
        };
        all.take(all.make(platform, Context::MaySleep, (numbers as usize).min(TABLES_FIRST))?);
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

    /// Table `number`, or an empty table if it is not linked. `None` beyond the array, where no table is linked.
    ///
    /// # Safety
    /// The table stays allocated for as long as it is used: something in it is mapped or taken, or the caller is
    /// within [`Platform::walk`](crate::Platform::walk).
    #[inline(always)]
    pub(super) unsafe fn get(&self, number: usize) -> Option<&Frame> {
        // Acquire: an array of that length becomes visible with the length.
        if number >= self.length.load(Ordering::Acquire) {
            return None;
        }
        // Acquire: the zeroed page becomes visible with the pointer.
        // SAFETY: `number` is less than a length.
        let frame = unsafe { self.pointer(number) }.load(Ordering::Acquire);
        // SAFETY: it is `no_table`, or a page of the platform between `link` and `unlink`; after that the caller
        // ensures that it stays allocated.
        Some(unsafe { frame.as_ref().unwrap_unchecked() })
    }

    /// A table that must be linked: some of it is out, or the caller has it from a list of tables.
    #[inline(always)]
    pub(super) fn linked(&self, number: u32) -> &Frame {
        debug_assert!(self.array()[number as usize].load(Ordering::Relaxed) != self.no_table());
        // SAFETY: a chunk is handed out after its table was linked, and only tables of which nothing is out are
        // unlinked. So the table is linked, in an array that is long enough for it. Acquire as in `get`.
        unsafe { self.pointer(number as usize).load(Ordering::Acquire).as_ref().unwrap_unchecked() }
    }

    /// All tables that are linked. The caller holds the lock of the [`TablePool`](super::table_pool::TablePool).
    pub(super) fn all(&self) -> impl Iterator<Item = &Frame> {
        // SAFETY: null if there can be no tables, and otherwise from `take`; arrays stay until `self` is dropped.
        let array = unsafe { self.array.load(Ordering::Acquire).as_ref() };
        let frames = array.into_iter().flat_map(|array| &array.tables).map(|table| table.load(Ordering::Acquire));
        // SAFETY: a linked table stays allocated at least until it is unlinked, which takes the lock.
        frames.filter(|frame| *frame != self.no_table()).map(|frame| unsafe { &*frame })
    }

    /// Links `frame`, which is all zero, as table `number`; there is [room](Self::len) for it. The caller holds the
    /// lock of the [`TablePool`](super::table_pool::TablePool).
    pub(super) fn link(&self, number: u32, frame: &Frame) {
        // Release: publishes the zeroed page with the pointer.
        self.array()[number as usize].store(ptr::from_ref(frame).cast_mut(), Ordering::Release);
    }

    /// Unlinks table `number`. Walks that had begun before may still find it. The caller holds the lock of the
    /// [`TablePool`](super::table_pool::TablePool).
    pub(super) fn unlink(&self, number: u32) {
        // Relaxed: the walks are waited for.
        self.array()[number as usize].store(self.no_table(), Ordering::Relaxed);
    }

    const fn no_table(&self) -> *mut Frame {
        self.no_table.as_ptr().cast_mut().cast()
    }

    /// The number of tables there is room for: numbers below it may be linked.
    pub(super) fn len(&self) -> usize {
        // Relaxed: it only grows, and callers that link tables hold the lock under which it grows.
        self.length.load(Ordering::Relaxed)
    }

    /// An array of `length`, for [`take`](Self::take).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn make<P: Platform>(
        &self,
        platform: &P,
        context: Context,
        length: usize,
    ) -> Result<NewArray, NoMemory> {
        let tables = try_fill(platform, context, length, || AtomicPtr::new(self.no_table()))?.into_boxed_slice();
        try_box(platform, context, PointerArray { tables, outgrown: ptr::null_mut() }).map(NewArray)
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
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;

    /// The array is outgrown three times, and the first one is read throughout.
    #[test]
    fn tables_are_found_in_every_array_since_they_were_linked() {
        let frames: Vec<Box<Frame>> =
            (0..6 * TABLES_FIRST).map(|number| Box::new(core::array::from_fn(|_| Entry::new(number as u64)))).collect();
        let host = FakeHost::default();
        let tables = ChunkTables::new(&host, frames.len() as u32).expect("memory");
        let entry = |frame: &AtomicPtr<Frame>| {
            // SAFETY: one of `frames`, or `no_table`; both outlive this.
            let frame = unsafe { &*frame.load(Ordering::Relaxed) };
            frame[1].load_bits()
        };
        let first = tables.array();
        // Table 0 is never linked.
        for (number, frame) in frames.iter().enumerate().skip(1) {
            if number == tables.len() {
                let room = (2 * number).min(frames.len());
                tables.take(tables.make(&host, Context::MaySleep, room).expect("memory"));
            }
            tables.link(number as u32, frame);
            // SAFETY: all frames outlive this.
            let found = (0..=number).map(|number| unsafe { tables.get(number) }.expect("within")[1].load_bits());
            assert!(found.eq(0..=number as u64));
            assert!(first.iter().map(entry).zip(0..).all(|(is, number)| is == number || is == 0));
        }
        assert_eq!(first.len(), TABLES_FIRST);
        assert!(first.iter().map(entry).eq(0..TABLES_FIRST as u64));
        // SAFETY: as above.
        assert!(unsafe { tables.get(frames.len()) }.is_none());
    }

    /// A number that was given up before its array was outgrown, and then given to another table.
    #[test]
    fn a_number_that_is_used_again_leads_to_its_new_table() {
        let frame = |bits: u64| Box::new(core::array::from_fn(|_| Entry::new(bits)));
        let (old, filling, new): (Box<Frame>, Box<Frame>, Box<Frame>) = (frame(1), frame(2), frame(3));
        let host = FakeHost::default();
        let tables = ChunkTables::new(&host, 2 * TABLES_FIRST as u32).expect("memory");
        // SAFETY: the frames outlive this.
        let found = || unsafe { tables.get(0) }.expect("within")[0].load_bits();
        tables.link(0, &old);
        assert_eq!(found(), 1);
        tables.unlink(0);
        assert_eq!(found(), 0);
        tables.take(tables.make(&host, Context::MaySleep, 2 * TABLES_FIRST).expect("memory"));
        // A shorter array, made by a CPU that was slower.
        tables.take(tables.make(&host, Context::MaySleep, TABLES_FIRST).expect("memory"));
        tables.link(TABLES_FIRST as u32, &filling);
        assert_eq!((tables.array().len(), found()), (2 * TABLES_FIRST, 0));
        tables.link(0, &new);
        assert_eq!(found(), 3);
    }
}
