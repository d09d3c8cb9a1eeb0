//! The leaf tables of the chunks by number: found without a lock or a search, on every map and unmap.

use crate::error::NoMemory;
use crate::platform::memory::{try_box, try_fill};
use crate::platform::{Context, Platform};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::table::{ENTRIES, Entry, Frame};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;

/// Tables of the first array. The model checker sees it outgrown.
const TABLES_FIRST: usize = if cfg!(loom) { 1 } else { 64 };

/// Pointers to tables. Where none is linked they point to one in which nothing is mapped.
struct PointerArray {
    tables: Box<[AtomicPtr<Frame>]>,
    /// The array that was outgrown by this one, or null. It may still be read.
    outgrown: *mut PointerArray,
}

/// An array that is not published yet: no CPU reads it.
pub(super) struct NewArray(Box<PointerArray>);

/// The leaf tables, by number.
///
/// Nothing that is read on the way to a table is null: where there is none, one is found that is empty. When the array is full,
/// one of twice the length takes its place; the old ones, together about as long, stay until the domain goes.
///
/// A reader that has found an old array finds there what was linked before, and needs no more. A table that was linked later,
/// perhaps under a number that another had before, is known only to CPUs that have seen the new array: they know of it what they
/// have acquired from the CPU that linked it. A table that was unlinked later may still be found by walks, for which its page is
/// kept; and its number is given to no other before these are over. After that no reader of the old array is left that might find
/// there the pointer to a page that is gone.
pub(super) struct ChunkTables {
    /// The pointers of the array. Every map and unmap reads them and `length`: so they are not behind `array`.
    tables: AtomicPtr<AtomicPtr<Frame>>,
    /// How many there are at least: written after them, and read before.
    length: AtomicUsize,
    array: AtomicPtr<PointerArray>,
    /// In which nothing is mapped: stands for all that are not linked. It is never written.
    no_table: Vec<Entry>,
    /// Memory of all arrays, in bytes. A statistic, so Relaxed.
    array_bytes: AtomicUsize,
}

impl ChunkTables {
    /// No table yet, of `numbers` that there may be.
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

    /// The array, for code that links and unlinks tables.
    fn array(&self) -> &[AtomicPtr<Frame>] {
        // Acquire: with the pointer comes the array.
        let array = self.array.load(Ordering::Acquire);
        // SAFETY: from `take`, which `new` has called; arrays stay until `self` goes.
        &unsafe { &*array }.tables
    }

    /// The pointer to table `number`.
    ///
    /// # Safety
    /// The number is less than a length that this CPU has read, or one that was linked before it came to this CPU.
    #[inline(always)]
    unsafe fn pointer(&self, number: usize) -> &AtomicPtr<Frame> {
        // Acquire: with the pointer comes the array.
        let tables = self.tables.load(Ordering::Acquire);
        // SAFETY: arrays stay until `self` goes. They only grow, and a length is stored after its array: this one is as long as any
        // length that was read before, and as the one in which the table was linked.
        unsafe { &*tables.add(number) }
    }

    /// Table `number`, or one in which nothing is mapped. `None` beyond the array, where none is linked.
    ///
    /// # Safety
    /// The table stays for as long as it is used: something is mapped or taken in it, or this is within
    /// [`Platform::walk`](crate::Platform::walk).
    #[inline(always)]
    pub(super) unsafe fn get(&self, number: usize) -> Option<&Frame> {
        // Acquire: with the length comes an array that is as long.
        if number >= self.length.load(Ordering::Acquire) {
            return None;
        }
        // Acquire: with the pointer comes the zeroed page.
        // SAFETY: less than a length.
        let frame = unsafe { self.pointer(number) }.load(Ordering::Acquire);
        // SAFETY: `no_table`, or a page of the platform from `link` until `unlink`; beyond that the caller sees to it that it
        // stays.
        Some(unsafe { frame.as_ref().unwrap_unchecked() })
    }

    /// A table that is known to be linked: the lock of the [`TableLog`](super::table_log::TableLog) is held, or something is
    /// taken in it.
    #[inline(always)]
    pub(super) fn linked(&self, number: u32) -> &Frame {
        debug_assert!(self.array()[number as usize].load(Ordering::Relaxed) != self.no_table());
        // SAFETY: a chunk is handed out after its table was linked, and the log of tables gives a table up with none that
        // anything is taken in; so it is there, in an array long enough for it. Acquire as in `get`.
        unsafe { self.pointer(number as usize).load(Ordering::Acquire).as_ref().unwrap_unchecked() }
    }

    /// Links `frame`, all zero, as table `number`, for which there is [room](Self::len). The lock of the
    /// [`TableLog`](super::table_log::TableLog) is held.
    pub(super) fn link(&self, number: u32, frame: &Frame) {
        // Release: with the pointer comes the zeroed page.
        self.array()[number as usize].store(ptr::from_ref(frame).cast_mut(), Ordering::Release);
    }

