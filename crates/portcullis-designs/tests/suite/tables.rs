//! Second-level tables translate exactly the live mappings, as software looks them up and as hardware walks them: with
//! three levels and four, with every size of leaf, and for a page walker that sees only flushed entries.

mod counted;

use crate::interrupted::{Interrupted, Moment};
use crate::raw_face::RawFace;
use portcullis::iommu::Translation;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::{EntryValue, FreedTables, Rights, SecondLevelTable, TableRule, Walker};
use portcullis::{
    Access, Capabilities, Invalidation, Iommu, Iova, IovaRange, MapError, Open, PAGE_SIZE, PhysAddr, Platform,
    Protection, Segment, SourceId, UnmapError,
};
use portcullis_designs::Stock;
use portcullis_designs::freebsd::{map_counted, unmap_counted};
use portcullis_testkit::host::present;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

const DEVICE: SourceId = SourceId::new(0, 4, 0);
const FREED: Rule = Rule { of_table: TableRule::FreedWhenCovered, flushes_page: false };
const KEPT: Rule = Rule { of_table: TableRule::Kept, ..FREED };
const OVERWRITTEN: Rule = Rule { of_table: TableRule::Overwritten, ..FREED };
const COUNTED: Rule = Rule { of_table: TableRule::FreedByDesign, ..FREED };
const COUNTED_WHOLE: Rule = Rule { flushes_page: true, ..COUNTED };
/// Pages in a 2 MiB and in a 1 GiB leaf.
const MIB2: u64 = 1 << 9;
const GIB: u64 = 1 << 18;

/// The rule of a table. That of FreeBSD may flush whole table pages.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Rule {
    of_table: TableRule,
    flushes_page: bool,
}

/// The capabilities of a page walker.
#[derive(Clone, Copy, Debug)]
struct Format {
    levels: u8,
    leaf_2m: bool,
    leaf_1g: bool,
    coherent: bool,
    rule: Rule,
}

impl Format {
    fn capabilities(self) -> Capabilities {
        let Self { leaf_2m, leaf_1g, coherent, .. } = self;
        Capabilities { leaf_2m, leaf_1g, coherent, ..FakeIommu::new(&FakeHost::default()).capabilities() }
    }
}

/// A run of pages, and the physical run behind it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Run {
    range: IovaRange,
    phys_pfn: u64,
    rights: Rights,
}

impl Run {
    fn new(pfn: u64, pages: u64, phys_pfn: u64, rights: Rights) -> Self {
        Self { range: IovaRange::new(pfn, pages).expect("never empty"), phys_pfn, rights }
    }

    /// The run as two segments, the second of which begins at page `cut`, or as one.
    fn segments(&self, cut: u64) -> Vec<Segment> {
        let segment = |first, pages| Segment { phys: PhysAddr::from_pfn(first), len: pages * PAGE_SIZE };
        match cut % self.range.pages() {
            0 => vec![segment(self.phys_pfn, self.range.pages())],
            cut => vec![segment(self.phys_pfn, cut), segment(self.phys_pfn + cut, self.range.pages() - cut)],
        }
    }

    fn translate(&self, pfn: u64) -> Option<(u64, Rights)> {
        self.range.contains(pfn).then(|| (self.phys_pfn + (pfn - self.range.first_pfn()), self.rights))
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Map { run: Run, cut: u64 },
    Unmap(usize),
}

/// A table, with a reference.
struct Bench<'h> {
    host: &'h FakeHost,
    iommu: FakeIommu<'h>,
    table: SecondLevelTable,
    rule: Rule,
    large_leaves: bool,
    live: Vec<Run>,
    /// Pages where a run begins or ends, or did earlier.
    edges: BTreeSet<u64>,
}

impl<'h> Bench<'h> {
    fn new(host: &'h FakeHost, format: Format) -> Self {
        let iommu = FakeIommu::with_capabilities(host, format.capabilities());
        let table = SecondLevelTable::new(
            Walker::new(host, format.coherent),
            format.levels,
            &format.capabilities(),
            format.rule.of_table,
        )
        .unwrap();
        let tables = Translation::Tables { root: table.root(), levels: format.levels };
        // SAFETY: no memory is behind the fake.
        let id = unsafe { iommu.open_domain(tables) }.unwrap();
        iommu.attach(id, DEVICE).unwrap();
        let Format { rule, leaf_2m: large_leaves, .. } = format;
        Self { host, iommu, table, rule, large_leaves, live: Vec::new(), edges: BTreeSet::new() }
    }

