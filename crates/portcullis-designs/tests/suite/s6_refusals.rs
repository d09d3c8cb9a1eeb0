//! Provokes every refusal once. A refused operation changes nothing and leaks nothing (S6).

use crate::raw_face::{RawFace, open};
use portcullis::invalidation::BATCH_MAX;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::Mapper;
use portcullis::platform::fake::FakeHost;
use portcullis::table::{Rights, SecondLevelTable, TableRule, Walker};
use portcullis::{
    Access, Capabilities, Domain, DomainConfig, Iommu, Iova, IovaRange, MapError, NewDomainError, NoMemory, Open,
    PAGE_SIZE, PhysAddr, Protection, QueueError, RawUnmapError, Request, Segment, SourceId, SyncError, UnmapError,
};
use portcullis_designs::{Static, Stock, Unprotected};

const DEVICE: SourceId = SourceId::new(0, 1, 0);
const WRITES: Access = Access::DeviceWrites;

const fn segment(phys: u64, len: u64) -> Segment {
    Segment { phys: PhysAddr::new(phys), len }
}

const fn range(first_pfn: u64, pages: u64) -> IovaRange {
    IovaRange::new(first_pfn, pages).expect("written down as one")
}

/// Asserts that a map of `segments` is refused with `expected` and changes nothing.
fn assert_map_refused<M: Mapper>(domain: &Domain<M>, segments: &[Segment], expected: MapError) {
    let before = domain.usage();
    let refused = Request::new(segments, WRITES).and_then(|request| domain.raw_map_request(&request));
    assert_eq!(refused, Err(expected), "{segments:x?}");
    assert_eq!(domain.usage(), before, "{segments:x?}");
}

#[test]
fn buffers_that_cannot_be_mapped() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
    let physical_range = |phys| MapError::PhysicalRange(PhysAddr::new(phys));
    let cases: &[(&[Segment], MapError)] = &[
        (&[], MapError::Empty),
        (&[segment(0x1000, 0)], MapError::Empty),
        (&[segment(0x1000, 8), segment(0x2000, 0)], MapError::Empty),
        (&[segment(u64::MAX - 7, 16)], physical_range(u64::MAX - 7)),
        (&[segment(u64::MAX - 7, 8)], physical_range(u64::MAX - 7)),
        (&[segment(0x1000, u64::MAX)], physical_range(0x1000)),
        (&[segment(0x1000, u64::MAX - 0x1000)], physical_range(0x1000)),
        (&[segment((1 << 52) - 8, 16)], physical_range((1 << 52) - 8)),
        (&[segment(0x1000, 8), segment(1 << 52, 8)], physical_range(1 << 52)),
        (&[segment(0, 1 << 51)], MapError::Exhausted { pages: 1 << 39, limit_bits: 48 }),
    ];
    for (segments, expected) in cases {
        assert_map_refused(&domain, segments, *expected);
    }
    domain.raw_map(PhysAddr::new((1 << 52) - 8), 8, WRITES).expect("the last bytes that an entry can hold");
}

#[test]
fn addresses_that_are_physical_have_gaps() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let memory = [segment(0, 64 << 20), segment(0xfe00_0000, 32 << 20), segment(1 << 40, 1 << 20)];
    let reserved = [range(0x100, 0x10)];
    for bits in [32, 48] {
        let config = DomainConfig {
            address_bits: bits,
            reserved: &reserved,
            memory: &memory,
            ..DomainConfig::new(Protection::None)
        };
        let mapped = open::<Static, _, _>(&iommu, &host, &config).unwrap();
        let passed = open::<Unprotected, _, _>(&iommu, &host, &config).unwrap();
        let reserved = |iova| MapError::Reserved(Iova::new(iova));
        let cases = [
            (segment(0, 1), reserved(0)),
            (segment(0xff000, 0x1001), reserved(0x100000)),
            (segment(0xfedf_f000, 0x1001), reserved(0xfee0_0000)),
            (segment(0xfeef_ffff, 1), reserved(0xfeef_f000)),
            (segment((1 << bits) - 1, 2), MapError::BeyondWidth { iova: Iova::new(1 << bits), limit_bits: bits }),
        ];
        for (segment, expected) in cases {
            assert_map_refused(&mapped, &[segment], expected);
            assert_map_refused(&passed, &[segment], expected);
        }
        assert_map_refused(&passed, &[segment(0x1000, 8), segment(0x4000, 8)], MapError::NotContiguous);
        // The identity map ends where memory does.
        assert_map_refused(&mapped, &[segment(64 << 20, 1)], MapError::PhysicalRange(PhysAddr::new(64 << 20)));
        // A device with few address bits reaches no memory beyond them, not even through another address.
        mapped.attach(DEVICE).unwrap();
        let high = iommu.access(DEVICE, Iova::new(1 << 40), Rights::READ);
        assert_eq!(high.is_some(), bits == 48);
        assert_eq!(iommu.access(DEVICE, Iova::new(0xfee0_0000), Rights::WRITE), None);
        assert_eq!(iommu.access(DEVICE, Iova::new(0x10_0000), Rights::WRITE), None);
        assert_eq!(iommu.access(DEVICE, Iova::new(0x1008), Rights::WRITE), Some(PhysAddr::new(0x1008)));
    }
}

