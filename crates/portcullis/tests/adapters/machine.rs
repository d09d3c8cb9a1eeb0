//! A machine whose physical addresses are those of this process: drivers and devices share its memory.

use portcullis::design::Addressing;
use portcullis::designs::DesignId;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Capabilities, DomainConfig, DynDomain, Iommu, Iova, IovaRange, PAGE_SIZE, PhysAddr, Protection, Segment, SourceId,
    SubPage,
};
use std::alloc::Layout;
use std::ptr::NonNull;

pub(crate) const DEVICE: SourceId = SourceId(0x18);

/// A machine for as long as the program runs, for adapters are statics.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) host: &'static FakeHost,
    pub(crate) iommu: &'static FakeIommu<'static>,
}

/// Designs that offer strict protection and show a list of pages as one run of addresses: these interfaces have one address and one
/// length for a buffer, so that they have no use for a run for each segment.
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

    /// One whose maps invalidate, because its hardware caches that there was nothing.
    pub(crate) fn that_caches_absent() -> Self {
        let Self { host, iommu } = Self::new();
        let capabilities = Capabilities { caches_absent: true, ..iommu.capabilities() };
        Self { host, iommu: Box::leak(Box::new(FakeIommu::with_capabilities(host, capabilities))) }
    }

    /// A strict domain with the device in it.
    pub(crate) fn domain(self, design: DesignId, address_bits: u8, sub_page: SubPage) -> DynDomain {
        let config = DomainConfig { address_bits, sub_page, ..DomainConfig::new(Protection::Strict) };
        let domain = DynDomain::open(design, self.iommu, self.host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        domain
    }

    /// Where the device gets to; `None` where it is refused.
    pub(crate) fn reached(self, iova: u64, rights: Rights) -> Option<PhysAddr> {
        self.iommu.access(DEVICE, Iova::new(iova), rights)
    }

    /// Whether the device gets to a page of the library's own there.
    pub(crate) fn is_bounced(self, iova: u64, rights: Rights) -> bool {
        let page = |phys: PhysAddr| PhysAddr::new(phys.as_u64() - phys.page_offset());
        self.reached(iova, rights).is_some_and(|phys| self.host.hardware_page(page(phys), true).is_some())
    }

    /// What the device reads.
    pub(crate) fn read<const LEN: usize>(self, iova: u64) -> [u8; LEN] {
        core::array::from_fn(|at| {
            let phys = self.reached(iova + at as u64, Rights::READ).expect("the device may read it");
            // SAFETY: what is mapped is memory of this process, which its owner leaves to the device.
            unsafe { pointer(phys).read_volatile() }
        })
    }

    /// Has the device write.
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

/// Where a byte of this process lies physically.
pub(crate) fn phys(at: NonNull<u8>) -> PhysAddr {
    PhysAddr::new(at.as_ptr().expose_provenance() as u64)
}

/// The pages of a buffer, one by one, as a page table would tell them.
pub(crate) fn pages_of(at: NonNull<u8>, len: usize) -> impl Iterator<Item = Segment> {
    let (start, end) = (phys(at).as_u64(), phys(at).as_u64() + len as u64);
    let first = start - start % PAGE_SIZE;
    (first..end).step_by(PAGE_SIZE as usize).map(move |page| {
        let from = page.max(start);
        Segment { phys: PhysAddr::new(from), len: (page + PAGE_SIZE).min(end) - from }
    })
}

/// Where the device sees the first byte of a mapping at `range` whose first segment is `first`.
pub(crate) fn first_iova(domain: &DynDomain, first: Segment, range: IovaRange) -> Iova {
    domain.info().addressing.segment_iova(&[first], 0, range)
}

/// Whole pages for `bytes` bytes, aligned as asked for and as pages are.
pub(crate) fn whole_pages(bytes: usize, align: usize) -> Layout {
    let page = PAGE_SIZE as usize;
    Layout::from_size_align(bytes.next_multiple_of(page), align.max(page)).expect("a layout")
}