    fn walker(&self) -> Walker<'h, FakeHost> {
        Walker::new(self.host, self.iommu.capabilities().coherent)
    }

    /// Writes a mapping, as its design does.
    ///
    /// # Safety
    /// That of [`SecondLevelTable::map`].
    unsafe fn write(&self, run: Run, segments: &[Segment], marked: bool) -> Result<(), MapError> {
        let (walker, Run { range, rights, .. }) = (self.walker(), run);
        match self.rule {
            Rule { of_table: TableRule::FreedByDesign, flushes_page } => {
                // SAFETY: the caller's promise, passed on.
                unsafe { map_counted(&self.table, walker, range, segments, rights, flushes_page) }
            }
            // SAFETY: as above.
            _ => unsafe { self.table.map(walker, range, segments, rights, marked) },
        }
    }

    /// Clears a mapping, as its design does.
    ///
    /// # Safety
    /// That of [`SecondLevelTable::unmap`].
    unsafe fn erase(&self, range: IovaRange, freed: &mut FreedTables) -> bool {
        match self.rule {
            Rule { of_table: TableRule::FreedByDesign, flushes_page } => {
                // SAFETY: the caller's promise, passed on.
                unsafe { unmap_counted(&self.table, self.walker(), range, flushes_page, freed) }
            }
            // SAFETY: as above.
            _ => unsafe { self.table.unmap(self.walker(), range, freed) },
        }
    }

    fn map(&mut self, run: Run, cut: u64) -> Result<(), TestCaseError> {
        let marked = self.is_marked(run.range);
        // SAFETY: every run is mapped once at a time, in this table's host.
        let mapped = unsafe { self.write(run, &run.segments(cut), marked) };
        if self.live.iter().any(|live| live.range.overlaps(run.range)) {
            prop_assert!(matches!(mapped, Err(MapError::Overlap(_))), "{mapped:?}");
        } else {
            prop_assert_eq!(mapped, Ok(()));
            self.live.push(run);
        }
        let (first, end, pages) = (run.range.first_pfn(), run.range.end_pfn(), run.range.pages());
        self.edges.extend([first - 1, first, first + cut % pages, first + pages / 2, end - 1, end]);
        self.edges.extend([first.next_multiple_of(MIB2), end & !(MIB2 - 1)]);
        Ok(())
    }

    fn unmap(&mut self, which: usize) -> Result<(), TestCaseError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let Run { range, .. } = self.live.swap_remove(which % self.live.len());
        let first = range.first_pfn();
        if self.rule != KEPT {
            // SAFETY: the run is mapped, and no other caller unmaps it.
            unsafe { self.erase(range, &mut FreedTables::new()) };
        } else if self.is_marked(range) {
            self.claim(range)?;
        } else {
            // Without marks, no claim of it or of a part of it succeeds.
            for part in [range, IovaRange::new(first, 1).expect("a page")] {
                prop_assert_eq!(self.claim_and_unmap(part), Err(UnmapError::NotMapped(range.start())));
            }
            let mut freed = FreedTables::new();
            // SAFETY: as above.
            prop_assert!(!unsafe { self.erase(range, &mut freed) }, "the table keeps its pages");
        }
        Ok(())
    }

    /// Whether the mapping is claimed by its marks.
    fn is_marked(&self, range: IovaRange) -> bool {
        self.rule == KEPT && !(range.first_pfn() + range.pages()).is_multiple_of(5)
    }

    fn claim_and_unmap(&self, range: IovaRange) -> Result<(), UnmapError> {
        // SAFETY: in this table, mappings with marks are claimed in no other way.
        unsafe { self.table.claim_and_unmap(self.walker(), range) }
    }

    /// Unmaps a mapping by its marks: only as a whole, and only once.
    fn claim(&mut self, range: IovaRange) -> Result<(), TestCaseError> {
        let (first, pages) = (range.first_pfn(), range.pages());
        let wrong = [(first, pages - 1), (first, pages + 1), (first + 1, pages - 1), (first + pages / 2, pages)];
        for wrong in wrong.into_iter().filter_map(|(first, pages)| IovaRange::new(first, pages)) {
            if wrong != range && !self.live.iter().any(|live| live.range == wrong) {
                let refused = self.claim_and_unmap(wrong);
                prop_assert!(refused.is_err(), "{} was claimed", wrong);
            }
        }
        prop_assert_eq!(self.claim_and_unmap(range), Ok(()));
        prop_assert_eq!(self.claim_and_unmap(range), Err(UnmapError::NotMapped(range.start())));
        Ok(())
    }

    fn invalidate_everything(&self) {
        let flush = self.iommu.submit(&[Invalidation::Global]).unwrap();
        assert_eq!(self.iommu.is_done(flush), Ok(true));
    }

    /// If table pages are counted: every count is the number of present entries, no page but the root is empty, and
    /// there are exactly as many pages as the mappings need.
    fn compare_counts(&self) -> Result<(), TestCaseError> {
        if self.rule.of_table != TableRule::FreedByDesign {
            return Ok(());
        }
        let mut pages = 0;
        let mut tables = vec![(self.table.root(), self.table.levels(), None)];
        while let Some((page, level, count)) = tables.pop() {
            pages += 1;
            // SAFETY: nothing is unmapped meanwhile.
            let present = present(unsafe { self.host.frame(page) });
            if let Some(count) = count {
                prop_assert_eq!(count, present.len() as u64, "table of level {}", level);
                prop_assert!(count > 0, "an empty table of level {}", level);
            }
            if level > 1 {
                // Bit 7: a large leaf, which points to no table. Bits 61:52: the count.
                let pointers = present.into_iter().filter(|bits| bits & 1 << 7 == 0);
                let address = |bits: u64| PhysAddr::new(bits & 0xf_ffff_ffff_f000);
                tables.extend(pointers.map(|bits| (address(bits), level - 1, Some(bits >> 52 & 0x3ff))));
            }
        }
        prop_assert_eq!(pages, self.table.pages());
        if !self.large_leaves {
            let tables_of = |level: u8| {
                let ranges = self.live.iter().map(|run| run.range);
                let numbers =
                    |range: IovaRange| range.first_pfn() >> (9 * level)..=(range.end_pfn() - 1) >> (9 * level);
                ranges.flat_map(numbers).collect::<BTreeSet<u64>>().len()
            };
            prop_assert_eq!(pages, 1 + (1..self.table.levels()).map(tables_of).sum::<usize>());
        }
        Ok(())
    }

    /// Compares every edge, as software sees it and as a device does after everything has been invalidated.
    fn compare(&self) -> Result<(), TestCaseError> {
        self.invalidate_everything();
        for &pfn in &self.edges {
            let iova = Iova::new(Iova::from_pfn(pfn).as_u64() + 0x123);
            let expected = self.live.iter().find_map(|run| run.translate(pfn));
            // SAFETY: nothing is unmapped meanwhile.
            let found = unsafe { self.table.lookup(self.walker(), iova) };
            let phys = |pfn: u64| PhysAddr::new(PhysAddr::from_pfn(pfn).as_u64() + 0x123);
            prop_assert_eq!(found, expected.map(|(to, rights)| (phys(to), rights)), "page {:#x}", pfn);
            for asked in [Rights::READ, Rights::WRITE] {
                let reached = self.iommu.access(DEVICE, iova, asked);
                let expected = expected.filter(|(_, rights)| rights.allows(asked)).map(|(to, _)| phys(to));
                prop_assert_eq!(reached, expected, "page {:#x} for {:?}", pfn, asked);
            }
        }
        Ok(())
    }
}

