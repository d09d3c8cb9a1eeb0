//! Table pages. They are cut from large pieces of anonymous memory, which stay with the process, and are reused.

use portcullis::table::{ENTRIES, Entry, EntryValue, Frame};
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr};
use std::alloc::{Layout, alloc_zeroed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes allocated from the system at a time, and their alignment: a large page, if the system grants one. A kernel's
/// direct map uses large pages, so its walks do not miss the TLB more often.
const PIECE_BYTES: usize = 2 << 20;
const PIECE_PAGES: usize = PIECE_BYTES / PAGE_SIZE as usize;

/// The source of table pages. Everything is stored as addresses.
struct Pool {
    pieces: Vec<u64>,
    /// Pages that are not in use.
    free: Vec<u64>,
}

impl Pool {
    /// Takes a piece from the system. The caller owns its first `count` pages from now on; the others are free.
    fn cut_piece(&mut self, count: usize) -> Result<PhysAddr, NoMemory> {
        let piece = piece()?;
        self.pieces.push(piece);
        // The lowest address is handed out first.
        self.free.extend((count..PIECE_PAGES).rev().map(|page| piece + page as u64 * PAGE_SIZE));
        Ok(PhysAddr::new(piece))
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool { pieces: Vec::new(), free: Vec::new() });

fn pool() -> MutexGuard<'static, Pool> {
    // A panic of the allocator while the lock was held leaves the lists valid.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates a zeroed page.
pub(super) fn allocate() -> Result<PhysAddr, NoMemory> {
    let mut pool = pool();
    if pool.free.is_empty() {
        pool.cut_piece(0)?;
    }
    pool.free.pop().map(PhysAddr::new).ok_or(NoMemory)
}

/// Allocates contiguous zeroed pages, at most as many as a piece has. A single one is an ordinary page.
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
    // SAFETY: the layout has a size above zero.
    let piece = unsafe { alloc_zeroed(layout) };
    if piece.is_null() {
        return Err(NoMemory);
    }
    // This is advice only. If it is not taken, pages are small.
    // SAFETY: the memory was just allocated and consists of whole pages. The advice does not change its contents.
    unsafe { libc::madvise(piece.cast(), PIECE_BYTES, libc::MADV_HUGEPAGE) };
    Ok(piece.expose_provenance() as u64)
}

/// The contents of a page. Physical addresses are virtual addresses here.
///
/// # Safety
/// The page must come from [`allocate`].
#[inline(always)]
pub(super) unsafe fn contents(page: PhysAddr) -> &'static Frame {
    const { assert!(size_of::<Frame>() == PAGE_SIZE as usize && size_of::<Entry>() * ENTRIES == PAGE_SIZE as usize) };
    // SAFETY: the page lies in a piece, which is never freed and was zeroed when it was allocated. Entries are atomic,
    // so concurrent access is allowed.
    unsafe { &*std::ptr::with_exposed_provenance::<Frame>(page.as_u64() as usize) }
}

/// The contents of an address that may be a page, for code that follows the entries of a table.
pub(crate) fn look(page: PhysAddr) -> Option<&'static Frame> {
    let piece = page.as_u64() & !(PIECE_BYTES as u64 - 1);
    let is_ours = page.page_offset() == 0 && pool().pieces.contains(&piece);
    // SAFETY: the page lies in a piece.
    is_ours.then(|| unsafe { contents(page) })
}

/// Frees a page, and clears it for its next use.
///
/// # Safety
/// The page must come from [`allocate`], and must no longer be in use.
pub(super) unsafe fn free(page: PhysAddr) {
    // SAFETY: the caller keeps the contract.
    for entry in unsafe { contents(page) } {
        entry.store(EntryValue::ABSENT);
    }
    pool().free.push(page.as_u64());
}
