//! What the design `portcullis` does for a page, step by step, on words, entries and walks of this machine.
//!
//! Its steps take a few cycles each and overlap, so that none can be timed by itself. They are timed as they are done, one more in each
//! part: a step takes what its part takes beyond the one before.

use super::sampler::{RING, Subject};
use crate::BenchError;
use crate::host::Native;
use crate::iommu::Empty;
use crate::meter::Meter;
use crate::work::Buffers;
use portcullis::platform::CpuWords;
use portcullis::table::{ENTRIES, Entry, EntryValue, Frame};
use portcullis::{Access, DomainId, Invalidation, Iommu, Iova, PAGE_SIZE, PhysAddr, Platform};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The parts, each with the steps of those before it.
pub(super) const PARTS: [&str; 7] = ["nothing", "take", "write", "find", "clear", "submit", "return"];
const TAKE: usize = 1;
const WRITE: usize = 2;
const FIND: usize = 3;
const CLEAR: usize = 4;
const SUBMIT: usize = 5;
const RETURN: usize = 6;

/// Tables that the pages of the ring come from, over and over.
const TABLES: usize = 8;
/// The word of the cursor.
const CURSOR: usize = 1;
/// A mapping of one page in its entry, and one that is cleared.
const MAPPED: u64 = 1 << 53;
const CLEARED: u64 = 1 << 9;
const GENERATION: u64 = 1 << 10;

struct Pages<'i> {
    platform: Native<true>,
    iommu: &'i Empty,
    cursors: CpuWords,
    tables: Box<[Box<Frame>]>,
    /// Tables that there are: read by each unmap, as in the design.
    length: AtomicUsize,
    slots: Box<[u64]>,
    buffers: Buffers,
}

impl Pages<'_> {
    /// The next page.
    #[inline(always)]
    fn take(&self) -> u64 {
        loop {
            let (line, before) = self.platform.add_here(&self.cursors, CURSOR, 1);
            if before < (TABLES * ENTRIES) as u64 {
                return before;
            }
            self.begin_again(line);
        }
    }

    #[cold]
    fn begin_again(&self, line: usize) {
        let now = self.cursors.word(line, CURSOR).load(Ordering::Relaxed);
        self.platform.exchange_at(&self.cursors, line, CURSOR, now, 0);
    }

    #[inline(always)]
    fn entry(&self, page: u64) -> Option<&Entry> {
        let number = (page / ENTRIES as u64) as usize;
        if number >= self.length.load(Ordering::Acquire) {
            return None;
        }
        Some(&self.tables[number][page as usize % ENTRIES])
    }

    /// Once round the ring.
    #[inline(always)]
    fn turn<const PART: usize>(&mut self) {
        let (access, len) = (black_box(Access::DeviceWrites), black_box(PAGE_SIZE));
        let rights = EntryValue::leaf(PhysAddr::new(0), access.rights(), false).bits();
        let mut buffers = self.buffers;
        let mut slots = std::mem::take(&mut self.slots);
        for slot in &mut slots {
            if PART >= FIND && black_box(len) == PAGE_SIZE {
                self.unmap::<PART>(*slot);
            }
            let phys = buffers.take();
            *slot = if PART >= TAKE { self.take() } else { phys.as_u64() };
            if PART >= WRITE {
                self.write(*slot, phys, rights);
            }
        }
        self.slots = slots;
        self.buffers = buffers;
    }

    #[inline(always)]
    fn write(&self, page: u64, phys: PhysAddr, rights: u64) {
        if let Some(entry) = self.entry(page) {
            let flags = rights + (entry.load_bits() & GENERATION);
            entry.store_bits((phys.as_u64() & !(PAGE_SIZE - 1)) + flags + MAPPED);
            self.platform.table_barrier(std::slice::from_ref(entry));
        }
    }

    #[inline(always)]
    fn unmap<const PART: usize>(&self, page: u64) {
        self.platform.walk(|| {
            let Some(entry) = self.entry(page) else { return };
            if PART < CLEAR {
                black_box(entry.load_bits());
                return;
            }
            let bits = entry.load_bits();
            if bits >> MAPPED.trailing_zeros() != 1 {
                return;
            }
            let cleared = CLEARED | 1 << 12 | bits & GENERATION;
            entry.store_bits(cleared);
            self.platform.table_barrier(std::slice::from_ref(entry));
            if PART >= SUBMIT {
                let command =
                    Invalidation::Pages { domain: DomainId(1), first: Iova::from_pfn(page), mask: 0, leaf_only: true };
                if self.iommu.submit(&[command]).is_err() {
                    return;
                }
            }
            if PART >= RETURN && entry.load_bits() == cleared {
                entry.store_bits(cleared ^ (CLEARED | GENERATION));
            }
        });
    }
}

/// The parts one after the other. Entries of one part are of no use to the next, so each goes round once before it is timed.
pub(super) fn chunk<'i>(platform: Native<true>, iommu: &'i Empty) -> Result<Subject<'i>, BenchError> {
    let table = || Box::new(std::array::from_fn(|_| Entry::new(0)));
    let mut pages = Pages {
        platform,
        iommu,
        cursors: CpuWords::new(&platform, 0).map_err(|_| BenchError::NoMemory)?,
        tables: (0..TABLES).map(|_| table()).collect(),
        length: AtomicUsize::new(TABLES),
        slots: vec![0; RING].into(),
        buffers: Buffers::new(0, 2 * RING as u64, 1),
    };
    let mut turn = move |part| match part {
        0 => pages.turn::<0>(),
        TAKE => pages.turn::<TAKE>(),
        WRITE => pages.turn::<WRITE>(),
        FIND => pages.turn::<FIND>(),
        CLEAR => pages.turn::<CLEAR>(),
        SUBMIT => pages.turn::<SUBMIT>(),
        _ => pages.turn::<RETURN>(),
    };
    let take_sample = move |part, meter: &mut Meter| {
        const TURNS: usize = 4;
        turn(part);
        meter.start();
        (0..TURNS).for_each(|_| turn(part));
        meter.stop();
        Ok(())
    };
    Ok(Subject { parts: PARTS.map(|part| (part, 4.0 * RING as f64)).to_vec(), take_sample: Box::new(take_sample) })
}
