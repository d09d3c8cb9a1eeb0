//! Leaves that mappings share: mappings are counted page by page, a leaf stays as long as its count, and a refused
//! count is undone.

use crate::interrupted::{Interrupted, Moment};
use portcullis::iommu::Translation;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::Step;
use portcullis::platform::fake::FakeHost;
use portcullis::table::{Rights, SHARES_MAX, SecondLevelTable, Share, SharedRun, TableRule, Unshare, Walker};
use portcullis::{
    Capabilities, Invalidation, Iommu, Iova, IovaRange, MapError, PAGE_SIZE, PhysAddr, Segment, SourceId, UnmapError,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

const DEVICE: SourceId = SourceId::new(0, 4, 0);
const RIGHTS: [Rights; 3] = [Rights::READ, Rights::WRITE, Rights::READ_WRITE];
/// Pages that a leaf table translates.
const TABLE: u64 = 512;

/// The run of `pages` pages from `phys_pfn` on, in the region that begins at `(1 + index) << shift`.
fn run(shift: u32, index: usize, phys_pfn: u64, pages: u64) -> SharedRun {
    let range = IovaRange::new(((1 + index as u64) << shift) + phys_pfn, pages).expect("never empty");
    SharedRun { range, phys_pfn, rights: RIGHTS[index] }
}

fn page(iova_pfn: u64) -> IovaRange {
    IovaRange::new(iova_pfn, 1).expect("one page")
}

/// A table, used by a fake IOMMU.
struct Bench<'h> {
    host: &'h FakeHost,
    iommu: FakeIommu<'h>,
    table: SecondLevelTable,
}

impl<'h> Bench<'h> {
    fn new(host: &'h FakeHost, levels: u8, capabilities: Capabilities) -> Self {
        let iommu = FakeIommu::with_capabilities(host, capabilities);
        let table =
            SecondLevelTable::new(Walker::new(host, capabilities.coherent), levels, &capabilities, TableRule::Kept)
                .unwrap();
        let tables = Translation::Tables { root: table.root(), levels };
        // SAFETY: no memory is behind the fake.
        let id = unsafe { iommu.open_domain(tables) }.unwrap();
        iommu.attach(id, DEVICE).unwrap();
        Self { host, iommu, table }
    }

    fn plain(host: &'h FakeHost) -> Self {
        Self::new(host, 3, FakeIommu::new(host).capabilities())
    }

    fn walker(&self) -> Walker<'h, FakeHost> {
        Walker::new(self.host, self.iommu.capabilities().coherent)
    }

    fn share(&self, run: &SharedRun) -> Result<Share, MapError> {
        // SAFETY: `run` makes the runs, so each address determines its memory; other mappings lie below all of them.
        unsafe { self.table.share(self.walker(), run) }
    }

    fn unshare(&self, run: &SharedRun) -> Result<Unshare, UnmapError> {
        // SAFETY: as above.
        unsafe { self.table.unshare(self.walker(), run) }
    }

    /// Maps `run` until its count is full. Returns the number of mappings added.
    fn fill(&self, run: &SharedRun) -> u64 {
        (0..).find(|_| self.share(run) == Ok(Share::Full)).expect("at most as many as are counted")
    }

    /// The physical page that a device reaches, after everything has been invalidated.
    fn walk(&self, iova_pfn: u64, rights: Rights) -> Option<u64> {
        let flush = self.iommu.submit(&[Invalidation::Global]).unwrap();
        assert_eq!(self.iommu.is_done(flush), Ok(true));
        self.reach(iova_pfn, rights)
    }

    /// The physical page that a device reaches, perhaps by a cached translation.
    fn reach(&self, iova_pfn: u64, rights: Rights) -> Option<u64> {
        self.iommu.access(DEVICE, Iova::from_pfn(iova_pfn), rights).map(PhysAddr::pfn)
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Share(SharedRun),
    Unshare(SharedRun),
    /// Unmaps a live mapping.
    UnshareLive(usize),
    /// Maps the first page of the run until its count is full.
    Fill(SharedRun),
    /// Maps or unmaps, by its marks, an unshared mapping just below the first region.
    Own,
}

/// The mappings, kept as plainly as possible: each page's count and memory.
#[derive(Default)]
struct Reference {
    pages: BTreeMap<u64, (u64, SharedRun)>,
    live: Vec<SharedRun>,
    /// Pages where a run begins or ends, or did earlier.
    edges: BTreeSet<u64>,
}

impl Reference {
    fn count(&self, pfn: u64) -> u64 {
        self.pages.get(&pfn).map_or(0, |(count, _)| *count)
    }