fn format() -> impl Strategy<Value = Format> {
    let rule = prop_oneof![Just(FREED), Just(KEPT), Just(COUNTED), Just(COUNTED_WHOLE)];
    (3..=4u8, any::<bool>(), any::<bool>(), any::<bool>(), rule).prop_map(
        |(levels, leaf_2m, leaf_1g, coherent, rule)| Format {
            levels,
            leaf_2m,
            leaf_1g: leaf_1g && leaf_2m,
            coherent,
            rule,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    // Few places, so that runs overlap: near the boundaries of a GiB, on a boundary of 2 MiB or off it.
    let tables = prop_oneof![0..4u64, 510..512u64];
    let offset = prop_oneof![3 => Just(0), 1 => 1..MIB2];
    let first = (1..4u64, tables, offset).prop_map(|(gib, table, page)| gib * GIB + table * MIB2 + page);
    let pages = prop_oneof![4 => 1..10u64, 3 => Just(MIB2), 3 => 1..4 * MIB2, 1 => Just(GIB), 1 => GIB..GIB + 2 * MIB2];
    let rights = prop_oneof![Just(Rights::READ), Just(Rights::WRITE), Just(Rights::READ_WRITE)];
    // Usually with the offset of the IOVA from a boundary, so that large leaves fit.
    let phys = prop::option::weighted(0.3, 0..1u64 << 30);
    let map = (first, pages, phys, rights, any::<u64>()).prop_map(|(first, pages, phys, rights, cut)| {
        let run = Run::new(first, pages, phys.unwrap_or(first % GIB + 7 * GIB), rights);
        Operation::Map { run, cut }
    });
    prop_oneof![3 => map, 2 => any::<usize>().prop_map(Operation::Unmap)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, rng_seed: RngSeed::Fixed(0), ..ProptestConfig::default() })]

    #[test]
    fn tables_translate_as_the_reference(format in format(), script in prop::collection::vec(operation(), 1..24)) {
        let host = FakeHost::default();
        let mut bench = Bench::new(&host, format);
        for operation in script {
            match operation {
                Operation::Map { run, cut } => bench.map(run, cut)?,
                Operation::Unmap(which) => bench.unmap(which)?,
            }
            bench.compare()?;
            bench.compare_counts()?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, rng_seed: RngSeed::Fixed(0), ..ProptestConfig::default() })]

    /// If a map writes over existing entries, each page leads to the memory of its latest map, until it is cleared.
    #[test]
    fn the_latest_map_of_a_page_counts(
        (levels, coherent) in (3..=4u8, any::<bool>()),
        script in prop::collection::vec((0..600u64, 1..1100u64, 0..3000u64, any::<bool>(), any::<u64>()), 1..20),
    ) {
        let rule = OVERWRITTEN;
        let format = Format { levels, leaf_2m: true, leaf_1g: true, coherent, rule };
        let host = FakeHost::default();
        let bench = Bench::new(&host, format);
        let mut expected = BTreeMap::new();
        for (first, pages, phys, clears, cut) in script {
            // Often on a boundary of 2 MiB, where a large leaf would fit.
            let off = |page: u64| if page > 300 { page } else { page / 100 * MIB2 };
            let rights = [Rights::READ, Rights::WRITE, Rights::READ_WRITE][cut as usize % 3];
            let run = Run::new(GIB - MIB2 + off(first), if pages > 1024 { MIB2 } else { pages }, off(phys), rights);
            let range = run.range.first_pfn()..run.range.end_pfn();
            // SAFETY: one after the other, each with segments of its run's length, in this table's host.
            let mapped = unsafe { bench.table.map(bench.walker(), run.range, &run.segments(cut), rights, false) };
            prop_assert_eq!(mapped, Ok(()));
            expected.extend(range.clone().map(|pfn| (pfn, run.translate(pfn))));
            if clears {
                let mut freed = FreedTables::new();
                // SAFETY: no other caller uses the table.
                prop_assert!(!unsafe { bench.erase(run.range, &mut freed) }, "the table keeps its pages");
                expected.extend(range.map(|pfn| (pfn, None)));
            }
            bench.invalidate_everything();
            for (pfn, translation) in &expected {
                let iova = Iova::from_pfn(*pfn);
                // SAFETY: nothing is unmapped meanwhile.
                let found = unsafe { bench.table.lookup(bench.walker(), iova) }.map(|(phys, rights)| (phys.pfn(), rights));
                prop_assert_eq!(found, *translation, "page {:#x}", pfn);
                let allowed = translation.filter(|(_, rights)| rights.allows(Rights::WRITE)).map(|(phys, _)| phys);
                let reached = bench.iommu.access(DEVICE, iova, Rights::WRITE).map(PhysAddr::pfn);
                prop_assert_eq!(reached, allowed, "page {:#x}", pfn);
            }
        }
        prop_assert_eq!(bench.table.pages(), host.frames_lent());
    }
}

