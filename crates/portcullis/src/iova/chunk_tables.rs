//! The leaf tables of the chunks by number: found in two steps, without a lock, on every map and unmap.

use crate::error::NoMemory;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::table::Frame;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;

/// log2 of the tables of a branch. The model checker sees small ones, for it sees each of their entries.
const BRANCH_BITS: u32 = if cfg!(loom) { 1 } else { 9 };
const BRANCH_TABLES: usize = 1 << BRANCH_BITS;

/// Null, or a table that is linked.
type Branch = [AtomicPtr<Frame>; BRANCH_TABLES];

/// The leaf tables, by number. Branches are made when first needed and stay.
pub(super) struct ChunkTables {
    branches: Box<[AtomicPtr<Branch>]>,
    /// Branches made. A statistic, so Relaxed.
    made: AtomicUsize,
}

impl ChunkTables {
    /// Room for `numbers` tables.
    pub(super) fn new(numbers: u32) -> Result<Self, NoMemory> {
        let mut branches = Vec::new();
        let count = (numbers as usize).div_ceil(BRANCH_TABLES);
        branches.try_reserve_exact(count).map_err(|_| NoMemory)?;
        branches.extend((0..count).map(|_| AtomicPtr::new(ptr::null_mut())));
        Ok(Self { branches: branches.into_boxed_slice(), made: AtomicUsize::new(0) })
    }

    /// Where the pointer to table `number` is, if there is a branch for it.
    #[inline(always)]
    fn place(&self, number: usize) -> Option<&AtomicPtr<Frame>> {
        // Acquire: with the pointer comes the branch.
        let branch = self.branches.get(number >> BRANCH_BITS)?.load(Ordering::Acquire);
        // SAFETY: null, or made by `make_branch` and kept until `self` goes.
        let branch = unsafe { branch.as_ref() }?;
        Some(&branch[number % BRANCH_TABLES])
    }

    /// Table `number`, if it is linked.
    ///
    /// # Safety
    /// The table stays for as long as it is used: something is mapped or taken in it, or this is within
    /// [`Platform::walk`](crate::Platform::walk).
    #[inline(always)]
    pub(super) unsafe fn get(&self, number: usize) -> Option<&Frame> {
        // Acquire: with the pointer comes the zeroed page.
        let frame = self.place(number)?.load(Ordering::Acquire);
        // SAFETY: a page of the platform from `link` until `unlink`; beyond that the caller sees to it that it stays.
        unsafe { frame.as_ref() }
    }

    /// A table that is known to be linked: the lock of the arena is held, or something is taken in it.
    #[inline(always)]
    pub(super) fn linked(&self, number: u32) -> &Frame {
        // SAFETY: it is not unlinked before the arena gives it up, and it does that with none that anything is taken in.
        let table = unsafe { self.get(number as usize) };
        debug_assert!(table.is_some(), "a table that chunks are taken from is there");
        // SAFETY: as above; a chunk is handed out after its table was linked.
        unsafe { table.unwrap_unchecked() }
    }

    /// Links `frame`, all zero, as table `number`.
    pub(super) fn link(&self, number: u32, frame: &Frame) -> Result<(), NoMemory> {
        let number = number as usize;
        if self.place(number).is_none() {
            self.make_branch(&self.branches[number >> BRANCH_BITS])?;
        }
        let place = self.place(number).expect("its branch was made");
        // Release: with the pointer comes the zeroed page.
        place.store(ptr::from_ref(frame).cast_mut(), Ordering::Release);
        Ok(())
    }

    /// Takes table `number` out. Walks that had begun before may still find it.
    pub(super) fn unlink(&self, number: u32) {
        if let Some(place) = self.place(number as usize) {
            // Relaxed: it is the walks that are waited for.
            place.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    fn make_branch(&self, place: &AtomicPtr<Branch>) -> Result<(), NoMemory> {
        let mut tables = Vec::new();
        tables.try_reserve_exact(BRANCH_TABLES).map_err(|_| NoMemory)?;
        tables.extend((0..BRANCH_TABLES).map(|_| AtomicPtr::new(ptr::null_mut())));
        let branch: Box<[AtomicPtr<Frame>]> = tables.into_boxed_slice();
        let branch: *mut Branch = Box::into_raw(branch).cast();
        // Release: whoever finds the branch finds it filled in. Acquire: the winner's is used.
        match place.compare_exchange(ptr::null_mut(), branch, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.made.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: made above as a boxed slice of so many pointers, and shown to nobody.
            Err(_) => drop(unsafe { Box::from_raw(branch) }),
        }
        Ok(())
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.branches) + self.made.load(Ordering::Relaxed) * size_of::<Branch>()
    }
}

impl Drop for ChunkTables {
    fn drop(&mut self) {
        for place in &self.branches {
            let branch = place.load(Ordering::Acquire);
            if !branch.is_null() {
                // SAFETY: made by `make_branch`, and `&mut self`: nobody reads it any more.
                drop(unsafe { Box::from_raw(branch) });
            }
        }
    }
}