    fn add(&mut self, run: &SharedRun) {
        for pfn in run.range.first_pfn()..run.range.end_pfn() {
            self.pages.entry(pfn).or_insert((0, *run)).0 += 1;
        }
        self.live.push(*run);
    }

    fn remove(&mut self, run: &SharedRun) -> Unshare {
        let mut cleared = false;
        for pfn in run.range.first_pfn()..run.range.end_pfn() {
            let entry = self.pages.get_mut(&pfn).expect("mapped");
            entry.0 -= 1;
            if entry.0 == 0 {
                self.pages.remove(&pfn);
                cleared = true;
            }
        }
        // An unmap of a range that was not mapped as such takes pages of other mappings, which are then no longer
        // whole.
        match self.live.iter().position(|live| live == run) {
            Some(at) => drop(self.live.swap_remove(at)),
            None => self.live.retain(|live| !live.range.overlaps(run.range)),
        }
        if cleared { Unshare::Cleared } else { Unshare::StillShared }
    }

    fn leads_to(&self, pfn: u64) -> Option<(u64, Rights)> {
        let (_, run) = self.pages.get(&pfn)?;
        Some((run.phys_pfn + (pfn - run.range.first_pfn()), run.rights))
    }
}

fn script() -> impl Strategy<Value = (u32, Vec<Operation>)> {
    // Regions smaller than a leaf table, of several leaf tables, and of a table of the level above.
    prop_oneof![Just(6), Just(11), Just(18)]
        .prop_flat_map(|shift| (Just(shift), prop::collection::vec(operation(shift), 1..40)))
}

fn operation(shift: u32) -> impl Strategy<Value = Operation> {
    let most = 1u64 << shift;
    // Few places, so that runs overlap, and on the boundaries of leaf tables if a region has any.
    let first = prop_oneof![0..8u64, TABLE - 4..TABLE + 4].prop_map(move |first| first % most);
    let pages = prop_oneof![6 => 1..6u64, 1 => TABLE - 2..2 * TABLE + 2];
    let run = (0..3usize, first, pages)
        .prop_map(move |(index, first, pages)| run(shift, index, first, pages.min(most - first)));
    run.prop_flat_map(|run| {
        prop_oneof![
            6 => Just(Operation::Share(run)),
            2 => Just(Operation::Unshare(run)),
            6 => any::<usize>().prop_map(Operation::UnshareLive),
            1 => Just(Operation::Fill(run)),
            2 => Just(Operation::Own),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, rng_seed: RngSeed::Fixed(0), ..ProptestConfig::default() })]

    #[test]
    fn counts_are_those_of_the_reference(levels in 3..=4u8, coherent: bool, (shift, script) in script()) {
        let host = FakeHost::default();
        let bench = Bench::new(&host, levels, Capabilities { coherent, ..FakeIommu::new(&host).capabilities() });
        let mut reference = Reference::default();
        let own = (IovaRange::new((1 << shift) - 3, 3).expect("three pages"), Cell::new(false));
        for operation in script {
            match operation {
                Operation::Share(run) => share(&bench, &mut reference, &run)?,
                Operation::Unshare(run) => unshare(&bench, &mut reference, &run)?,
                Operation::UnshareLive(which) => {
                    let live = reference.live.get(which % reference.live.len().max(1)).copied();
                    if let Some(run) = live {
                        prop_assert_eq!(unshare_expected(&reference, &run), None, "a live mapping is whole");
                        unshare(&bench, &mut reference, &run)?;
                    }
                }
                Operation::Fill(run) => {
                    let one = SharedRun { range: page(run.range.first_pfn()), ..run };
                    let room = SHARES_MAX - reference.count(run.range.first_pfn());
                    prop_assert_eq!(bench.fill(&one), room);
                    (0..room).for_each(|_| reference.add(&one));
                }
                Operation::Own => toggle(&bench, &own)?,
            }
            compare(&bench, &reference, &own)?;
        }
    }
}

fn share(bench: &Bench<'_>, reference: &mut Reference, run: &SharedRun) -> Result<(), TestCaseError> {
    let (first, end) = (run.range.first_pfn(), run.range.end_pfn());
    reference.edges.extend([first, first + run.range.pages() / 2, end - 1, (end - 1) / TABLE * TABLE]);
    let full = (first..end).any(|pfn| reference.count(pfn) == SHARES_MAX);
    prop_assert_eq!(bench.share(run), Ok(if full { Share::Full } else { Share::Counted }));
    if !full {
        reference.add(run);
    }
    Ok(())
}

