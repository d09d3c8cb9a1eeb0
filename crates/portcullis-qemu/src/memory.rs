//! The machine's memory, which this process also maps.
//!
//! QEMU and its devices read and write it concurrently, so this process accesses it only through atomics: words where
//! order matters, bytes for data.

use super::process::memfd;
use super::protocol::QtestError;
use portcullis::platform::CopyMemory;
use portcullis::table::{ENTRIES, Entry, Frame};
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr};
use portcullis_model::{PagePool, Slab};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// The ranges from which a kernel allocates its memory.
#[derive(Clone, Copy)]
pub(super) struct Reserve {
    /// Begin of the zone of small allocations.
    zone: u64,
    /// End of that zone, and begin of the table pages.
    tables: u64,
    /// End of the table pages, and begin of the buffers.
    buffers: u64,
    /// End of the buffers.
    end: u64,
}

impl Reserve {
    /// The ranges of the kernel that starts the machine, above those that firmware would use.
    pub(super) const FIRST: Self = Self { zone: 1 << 20, tables: 16 << 20, buffers: 64 << 20, end: 192 << 20 };
    /// The ranges of a kernel that is started after the first has crashed. The first kernel never uses them.
    pub(super) const CRASH: Self = Self { zone: 192 << 20, tables: 194 << 20, buffers: 208 << 20, end: 256 << 20 };
}

/// The memory of a machine, from address zero on.
pub struct GuestMemory {
    base: NonNull<u8>,
    bytes: u64,
    file: OwnedFd,
    reserve: Reserve,
    tables: Mutex<Pages>,
    buffers: Mutex<Runs>,
    small: Mutex<Slab>,
}

// SAFETY: the memory is mapped for as long as this lives, and is accessed only through atomics.
unsafe impl Send for GuestMemory {}
// SAFETY: as above.
unsafe impl Sync for GuestMemory {}

/// A pool of table pages. It hands out pages given back before pages that were never used.
struct Pages {
    freed: Vec<u64>,
    next: u64,
    lent: usize,
}

/// A pool of runs of pages for data. It hands out runs given back, sorted by their number of pages, before pages that
/// were never used.
struct Runs {
    freed: BTreeMap<u64, Vec<PhysAddr>>,
    next: u64,
    pages_lent: u64,
}

impl GuestMemory {
    /// `bytes` of memory, all zero.
    ///
    /// # Errors
    /// [`QtestError::Start`].
    pub(super) fn new(bytes: u64) -> Result<Self, QtestError> {
        let file = memfd("guest-memory")?;
        rustix::fs::ftruncate(&file, bytes).map_err(|error| QtestError::Start(io::Error::from(error)))?;
        Self::over(file, bytes, Reserve::FIRST)
    }

    /// The memory of a machine that another process has started: the first `bytes` bytes of `file`. Allocations come
    /// from `reserve`.
    ///
    /// # Errors
    /// [`QtestError::Start`].
    pub(super) fn over(file: OwnedFd, bytes: u64, reserve: Reserve) -> Result<Self, QtestError> {
        assert!(bytes >= reserve.end && bytes.is_multiple_of(PAGE_SIZE), "room for tables and buffers");
        let failed = |error: rustix::io::Errno| QtestError::Start(io::Error::from(error));
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let base = unsafe {
            mmap(core::ptr::null_mut(), bytes as usize, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        let base = NonNull::new(base.map_err(failed)?.cast()).expect("the kernel maps nothing at zero by itself");
        let tables = Mutex::new(Pages { freed: Vec::new(), next: reserve.tables, lent: 0 });
        let zone = PagePool::new(PhysAddr::new(reserve.zone), reserve.tables - reserve.zone);
        let buffers = Mutex::new(Runs { freed: BTreeMap::new(), next: reserve.buffers, pages_lent: 0 });
        Ok(Self { base, bytes, file, reserve, tables, buffers, small: Mutex::new(Slab::new(zone)) })
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Allocates a zeroed table page.
    pub(super) fn allocate(&self) -> Result<PhysAddr, NoMemory> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let page = match tables.freed.pop() {
            Some(page) => page,
            None if tables.next < self.reserve.buffers => {
                tables.next += PAGE_SIZE;
                tables.next - PAGE_SIZE
            }
            None => return Err(NoMemory),
        };
        tables.lent += 1;
        drop(tables);
        self.frame(PhysAddr::new(page)).iter().for_each(|entry| entry.store_bits(0));
        Ok(PhysAddr::new(page))
    }

    /// Frees a table page.
    pub(super) fn free(&self, page: PhysAddr) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!tables.freed.contains(&page.as_u64()), "table page {page} was freed twice");
        tables.freed.push(page.as_u64());
        tables.lent -= 1;
    }

