//! The records of leaf tables by number, in blocks that never move: streams give chunks back without a lock.

use super::table_record::TableRecord;
use crate::error::NoMemory;
use crate::platform::memory::try_fill;
use crate::platform::{Context, Platform};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use alloc::boxed::Box;
use core::ptr;

/// The number of records in the first block. Each further block has twice as many as the one before. Under the model
/// checker it is small, so that there are several.
const FIRST: usize = if cfg!(loom) { 1 } else { 8 };
/// Enough for [`TABLES_MAX`](super::chunks::TABLES_MAX) records.
const BLOCKS: usize = 19;

/// The records of all tables.
pub(super) struct TableRecords {
    /// Each points to the first record of a block; null if there is none yet.
    blocks: [AtomicPtr<TableRecord>; BLOCKS],
    /// The number of records. Relaxed: written under the lock of the pool, and read there or as a statistic.
    room: AtomicUsize,
}

/// The block that record `number` lies in, and its index there.
#[inline(always)]
const fn place(number: usize) -> (usize, usize) {
    let block = ((number + FIRST) / FIRST).ilog2();
    (block as usize, number + FIRST - (FIRST << block))
}

/// The number of records in a block.
const fn records_in(block: usize) -> usize {
    FIRST << block
}

impl TableRecords {
    /// No records yet.
    pub(super) fn new() -> Self {
        Self { blocks: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())), room: AtomicUsize::new(0) }
    }

    /// The number of records: those with a smaller number exist.
    pub(super) fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
    }

    /// The record of table `number`, which must be less than a [room](Self::room) that happened before.
    ///
    /// # Panics
    /// If there is no such block.
    #[inline]
    pub(super) fn get(&self, number: u32) -> &TableRecord {
        let (block, index) = place(number as usize);
        // Acquire: pairs with the Release in `add`.
        let records = self.blocks[block].load(Ordering::Acquire);
        assert!(!records.is_null(), "table {number} has no record");
        // SAFETY: the block is not null, so it is from `add`: it has a record for each index that `place` computes for
        // it, and stays until `self` is dropped.
        unsafe { &*records.add(index) }
    }

    /// The block behind the first `room` records, for [`add`](Self::add).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn make<P: Platform>(
        platform: &P,
        context: Context,
        room: usize,
    ) -> Result<Box<[TableRecord]>, NoMemory> {
        let count = records_in(place(room).0);
        Ok(try_fill(platform, context, count, TableRecord::new)?.into_boxed_slice())
    }

    /// Adds a block that was made for as many records as there are. Returns one that was made for fewer, which the
    /// caller frees. The caller holds the lock of the pool.
    pub(super) fn add(&self, made_for: usize, block: Box<[TableRecord]>) -> Option<Box<[TableRecord]>> {
        if made_for != self.room() {
            return Some(block);
        }
        let (number, _) = place(made_for);
        let count = block.len();
        // Release: publishes the records.
        self.blocks[number].store(Box::into_raw(block).cast(), Ordering::Release);
        self.room.store(made_for + count, Ordering::Relaxed);
        None
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.room() * size_of::<TableRecord>()
    }
}

impl Drop for TableRecords {
    fn drop(&mut self) {
        for (number, block) in self.blocks.iter().enumerate() {
            let records = block.load(Ordering::Acquire);
            if !records.is_null() {
                // SAFETY: a box of so many records, from `add`; `&mut self` means that no one uses them any more.
                drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(records, records_in(number))) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;

    #[test]
    fn each_number_has_a_record_of_its_own() {
        let host = FakeHost::default();
        let records = TableRecords::new();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..6 {
            let room = records.room();
            let block = TableRecords::make(&host, Context::MaySleep, room).expect("memory");
            assert!(records.add(room, block).is_none());
            let late = TableRecords::make(&host, Context::MaySleep, room).expect("memory");
            assert!(records.add(room, late).is_some(), "made for fewer records than there are");
            seen.extend((room..records.room()).map(|number| ptr::from_ref(records.get(number as u32)).addr()));
            assert_eq!(seen.len(), records.room());
        }
        assert_eq!(records.room(), FIRST * 63);
        assert_eq!(records.bytes(), seen.len() * size_of::<TableRecord>());
    }

    #[test]
    #[should_panic(expected = "table 8 has no record")]
    fn a_number_without_a_record_is_refused() {
        let host = FakeHost::default();
        let records = TableRecords::new();
        records.add(0, TableRecords::make(&host, Context::MaySleep, 0).expect("memory"));
        records.get(FIRST as u32);
    }
}
