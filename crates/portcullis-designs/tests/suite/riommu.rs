//! The design `riommu`: which entry a map takes, when an entry is free again, and which requests are refused.

use crate::raw_face::RawFace;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::iommu::rings::{ENTRY_PAGES, RING_ADDRESS_MASK, RingAddress, SEGMENT_BYTES_MAX};
use portcullis::platform::fake::{CPUS, FakeHost, run_on};
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, DomainOf, Invalidation, Iommu, Iova, IovaRange, Lifetime, MapError, MapOptions,
    NewDomainError, NoMemory, Open, PAGE_SIZE, PhysAddr, Protection, RawMapError, RawUnmapError, Request, Segment,
    SourceId, Stream, UnmapError,
};
use portcullis_designs::riommu::RINGS_MAX;
use portcullis_designs::{Choice, RIommu};

const DEVICE: SourceId = SourceId::new(3, 0, 0);
const READS: Access = Access::DeviceReads;
const WRITES: Access = Access::DeviceWrites;

type InRings<'h> = DomainOf<RIommu, &'h FakeHost, &'h FakeIommu<'h>>;

fn domain<'h>(host: &'h FakeHost, iommu: &'h FakeIommu<'h>, ring: u32) -> InRings<'h> {
    run_on(0);
    let options = Choice::parse(&format!("riommu:ring={ring}")).expect("a design").options;
    let config = DomainConfig { options, ..DomainConfig::new(Protection::Strict) };
    let domain = RIommu::open_with(iommu, host, &config).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    domain
}

fn page(number: u64) -> PhysAddr {
    PhysAddr::new((0x100 + number) * PAGE_SIZE)
}

fn map(domain: &InRings<'_>, number: u64, access: Access) -> Result<Iova, MapError> {
    domain.raw_map(page(number), PAGE_SIZE, access)
}

fn list(domain: &InRings<'_>, segments: &[(u64, u64)], options: &MapOptions) -> Result<IovaRange, RawMapError> {
    let segments = segments.iter().map(|(phys, len)| Segment { phys: PhysAddr::new(*phys), len: *len });
    // SAFETY: the IOMMU of a test has no memory behind it.
    unsafe { domain.map_list(segments, WRITES, options) }
}

fn ring_and_entry(iova: Iova) -> (u16, u32) {
    let RingAddress { ring, entry, .. } = RingAddress::of(iova);
    (ring, entry)
}

fn full(ring: u16, entries: u32) -> Result<Iova, MapError> {
    Err(MapError::RingFull { ring, entries })
}

#[test]
fn entries_are_taken_in_order_and_are_free_after_the_commit_only() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 4);
    let mapped: Vec<Iova> = (0..4).map(|number| map(&domain, number, WRITES).expect("room")).collect();
    assert_eq!(mapped.iter().map(|iova| ring_and_entry(*iova)).collect::<Vec<_>>(), [(1, 0), (1, 1), (1, 2), (1, 3)]);
    assert_eq!(map(&domain, 4, WRITES), full(1, 4), "the tail meets an entry in use");
    // Out of order: the free entry is not at the tail.
    domain.unmap_raw(mapped[2], PAGE_SIZE).expect("mapped");
    assert_eq!(map(&domain, 4, WRITES), full(1, 4));
    let mut batch = domain.raw_batch();
    for iova in &mapped[..2] {
        batch.unmap(IovaRange::covering(*iova, PAGE_SIZE).expect("a page")).expect("mapped");
        assert_eq!(map(&domain, 4, WRITES), full(1, 4), "cleared, and not yet invalidated");
    }
    iommu.take_commands();
    batch.commit().expect("the hardware answers");
    // One command for the ring.
    let first = Iova::new(1 << 48);
    let command = Invalidation::Pages { domain: domain.id(), first, mask: RING_ADDRESS_MASK, leaf_only: true };
    assert_eq!(iommu.take_commands(), [command]);
    let again: Vec<Iova> = (4..7).map(|number| map(&domain, number, WRITES).expect("room")).collect();
    assert_eq!(again, mapped[..3], "round again");
    assert_eq!(map(&domain, 8, WRITES), full(1, 4));
    // One command for a ring with one unmap as well.
    let mut batch = domain.raw_batch();
    batch.unmap_raw(again[0], PAGE_SIZE).expect("mapped");
    iommu.take_commands();
    batch.commit().expect("the hardware answers");
    assert_eq!(iommu.take_commands(), [command]);
}