/// The first page of `run` that is not mapped.
fn unshare_expected(reference: &Reference, run: &SharedRun) -> Option<u64> {
    (run.range.first_pfn()..run.range.end_pfn()).find(|pfn| reference.count(*pfn) == 0)
}

fn unshare(bench: &Bench<'_>, reference: &mut Reference, run: &SharedRun) -> Result<(), TestCaseError> {
    let found = bench.unshare(run);
    match unshare_expected(reference, run) {
        Some(absent) => prop_assert_eq!(found, Err(UnmapError::NotMapped(Iova::from_pfn(absent)))),
        None => prop_assert_eq!(found, Ok(reference.remove(run))),
    }
    Ok(())
}

fn toggle(bench: &Bench<'_>, (range, mapped): &(IovaRange, Cell<bool>)) -> Result<(), TestCaseError> {
    let segment = Segment { phys: PhysAddr::from_pfn(7), len: range.pages() * PAGE_SIZE };
    // SAFETY: it lies below the shared pages, and is alternately mapped and unmapped.
    let done = unsafe {
        if mapped.get() {
            bench.table.claim_and_unmap(bench.walker(), *range).map_err(|error| error.to_string())
        } else {
            let write = bench.table.map(bench.walker(), *range, &[segment], Rights::WRITE, true);
            write.map_err(|error| error.to_string())
        }
    };
    mapped.set(!mapped.get());
    prop_assert_eq!(done, Ok(()));
    Ok(())
}

fn compare(
    bench: &Bench<'_>,
    reference: &Reference,
    (own, mapped): &(IovaRange, Cell<bool>),
) -> Result<(), TestCaseError> {
    let below = mapped.get().then_some((7, Rights::WRITE));
    let shared = reference.edges.iter().map(|pfn| (*pfn, reference.leads_to(*pfn)));
    for (pfn, expected) in shared.chain([(own.first_pfn(), below)]) {
        // SAFETY: nothing is unmapped meanwhile.
        let found = unsafe { bench.table.lookup(bench.walker(), Iova::from_pfn(pfn)) };
        prop_assert_eq!(found.map(|(phys, rights)| (phys.pfn(), rights)), expected, "page {:#x}", pfn);
        for asked in [Rights::READ, Rights::WRITE] {
            let expected = expected.filter(|(_, rights)| rights.allows(asked)).map(|(phys_pfn, _)| phys_pfn);
            prop_assert_eq!(bench.walk(pfn, asked), expected, "page {:#x} for {:?}", pfn, asked);
        }
    }
    Ok(())
}

#[test]
fn memory_that_cannot_be_addressed_and_tables_that_cannot_be_had() {
    let host = FakeHost::default();
    let bench = Bench::new(&host, 4, Capabilities { physical_bits: 30, ..FakeIommu::new(&host).capabilities() });
    let beyond = (1u64 << 18) - 1;
    assert_eq!(bench.share(&run(20, 1, beyond, 1)), Ok(Share::Counted));
    let refused = bench.share(&run(20, 1, beyond, 2));
    assert_eq!(refused, Err(MapError::PhysicalRange(PhysAddr::from_pfn(beyond))));
    // Over three leaf tables, with memory for two: nothing at all is mapped.
    host.limit_frames(2);
    let over = run(20, 0, 3 * TABLE - 1, TABLE + 2);
    assert_eq!(bench.share(&over), Err(MapError::NoMemory(portcullis::NoMemory)));
    assert_eq!(bench.walk(over.range.first_pfn(), Rights::READ), None);
    assert_eq!(bench.unshare(&over), Err(UnmapError::NotMapped(over.range.start())));
}

/// An interrupt between a CPU's count and its flush maps the same page. The interrupt's map returns first, and its page
/// must be visible by then.
#[test]
fn a_leaf_that_its_writer_has_not_flushed_is_visible_to_the_next() {
    let host = FakeHost::default();
    let bench = Bench::new(&host, 3, Capabilities { coherent: false, ..FakeIommu::new(&host).capabilities() });
    let shared = run(18, 1, 5, 1);
    // The table pages exist after this, so that the only flush is that of the leaf.
    assert_eq!(bench.share(&run(18, 1, 6, 1)), Ok(Share::Counted));
    let interrupts = Mutex::new(0);
    let handler = |moment| {
        if moment == Moment::BeforeFlush {
            *interrupts.lock().unwrap() += 1;
            assert_eq!(bench.reach(shared.range.first_pfn(), Rights::WRITE), None, "not flushed");
            assert_eq!(bench.share(&shared), Ok(Share::Counted));
            assert_eq!(bench.reach(shared.range.first_pfn(), Rights::WRITE), Some(5));
        }
    };
    // SAFETY: as in `Bench::share`; the host is the table's, with interrupts.
    let mapped = unsafe { bench.table.share(Walker::new(&Interrupted::new(&host, &handler), false), &shared) };
    assert_eq!((mapped, *interrupts.lock().unwrap()), (Ok(Share::Counted), 1));
    assert_eq!((bench.unshare(&shared), bench.unshare(&shared)), (Ok(Unshare::StillShared), Ok(Unshare::Cleared)));
    assert_eq!(bench.walk(shared.range.first_pfn(), Rights::WRITE), None);
}

