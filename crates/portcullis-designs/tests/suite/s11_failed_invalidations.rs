//! S11, S4: the state after a failed invalidation, under every design: no table page goes back to the host, no address
//! is used again, the device reaches nothing new, and other mappings are unchanged.

use crate::raw_face::RawFace;
use portcullis::chunk::CHUNKED_PAGES_MAX;
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::error::RawMapError;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::{Design, Visitor};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, DomainOf, Invalidation, Iommu, Iova, IovaRange, MapError, MapOptions, Open,
    PAGE_SIZE, PhysAddr, Protection, RawUnmapError, Segment, SourceId, SyncError,
};
use portcullis_designs::{DesignId, Portcullis};

type OnFakes<'h, D> = DomainOf<D, &'h FakeHost, &'h FakeIommu<'h>>;

const DEVICE: SourceId = SourceId::new(0, 5, 0);
/// Physical page where the buffers of a test begin, on a boundary of 2 MiB.
const BUFFERS_PFN: u64 = 0x1000;
/// Longer than any deferred flush takes, in microseconds.
const LONG_US: u64 = 20_000;

/// How the unmap is made.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Single,
    Batch,
}

/// Capabilities of an IOMMU, and their name in messages.
type Hardware = (&'static str, fn(Capabilities) -> Capabilities);

const ABLE: Hardware = ("able", |all| all);
const SMALL_LEAVES: Hardware = ("small leaves", |all| Capabilities { leaf_2m: false, leaf_1g: false, ..all });
const CACHES_ABSENT: Hardware = ("caches absent", |all| Capabilities { caches_absent: true, ..all });
const WHOLE_DOMAINS: Hardware = ("whole domains", |all| Capabilities { address_mask_max: None, ..all });

#[derive(Clone, Copy, Debug)]
struct Case {
    protection: Protection,
    behaviour: Behaviour,
    way: Way,
    /// Pages of each of the mappings.
    pages: u64,
    hardware: Hardware,
}

/// Every way to fail, for every size, under the protections that a design offers.
fn cases(design: DesignId, hardware: &'static [Hardware]) -> Vec<Case> {
    let protections = design.info().protections.iter().filter(|protection| **protection != Protection::None);
    let mut cases = Vec::new();
    for &protection in protections {
        for behaviour in [Behaviour::Failing, Behaviour::Silent] {
            for way in [Way::Single, Way::Batch] {
                // A wait for an answer takes long, for any size.
                let sizes: &[u64] = if behaviour == Behaviour::Silent { &[1] } else { &[1, 4, 64, 512] };
                for &pages in sizes {
                    cases.extend(hardware.iter().map(|&hardware| Case { protection, behaviour, way, pages, hardware }));
                }
            }
        }
    }
    cases
}

/// Calls `visit` with fresh fakes for each of the cases.
fn for_each<V>(hardware: &'static [Hardware], mut visit: impl FnMut(DesignId, &Case, &FakeHost, &FakeIommu<'_>) -> V) {
    for &design in DesignId::ALL {
        for case in cases(design, hardware) {
            let host = FakeHost::default();
            let all = FakeIommu::new(&host).capabilities();
            let iommu = FakeIommu::with_capabilities(&host, case.hardware.1(all));
            visit(design, &case, &host, &iommu);
        }
    }
}

/// A domain with three mappings. The device has used every page of them.
struct Mapped<'h, D: Design<&'h FakeHost, &'h FakeIommu<'h>>> {
    iommu: &'h FakeIommu<'h>,
    domain: OnFakes<'h, D>,
    ranges: Vec<IovaRange>,
}