#[test]
fn s11_entries_of_a_failed_commit_are_never_free() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 1);
    let iova = map(&domain, 0, WRITES).expect("room");
    iommu.behave(Behaviour::Failing);
    assert!(matches!(domain.unmap_raw(iova, PAGE_SIZE), Err(RawUnmapError::Commit(_))));
    iommu.behave(Behaviour::Prompt);
    assert_eq!(map(&domain, 1, WRITES), Err(MapError::Poisoned));
    assert_eq!(domain.usage().live_ranges, 1, "quarantined");
}

#[test]
fn s11_a_later_commit_frees_nothing_of_one_that_failed() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 2);
    let (first, second) = (map(&domain, 0, WRITES).expect("room"), map(&domain, 1, WRITES).expect("room"));
    let mut batch = domain.raw_batch();
    let page = |iova| IovaRange::covering(iova, PAGE_SIZE).expect("a page");
    batch.unmap(page(first)).expect("mapped");
    iommu.behave(Behaviour::Failing);
    assert!(batch.commit_so_far().is_err());
    iommu.behave(Behaviour::Prompt);
    batch.unmap(page(second)).expect("mapped");
    batch.commit().expect("the hardware answers");
    assert_eq!(domain.usage().live_ranges, 1, "the first is quarantined, the second is free");
}

#[test]
fn a_stream_has_a_ring_for_each_direction_and_a_cpu_where_none_is_known() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 8);
    let of_stream = |stream, access| {
        let segments = [Segment { phys: page(0), len: 64 }];
        let mut request = Request::new(&segments, access).expect("a request");
        request.stream = Stream(stream);
        ring_and_entry(domain.raw_map_request(&request).expect("room").start()).0
    };
    let mut rings = Vec::new();
    for cpu in 0..CPUS {
        run_on(cpu);
        for access in [READS, WRITES, Access::DeviceReadsAndWrites] {
            rings.push(of_stream(None, access));
            assert_eq!(rings.last(), Some(&of_stream(None, access)), "the same ring again");
        }
    }
    for stream in [0, 1, 1023] {
        for access in [READS, WRITES] {
            rings.push(of_stream(Some(stream), access));
        }
    }
    run_on(0);
    assert_eq!(of_stream(Some(1024), READS), of_stream(Some(0), READS), "beyond 1,024, streams share rings by number");
    let made = rings.len();
    rings.sort_unstable();
    rings.dedup();
    assert_eq!(rings.len(), made);
    // Each has a page of 256 entries here, beside the table of rings.
    assert_eq!(domain.table_pages(), 16 + made);
}

/// Descriptor rings and the like: maps and unmaps of other entries do not meet them, and their ring is used again.
#[test]
fn a_persistent_mapping_has_a_ring_of_its_own() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 2);
    let persistent = MapOptions { lifetime: Lifetime::Persistent, ..MapOptions::default() };
    let ring_of = |range: IovaRange| ring_and_entry(range.start()).0;
    let first = list(&domain, &[(0x7000, 4096)], &persistent).expect("room");
    let second = list(&domain, &[(0x9000, 100), (0xb000, 8)], &persistent).expect("room");
    assert_ne!(ring_of(first), ring_of(second));
    for number in 0..9 {
        let iova = map(&domain, number, WRITES).expect("room");
        domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
    }
    let pages = domain.table_pages();
    domain.unmap_raw_at(second.start()).expect("mapped");
    let third = list(&domain, &[(0xd000, 4096)], &persistent).expect("room");
    assert_eq!((ring_of(third), domain.table_pages()), (ring_of(second), pages), "no further ring");
}

