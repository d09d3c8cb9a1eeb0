//! A machine whose physical addresses are the addresses of this process, so that drivers and devices share its memory.

use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::Addressing;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Capabilities, DomainConfig, DynDomain, Iommu, Iova, IovaRange, PAGE_SIZE, PhysAddr, Protection, Segment, SourceId,
    SubPage,
};
use portcullis_designs::DesignId;
use std::alloc::Layout;
use std::ptr::NonNull;

pub(crate) const DEVICE: SourceId = SourceId::new(0, 3, 0);

/// A machine that lives as long as the program, because adapters are statics.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) host: &'static FakeHost,
    pub(crate) iommu: &'static FakeIommu<'static>,
}

/// Designs that offer strict protection and map a list of pages to one run of addresses. These interfaces have one
/// address and one length for a buffer, so they cannot use one run per segment.
pub(crate) fn designs() -> impl Iterator<Item = DesignId> {
    let fits = |design: &&DesignId| {
        let info = design.info();
        info.protections.contains(&Protection::Strict) && !matches!(info.addressing, Addressing::Entries { .. })
    };
    DesignId::ALL.iter().filter(fits).copied()
}

impl Machine {
    pub(crate) fn new() -> Self {
        let host: &FakeHost = Box::leak(Box::new(FakeHost::of_process()));
        Self { host, iommu: Box::leak(Box::new(FakeIommu::new(host))) }
    }

    /// A machine on which maps invalidate, because the hardware caches absent entries.
    pub(crate) fn that_caches_absent() -> Self {
        let Self { host, iommu } = Self::new();
        let capabilities = Capabilities { caches_absent: true, ..iommu.capabilities() };
        Self { host, iommu: Box::leak(Box::new(FakeIommu::with_capabilities(host, capabilities))) }
    }

    /// A strict domain with the device attached.
    pub(crate) fn domain(self, design: DesignId, address_bits: u8, sub_page: SubPage) -> Box<DynDomain> {
        let config = DomainConfig { address_bits, sub_page, ..DomainConfig::new(Protection::Strict) };
        let domain = DynDomain::open(design, self.iommu, self.host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        domain
    }

    /// The physical address that the device reaches at `iova`; `None` if the access is refused.
    pub(crate) fn reached(self, iova: u64, rights: Rights) -> Option<PhysAddr> {
        self.iommu.access(DEVICE, Iova::new(iova), rights)
    }

    /// Whether the device reaches a page of the domain's own at `iova`.
    pub(crate) fn is_bounced(self, iova: u64, rights: Rights) -> bool {
        let page = |phys: PhysAddr| PhysAddr::new(phys.as_u64() - phys.page_offset());
        self.reached(iova, rights).is_some_and(|phys| self.host.hardware_page(page(phys), true).is_some())
    }

    /// Reads memory as the device.
    pub(crate) fn read<const LEN: usize>(self, iova: u64) -> [u8; LEN] {
        core::array::from_fn(|at| {
            let phys = self.reached(iova + at as u64, Rights::READ).expect("the device may read it");
            // SAFETY: mapped memory is memory of this process, which its owner leaves to the device.
            unsafe { pointer(phys).read_volatile() }
        })
    }

    /// Writes memory as the device.
    pub(crate) fn write(self, iova: u64, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            let phys = self.reached(iova + at as u64, Rights::WRITE).expect("the device may write it");
            // SAFETY: as above.
            unsafe { pointer(phys).write_volatile(*byte) };
        }
    }
}

fn pointer(phys: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(phys.as_u64() as usize)
}

/// The physical address of a byte of this process.
pub(crate) fn phys(at: NonNull<u8>) -> PhysAddr {
    PhysAddr::new(at.as_ptr().expose_provenance() as u64)
}

/// The pages of a buffer, one by one, as a page table would list them.
pub(crate) fn pages_of(at: NonNull<u8>, len: usize) -> impl Iterator<Item = Segment> {
    let (start, end) = (phys(at).as_u64(), phys(at).as_u64() + len as u64);
    let first = start - start % PAGE_SIZE;
    (first..end).step_by(PAGE_SIZE as usize).map(move |page| {
        let from = page.max(start);
        Segment { phys: PhysAddr::new(from), len: (page + PAGE_SIZE).min(end) - from }
    })
}

/// The device's address of the first byte of a mapping at `range` whose first segment is `first`.
pub(crate) fn first_iova(domain: &DynDomain, first: Segment, range: IovaRange) -> Iova {
    domain.info().addressing.segment_iova(&[first], 0, range)
}

/// Whole pages for `bytes` bytes, aligned to `align` and to a page.
pub(crate) fn whole_pages(bytes: usize, align: usize) -> Layout {
    let page = PAGE_SIZE as usize;
    Layout::from_size_align(bytes.next_multiple_of(page), align.max(page)).expect("a layout")
}