#[test]
fn a_narrow_space_runs_out_and_recovers() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let config = DomainConfig { address_bits: 16, reserved: &[range(8, 1)], ..DomainConfig::new(Protection::Strict) };
    let domain = Stock::open_with(&iommu, &host, &config).unwrap();
    let map = || domain.raw_map(PhysAddr::new(0x5000), PAGE_SIZE, WRITES);
    let exhausted = |pages| MapError::Exhausted { pages, limit_bits: 16 };
    // Sixteen pages except page 0 and page 8.
    let mapped: Vec<Iova> = (0..14).map(|_| map().expect("there is room")).collect();
    assert_eq!(map(), Err(exhausted(1)));
    assert_map_refused(&domain, &[segment(0x5000, PAGE_SIZE)], exhausted(1));
    for &iova in &mapped {
        domain.unmap_raw(iova, PAGE_SIZE).unwrap();
    }
    // Eight aligned pages would contain page 0 or page 8.
    assert_map_refused(&domain, &[segment(0x5000, 5 * PAGE_SIZE)], exhausted(5));
    domain.raw_map(PhysAddr::new(0x5000), 4 * PAGE_SIZE, WRITES).expect("four pages in a row are free");
}

#[test]
fn a_table_does_not_write_over_a_translation() {
    let host = FakeHost::default();
    for leaf_2m in [false, true] {
        let capabilities = Capabilities { leaf_2m, ..FakeIommu::new(&host).capabilities() };
        let walker = Walker::new(&host, capabilities.coherent);
        let table = SecondLevelTable::new(walker, 4, &capabilities, TableRule::FreedWhenCovered).unwrap();
        let map = |first_pfn, pages| {
            // SAFETY: its mappings stay mapped; it refuses to map over an existing one.
            unsafe {
                table.map(walker, range(first_pfn, pages), &[segment(0, pages * PAGE_SIZE)], Rights::WRITE, false)
            }
        };
        let overlap = |pfn| Err(MapError::Overlap(Iova::from_pfn(pfn)));
        map(0x1000, 512).unwrap();
        map(0x1205, 1).unwrap();
        assert_eq!(map(0x1200, 8), overlap(0x1205));
        assert_eq!(map(0x1200, 512), overlap(0x1205));
        assert_eq!(map(0x1200, 1024), overlap(0x1205));
        assert_eq!(map(0x1008, 1), overlap(0x1008));
        assert_eq!(map(0x0ff0, 600), overlap(0x1000));
        // Nothing was written before the overlap was found.
        // SAFETY: nothing is unmapped meanwhile.
        assert_eq!(unsafe { table.lookup(walker, Iova::from_pfn(0x1200)) }, None);
        // SAFETY: nothing is unmapped meanwhile.
        assert_eq!(unsafe { table.lookup(walker, Iova::from_pfn(0x0ff0)) }, None);
    }
}

#[test]
fn unmaps_of_anything_but_a_mapping() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
    domain.attach(DEVICE).unwrap();
    let iova = domain.raw_map(PhysAddr::new(0x7010), 3 * PAGE_SIZE, WRITES).unwrap();
    let page = |n: i64| Iova::from_pfn(iova.pfn().checked_add_signed(n).expect("far from the edges"));
    let mapped = range(iova.pfn(), 4);
    let partial = |first: i64, pages| UnmapError::Partial { asked: range(page(first).pfn(), pages), mapped };
    let not_mapped = |first| UnmapError::NotMapped(page(first));
    let cases = [
        (iova, 0, UnmapError::BadRange),
        (Iova::new(u64::MAX), 2, UnmapError::BadRange),
        (page(0), PAGE_SIZE, partial(0, 1)),
        (page(0), 5 * PAGE_SIZE, partial(0, 5)),
        (page(1), 3 * PAGE_SIZE, partial(1, 3)),
        (page(1), PAGE_SIZE, partial(1, 1)),
        (page(-1), 5 * PAGE_SIZE, not_mapped(-1)),
        (page(-1), PAGE_SIZE, not_mapped(-1)),
        (page(4), PAGE_SIZE, not_mapped(4)),
        // Reserved ranges are in the same tree, but are no mappings.
        (Iova::new(0), PAGE_SIZE, UnmapError::NotMapped(Iova::new(0))),
        (Iova::new(0xfee0_0000), 1 << 20, UnmapError::NotMapped(Iova::new(0xfee0_0000))),
    ];
    let before = domain.usage();
    for (iova, len, expected) in cases {
        assert_eq!(domain.unmap_raw(iova, len), Err(RawUnmapError::Refused(expected)), "{iova}+{len:#x}");
        assert_eq!(domain.usage(), before);
    }
    assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), Some(PhysAddr::new(0x7010)));
    assert_eq!(iommu.take_commands(), [], "a refused unmap invalidates nothing");
    // In a batch, the first unmap of a mapping claims it.
    let mut batch = domain.raw_batch();
    batch.unmap(mapped).unwrap();
    assert_eq!(batch.unmap(mapped), Err(UnmapError::NotMapped(page(0))));
    assert_eq!(domain.unmap_raw(iova, 3 * PAGE_SIZE), Err(RawUnmapError::Refused(UnmapError::NotMapped(page(0)))));
    batch.commit().unwrap();
    assert_eq!(domain.unmap_raw(iova, 3 * PAGE_SIZE), Err(RawUnmapError::Refused(UnmapError::NotMapped(page(0)))));
}