impl<'h, D: Design<&'h FakeHost, &'h FakeIommu<'h>>> Mapped<'h, D> {
    fn new(host: &'h FakeHost, iommu: &'h FakeIommu<'h>, case: &Case) -> Self {
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 30 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(case.protection) };
        let domain = D::open_with(iommu, host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        let map = |number: u64| {
            // 2 MiB apart, so that no two share a page or a large leaf.
            let phys = PhysAddr::from_pfn(BUFFERS_PFN + number * 1024);
            let iova = domain.raw_map(phys, case.pages * PAGE_SIZE, Access::DeviceWrites).expect("room");
            IovaRange::covering(iova, case.pages * PAGE_SIZE).expect("a range")
        };
        let ranges = (0..3).map(map).collect();
        let this = Self { iommu, domain, ranges };
        assert!(this.ranges.iter().all(|range| this.is_reached(*range)), "{}: S1", D::INFO.id);
        this
    }

    fn is_reached(&self, range: IovaRange) -> bool {
        (range.first_pfn()..range.end_pfn()).all(|pfn| self.reach(pfn).is_some())
    }

    fn reach(&self, pfn: u64) -> Option<PhysAddr> {
        self.iommu.access(DEVICE, Iova::from_pfn(pfn), Rights::WRITE)
    }

    fn unmap(&self, way: Way, range: IovaRange) -> Result<(), RawUnmapError> {
        match way {
            Way::Single => self.domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE),
            Way::Batch => {
                let mut batch = self.domain.raw_batch();
                batch.unmap(range)?;
                Ok(batch.commit()?)
            }
        }
    }

    /// Drops everything that the hardware has cached, so that the device sees the table in memory.
    fn forget(&self) {
        self.iommu.behave(Behaviour::Prompt);
        let ticket = self.iommu.submit(&[Invalidation::Global]).expect("the hardware answers");
        assert_eq!(self.iommu.is_done(ticket), Ok(true));
    }
}

struct FailedUnmap<'c>(&'c Case);

impl<'h> FailedUnmap<'_> {
    fn check<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(&self, host: &'h FakeHost, iommu: &'h FakeIommu<'h>) {
        let Self(case) = self;
        let what = format!("{} {case:?}", D::INFO.id);
        let mapped = Mapped::<D>::new(host, iommu, case);
        let (gone, others) = mapped.ranges.split_first().expect("three");
        let (frames, live) = (host.frames_lent(), mapped.domain.usage().live_ranges);
        iommu.behave(case.behaviour);
        let unmapped = mapped.unmap(case.way, *gone);
        // If the buffer is handed back before any invalidation, the flush is due later, or never.
        let mut failed = matches!(unmapped, Err(RawUnmapError::Commit(_)));
        assert!(failed || unmapped.is_ok(), "{what}: {unmapped:?}");
        while let Some(due_us) = mapped.domain.due_us().filter(|_| !failed) {
            host.advance_us(due_us.saturating_sub(portcullis::Platform::now_us(host)) + LONG_US);
            failed = mapped.domain.tick().is_err();
        }
        let at_map = mapped.domain.usage().window_us_max.is_none();
        assert!(failed || at_map, "{what}: nothing has failed");
        // S4, S11: no table page and no address has been freed.
        assert_eq!(host.frames_lent(), frames, "{what}: S4");
        assert!(at_map || mapped.domain.usage().live_ranges == live, "{what}: S3, S11: {:?}", mapped.domain.usage());
        // S2: nothing new is reached; cleared entries are gone as soon as the hardware drops its caches.
        if !at_map {
            mapped.forget();
            assert!((gone.first_pfn()..gone.end_pfn()).all(|pfn| mapped.reach(pfn).is_none()), "{what}: S2");
            let refused = mapped.domain.raw_map(PhysAddr::from_pfn(2), PAGE_SIZE, Access::DeviceWrites);
            assert_eq!(refused, Err(MapError::Poisoned), "{what}");
        }
        assert!(others.iter().all(|range| mapped.is_reached(*range)), "{what}: S1");
        iommu.behave(Behaviour::Prompt);
        drop(mapped);
        // Table pages that left the table with the failed unmap are lost for good.
        assert!(host.frames_lent() <= frames, "{what}");
    }
}

