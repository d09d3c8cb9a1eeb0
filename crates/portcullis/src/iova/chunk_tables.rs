//! The leaf tables of the chunks by number: found in two steps, without a lock, on every map and unmap.

use crate::error::NoMemory;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::table::{ENTRIES, Entry, Frame};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;

/// log2 of the tables of a branch. The model checker sees small ones, for it sees each of their entries.
const BRANCH_BITS: u32 = if cfg!(loom) { 1 } else { 9 };
const BRANCH_TABLES: usize = 1 << BRANCH_BITS;

/// Pointers to tables. Where none is linked they point to one in which nothing is mapped.
type Branch = [AtomicPtr<Frame>; BRANCH_TABLES];

/// The leaf tables, by number. Branches are made when first needed and stay.
///
/// Nothing here is null: what is not there reads as what is empty, so nobody has to ask.
pub(super) struct ChunkTables {
    branches: Box<[AtomicPtr<Branch>]>,
    /// In which nothing is linked: stands for all that were not made.
    no_branch: Vec<AtomicPtr<Frame>>,
    /// In which nothing is mapped: stands for all that are not linked. Nobody writes to it.
    no_table: Vec<Entry>,
    /// Branches made. A statistic, so Relaxed.
    made: AtomicUsize,
}

impl ChunkTables {
    /// Room for `numbers` tables.
    pub(super) fn new(numbers: u32) -> Result<Self, NoMemory> {
        let no_table = filled(ENTRIES, || Entry::new(0))?;
        let no_branch = branch(&no_table)?;
        let pointer = no_branch.as_ptr().cast_mut().cast();
        let branches = filled((numbers as usize).div_ceil(BRANCH_TABLES), || AtomicPtr::new(pointer))?;
        Ok(Self { branches: branches.into_boxed_slice(), no_branch, no_table, made: AtomicUsize::new(0) })
    }

    /// Where the pointer to table `number` is, if it has a branch.
    #[inline(always)]
    fn place(&self, number: usize) -> Option<&AtomicPtr<Frame>> {
        // Acquire: with the pointer comes the branch.
        let branch = self.branches.get(number >> BRANCH_BITS)?.load(Ordering::Acquire);
        // SAFETY: `no_branch`, or one made by `make_branch`; all stay until `self` goes.
        let branch = unsafe { branch.as_ref().unwrap_unchecked() };
        Some(&branch[number % BRANCH_TABLES])
    }

    /// Table `number`, or one in which nothing is mapped. `None` beyond all numbers.
    ///
    /// # Safety
    /// The table stays for as long as it is used: something is mapped or taken in it, or this is within
    /// [`Platform::walk`](crate::Platform::walk).
    #[inline(always)]
    pub(super) unsafe fn get(&self, number: usize) -> Option<&Frame> {
        // Acquire: with the pointer comes the zeroed page.
        let frame = self.place(number)?.load(Ordering::Acquire);
        // SAFETY: `no_table`, or a page of the platform from `link` until `unlink`; beyond that the caller sees to it that it
        // stays.
        Some(unsafe { frame.as_ref().unwrap_unchecked() })
    }

    /// A table that is known to be linked: the lock of the arena is held, or something is taken in it.
    #[inline(always)]
    pub(super) fn linked(&self, number: u32) -> &Frame {
        let number = number as usize;
        debug_assert!(self.place(number).is_some_and(|place| place.load(Ordering::Relaxed) != self.no_table()));
        // SAFETY: a chunk is handed out after its table was linked, and the arena gives a table up with none that anything is
        // taken in; so the branch and the table are there. Acquire, twice, as in `get`.
        unsafe {
            let branch = &*self.branches.get_unchecked(number >> BRANCH_BITS).load(Ordering::Acquire);
            &*branch[number % BRANCH_TABLES].load(Ordering::Acquire)
        }
    }

    /// Links `frame`, all zero, as table `number`.
    pub(super) fn link(&self, number: u32, frame: &Frame) -> Result<(), NoMemory> {
        let number = number as usize;
        self.make_branch(&self.branches[number >> BRANCH_BITS])?;
        let place = self.place(number).expect("below all numbers");
        // Release: with the pointer comes the zeroed page.
        place.store(ptr::from_ref(frame).cast_mut(), Ordering::Release);
        Ok(())
    }

    /// Takes table `number` out. Walks that had begun before may still find it.
    pub(super) fn unlink(&self, number: u32) {
        if let Some(place) = self.place(number as usize) {
            // Relaxed: it is the walks that are waited for.
            place.store(self.no_table(), Ordering::Relaxed);
        }
    }

    const fn no_table(&self) -> *mut Frame {
        self.no_table.as_ptr().cast_mut().cast()
    }

    const fn no_branch(&self) -> *mut Branch {
        self.no_branch.as_ptr().cast_mut().cast()
    }

    /// Makes the branch at `place`, if nobody has.
    fn make_branch(&self, place: &AtomicPtr<Branch>) -> Result<(), NoMemory> {
        // Relaxed: the pointer is not followed.
        if place.load(Ordering::Relaxed) != self.no_branch() {
            return Ok(());
        }
        let branch: *mut Branch = Box::into_raw(branch(&self.no_table)?.into_boxed_slice()).cast();
        // Release: whoever finds the branch finds it filled in. Another's is not followed here.
        match place.compare_exchange(self.no_branch(), branch, Ordering::Release, Ordering::Relaxed) {
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
        let branches = self.made.load(Ordering::Relaxed) + 1;
        size_of_val(&*self.branches) + branches * size_of::<Branch>() + size_of_val(&*self.no_table)
    }
}

impl Drop for ChunkTables {
    fn drop(&mut self) {
        for place in &self.branches {
            let branch = place.load(Ordering::Acquire);
            if branch != self.no_branch() {
                // SAFETY: made by `make_branch`, and `&mut self`: nobody reads it any more.
                drop(unsafe { Box::from_raw(branch) });
            }
        }
    }
}

/// So many of what `make` makes.
fn filled<T>(count: usize, make: impl FnMut() -> T) -> Result<Vec<T>, NoMemory> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| NoMemory)?;
    all.resize_with(count, make);
    Ok(all)
}

/// A branch in which nothing but `no_table` is linked.
fn branch(no_table: &[Entry]) -> Result<Vec<AtomicPtr<Frame>>, NoMemory> {
    let pointer = no_table.as_ptr().cast_mut().cast();
    filled(BRANCH_TABLES, || AtomicPtr::new(pointer))
}
