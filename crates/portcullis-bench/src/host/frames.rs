//! Table pages: cut from large pieces of anonymous memory, which stay with the process, and used over and over.

use portcullis::table::{ENTRIES, Entry, EntryValue, Frame};
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr};
use std::alloc::{Layout, alloc_zeroed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes taken from the system at a time, and what they are aligned to: a large page, if the system gives one. A kernel's
/// direct map has those, so its walks miss the TLB no more often.
const PIECE_BYTES: usize = 2 << 20;
const PIECE_PAGES: usize = PIECE_BYTES / PAGE_SIZE as usize;

/// Where table pages come from. All by address.
struct Pool {
    pieces: Vec<u64>,
    /// Pages that nobody uses.
    free: Vec<u64>,
}

impl Pool {
    /// Takes a piece from the system. Its pages are unused; the first `count` are the caller's from now on.
    fn cut_piece(&mut self, count: usize) -> Result<PhysAddr, NoMemory> {
        let piece = piece()?;
        self.pieces.push(piece);
        // The lowest address comes first.
        self.free.extend((count..PIECE_PAGES).rev().map(|page| piece + page as u64 * PAGE_SIZE));
        Ok(PhysAddr::new(piece))
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool { pieces: Vec::new(), free: Vec::new() });

fn pool() -> MutexGuard<'static, Pool> {
    // A panic while it was held, of the allocator, has left sound lists.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A zeroed page that nobody uses.
pub(super) fn allocate() -> Result<PhysAddr, NoMemory> {
    let mut pool = pool();
    if pool.free.is_empty() {
        pool.cut_piece(0)?;
    }
    pool.free.pop().map(PhysAddr::new).ok_or(NoMemory)
}

/// Such pages side by side, as many as a piece has at most. One is a page as any other.
pub(super) fn allocate_run(count: usize) -> Result<PhysAddr, NoMemory> {
    match count {
        1 => allocate(),
        _ if count > PIECE_PAGES => Err(NoMemory),
        _ => pool().cut_piece(count),
    }
}

/// Zeroed memory from the system.
fn piece() -> Result<u64, NoMemory> {
    let layout = Layout::from_size_align(PIECE_BYTES, PIECE_BYTES).map_err(|_| NoMemory)?;
    // SAFETY: the layout has a size.
    let piece = unsafe { alloc_zeroed(layout) };
    if piece.is_null() {
        return Err(NoMemory);
    }
    // Advice: where it is not taken, pages are small.
    // SAFETY: the memory just allocated, whole pages of it, whose contents the advice leaves alone.
    unsafe { libc::madvise(piece.cast(), PIECE_BYTES, libc::MADV_HUGEPAGE) };
    Ok(piece.expose_provenance() as u64)
}

/// The contents of a page: physical addresses are virtual ones.
///
/// # Safety
/// [`allocate`] gave the page.
#[inline(always)]
pub(super) unsafe fn contents(page: PhysAddr) -> &'static Frame {
    const { assert!(size_of::<Frame>() == PAGE_SIZE as usize && size_of::<Entry>() * ENTRIES == PAGE_SIZE as usize) };
    // SAFETY: it lies in a piece, which stays allocated for good, zeroed when it came; entries are atomic, so anybody may look.
    unsafe { &*std::ptr::with_exposed_provenance::<Frame>(page.as_u64() as usize) }
}

/// The contents of what may be a page, for those who follow what they find in a table.
pub(crate) fn look(page: PhysAddr) -> Option<&'static Frame> {
    let piece = page.as_u64() & !(PIECE_BYTES as u64 - 1);
    let is_ours = page.page_offset() == 0 && pool().pieces.contains(&piece);
    // SAFETY: a page of a piece.
    is_ours.then(|| unsafe { contents(page) })
}

/// Takes a page back, and clears it for its next user.
///
/// # Safety
/// [`allocate`] gave it, and nobody uses it any more.
pub(super) unsafe fn free(page: PhysAddr) {
    // SAFETY: the caller's promise.
    for entry in unsafe { contents(page) } {
        entry.store(EntryValue::ABSENT);
    }
    pool().free.push(page.as_u64());
}