/// The number of table pages after `run` was mapped into an empty table of four levels.
fn table_pages(run: Run, leaf_2m: bool, leaf_1g: bool) -> usize {
    let host = FakeHost::default();
    let mut bench = Bench::new(&host, Format { levels: 4, leaf_2m, leaf_1g, coherent: true, rule: FREED });
    bench.map(run, 0).unwrap();
    bench.compare().unwrap();
    assert_eq!(bench.table.pages(), host.frames_lent());
    bench.table.pages()
}

#[test]
fn the_largest_leaf_that_fits_is_used() {
    let run = |pfn, pages, phys_pfn| Run::new(pfn, pages, phys_pfn, Rights::READ);
    // The number of table pages without large leaves, with those of 2 MiB, and with both.
    let cases = [
        (run(GIB, 1, 7), [4, 4, 4]),
        (run(GIB, MIB2, 0), [4, 3, 3]),
        (run(GIB, MIB2, 1), [4, 4, 4]),
        (run(GIB + 1, MIB2, 1), [5, 5, 5]),
        (run(GIB, 3 * MIB2 + 1, 0), [7, 4, 4]),
        (run(GIB - 1, MIB2 + 2, MIB2 - 1), [7, 6, 6]),
        (run(GIB, GIB, 5 * GIB), [515, 3, 2]),
        (run(GIB, GIB, 5 * GIB + MIB2), [515, 3, 3]),
        (run(GIB + MIB2, 2 * GIB, MIB2), [1029, 5, 4]),
    ];
    for (run, [small, mib2, gib]) in cases {
        assert_eq!(table_pages(run, false, false), small, "{run:x?}");
        assert_eq!(table_pages(run, true, false), mib2, "{run:x?}");
        assert_eq!(table_pages(run, true, true), gib, "{run:x?}");
    }
}