#[test]
fn lists_have_neighbouring_entries_and_pass_over_what_is_left_of_the_table() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 5);
    let three = [(0x7010, 16), (0x9000, 3 * PAGE_SIZE), (0xe001, 1)];
    let first = list(&domain, &three, &MapOptions::default()).expect("room");
    assert_eq!((ring_and_entry(first.start()), first.pages()), ((1, 0), 3 * ENTRY_PAGES));
    for (index, (phys, len)) in three.into_iter().enumerate() {
        let iova = first.start().as_u64() + index as u64 * ENTRY_PAGES * PAGE_SIZE;
        let reached = |offset| iommu.access(DEVICE, Iova::new(iova + offset), Rights::WRITE);
        assert_eq!(reached(0), Some(PhysAddr::new(phys)));
        assert_eq!(reached(len - 1), Some(PhysAddr::new(phys + len - 1)));
        assert_eq!(reached(len), None, "not a byte more");
    }
    let refused = list(&domain, &three, &MapOptions::default());
    assert_eq!(refused, Err(MapError::RingFull { ring: 1, entries: 5 }.into()), "two are left, and three in use");
    domain.unmap_raw_at(first.start()).expect("mapped");
    let again = list(&domain, &three, &MapOptions::default()).expect("room");
    assert_eq!(ring_and_entry(again.start()), (1, 0), "the last two were passed over");
    // A part of a mapping is no mapping.
    let part = Iova::new(again.start().as_u64() + ENTRY_PAGES * PAGE_SIZE);
    let refused = domain.unmap_raw(part, 1);
    assert!(matches!(refused, Err(RawUnmapError::Refused(UnmapError::Partial { mapped, .. })) if mapped == again));
    let six: Vec<(u64, u64)> = (0..6).map(|number| (0x10_0000 + number * 0x2000, 8)).collect();
    let refused = list(&domain, &six, &MapOptions::default());
    assert_eq!(refused, Err(MapError::ListTooLong { segments: 6, entries: 5 }.into()));
}

#[test]
fn what_an_entry_cannot_say_is_refused() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 8);
    let longest = domain.raw_map(PhysAddr::new(0x1001), SEGMENT_BYTES_MAX, WRITES).expect("30 bits of length");
    let last = Iova::new(longest.as_u64() + SEGMENT_BYTES_MAX - 1);
    assert_eq!(iommu.access(DEVICE, last, Rights::WRITE), Some(PhysAddr::new(0x1001 + SEGMENT_BYTES_MAX - 1)));
    let len = SEGMENT_BYTES_MAX + 1;
    let refused = domain.raw_map(PhysAddr::new(0x1001), len, WRITES);
    assert_eq!(refused, Err(MapError::SegmentTooLong { len, most: SEGMENT_BYTES_MAX }));
    for (phys, len) in [(1 << 52, 1), ((1 << 52) - 1, 2), (u64::MAX - 1, 2), (u64::MAX, PAGE_SIZE)] {
        let refused = domain.raw_map(PhysAddr::new(phys), len, WRITES);
        assert_eq!(refused, Err(MapError::PhysicalRange(PhysAddr::new(phys))), "{len} bytes at {phys:#x}");
    }
    assert_eq!(domain.raw_map(page(0), 0, WRITES), Err(MapError::Empty));
    // The ring determines the addresses; they cannot be chosen.
    let chosen = [
        MapOptions { limit: u64::from(u32::MAX), ..MapOptions::default() },
        MapOptions { alignment: 1 << 31, ..MapOptions::default() },
        MapOptions::fixed(Iova::new(5 << 48)),
    ];
    for options in chosen {
        let refused = list(&domain, &[(0x7000, 4096)], &options);
        assert_eq!(refused, Err(MapError::Unplaceable.into()), "{options:?}");
    }
    assert_eq!(domain.usage().live_ranges, 1);
    for iova in [0, 1 << 20, 1 << 48, u64::MAX] {
        // Only the first entry of the first ring is mapped.
        if iova != longest.as_u64() {
            assert!(matches!(domain.unmap_raw(Iova::new(iova), 1), Err(RawUnmapError::Refused(_))), "{iova:#x}");
        }
    }
}

