//! The steps of the design `portcullis` for a page, on words, entries and walks of this machine.
//!
//! Its steps take a few cycles each and overlap, so that none can be timed alone. They are timed together, with one
//! more step in each part. The price of a step is the difference between its part and the one before.

use super::sampler::{RING, Subject, all_differ, check};
use crate::BenchError;
use crate::host::Native;
use crate::iommu::{Empty, submissions};
use crate::meter::Meter;
use crate::work::Buffers;
use portcullis::platform::{CpuWords, WordLines};
use portcullis::table::{ENTRIES, Entry, EntryValue, Frame};
use portcullis::{Access, DomainId, Invalidation, Iommu, Iova, PAGE_SIZE, PhysAddr, Platform};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The parts. Each includes the steps of those before it.
pub(super) const PARTS: [&str; 8] = ["nothing", "take", "write", "find", "clear", "submit", "return", "join"];
const TAKE: usize = 1;
const WRITE: usize = 2;
const FIND: usize = 3;
const CLEAR: usize = 4;
const SUBMIT: usize = 5;
const RETURN: usize = 6;
const JOIN: usize = 7;

/// How many times a sample goes round the ring. Together with the round before it, this covers all tables.
const TURNS: usize = 4;
/// The tables from which the pages of the ring come, in rotation.
const TABLES: usize = 8;
/// The index of the cursor's word.
const CURSOR: usize = 1;
/// The bits of a mapping of one page in its entry, of a cleared mapping, and of one generation.
const MAPPED: u64 = 1 << 53;
const CLEARED: u64 = 1 << 9;
const GENERATION: u64 = 1 << 10;
/// The bit at which the end of the joined run begins. The bits below hold the number of unmaps.
const END_SHIFT: u32 = 24;

#[inline(always)]
const fn is_mapped(bits: u64) -> bool {
    bits >> MAPPED.trailing_zeros() == 1
}

struct Pages<'i> {
    platform: Native<true>,
    iommu: &'i Empty,
    cursors: WordLines,
    tables: Box<[Box<Frame>]>,
    /// The number of tables. Each unmap reads it, as in the design.
    length: AtomicUsize,
    slots: Box<[u64]>,
    buffers: Buffers,
    /// The run that unmaps join.
    open: AtomicU64,
}

impl Pages<'_> {
    /// Takes the next page.
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

    /// Goes once round the ring.
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
            self.platform.table_barrier(std::slice::from_ref(entry), true);
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
            if !is_mapped(bits) {
                return;
            }
            let cleared = CLEARED | 1 << 12 | bits & GENERATION;
            entry.store_bits(cleared);
            self.platform.table_barrier(std::slice::from_ref(entry), true);
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
        if PART >= JOIN {
            self.join(page);
        }
    }

    /// Joins a page to the run. If it is not the next page, it begins another run.
    #[inline(always)]
    fn join(&self, page: u64) {
        let word = self.open.load(Ordering::Relaxed);
        let is_next = word >> END_SHIFT == page;
        let run = if is_next { word } else { (page << END_SHIFT) | (word % (1 << END_SHIFT)) };
        let _ = self.open.compare_exchange(word, run + (1 << END_SHIFT) + 1, Ordering::Release, Ordering::Relaxed);
    }
}

impl Pages<'_> {
    /// Checks that the steps of a sample of this part were taken, and that it made `submitted` submissions.
    fn check(&self, part: usize, submitted: u64) -> Result<(), BenchError> {
        let slots = || self.slots.iter().copied();
        check(all_differ(slots(), RING), "pages taken")?;
        if part < TAKE {
            return Ok(());
        }
        check(slots().all(|page| page < (TABLES * ENTRIES) as u64), "pages taken of a chunk")?;
        if part < WRITE {
            return Ok(());
        }
        let written = slots().filter_map(|page| self.entry(page)).map(Entry::load_bits).filter(|bits| is_mapped(*bits));
        check(all_differ(written, RING), "entries written")?;
        // All entries have been written since the part began. Entries of pages no longer in the ring are cleared, if
        // the part clears.
        let all = || self.tables.iter().flat_map(|table| table.iter()).map(Entry::load_bits);
        let mapped = if part < CLEAR { TABLES * ENTRIES } else { RING };
        check(all().filter(|bits| is_mapped(*bits)).count() == mapped, "entries written and cleared")?;
        if part < CLEAR {
            return Ok(());
        }
        let cleared = if part < RETURN { TABLES * ENTRIES - RING } else { 0 };
        check(all().filter(|bits| bits & CLEARED != 0).count() == cleared, "pages returned")?;
        check(submitted == if part < SUBMIT { 0 } else { (TURNS * RING) as u64 }, "submissions of unmaps")?;
        let joined = if part < JOIN { 0 } else { ((TURNS + 1) * RING) as u64 };
        check(self.open.load(Ordering::Relaxed) % (1 << END_SHIFT) == joined, "unmaps that have joined")
    }
}

/// The parts in sequence. Entries of one part are useless to the next, so each part goes round once before it is
/// timed.
pub(super) fn chunk(platform: Native<true>, iommu: &Empty) -> Result<Subject<'_>, BenchError> {
    of_tables(platform, iommu, TABLES)
}

/// The parts, if only `length` of the tables are found.
fn of_tables(platform: Native<true>, iommu: &Empty, length: usize) -> Result<Subject<'_>, BenchError> {
    let table = || Box::new(std::array::from_fn(|_| Entry::new(0)));
    let mut pages = Pages {
        platform,
        iommu,
        cursors: WordLines::new(&platform, 0).map_err(|_| BenchError::NoMemory)?,
        tables: (0..TABLES).map(|_| table()).collect(),
        length: AtomicUsize::new(length),
        slots: vec![0; RING].into(),
        buffers: Buffers::new(0, 2 * RING as u64, 1),
        open: AtomicU64::new(0),
    };
    let take_sample = move |part, meter: &mut Meter| {
        pages.open.store(0, Ordering::Relaxed);
        let mut turn = || match part {
            0 => pages.turn::<0>(),
            TAKE => pages.turn::<TAKE>(),
            WRITE => pages.turn::<WRITE>(),
            FIND => pages.turn::<FIND>(),
            CLEAR => pages.turn::<CLEAR>(),
            SUBMIT => pages.turn::<SUBMIT>(),
            RETURN => pages.turn::<RETURN>(),
            _ => pages.turn::<JOIN>(),
        };
        turn();
        let before = submissions();
        meter.start();
        (0..TURNS).for_each(|_| turn());
        meter.stop();
        pages.check(part, submissions() - before)
    };
    let operations = (TURNS * RING) as f64;
    Ok(Subject { parts: PARTS.map(|part| (part, operations)).to_vec(), take_sample: Box::new(take_sample) })
}

#[cfg(test)]
mod tests {
    use super::{PARTS, TABLES, WRITE, of_tables};
    use crate::host::Native;
    use crate::iommu::Empty;
    use crate::meter::Meter;

    /// If tables are not found, all later steps do nothing and take no time. The checks must notice that.
    #[test]
    fn steps_that_are_not_taken_are_found() {
        let iommu = Empty::new(true);
        for length in [0, TABLES - 1, TABLES] {
            let mut subject = of_tables(Native::coherent(), &iommu, length).expect("memory");
            for (part, name) in PARTS.iter().enumerate() {
                let taken = (subject.take_sample)(part, &mut Meter::new());
                assert_eq!(taken.is_ok(), length == TABLES || part < WRITE, "{name}: {taken:?}");
            }
        }
    }
}