/// A directory entry that its CPU has not flushed yet serves another mapping, and is visible once that map returns.
#[test]
fn a_map_in_an_interrupt_of_a_map_is_visible() {
    let host = FakeHost::default();
    let capabilities = Capabilities { coherent: false, ..FakeIommu::new(&host).capabilities() };
    let iommu = FakeIommu::with_capabilities(&host, capabilities);
    let table = SecondLevelTable::new(Walker::new(&host, false), 4, &capabilities, FREED.of_table).unwrap();
    // SAFETY: no memory is behind the fake.
    let domain = unsafe { iommu.open_domain(Translation::Tables { root: table.root(), levels: 4 }) }.unwrap();
    iommu.attach(domain, SourceId::from_requester(1)).unwrap();
    let map = |platform: &dyn Fn(IovaRange, &[Segment]), pfn: u64| {
        let segment = Segment { phys: PhysAddr::from_pfn(0x500 + pfn % 16), len: PAGE_SIZE };
        platform(IovaRange::new(pfn, 1).unwrap(), &[segment]);
    };
    let reaches =
        |pfn: u64| iommu.access(SourceId::from_requester(1), Iova::from_pfn(pfn), Rights::READ).map(PhysAddr::pfn);
    let fired = AtomicBool::new(false);
    let handler = |moment| {
        if moment != Moment::BeforeFlush || fired.swap(true, Ordering::Relaxed) {
            return;
        }
        map(
            &|range, segments| {
                // SAFETY: only this mapping has the page, in this table's host.
                unsafe { table.map(Walker::new(&host, false), range, segments, Rights::READ, false) }.unwrap()
            },
            0x1235,
        );
        assert_eq!(reaches(0x1235), Some(0x505), "the page walker does not see a map that has returned");
    };
    let interrupted = Interrupted::new(&host, &handler);
    map(
        &|range, segments| {
            // SAFETY: as above; the host is the table's, with an interrupt.
            unsafe { table.map(Walker::new(&interrupted, false), range, segments, Rights::READ, false) }.unwrap()
        },
        0x1234,
    );
    assert_eq!(reaches(0x1234), Some(0x504));
    assert!(fired.load(Ordering::Relaxed));
}

#[test]
fn a_large_leaf_gives_way_to_a_table_that_is_there() {
    let host = FakeHost::default();
    let mut bench = Bench::new(&host, Format { levels: 3, leaf_2m: true, leaf_1g: true, coherent: true, rule: FREED });
    let one = Run::new(GIB + 5, 1, 9, Rights::WRITE);
    let whole = Run::new(GIB, MIB2, 8 * MIB2, Rights::WRITE);
    bench.map(one, 0).unwrap();
    assert_eq!(bench.table.pages(), 3);
    bench.unmap(0).unwrap();
    assert_eq!(bench.table.pages(), 3, "the empty leaf table stays");
    bench.map(whole, 0).unwrap();
    bench.compare().unwrap();
    assert_eq!(bench.table.pages(), 3, "the leaf table takes the run page by page");
    // The unmap covers everything that the table translates.
    bench.unmap(0).unwrap();
    bench.compare().unwrap();
    assert_eq!(bench.table.pages(), 2);
    bench.map(whole, 0).unwrap();
    bench.compare().unwrap();
    assert_eq!(bench.table.pages(), 2, "now a large leaf fits");
}

