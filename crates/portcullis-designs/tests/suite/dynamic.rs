//! A domain whose design is chosen at run time: all functions that an adapter needs, under every design, from a
//! `static`.

use crate::raw_face::RawFace;
use portcullis::domain::{DmaBuffer, RingConfig};
use portcullis::invalidation::Revocation;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, DomainConfig, DynDomain, Iova, IovaRange, NewDomainError, Open, PAGE_SIZE, PhysAddr, Protection, Rule,
    Segment, SourceId, UnmapError,
};
use portcullis_designs::DesignId;
use std::sync::{Arc, OnceLock};

const DEVICE: SourceId = SourceId::from_requester(7);
/// The memory, for designs that map all of it.
const MEMORY: [Segment; 1] = [Segment { phys: PhysAddr::new(0), len: 64 << 20 }];

#[derive(Debug)]
struct Page(Segment);

// SAFETY: the segment never changes, and only the fake IOMMU reaches it.
unsafe impl DmaBuffer for Page {
    fn segments(&self) -> &[Segment] {
        core::slice::from_ref(&self.0)
    }
}

fn page(pfn: u64) -> Page {
    Page(Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE })
}

fn a_page(iova: Iova) -> IovaRange {
    IovaRange::covering(iova, 1).expect("a page")
}

fn open(design: DesignId, protection: Protection) -> (&'static FakeHost, &'static FakeIommu<'static>, Box<DynDomain>) {
    let host: &FakeHost = Box::leak(Box::default());
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    let config = DomainConfig { memory: &MEMORY, ..DomainConfig::new(protection) };
    let domain = match protection {
        // SAFETY: no memory is behind the IOMMU.
        Protection::None => unsafe { DynDomain::open_unprotected(design, iommu, host, &config) },
        _ => DynDomain::open(design, iommu, host, &config),
    };
    let domain = domain.expect("a protection that the design offers");
    domain.attach(DEVICE).expect("a device");
    (host, iommu, domain)
}

#[test]
fn a_design_that_is_chosen_at_run_time_does_what_it_does() {
    for &design in DesignId::ALL {
        let info = design.info();
        for protection in info.protections {
            let (host, iommu, domain) = open(design, *protection);
            assert_eq!((domain.info(), domain.protection()), (info, *protection));
            let (phys, len) = (PhysAddr::new(0x10_0123), 2 * PAGE_SIZE);
            let iova = domain.raw_map(phys, len, Access::DeviceWrites).expect("room");
            assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), Some(phys), "{} {protection}", info.id);
            domain.unmap_raw(iova, len).expect("mapped");
            // A batch that lies anywhere, such as in memory of a C caller.
            let mut batch = Box::new(Revocation::new());
            for pfn in [0x200, 0x300] {
                let iova = domain.raw_map(PhysAddr::from_pfn(pfn), PAGE_SIZE, Access::DeviceReads).expect("room");
                domain.unmap_raw_into(a_page(iova), &mut *batch).expect("mapped");
            }
            domain.commit_raw(&mut *batch).expect("the hardware answers");
            assert_eq!(domain.commit_raw(&mut *batch), Ok(()), "it is empty, and may be used again");
            if *protection == Protection::Strict && !info.breaks(*protection, Rule::Strict) {
                assert_eq!(domain.usage().window_us_max, Some(0), "{}", info.id);
            }
            domain.tick().expect("the hardware answers");
            assert!(domain.due_us().is_none() || !info.physical_addresses(), "{}: there is nothing to flush", info.id);
            domain.detach(DEVICE).expect("attached");
            drop(domain);
            assert_eq!(host.frames_lent(), 0, "{} {protection}", info.id);
        }
    }
}