#[test]
fn a_unit_without_rings_and_a_host_without_neighbouring_pages_are_refused() {
    let host = FakeHost::default();
    let without = Capabilities { rings: false, ..FakeIommu::new(&host).capabilities() };
    let iommu = FakeIommu::with_capabilities(&host, without);
    let refused = RIommu::open(&iommu, &host, Protection::Strict);
    assert!(matches!(refused, Err(NewDomainError::NoRings)));
    let iommu = FakeIommu::new(&host);
    host.limit_frames(15);
    let refused = RIommu::open(&iommu, &host, Protection::Strict);
    assert!(matches!(refused, Err(NewDomainError::NoMemory(NoMemory))));
    assert_eq!(host.frames_lent(), 0, "S6");
    // Memory for the table of rings, and for no ring.
    host.limit_frames(16);
    let domain = RIommu::open(&iommu, &host, Protection::Strict).expect("a domain");
    assert_eq!(domain.raw_map(page(0), 8, WRITES), Err(MapError::NoMemory(NoMemory)));
    assert_eq!((host.frames_lent(), domain.table_pages()), (16, 16), "S6");
    host.limit_frames(16);
    domain.raw_map(page(0), 8, WRITES).expect("16 pages for a ring of 4,096");
    drop(domain);
    assert_eq!(host.frames_lent(), 0, "S10");
}

/// A page walker that does not snoop sees flushed entries. If the hardware caches absent entries, a map invalidates its
/// ring.
#[test]
fn walkers_see_entries_when_a_map_returns() {
    for coherent in [true, false] {
        for caches_absent in [true, false] {
            let host = FakeHost::default();
            let all = FakeIommu::new(&host).capabilities();
            let iommu = FakeIommu::with_capabilities(&host, Capabilities { coherent, caches_absent, ..all });
            let domain = domain(&host, &iommu, 4);
            for round in 0..10 {
                let expected = Iova::new(1 << 48 | (round % 4) << 30);
                assert_eq!(iommu.access(DEVICE, expected, Rights::READ), None, "absent so far, which may be cached");
                let iova = map(&domain, round, READS).expect("room");
                assert_eq!(iova, expected);
                assert_eq!(iommu.access(DEVICE, iova, Rights::READ), Some(page(round)));
                assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), None, "S5");
                domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
                assert_eq!(iommu.access(DEVICE, iova, Rights::READ), None, "S2");
                assert_eq!(host.unflushed(), None);
            }
        }
    }
}

/// S7 and S13: rings for persistent mappings, until none is left.
#[test]
fn rings_have_a_bound() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let reserved = [IovaRange::new(3 << 36, 1).expect("a page of ring 3")];
    let config = DomainConfig { reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
    let domain: InRings<'_> = RIommu::open_with(&iommu, &host, &config).expect("a domain");
    let persistent = MapOptions { lifetime: Lifetime::Persistent, ..MapOptions::default() };
    let mut numbers = Vec::new();
    let refused = loop {
        match list(&domain, &[(0x7000, 8)], &persistent) {
            Ok(range) => numbers.push(ring_and_entry(range.start()).0),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, MapError::NoRing { most: RINGS_MAX }.into());
    let expected = (1..=RINGS_MAX as u16).filter(|number| *number != 3);
    assert!(numbers.iter().copied().eq(expected), "all but the reserved one (S9)");
    assert_eq!(domain.table_pages(), 16 + numbers.len());
    let iova = RingAddress { ring: 7, entry: 0, offset: 0 }.iova();
    domain.unmap_raw_at(iova).expect("mapped");
    let again = list(&domain, &[(0x7000, 8)], &persistent).expect("a ring that is free again");
    assert_eq!(ring_and_entry(again.start()).0, 7);
}

/// A ring of 1,024 entries of 16 bytes takes four table pages.
#[test]
fn a_reserve_holds_as_many_rings_as_its_pages_are() {
    const OF_RING: usize = 4;
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&host, &iommu, 1024);
    assert_eq!((domain.tables_max(1), domain.tables_max(100)), (OF_RING, OF_RING));
    for (pages, rings) in [(1, 1), (OF_RING, 1), (OF_RING + 1, 2), (2 * OF_RING, 2)] {
        domain.reserve_tables(pages).expect("memory");
        assert_eq!(domain.table_pages(), 16 + rings * OF_RING, "{pages}");
    }
    map(&domain, 1, WRITES).expect("room");
    assert_eq!(domain.table_pages(), 16 + 2 * OF_RING, "the stream takes a ring of the reserve");
}