    /// Allocates a run of `pages` adjacent pages for data.
    pub(super) fn allocate_run(&self, pages: u64) -> Result<PhysAddr, NoMemory> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let run = match buffers.freed.get_mut(&pages).and_then(Vec::pop) {
            Some(run) => run,
            None => {
                let end = pages.checked_mul(PAGE_SIZE).and_then(|len| buffers.next.checked_add(len));
                let end = end.filter(|end| *end <= self.reserve.end).ok_or(NoMemory)?;
                PhysAddr::new(core::mem::replace(&mut buffers.next, end))
            }
        };
        buffers.pages_lent += pages;
        Ok(run)
    }

    /// Frees a run.
    pub(super) fn free_run(&self, first: PhysAddr, pages: u64) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.freed.entry(pages).or_default().push(first);
        buffers.pages_lent -= pages;
    }

    /// The number of pages of buffers that have not been dropped, including buffers that are lost for good.
    pub fn buffer_pages_lent(&self) -> u64 {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pages_lent
    }

    /// Makes a small allocation, as the kernel's general allocator would.
    pub(super) fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        self.small.lock().unwrap_or_else(PoisonError::into_inner).allocate(bytes, below)
    }

    /// Frees a small allocation.
    pub(super) fn free_bytes(&self, at: PhysAddr) {
        self.small.lock().unwrap_or_else(PoisonError::into_inner).free(at);
    }

    /// The number of small allocations that are not freed yet.
    pub fn small_lent(&self) -> usize {
        self.small.lock().unwrap_or_else(PoisonError::into_inner).in_use()
    }

    /// The number of table pages that are not freed yet.
    pub fn tables_lent(&self) -> usize {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).lent
    }

    /// The entries of a page.
    ///
    /// # Panics
    /// If it is not a whole page of this memory.
    pub fn frame(&self, page: PhysAddr) -> &Frame {
        let at = page.as_u64();
        assert!(at.is_multiple_of(PAGE_SIZE) && at < self.bytes, "{page} is not a page of the machine's memory");
        const _: () = assert!(size_of::<[Entry; ENTRIES]>() == PAGE_SIZE as usize);
        // SAFETY: inside the mapping, and page-aligned. Entries are atomics, for which every bit pattern is valid.
        unsafe { self.base.add(at as usize).cast::<Frame>().as_ref() }
    }

    fn slice(&self, at: PhysAddr, len: usize) -> &[AtomicU8] {
        let start = at.as_u64();
        assert!(start.checked_add(len as u64).is_some_and(|end| end <= self.bytes), "{at}+{len} is not in memory");
        // SAFETY: inside the mapping, as just checked. Bytes that other processes may write are accessed as atomics
        // here.
        unsafe { core::slice::from_raw_parts(self.base.add(start as usize).as_ptr().cast(), len) }
    }

    /// Reads bytes.
    ///
    /// # Panics
    /// If they are not all in memory. The other accesses panic too.
    pub fn read(&self, at: PhysAddr, out: &mut [u8]) {
        // Acquire matters at least on the last byte: if these bytes announce data of a device, later reads see that
        // data.
        let shared = self.slice(at, out.len());
        for (byte, shared) in out.iter_mut().zip(shared) {
            *byte = shared.load(Ordering::Acquire);
        }
    }

    /// Writes bytes.
    pub fn write(&self, at: PhysAddr, data: &[u8]) {
        for (byte, shared) in data.iter().zip(self.slice(at, data.len())) {
            shared.store(*byte, Ordering::Release);
        }
    }

    /// Sets bytes to one value.
    pub fn fill(&self, at: PhysAddr, len: usize, value: u8) {
        self.slice(at, len).iter().for_each(|shared| shared.store(value, Ordering::Release));
    }

    /// Reads a word at an address that is a multiple of 8.
    pub fn read_u64(&self, at: PhysAddr) -> u64 {
        self.entry(at).load_bits()
    }

    /// Writes a word. It becomes visible after everything that was written before.
    pub fn write_u64(&self, at: PhysAddr, value: u64) {
        self.entry(at).store_bits(value);
    }

    fn entry(&self, at: PhysAddr) -> &Entry {
        assert!(at.page_offset().is_multiple_of(8), "{at} is not a multiple of 8");
        &self.frame(PhysAddr::new(at.as_u64() - at.page_offset()))[at.page_offset() as usize / 8]
    }
}

// SAFETY: these are the bytes that the machine's devices see, and the accesses are atomic.
unsafe impl CopyMemory for GuestMemory {
    unsafe fn copy(&self, from: PhysAddr, to: PhysAddr, len: u64) {
        let (from, to) = (self.slice(from, len as usize), self.slice(to, len as usize));
        for (from, to) in from.iter().zip(to) {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
    }

    unsafe fn clear(&self, at: PhysAddr, len: u64) {
        self.fill(at, len as usize, 0);
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `over`. References into it borrow from this value, so none is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes as usize) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