#[test]
fn the_typed_face_and_rings_work_through_it() {
    for design in DesignId::ALL.iter().copied().filter(|one| one.info().protections.contains(&Protection::Strict)) {
        let (_, iommu, domain) = open(design, Protection::Strict);
        let mapping = domain.map(page(0x100), Access::DeviceWrites).expect("room");
        let iova = mapping.iova();
        assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), Some(PhysAddr::from_pfn(0x100)));
        assert_eq!(domain.unmap(mapping).expect("mapped").0.phys, PhysAddr::from_pfn(0x100));
        assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), None, "S2: {}", design.info().id);
        let mut ring = domain.ring(RingConfig { pages_per_descriptor: 4, ..RingConfig::default() }).expect("a ring");
        let descriptor = ring.map((0x400..0x404).map(page).collect()).expect("room");
        assert_eq!(ring.unmap(descriptor).expect("mapped").len(), 4);
        let mut batch = domain.batch();
        batch.unmap(domain.map(page(0x500), Access::DeviceReads).expect("room")).expect("mapped");
        assert_eq!(batch.commit().expect("the hardware answers").len(), 1);
    }
}

/// A mapping outlives the type of the domain that made it.
#[test]
fn a_domain_keeps_its_mappings_when_its_type_forgets_the_design() {
    let host: &FakeHost = Box::leak(Box::default());
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    let domain = portcullis::designs::Portcullis::open(iommu, host, Protection::Strict);
    let domain = domain.expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let mapping = domain.map(page(0x100), Access::DeviceWrites).expect("room");
    let domain: Box<DynDomain> = Box::new(domain);
    assert_eq!(iommu.access(DEVICE, mapping.iova(), Rights::WRITE), Some(PhysAddr::from_pfn(0x100)));
    domain.unmap(mapping).expect("mapped here");
}

/// The checks of `open_with`, and the commit of a revocation at a domain other than its own.
#[test]
fn what_cannot_be_is_refused() {
    let host: &FakeHost = Box::leak(Box::default());
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    let refused = |design: &str, config: DomainConfig<'_>| {
        DynDomain::open(DesignId::by_id(design).expect("a design"), iommu, host, &config).err()
    };
    assert_eq!(refused("solaris", DomainConfig::new(Protection::Strict)), Some(NewDomainError::Protection));
    assert_eq!(refused("stock", DomainConfig::new(Protection::None)), Some(NewDomainError::Protection));
    assert_eq!(refused("none", DomainConfig::new(Protection::None)), Some(NewDomainError::Unprotected));
    let narrow = DomainConfig { address_bits: 12, ..DomainConfig::new(Protection::Strict) };
    assert_eq!(refused("stock", narrow), Some(NewDomainError::Width(12)));

    let [one, other] = [(); 2].map(|()| {
        let config = DomainConfig::new(Protection::Strict);
        DynDomain::open(DesignId::Magazine, iommu, host, &config).expect("a domain")
    });
    let [first, second] = [&one, &other]
        .map(|domain| domain.raw_map(PhysAddr::from_pfn(9), PAGE_SIZE, Access::DeviceReads).expect("room"));
    let mut batch = Revocation::new();
    one.unmap_raw_into(a_page(first), &mut batch).expect("mapped");
    let wrong = other.unmap_raw_into(a_page(second), &mut batch);
    assert_eq!(wrong, Err(UnmapError::WrongDomain));
    one.commit_raw(&mut batch).expect("the hardware answers");
    other.unmap_raw(second, PAGE_SIZE).expect("it is still mapped");
}

/// The use by `Hal` of virtio-drivers: its functions have no `self`, so its domain is in a static.
#[test]
fn it_fits_into_a_static() {
    static DOMAIN: OnceLock<Arc<DynDomain>> = OnceLock::new();
    let domain = DOMAIN.get_or_init(|| Arc::from(open(DesignId::Portcullis, Protection::Strict).2));
    let elsewhere = domain.clone();
    let iova = std::thread::spawn(move || elsewhere.raw_map(PhysAddr::from_pfn(5), PAGE_SIZE, Access::DeviceReads));
    let iova = iova.join().expect("no panic").expect("room");
    domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
}
