//! The records of leaf tables by number, in blocks that never move: streams give chunks back without a lock. No block
//! is larger than a page, because a host may have nothing larger when it must not sleep.

use super::geometry::TABLES_MAX;
use super::table_record::TableRecord;
use crate::error::NoMemory;
use crate::platform::memory::try_fill;
use crate::platform::{Context, Platform};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use alloc::boxed::Box;
use core::ptr;

/// The number of records in a block: 3 KiB of them. Under the model checker there are several blocks.
const BLOCK: usize = if cfg!(loom) { 1 } else { 16 };
/// The number of blocks in a directory.
const BLOCKS: usize = if cfg!(loom) { 4 } else { 128 };
/// The number of directories.
const DIRECTORIES: usize = TABLES_MAX as usize / (BLOCK * BLOCKS);

/// A place for `LEN` values, which are added at most once and then stay: a pointer to the first, or null.
struct Place<T, const LEN: usize>(AtomicPtr<T>);

type Block = Place<TableRecord, BLOCK>;
type Directory = Place<Block, BLOCKS>;

impl<T, const LEN: usize> Place<T, LEN> {
    fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    #[inline]
    fn get(&self) -> Option<&[T; LEN]> {
        // Acquire: pairs with the Release in `add`.
        // SAFETY: null, or from `add`: so many values, which stay until `self` is dropped.
        unsafe { self.0.load(Ordering::Acquire).cast::<[T; LEN]>().as_ref() }
    }

    /// Values for [`add`](Self::add), if there are none yet.
    fn make<P: Platform>(
        &self,
        platform: &P,
        context: Context,
        make: impl FnMut() -> T,
    ) -> Result<Option<Box<[T]>>, NoMemory> {
        match self.get() {
            Some(_) => Ok(None),
            None => try_fill(platform, context, LEN, make).map(|values| Some(values.into_boxed_slice())),
        }
    }

    /// Takes `values`, which were made for this place, if there are none yet. Returns their size in bytes. Callers hold
    /// one lock.
    fn add(&self, values: &mut Option<Box<[T]>>) -> usize {
        if self.get().is_some() {
            return 0;
        }
        let Some(values) = values.take() else { return 0 };
        assert_eq!(values.len(), LEN);
        let bytes = size_of_val(&*values);
        // Release: publishes the values.
        self.0.store(Box::into_raw(values).cast(), Ordering::Release);
        bytes
    }
}

impl<T, const LEN: usize> Drop for Place<T, LEN> {
    fn drop(&mut self) {
        let values = self.0.load(Ordering::Acquire);
        if !values.is_null() {
            // SAFETY: a box of so many values, from `add`; `&mut self` means that no one uses them any more.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(values, LEN)) });
        }
    }
}

/// The records of all tables.
pub(super) struct TableRecords {
    directories: [Directory; DIRECTORIES],
    /// Memory in use, in bytes. Relaxed, as a statistic.
    bytes: AtomicUsize,
}

/// Memory for the record of a table, as far as it was missing. Dropping it frees what was not needed.
pub(super) struct NewRecords {
    number: u32,
    directory: Option<Box<[Block]>>,
    block: Option<Box<[TableRecord]>>,
}

/// Where record `number` is: the directory, the block in it, and the index in the block.
#[inline(always)]
const fn place(number: u32) -> (usize, usize, usize) {
    let number = number as usize;
    (number / (BLOCK * BLOCKS), number / BLOCK % BLOCKS, number % BLOCK)
}

impl TableRecords {
    /// No records yet.
    pub(super) fn new() -> Self {
        Self { directories: core::array::from_fn(|_| Directory::empty()), bytes: AtomicUsize::new(0) }
    }

    /// The record of table `number`, if there is room for it.
    #[inline]
    pub(super) fn find(&self, number: u32) -> Option<&TableRecord> {
        let (directory, block, index) = place(number);
        Some(&self.directories[directory].get()?[block].get()?[index])
    }

    /// The record of table `number`, which must have one.
    ///
    /// # Panics
    /// If it has none.
    #[inline]
    pub(super) fn get(&self, number: u32) -> &TableRecord {
        self.find(number).unwrap_or_else(|| no_record(number))
    }

    /// Makes what is missing for the record of table `number`, for [`add`](Self::add).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn make<P: Platform>(
        &self,
        platform: &P,
        context: Context,
        number: u32,
    ) -> Result<NewRecords, NoMemory> {
        let (directory, block, _) = place(number);
        let place = &self.directories[directory];
        let directory = place.make(platform, context, Block::empty)?;
        let blocks = place.get().map(|directory| &directory[block]);
        let block = blocks.unwrap_or(&Block::empty()).make(platform, context, TableRecord::new)?;
        Ok(NewRecords { number, directory, block })
    }

    /// Adds what was made, and leaves what another caller has added meanwhile. The caller holds the lock of the pool,
    /// and drops the rest without it.
    pub(super) fn add(&self, new: &mut NewRecords) {
        let (directory, block, _) = place(new.number);
        let place = &self.directories[directory];
        let mut bytes = place.add(&mut new.directory);
        if let Some(blocks) = place.get() {
            bytes += blocks[block].add(&mut new.block);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cold]
#[inline(never)]
fn no_record(number: u32) -> ! {
    panic!("table {number} has no record")
}

#[cfg(test)]
impl TableRecords {
    /// Records for tables `0..count`.
    pub(super) fn of<P: Platform>(platform: &P, count: u32) -> Self {
        let records = Self::new();
        for number in (0..count).step_by(BLOCK) {
            records.add(&mut records.make(platform, Context::MaySleep, number).expect("memory"));
        }
        records
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_has_a_record_of_its_own() {
        let host = FakeHost::default();
        let records = TableRecords::new();
        let mut seen = BTreeSet::new();
        // The first and the last blocks of two directories, and the very last.
        let per_directory = (BLOCK * BLOCKS) as u32;
        let blocks = [0, 1, BLOCKS - 1, BLOCKS, 2 * BLOCKS - 1].map(|block| (block * BLOCK) as u32);
        for first in blocks.into_iter().chain([TABLES_MAX as u32 - BLOCK as u32]) {
            assert!(records.find(first).is_none());
            let mut late = records.make(&host, Context::MaySleep, first + 1).expect("memory");
            records.add(&mut records.make(&host, Context::MaySleep, first).expect("memory"));
            let bytes = records.bytes();
            records.add(&mut late);
            assert!(late.block.is_some() && records.bytes() == bytes, "another caller came first");
            let numbers = first..first + BLOCK as u32;
            seen.extend(numbers.map(|number| ptr::from_ref(records.get(number)).addr()));
        }
        assert_eq!(seen.len(), 6 * BLOCK);
        assert!(records.find(per_directory + BLOCK as u32).is_none());
        assert_eq!(records.bytes(), seen.len() * size_of::<TableRecord>() + 3 * BLOCKS * size_of::<Block>());
    }

    #[test]
    #[should_panic(expected = "table 16 has no record")]
    fn a_number_without_a_record_is_refused() {
        TableRecords::of(&FakeHost::default(), 1).get(BLOCK as u32);
    }
}
