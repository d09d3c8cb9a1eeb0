//! Maps and unmaps of one buffer within a page: the shortest path through every design, and the one that the benchmarks
//! time.

use crate::raw_face::RawFace;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::{Design, Visitor};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, DomainOf, Iommu, Iova, MapError, Open, PAGE_SIZE, PhysAddr, Protection,
    Segment, SourceId,
};
use portcullis_designs::{DesignId, Portcullis};

const DEVICE: SourceId = SourceId::new(0, 5, 0);

type OnFakes<'h, D> = DomainOf<D, &'h FakeHost, &'h FakeIommu<'h>>;

fn on<R>(
    coherent: bool,
    change: impl Fn(&mut Capabilities),
    run: impl FnOnce(&FakeHost, &FakeIommu<'_>, &OnFakes<'_, Portcullis>) -> R,
) -> R {
    let host = FakeHost::default();
    let mut capabilities = FakeIommu::new(&host).capabilities();
    capabilities.coherent = coherent;
    change(&mut capabilities);
    let iommu = FakeIommu::with_capabilities(&host, capabilities);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    // The first map takes the long path, because its table is missing.
    domain.raw_map(PhysAddr::from_pfn(5), PAGE_SIZE, Access::DeviceWrites).expect("room");
    run(&host, &iommu, &domain)
}

fn map(domain: &OnFakes<'_, Portcullis>, pfn: u64) -> Result<Iova, MapError> {
    domain.raw_map(PhysAddr::from_pfn(pfn), PAGE_SIZE, Access::DeviceWrites)
}

/// S1: a map invalidates if the hardware caches absent entries.
#[test]
fn a_map_is_invalidated_where_absent_entries_are_cached() {
    on(
        true,
        |all| all.caches_absent = true,
        |_, iommu, domain| {
            iommu.take_commands();
            for pfn in 6..300 {
                let iova = map(domain, pfn).expect("room");
                assert_eq!(iommu.take_commands().len(), 1, "{pfn}");
                assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), Some(PhysAddr::from_pfn(pfn)));
                // The device finds the next page absent before it is mapped.
                assert_eq!(iommu.access(DEVICE, Iova::from_pfn(iova.pfn() + 1), Rights::WRITE), None);
            }
        },
    );
}

/// S11: after a failed invalidation, nothing is mapped.
#[test]
fn a_poisoned_domain_maps_no_page() {
    on(
        true,
        |_| {},
        |_, iommu, domain| {
            let gone = map(domain, 6).expect("room");
            iommu.behave(Behaviour::Failing);
            domain.unmap_raw(gone, PAGE_SIZE).expect_err("the hardware refuses");
            iommu.behave(Behaviour::Prompt);
            for pfn in 7..200 {
                assert_eq!(map(domain, pfn), Err(MapError::Poisoned));
            }
        },
    );
}

/// S1: memory beyond the physical addresses of the IOMMU is refused, exactly from the first page.
#[test]
fn memory_that_the_iommu_cannot_address_is_refused() {
    for bits in [36, 40, 46, 52] {
        on(
            true,
            |all| all.physical_bits = bits,
            |_, _, domain| {
                let end = 1u64 << (bits - 12);
                map(domain, end - 1).expect("the last page");
                for pfn in [end, end + 1] {
                    let phys = PhysAddr::from_pfn(pfn);
                    assert_eq!(map(domain, pfn), Err(MapError::PhysicalRange(phys)), "{bits} bits");
                }
            },
        );
    }
}

/// A buffer needs one more page as soon as its last byte lies in it. It is unmapped with the length that it was mapped
/// with.
#[test]
fn a_buffer_ends_where_its_last_byte_lies() {
    on(
        true,
        |_| {},
        |_, iommu, domain| {
            for offset in [0, 1, 64, 4095] {
                for len in [1, 2, 4095, 4096, 4097, 8192] {
                    let phys = PhysAddr::new(0x8000 + offset);
                    let iova = domain.raw_map(phys, len, Access::DeviceWrites).expect("room");
                    assert_eq!(iova.page_offset(), offset);
                    let last = Iova::new(iova.as_u64() + len - 1);
                    let reached = |iova| iommu.access(DEVICE, iova, Rights::WRITE);
                    assert_eq!(reached(last), Some(PhysAddr::new(phys.as_u64() + len - 1)), "{offset} {len}");
                    let behind = Iova::from_pfn(last.pfn() + 1);
                    assert_eq!(reached(behind), None, "S1: {offset} {len}");
                    domain.unmap_raw(iova, len).expect("mapped");
                    assert_eq!((reached(iova), reached(last)), (None, None), "S2: {offset} {len}");
                }
            }
        },
    );
}

struct GivesRights<'h>(&'h FakeHost, &'h FakeIommu<'h>, Protection);

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for GivesRights<'h> {
    type Output = ();

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) {
        let Self(host, iommu, protection) = self;
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 20 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
        let domain = D::open_with(iommu, host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        let rights = [
            (Access::DeviceReads, Rights::READ),
            (Access::DeviceWrites, Rights::WRITE),
            (Access::DeviceReadsAndWrites, Rights::READ_WRITE),
        ];
        for pfn in 5..100 {
            for (access, granted) in rights {
                let iova = domain.raw_map(PhysAddr::from_pfn(pfn), PAGE_SIZE, access).expect("room");
                for tried in [Rights::READ, Rights::WRITE] {
                    let reached = iommu.access(DEVICE, iova, tried).is_some();
                    assert_eq!(reached, granted.allows(tried), "S5: {} {access:?} {tried:?}", D::INFO.id);
                }
            }
        }
    }
}

/// S5: no map, the first or a later one, gives a right that was not requested.
#[test]
fn no_map_gives_wider_rights() {
    for &design in DesignId::ALL {
        for &protection in design.info().protections.iter().filter(|protection| **protection != Protection::None) {
            let host = FakeHost::default();
            let iommu = FakeIommu::new(&host);
            design.visit(GivesRights(&host, &iommu, protection));
        }
    }
}

/// S1, S2: if the page walker does not snoop, each entry that is written or cleared is made visible before the map or
/// unmap returns.
#[test]
fn walkers_that_do_not_snoop_see_every_map_and_unmap() {
    on(
        false,
        |_| {},
        |_, iommu, domain| {
            for pfn in 6..300 {
                let iova = map(domain, pfn).expect("room");
                assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), Some(PhysAddr::from_pfn(pfn)), "S1");
                if pfn % 3 > 0 {
                    domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
                    assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), None, "S2");
                }
            }
        },
    );
}