struct OnUnmap<'c, 'h>(FailedUnmap<'c>, &'h FakeHost, &'h FakeIommu<'h>);

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for OnUnmap<'_, 'h> {
    type Output = ();

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) {
        self.0.check::<D>(self.1, self.2);
    }
}

#[test]
fn a_failed_unmap_gives_nothing_back() {
    for_each(&[ABLE, SMALL_LEAVES, WHOLE_DOMAINS], |design, case, host, iommu| {
        design.visit(OnUnmap(FailedUnmap(case), host, iommu));
    });
}

struct OnMap<'c, 'h>(&'c Case, &'h FakeHost, &'h FakeIommu<'h>);

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for OnMap<'_, 'h> {
    type Output = ();

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) {
        let Self(case, host, iommu) = self;
        let what = format!("{} {case:?}", D::INFO.id);
        let mapped = Mapped::<D>::new(host, iommu, case);
        let live = mapped.domain.usage().live_ranges;
        iommu.behave(case.behaviour);
        // No other map has used this memory, so only the failed map could lead to it.
        let phys = PhysAddr::from_pfn(BUFFERS_PFN + 0x4000);
        let _: SyncError = mapped.domain.raw_map_lost(phys, case.pages * PAGE_SIZE, Access::DeviceWrites);
        mapped.forget();
        // Anywhere that a design may have mapped it: at the other mappings, around them, and at its own physical
        // address.
        let pages = phys.pfn()..phys.pfn() + case.pages;
        let around =
            mapped.ranges.iter().flat_map(|range| range.first_pfn().saturating_sub(2048)..range.end_pfn() + 2048);
        let by_memory = (0..4).flat_map(|region| pages.clone().map(move |pfn| region << 34 | pfn));
        for pfn in around.chain(by_memory) {
            let reached = mapped.reach(pfn).map(PhysAddr::pfn);
            assert!(!reached.is_some_and(|reached| pages.contains(&reached)), "{what}: S11: {pfn:#x} leads there");
        }
        // The range of the failed map is quarantined; the others are unchanged.
        assert_eq!(mapped.domain.usage().live_ranges, live + 1, "{what}: S3, S11");
        assert!(mapped.ranges.iter().all(|range| mapped.is_reached(*range)), "{what}: S1");
    }
}

/// Hardware that caches absent entries needs an invalidation for every map. If that fails, the map is undone, and its
/// range is never used again.
#[test]
fn a_failed_map_is_taken_back() {
    for_each(&[CACHES_ABSENT], |design, case, host, iommu| design.visit(OnMap(case, host, iommu)));
}

struct OnPlacedMap<'c, 'h>(&'c Case, &'h FakeHost, &'h FakeIommu<'h>);

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for OnPlacedMap<'_, 'h> {
    /// Whether the design places mappings.
    type Output = bool;

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) -> bool {
        let Self(case, host, iommu) = self;
        let what = format!("{} {case:?}", D::INFO.id);
        let mapped = Mapped::<D>::new(host, iommu, case);
        iommu.behave(case.behaviour);
        let (phys, at) = (PhysAddr::from_pfn(BUFFERS_PFN + 0x4000), Iova::from_pfn(0x8_0000));
        let options = MapOptions { at: Some(at), ..MapOptions::default() };
        // SAFETY: no memory is behind the IOMMU.
        let placed =
            unsafe { mapped.domain.map_raw_with(phys, case.pages * PAGE_SIZE, Access::DeviceWrites, &options) };
        mapped.forget();
        match placed {
            Err(RawMapError::Lost(_)) => {}
            Err(RawMapError::Refused(MapError::Unplaceable)) => return false,
            other => panic!("{what}: {other:?}"),
        }
        let reached = (0..case.pages).find_map(|page| mapped.reach(at.pfn() + page));
        assert_eq!(reached, None, "{what}: S11");
        true
    }
}