#[test]
fn a_full_batch_takes_no_more() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
    let map = || domain.raw_map(PhysAddr::new(0x3000), PAGE_SIZE, WRITES).unwrap();
    let mut batch = domain.raw_batch();
    for _ in 0..BATCH_MAX {
        batch.unmap(range(map().pfn(), 1)).unwrap();
    }
    let last = map();
    assert_eq!(batch.unmap(range(last.pfn(), 1)), Err(UnmapError::BatchFull));
    batch.commit().unwrap();
    assert_eq!(domain.usage().live_ranges, 1);
    domain.unmap_raw(last, PAGE_SIZE).expect("the refusal left it mapped");
}

#[test]
fn a_map_that_could_not_be_invalidated_is_taken_back() {
    let host = FakeHost::default();
    let capabilities = Capabilities { caches_absent: true, ..FakeIommu::new(&host).capabilities() };
    let iommu = FakeIommu::with_capabilities(&host, capabilities);
    let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
    domain.attach(DEVICE).unwrap();
    let first = domain.raw_map(PhysAddr::new(0x3000), PAGE_SIZE, WRITES).unwrap();
    iommu.behave(Behaviour::Failing);
    let map = || domain.raw_map(PhysAddr::new(0x4000), PAGE_SIZE, WRITES);
    let lost = domain.raw_map_lost(PhysAddr::new(0x4000), PAGE_SIZE, WRITES);
    assert_eq!(lost, SyncError(QueueError::Descriptor));
    assert_eq!(map(), Err(MapError::Poisoned));
    // The allocator goes down from the first.
    let next = Iova::from_pfn(first.pfn() - 1);
    assert_eq!(iommu.access(DEVICE, next, Rights::WRITE), None, "the map was refused, so the device must not reach it");
    assert_eq!(domain.unmap_raw(next, PAGE_SIZE), Err(RawUnmapError::Refused(UnmapError::NotMapped(next))));
    assert_eq!(iommu.access(DEVICE, first, Rights::WRITE), Some(PhysAddr::new(0x3000)));
}

#[test]
fn a_host_without_memory() {
    // From none to enough, so that each allocation of a table page fails once.
    let mut refusals = 0;
    for frames in 0.. {
        let host = FakeHost::default();
        let capabilities = Capabilities { leaf_2m: false, ..FakeIommu::new(&host).capabilities() };
        let iommu = FakeIommu::with_capabilities(&host, capabilities);
        host.limit_frames(frames);
        let domain = match Stock::open(&iommu, &host, Protection::Deferred) {
            Ok(domain) => domain,
            Err(error) => {
                assert_eq!((error, frames), (NewDomainError::NoMemory(NoMemory), 0));
                continue;
            }
        };
        domain.attach(DEVICE).unwrap();
        let segments = [segment(0x20_0000, 1000 * PAGE_SIZE), segment(0x123, 5), segment(0x80_0000, 600 * PAGE_SIZE)];
        let request = Request::new(&segments, WRITES).unwrap();
        let refused = domain.raw_map_request(&request).err();
        if let Some(error) = refused {
            assert_eq!(error, MapError::NoMemory(NoMemory));
            refusals += 1;
            assert_eq!(domain.usage().live_ranges, 0);
            // All pages below 4 GiB that the map might have written.
            for pfn in (1 << 20) - 2048..1 << 20 {
                assert_eq!(iommu.access(DEVICE, Iova::from_pfn(pfn), Rights::WRITE), None);
            }
            host.limit_frames(usize::MAX);
            domain.raw_map_request(&request).expect("memory is back");
        }
        drop(domain);
        assert_eq!(host.frames_lent(), 0, "{frames} frames");
        if refused.is_none() {
            break;
        }
    }
    // Two directories and four leaf tables.
    assert_eq!(refusals, 6);
}