#[test]
fn an_unmap_frees_every_table_that_it_covers() {
    let host = FakeHost::default();
    let iommu_capabilities =
        Format { levels: 4, leaf_2m: false, leaf_1g: false, coherent: true, rule: FREED }.capabilities();
    let table = SecondLevelTable::new(Walker::new(&host, true), 4, &iommu_capabilities, FREED.of_table).unwrap();
    let map = |run: Run| {
        // SAFETY: the runs are mapped once at a time, in this table's host.
        unsafe { table.map(Walker::new(&host, true), run.range, &run.segments(0), run.rights, false) }.unwrap()
    };
    let unmap = |run: Run| {
        let mut freed = FreedTables::new();
        // SAFETY: the run is mapped, and no other caller unmaps it.
        let any = unsafe { table.unmap(Walker::new(&host, true), run.range, &mut freed) };
        assert_eq!(any, freed.pages() > 0);
        freed.pages()
    };
    let run = |pfn, pages| Run::new(pfn, pages, 0, Rights::WRITE);
    map(run(GIB - 3, 1));
    // From the middle of one leaf table over three whole ones into the next.
    let middle = run(2 * GIB - 2 * MIB2 - 7, 3 * MIB2 + 11);
    map(middle);
    let before = table.pages();
    assert_eq!(unmap(middle), 3);
    assert_eq!(table.pages(), before - 3);
    // A whole GiB takes its directory with it, and what earlier mappings left there.
    map(run(3 * GIB, GIB));
    assert_eq!(unmap(run(3 * GIB, GIB)), 513);
    // SAFETY: nothing is unmapped meanwhile.
    let found = unsafe { table.lookup(Walker::new(&host, true), Iova::from_pfn(GIB - 3)) };
    assert_eq!(found, Some((PhysAddr::new(0), Rights::WRITE)));
}

#[test]
fn where_absent_entries_are_cached_a_map_invalidates() {
    let host = FakeHost::default();
    for (caches_absent, address_mask_max) in [(false, Some(18)), (true, Some(18)), (true, Some(1)), (true, None)] {
        let base = FakeIommu::new(&host).capabilities();
        let iommu = FakeIommu::with_capabilities(&host, Capabilities { caches_absent, address_mask_max, ..base });
        let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
        domain.attach(DEVICE).unwrap();
        // The device accesses the future mapping's addresses, and finds them absent.
        let first = Iova::from_pfn((1 << 20) - 4);
        assert_eq!(iommu.access(DEVICE, first, Rights::WRITE), None);
        let iova = domain.raw_map(PhysAddr::new(0x8000), 3 * PAGE_SIZE, Access::DeviceWrites).unwrap();
        assert_eq!(iova, first);
        let expected = match (caches_absent, address_mask_max) {
            (false, _) => vec![],
            // Directory entries may be cached as absent too, so the command covers all levels.
            (true, Some(18)) => vec![Invalidation::Pages { domain: domain.id(), first, mask: 2, leaf_only: false }],
            (true, _) => vec![Invalidation::Domain(domain.id())],
        };
        assert_eq!(iommu.take_commands(), expected);
        assert_eq!(iommu.access(DEVICE, first, Rights::WRITE), Some(PhysAddr::new(0x8000)));
    }
}

/// The bits that VT-d (9.8) defines: read, write, page size, and the address from bit 12 on.
#[test]
fn an_entry_is_what_hardware_reads() {
    let leaf = |phys, rights, is_large| EntryValue::leaf(PhysAddr::new(phys), rights, is_large).bits();
    assert_eq!(leaf(0x12_3456_7000, Rights::WRITE, false), 0x12_3456_7002);
    assert_eq!(leaf(0x12_3456_7000, Rights::READ, false), 0x12_3456_7001);
    assert_eq!(leaf(0x12_3460_0000, Rights::READ_WRITE, true), 0x12_3460_0083);
    assert_eq!(EntryValue::ABSENT.bits(), 0);
}