    /// Takes table `number` out. Walks that had begun before may still find it. The lock of the
    /// [`TableLog`](super::table_log::TableLog) is held.
    pub(super) fn unlink(&self, number: u32) {
        // Relaxed: it is the walks that are waited for.
        self.array()[number as usize].store(self.no_table(), Ordering::Relaxed);
    }

    const fn no_table(&self) -> *mut Frame {
        self.no_table.as_ptr().cast_mut().cast()
    }

    /// Tables for which there is room: numbers below it may be linked.
    pub(super) fn len(&self) -> usize {
        // Relaxed: it only grows, and those who link hold the lock under which it does.
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

    /// Puts an array in the place of the one that there is, if that is shorter. The lock of the
    /// [`TableLog`](super::table_log::TableLog) is held.
    pub(super) fn take(&self, NewArray(mut new): NewArray) {
        let length = new.tables.len();
        if length <= self.len() {
            return;
        }
        // Relaxed, like the loads of its tables: the lock brings it, and what they point to is not read.
        new.outgrown = self.array.load(Ordering::Relaxed);
        // SAFETY: null at first, and from here later; arrays stay until `self` goes.
        let linked = unsafe { new.outgrown.as_ref() }.into_iter().flat_map(|outgrown| &outgrown.tables);
        for (place, table) in new.tables.iter().zip(linked) {
            place.store(table.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let bytes = size_of_val(&*new.tables) + size_of::<PointerArray>();
        let array = Box::into_raw(new);
        // SAFETY: just made.
        let tables = unsafe { &(*array).tables };
        self.array.store(array, Ordering::Release);
        // Release, both: a reader that finds the array finds it filled in; and one that finds the length finds the array.
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
            // SAFETY: a box of `take`, and `&mut self`: it is not read any more.
            array = unsafe { Box::from_raw(array) }.outgrown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;

    /// Arrays are outgrown three times, and the first is read all the while.
    #[test]
    fn tables_are_found_in_every_array_since_they_were_linked() {
        let frames: Vec<Box<Frame>> =
            (0..6 * TABLES_FIRST).map(|number| Box::new(core::array::from_fn(|_| Entry::new(number as u64)))).collect();
        let host = FakeHost::default();
        let tables = ChunkTables::new(&host, frames.len() as u32).expect("memory");
        let entry = |frame: &AtomicPtr<Frame>| {
            // SAFETY: one of `frames`, or `no_table`; both live on.
            let frame = unsafe { &*frame.load(Ordering::Relaxed) };
            frame[1].load_bits()
        };
        let first = tables.array();
        // Table 0 stays unlinked.
        for (number, frame) in frames.iter().enumerate().skip(1) {
            if number == tables.len() {
                let room = (2 * number).min(frames.len());
                tables.take(tables.make(&host, Context::MaySleep, room).expect("memory"));
            }
            tables.link(number as u32, frame);
            // SAFETY: all frames live on.
            let found = (0..=number).map(|number| unsafe { tables.get(number) }.expect("within")[1].load_bits());
            assert!(found.eq(0..=number as u64));
            assert!(first.iter().map(entry).zip(0..).all(|(is, number)| is == number || is == 0));
        }
        assert_eq!(first.len(), TABLES_FIRST);
        assert!(first.iter().map(entry).eq(0..TABLES_FIRST as u64));
        // SAFETY: as above.
        assert!(unsafe { tables.get(frames.len()) }.is_none());
    }

    /// A number that was given up before its array was outgrown, and given to another table after.
    #[test]
    fn a_number_that_is_used_again_leads_to_its_new_table() {
        let frame = |bits: u64| Box::new(core::array::from_fn(|_| Entry::new(bits)));
        let (old, filling, new): (Box<Frame>, Box<Frame>, Box<Frame>) = (frame(1), frame(2), frame(3));
        let host = FakeHost::default();
        let tables = ChunkTables::new(&host, 2 * TABLES_FIRST as u32).expect("memory");
        // SAFETY: the frames live on.
        let found = || unsafe { tables.get(0) }.expect("within")[0].load_bits();
        tables.link(0, &old);
        assert_eq!(found(), 1);
        tables.unlink(0);
        assert_eq!(found(), 0);
        tables.take(tables.make(&host, Context::MaySleep, 2 * TABLES_FIRST).expect("memory"));
        // One that another CPU was quicker with.
        tables.take(tables.make(&host, Context::MaySleep, TABLES_FIRST).expect("memory"));
        tables.link(TABLES_FIRST as u32, &filling);
        assert_eq!((tables.array().len(), found()), (2 * TABLES_FIRST, 0));
        tables.link(0, &new);
        assert_eq!(found(), 3);
    }
}