/// A failed map at a fixed address is undone too.
#[test]
fn a_failed_placed_map_is_taken_back() {
    let mut placing = 0;
    for_each(&[CACHES_ABSENT], |design, case, host, iommu| {
        placing += usize::from(design.visit(OnPlacedMap(case, host, iommu)));
    });
    assert!(placing > 0, "no design places mappings");
}

/// If all pages of a chunk are unmapped but one unmap has failed, the chunk is not handed out again, and the pages of
/// the failed unmap are not counted as free.
#[test]
fn pages_of_a_chunk_stay_quarantined() {
    for behaviour in [Behaviour::Failing, Behaviour::Silent] {
        for pages in [1, 4] {
            let host = FakeHost::default();
            let iommu = FakeIommu::new(&host);
            let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
            let map = |number: u64| {
                domain.raw_map(PhysAddr::from_pfn(16 + number * pages), pages * PAGE_SIZE, Access::DeviceWrites)
            };
            let all: Vec<Iova> = (0..64 / pages).map(|number| map(number).expect("room")).collect();
            iommu.behave(behaviour);
            for (failed, iova) in all.iter().enumerate().take(3) {
                domain.unmap_raw(*iova, pages * PAGE_SIZE).expect_err("the hardware refuses");
                assert_eq!(domain.usage().live_ranges, all.len(), "S11: {failed} have failed");
            }
        }
    }
}

/// A domain whose mappings had a table each and are all unmapped: more spent tables than the reserve.
fn spent_tables<'h>(host: &'h FakeHost, iommu: &'h FakeIommu<'h>) -> OnFakes<'h, Portcullis> {
    let domain = Portcullis::open(iommu, host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let map = |number: u64| {
        let phys = PhysAddr::from_pfn(0x10_0000 + number * 512);
        domain.raw_map(phys, CHUNKED_PAGES_MAX * PAGE_SIZE, Access::DeviceWrites).expect("room")
    };
    let all: Vec<Iova> = (0..40).map(map).collect();
    for iova in &all {
        assert!(iommu.access(DEVICE, *iova, Rights::WRITE).is_some());
    }
    all.into_iter().for_each(|iova| domain.unmap_raw(iova, CHUNKED_PAGES_MAX * PAGE_SIZE).expect("mapped"));
    domain
}

#[test]
fn tables_whose_invalidation_failed_stay() {
    for behaviour in [Behaviour::Failing, Behaviour::Silent] {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = spent_tables(&host, &iommu);
        let lent = host.frames_lent();
        iommu.behave(behaviour);
        let mut failed = 0;
        for _ in 0..6 {
            host.advance_us(TABLE_IDLE_US + 1);
            failed += usize::from(domain.tick().is_err());
        }
        assert!(failed > 0, "no tick has tried to give back a table");
        assert_eq!(host.frames_lent(), lent, "S4");
        // Not even when the hardware answers again: the invalidation of the removed tables never succeeded.
        iommu.behave(Behaviour::Prompt);
        for _ in 0..6 {
            host.advance_us(TABLE_IDLE_US + 1);
            let _ = domain.tick();
        }
        assert_eq!(host.frames_lent(), lent, "S4");
    }
}

#[test]
fn a_domain_that_goes_while_tables_leave_loses_none() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = spent_tables(&host, &iommu);
    let (lent, pages) = (host.frames_lent(), domain.table_pages());
    let mut ticks = 0;
    while domain.table_pages() == pages {
        host.advance_us(TABLE_IDLE_US + 1);
        domain.tick().expect("the hardware answers");
        ticks += 1;
        assert!(ticks < 10, "no table was unlinked");
    }
    assert_eq!(host.frames_lent(), lent, "unlinked tables have not gone back yet");
    drop(domain);
    assert_eq!(host.frames_lent(), 0, "S10");
}
