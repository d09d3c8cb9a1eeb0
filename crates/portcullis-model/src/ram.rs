//! Physical memory that CPUs and devices share.
//!
//! The host provides pages when they are first touched, so a machine may have far more memory than the process uses.
//! CPUs see the [`Frame`]s themselves. If the walker does not snoop the CPUs' caches ([`Ram::with_flushing`]), it has a
//! separate view, in which a CPU's store appears only after its cache line was flushed.

use crate::zeroed;
use portcullis::table::{ENTRIES, Entry, Frame};
use portcullis::{NoMemory, PAGE_SHIFT, PAGE_SIZE, PhysAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries in a cache line of 64 bytes, the unit of a flush.
const LINE_ENTRIES: usize = 8;
const PAGE_LINES: usize = ENTRIES / LINE_ENTRIES;
const WORD_BYTES: usize = size_of::<u64>();

/// Selects the next page to allocate: the page freed last, otherwise a page that was never used.
struct FreePages {
    freed: Vec<usize>,
    next: usize,
    allocated: usize,
}

/// Physical memory, shared by CPUs and devices.
///
/// [`allocate`](Ram::allocate) takes pages from the lowest address up. Code that needs memory for data without
/// allocating it may use addresses near the top directly.
pub struct Ram {
    base: PhysAddr,
    pages: Box<[Frame]>,
    /// The view of a walker that does not snoop.
    flushed: Option<Box<[Frame]>>,
    /// One bit for each page.
    allocated: Box<[AtomicU64]>,
    free: Mutex<FreePages>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ram {
    /// `bytes` of memory (rounded down to whole pages) from `base` (rounded down to a page) on. Every walker snoops
    /// the CPUs' caches.
    pub fn new(base: PhysAddr, bytes: u64) -> Self {
        let count = (bytes / PAGE_SIZE) as usize;
        Self {
            base: PhysAddr::from_pfn(base.pfn()),
            pages: zeroed::frames(count),
            flushed: None,
            allocated: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::new(FreePages { freed: Vec::new(), next: 0, allocated: 0 }),
        }
    }

    /// Like [`new`](Ram::new), but walkers see only those stores of a CPU that were [flushed](Ram::flush).
    pub fn with_flushing(base: PhysAddr, bytes: u64) -> Self {
        let ram = Self::new(base, bytes);
        Self { flushed: Some(zeroed::frames(ram.pages.len())), ..ram }
    }

    /// The lowest address.
    pub fn base(&self) -> PhysAddr {
        self.base
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_SIZE
    }

    /// Whether walkers see only what was flushed.
    pub fn needs_flushing(&self) -> bool {
        self.flushed.is_some()
    }

    /// Allocates a zeroed page that walkers see as zeroed too: the page freed last, otherwise the lowest page that
    /// was never used.
    ///
    /// # Errors
    /// [`NoMemory`] when every page is allocated.
    pub fn allocate(&self) -> Result<PhysAddr, NoMemory> {
        let mut free = lock(&self.free);
        let index = match free.freed.pop() {
            Some(index) => index,
            None if free.next < self.pages.len() => {
                free.next += 1;
                free.next - 1
            }
            None => return Err(NoMemory),
        };
        free.allocated += 1;
        self.make_blank(index);
        Ok(PhysAddr::from_pfn(self.base.pfn() + index as u64))
    }

    /// Zeroes a page in every view and marks it as allocated.
    fn make_blank(&self, index: usize) {
        let views = std::iter::once(&self.pages).chain(&self.flushed);
        views.flat_map(|pages| &pages[index]).for_each(|entry| entry.store_bits(0));
        // Release pairs with the acquire in `is_allocated`: code that finds the page allocated finds it zeroed.
        self.allocated[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
    }

    /// Allocates adjacent zeroed pages. One page is allocated as [`allocate`](Ram::allocate) does; several pages are
    /// the lowest that were never used. Each page is [freed](Ram::free) separately.
    ///
    /// # Errors
    /// [`NoMemory`] if there are not enough pages.
    pub fn allocate_run(&self, pages: usize) -> Result<PhysAddr, NoMemory> {
        if pages == 1 {
            return self.allocate();
        }
        let first = {
            let mut free = lock(&self.free);
            let end = free.next.checked_add(pages).filter(|end| *end <= self.pages.len()).ok_or(NoMemory)?;
            free.allocated += pages;
            std::mem::replace(&mut free.next, end)
        };
        (first..first + pages).for_each(|index| self.make_blank(index));
        Ok(PhysAddr::from_pfn(self.base.pfn() + first as u64))
    }

    /// Frees a page that [`allocate`](Ram::allocate) returned. Its contents stay until it is allocated again, because
    /// a stale walk would find them.
    ///
    /// # Panics
    /// If `page` is not allocated.
    pub fn free(&self, page: PhysAddr) {
        let index = self.index(page).expect("a freed page lies in memory");
        let mut free = lock(&self.free);
        let before = self.allocated[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
        assert!(before & (1 << (index % 64)) != 0, "page {page} was freed but is not allocated");
        free.allocated -= 1;
        free.freed.push(index);
    }

    /// The number of pages allocated now.
    pub fn allocated(&self) -> usize {
        lock(&self.free).allocated
    }

    /// Whether the page that holds `phys` is allocated now.
    #[inline]
    pub fn is_allocated(&self, phys: PhysAddr) -> bool {
        self.index(phys)
            .is_some_and(|index| self.allocated[index / 64].load(Ordering::Acquire) & (1 << (index % 64)) != 0)
    }

    /// The page at `phys`, as CPUs see it.
    ///
    /// # Panics
    /// If it lies outside the memory.
    #[inline]
    pub fn frame(&self, phys: PhysAddr) -> &Frame {
        &self.pages[self.index(phys).expect("the page lies in memory")]
    }

    /// Reads the aligned word that holds `phys`, as CPUs and snooping hardware see it. `None` outside the memory.
    #[inline]
    pub fn read_u64(&self, phys: PhysAddr) -> Option<u64> {
        Some(self.pages[self.index(phys)?][word_index(phys)].load_bits())
    }

    /// Reads the aligned word that holds `phys`, as a page walk sees it. `None` outside the memory.
    #[inline]
    pub fn hardware_read_u64(&self, phys: PhysAddr) -> Option<u64> {
        let index = self.index(phys)?;
        let pages = self.flushed.as_ref().unwrap_or(&self.pages);
        Some(pages[index][word_index(phys)].load_bits())
    }

    /// Writes four bytes at `phys` as a device does: they appear in every view. Outside the memory it writes nothing
    /// and returns `false`.
    pub fn write_u32(&self, phys: PhysAddr, value: u32) -> bool {
        let index = self.index(phys).filter(|_| phys.as_u64().is_multiple_of(4));
        let Some(index) = index else { return self.write_bytes(phys, &value.to_le_bytes()) };
        // Aligned, so the bytes are within one word. Nearly all of these writes are the status of a wait.
        let (slot, shift) = (word_index(phys), phys.as_u64() % WORD_BYTES as u64 * 8);
        let word = self.pages[index][slot].load_bits() & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift;
        self.store(index, slot, word);
        true
    }

    /// Writes an aligned word as a device does: it appears in every view. Outside the memory, or if it is not aligned,
    /// it writes nothing and returns `false`.
    #[inline]
    pub fn write_u64(&self, phys: PhysAddr, word: u64) -> bool {
        let index = self.index(phys).filter(|_| phys.as_u64().is_multiple_of(WORD_BYTES as u64));
        index.inspect(|index| self.store(*index, word_index(phys), word)).is_some()
    }

    /// Stores a word of a page in every view.
    #[inline]
    fn store(&self, index: usize, slot: usize, word: u64) {
        self.pages[index][slot].store_bits(word);
        if let Some(flushed) = &self.flushed {
            flushed[index][slot].store_bits(word);
        }
    }

    /// Reads bytes as a device does. If some lie outside the memory, returns `None` and leaves `out` unchanged.
    pub fn read_bytes(&self, phys: PhysAddr, out: &mut [u8]) -> Option<()> {
        self.contains(phys, out.len()).then_some(())?;
        let mut at = phys.as_u64();
        let mut rest = out;
        while !rest.is_empty() {
            let offset = at as usize % WORD_BYTES;
            let count = rest.len().min(WORD_BYTES - offset);
            let (now, later) = rest.split_at_mut(count);
            let word = self.read_u64(PhysAddr::new(at))?.to_le_bytes();
            now.copy_from_slice(&word[offset..offset + count]);
            (rest, at) = (later, at + count as u64);
        }
        Some(())
    }

    /// Writes bytes as a device does: they appear in every view. If some lie outside the memory, it writes nothing
    /// and returns `false`.
    ///
    /// A word that is written in part is read and written back, so a CPU must not store to it at the same time.
    pub fn write_bytes(&self, phys: PhysAddr, bytes: &[u8]) -> bool {
        if !self.contains(phys, bytes.len()) {
            return false;
        }
        let mut at = phys.as_u64();
        let mut rest = bytes;
        while !rest.is_empty() {
            let offset = at as usize % WORD_BYTES;
            let index = ((at >> PAGE_SHIFT) - self.base.pfn()) as usize;
            let slot = word_index(PhysAddr::new(at));
            // Most writes are of whole words.
            if let Some((whole, later)) = rest.split_first_chunk().filter(|_| offset == 0) {
                self.store(index, slot, u64::from_le_bytes(*whole));
                (rest, at) = (later, at + WORD_BYTES as u64);
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(WORD_BYTES - offset));
            let mut word = self.pages[index][slot].load_bits().to_le_bytes();
            word[offset..offset + now.len()].copy_from_slice(now);
            self.store(index, slot, u64::from_le_bytes(word));
            (rest, at) = (later, at + now.len() as u64);
        }
        true
    }

    /// Makes entries visible to walkers. Like `clflush`, it flushes whole cache lines. Does nothing if walkers snoop.
    ///
    /// # Panics
    /// If the entries do not lie in one page of this memory.
    pub fn flush(&self, entries: &[Entry]) {
        let Some(flushed) = &self.flushed else { return };
        for line in self.lines(entries) {
            let (index, first) = (line / PAGE_LINES, line % PAGE_LINES * LINE_ENTRIES);
            let line = first..first + LINE_ENTRIES;
            for (seen, stored) in flushed[index][line.clone()].iter().zip(&self.pages[index][line]) {
                seen.store_bits(stored.load_bits());
            }
        }
    }

    /// The numbers of the cache lines that entries fill, from the first line of this memory on.
    ///
    /// # Panics
    /// If the entries do not lie in one page of this memory.
    pub fn lines(&self, entries: &[Entry]) -> Range<usize> {
        // Before the memory, the number is too large for it.
        let first = entries.as_ptr().addr().wrapping_sub(self.pages.as_ptr().addr()) / size_of::<Entry>();
        assert!(first / ENTRIES < self.pages.len(), "entries lie in this memory");
        let end = first + entries.len();
        assert!(first % ENTRIES + entries.len() <= ENTRIES, "entries lie in one page");
        first / LINE_ENTRIES..end.div_ceil(LINE_ENTRIES)
    }

    /// Whether all `len` bytes from `phys` on lie in the memory.
    pub fn contains(&self, phys: PhysAddr, len: usize) -> bool {
        phys >= self.base
            && (phys.as_u64() - self.base.as_u64()).checked_add(len as u64).is_some_and(|end| end <= self.bytes())
    }

    #[inline]
    fn index(&self, phys: PhysAddr) -> Option<usize> {
        let index = phys.pfn().checked_sub(self.base.pfn())? as usize;
        (index < self.pages.len()).then_some(index)
    }
}

#[inline]
fn word_index(phys: PhysAddr) -> usize {
    phys.page_offset() as usize / WORD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: PhysAddr = PhysAddr::new(0x10_0000);

    #[test]
    fn pages_come_zeroed_and_the_last_freed_is_next() {
        let ram = Ram::new(BASE, 3 * PAGE_SIZE);
        let (first, second) = (ram.allocate().unwrap(), ram.allocate().unwrap());
        assert_eq!((first, second), (BASE, PhysAddr::new(0x10_1000)));
        ram.frame(first)[7].store_bits(42);
        ram.free(first);
        assert!(!ram.is_allocated(first) && ram.is_allocated(second));
        assert_eq!(ram.read_u64(PhysAddr::new(first.as_u64() + 56)), Some(42), "a freed page keeps its contents");
        assert_eq!(ram.allocate(), Ok(first));
        assert_eq!(ram.read_u64(PhysAddr::new(first.as_u64() + 56)), Some(0));
        assert!(ram.allocate().is_ok());
        assert_eq!(ram.allocate(), Err(NoMemory));
        assert_eq!(ram.allocated(), 3);
    }

    #[test]
    fn a_run_of_one_page_is_a_page() {
        let ram = Ram::new(BASE, 4 * PAGE_SIZE);
        let run = ram.allocate_run(2).unwrap();
        let freed = PhysAddr::new(run.as_u64() + PAGE_SIZE);
        ram.free(freed);
        assert_eq!((ram.allocate_run(1), ram.allocated()), (Ok(freed), 2), "the page freed last");
        let last = ram.allocate_run(2).unwrap();
        assert_eq!(last, PhysAddr::new(BASE.as_u64() + 2 * PAGE_SIZE), "never used");
        ram.free(freed);
        ram.free(run);
        assert_eq!(ram.allocate_run(2), Err(NoMemory), "freed pages form no run");
        assert_eq!([ram.allocate_run(1), ram.allocate_run(1)], [Ok(run), Ok(freed)]);
        assert_eq!(ram.allocate_run(1), Err(NoMemory));
    }

    #[test]
    fn bytes_cross_words_and_pages_but_not_the_end() {
        let ram = Ram::new(BASE, 2 * PAGE_SIZE);
        let at = PhysAddr::new(BASE.as_u64() + PAGE_SIZE - 3);
        assert!(ram.write_bytes(at, b"portcullis"));
        let mut back = [0; 10];
        ram.read_bytes(at, &mut back).unwrap();
        assert_eq!(&back, b"portcullis");
        assert!(ram.write_u32(PhysAddr::new(BASE.as_u64() + 4), 0xdead_beef));
        assert_eq!(ram.read_u64(BASE), Some(0xdead_beef_0000_0000));
        let last = PhysAddr::new(BASE.as_u64() + 2 * PAGE_SIZE - 2);
        assert!(!ram.write_bytes(last, &[1, 2, 3]));
        assert_eq!(ram.read_bytes(last, &mut [0; 3]), None);
        assert!(!ram.write_u32(PhysAddr::new(0), 1));
        assert!(ram.write_u64(PhysAddr::new(BASE.as_u64() + 8), 7) && !ram.write_u64(PhysAddr::new(0), 1));
        assert!(!ram.write_u64(PhysAddr::new(BASE.as_u64() + 12), 1));
        assert_eq!(ram.read_u64(PhysAddr::new(BASE.as_u64() + 8)), Some(7));
        assert_eq!(ram.read_u64(PhysAddr::new(BASE.as_u64() - 1)), None);
        let mut tail = [9; 2];
        ram.read_bytes(last, &mut tail).unwrap();
        assert_eq!(tail, [0, 0], "the refused write wrote nothing");
    }

    #[test]
    fn a_walker_that_does_not_snoop_sees_flushed_lines_only() {
        let ram = Ram::with_flushing(BASE, 2 * PAGE_SIZE);
        let page = ram.allocate().unwrap();
        let word = |slot: u64| PhysAddr::new(page.as_u64() + 8 * slot);
        ram.frame(page)[8].store_bits(6);
        ram.frame(page)[9].store_bits(1);
        ram.frame(page)[15].store_bits(2);
        ram.frame(page)[16].store_bits(3);
        assert_eq!(ram.hardware_read_u64(word(9)), Some(0));
        ram.flush(&ram.frame(page)[9..10]);
        let seen = [8, 9, 15, 16].map(|slot| ram.hardware_read_u64(word(slot)).unwrap());
        assert_eq!(seen, [6, 1, 2, 0], "the whole line of eight entries and no other");
        assert_eq!(ram.read_u64(word(16)), Some(3));
        assert!(ram.write_u32(word(17), 5));
        assert_eq!(ram.hardware_read_u64(word(17)), Some(5), "a device writes memory itself");
        ram.free(page);
        assert_eq!(ram.allocate(), Ok(page));
        assert_eq!(ram.hardware_read_u64(word(9)), Some(0), "a new page is zero for walkers too");
    }

    #[test]
    fn a_walker_that_snoops_sees_stores_at_once() {
        let ram = Ram::new(BASE, PAGE_SIZE);
        let page = ram.allocate().unwrap();
        ram.frame(page)[9].store_bits(1);
        assert_eq!(ram.hardware_read_u64(PhysAddr::new(page.as_u64() + 72)), Some(1));
    }

    #[test]
    #[should_panic(expected = "is not allocated")]
    fn a_double_free_is_refused() {
        let ram = Ram::new(BASE, PAGE_SIZE);
        let page = ram.allocate().unwrap();
        ram.free(page);
        ram.free(page);
    }
}