/// A handler that calls `change` at the second step of a map or unmap over two leaf tables. The first part has been
/// counted by then.
fn at_the_second(step: impl Fn(Step) -> bool, change: impl Fn()) -> impl Fn(Moment) {
    let seen = Mutex::new(0);
    move |moment| {
        if matches!(moment, Moment::Before(before) if step(before)) {
            let mut seen = seen.lock().unwrap();
            *seen += 1;
            if *seen == 2 {
                change();
            }
        }
    }
}

/// The last page becomes full after it was checked, when the pages before it are counted. Other mappings of those pages
/// keep them.
#[test]
fn a_count_that_finds_no_room_is_undone() {
    let host = FakeHost::default();
    let bench = Bench::plain(&host);
    let whole = run(18, 1, TABLE - 2, 3);
    let [first, second, last] = [0, 1, 2].map(|page| run(18, 1, TABLE - 2 + page, 1));
    assert_eq!(bench.share(&first), Ok(Share::Counted));
    let handler = at_the_second(
        |step| matches!(step, Step::TableShare { .. }),
        || {
            assert_eq!(
                bench.reach(second.range.first_pfn(), Rights::WRITE),
                Some(TABLE - 1),
                "counted, so within reach"
            );
            assert_eq!(bench.fill(&last), SHARES_MAX);
        },
    );
    // SAFETY: as in `Bench::share`.
    let mapped = unsafe { bench.table.share(Walker::new(&Interrupted::new(&host, &handler), true), &whole) };
    let counted = IovaRange::new(whole.range.first_pfn(), 2).unwrap();
    assert_eq!(mapped, Ok(Share::Undone(counted)));
    // The range to invalidate covers everything that may be cached.
    assert_eq!(bench.reach(second.range.first_pfn(), Rights::WRITE), Some(TABLE - 1));
    assert_eq!(bench.walk(second.range.first_pfn(), Rights::WRITE), None);
    assert_eq!(bench.unshare(&second), Err(UnmapError::NotMapped(second.range.start())));
    assert_eq!(bench.unshare(&first), Ok(Unshare::Cleared), "one mapping is left, as before");
    assert_eq!(bench.unshare(&last), Ok(Unshare::StillShared));
}

/// A wrong unmap takes the last page after it was checked. The proper unmap is then refused and undone: the page walker
/// sees its pages again, even if it has cached that they were absent.
#[test]
fn a_count_of_what_has_gone_is_undone() {
    for coherent in [true, false] {
        let host = FakeHost::default();
        let bench = Bench::new(&host, 3, Capabilities { coherent, ..FakeIommu::new(&host).capabilities() });
        let whole = run(18, 0, TABLE - 2, 3);
        let [first, second, last] = [0, 1, 2].map(|page| run(18, 0, TABLE - 2 + page, 1));
        assert_eq!((bench.share(&whole), bench.share(&first)), (Ok(Share::Counted), Ok(Share::Counted)));
        let handler = at_the_second(
            |step| matches!(step, Step::TableUnshare { .. }),
            || {
                assert_eq!(bench.walk(second.range.first_pfn(), Rights::READ), None);
                assert_eq!(bench.unshare(&last), Ok(Unshare::Cleared));
            },
        );
        // SAFETY: as in `Bench::share`.
        let unmapped =
            unsafe { bench.table.unshare(Walker::new(&Interrupted::new(&host, &handler), coherent), &whole) };
        assert_eq!(unmapped, Ok(Unshare::Undone(last.range.start())));
        assert_eq!(bench.walk(second.range.first_pfn(), Rights::READ), Some(TABLE - 1));
        let counts = [(first, Unshare::StillShared), (first, Unshare::Cleared), (second, Unshare::Cleared)];
        counts.into_iter().for_each(|(run, expected)| assert_eq!(bench.unshare(&run), Ok(expected), "{run:?}"));
    }
}
