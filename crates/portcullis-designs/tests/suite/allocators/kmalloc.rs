//! Addresses from real allocations (ATC'15, §4.2), on the fake host itself, which passes on small allocations as a
//! kernel would.

use super::Counting;
use crate::raw_face::RawFace;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::{
    Access, DomainConfig, DomainOf, IovaRange, MapError, NoMemory, Open, PAGE_SIZE, PhysAddr, Platform, Protection,
    RawUnmapError, UnmapError,
};
use portcullis_designs::Kmalloc;

type KmallocDomain<'h> = DomainOf<Kmalloc, &'h FakeHost, &'h FakeIommu<'h>>;

fn on_kmalloc(config: &DomainConfig<'_>, test: impl FnOnce(&FakeHost, &KmallocDomain<'_>)) {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Kmalloc::open_with(&iommu, &host, config).expect("a domain");
    test(&host, &domain);
    drop(domain);
    assert_eq!(host.bytes_lent(), 0, "every piece is back");
}

fn map(domain: &KmallocDomain<'_>, pages: u64) -> Result<IovaRange, MapError> {
    let iova = domain.raw_map(PhysAddr::new(0), pages * PAGE_SIZE, Access::DeviceWrites)?;
    Ok(IovaRange::covering(iova, pages * PAGE_SIZE).expect("mapped"))
}

fn unmap(domain: &KmallocDomain<'_>, range: IovaRange) -> Result<(), RawUnmapError> {
    domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE)
}

#[test]
fn a_page_number_is_the_address_of_a_piece() {
    on_kmalloc(&DomainConfig::new(Protection::Strict), |host, domain| {
        let taken = host.allocate_bytes(8, PhysAddr::new(1 << 20)).expect("room");
        let ranges: Vec<IovaRange> = [1, 8, 9, 1, 700].map(|pages| map(domain, pages).expect("room")).into();
        assert_eq!(host.bytes_lent(), 1 + ranges.len(), "one for each, and one of another user, which is the lowest");
        for (number, range) in ranges.iter().enumerate() {
            let size = range.pages().next_power_of_two().max(8);
            assert!(range.first_pfn().is_multiple_of(size), "{range}");
            assert!(!ranges[..number].iter().any(|other| other.overlaps(*range)), "{range}");
            assert!(!range.contains(taken.as_u64()), "no mapping has the page of another user's piece");
        }
        // Any other user may get a piece that was freed.
        unmap(domain, ranges[1]).expect("mapped");
        let next = host.allocate_bytes(8, PhysAddr::new(1 << 20)).expect("room");
        assert_eq!(next.as_u64(), ranges[1].first_pfn());
        for at in [taken, next] {
            // SAFETY: it was allocated above, and is freed once.
            unsafe { host.free_bytes(at, 8) };
        }
    });
}

/// A host may lend no such memory.
#[test]
fn a_host_without_an_allocator_maps_nothing() {
    let host = FakeHost::default();
    let (counting, iommu) = (Counting::new(&host), FakeIommu::new(&host));
    assert_eq!(counting.allocate_bytes(8, PhysAddr::new(1 << 20)), Err(NoMemory));
    let domain = Kmalloc::open(&iommu, &counting, Protection::Strict).expect("a domain");
    for pages in [1, 64] {
        let refused = domain.raw_map(PhysAddr::new(0), pages * PAGE_SIZE, Access::DeviceWrites);
        assert_eq!(refused, Err(MapError::Exhausted { pages, limit_bits: 48 }));
    }
    assert_eq!(domain.usage().live_ranges, 0);
}

/// The marks in the table are the only record of a mapping, also if it lies in several tables.
#[test]
fn a_mapping_is_unmapped_whole_and_once() {
    for leaves in [4096, 1 << 21] {
        on_kmalloc(&DomainConfig::new(Protection::Strict), |_, domain| {
            let bytes = 1300 * PAGE_SIZE;
            // On a 2 MiB boundary or not, so with large leaves and without.
            let iova = domain.raw_map(PhysAddr::new(leaves), bytes, Access::DeviceReads).expect("room");
            let whole = IovaRange::covering(iova, bytes).expect("mapped");
            let neighbour = map(domain, 1).expect("room");
            for (first, pages) in [(0, 1299), (0, 1301), (0, 512), (0, 1)] {
                let part = IovaRange::new(whole.first_pfn() + first, pages).expect("a range");
                let partial = UnmapError::Partial { asked: part, mapped: whole };
                assert_eq!(unmap(domain, part), Err(RawUnmapError::Refused(partial)));
            }
            for (first, pages) in [(1, 1299), (512, 512), (1299, 1)] {
                let part = IovaRange::new(whole.first_pfn() + first, pages).expect("a range");
                let not_mapped = UnmapError::NotMapped(part.start());
                assert_eq!(unmap(domain, part), Err(RawUnmapError::Refused(not_mapped)));
            }
            assert_eq!(unmap(domain, whole), Ok(()));
            let again = RawUnmapError::Refused(UnmapError::NotMapped(whole.start()));
            assert_eq!(unmap(domain, whole), Err(again));
            assert_eq!(unmap(domain, neighbour), Ok(()));
            assert_eq!(domain.usage().live_ranges, 0);
        });
    }
}

/// A piece whose address stands for a reserved page is kept until the domain is dropped (S9).
#[test]
fn reserved_pages_are_withheld() {
    let reserved = [IovaRange::new(8, 20).expect("a range")];
    let config = DomainConfig { reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
    on_kmalloc(&config, |host, domain| {
        let range = map(domain, 1).expect("room");
        assert_eq!(range.first_pfn(), 32, "the lowest piece that stands for no reserved page");
        assert_eq!(host.bytes_lent(), 5, "those at 0, 8, 16 and 24 are withheld");
        unmap(domain, range).expect("mapped");
        assert_eq!(host.bytes_lent(), 4);
    });
}

#[test]
fn what_is_live_or_queued_when_the_domain_goes_is_given_back() {
    on_kmalloc(&DomainConfig::new(Protection::Deferred), |host, domain| {
        let ranges: Vec<IovaRange> = [1, 3, 600].map(|pages| map(domain, pages).expect("room")).into();
        unmap(domain, ranges[1]).expect("mapped");
        assert_eq!((domain.usage().queued_unmaps, host.bytes_lent()), (1, 4), "one waits for a flush");
    });
}

/// The zone is bounded: pieces that stand for pages beyond the device's width are not used (S13).
#[test]
fn a_zone_that_is_used_up_refuses() {
    let config = DomainConfig { address_bits: 18, ..DomainConfig::new(Protection::Strict) };
    on_kmalloc(&config, |_, domain| {
        // 64 pages, at least 8 for each piece, and page 0 is reserved.
        let ranges: Vec<IovaRange> = (0..7).map(|_| map(domain, 1).expect("room")).collect();
        assert_eq!(map(domain, 1), Err(MapError::Exhausted { pages: 1, limit_bits: 18 }));
        unmap(domain, ranges[3]).expect("mapped");
        assert_eq!(map(domain, 8), Ok(IovaRange::new(ranges[3].first_pfn(), 8).expect("a range")));
    });
}
