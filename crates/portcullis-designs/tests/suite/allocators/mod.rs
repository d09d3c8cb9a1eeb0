//! The allocators of Linux, past and present, and of other systems, as the papers describe them.

mod buddy;
mod eiovar;
mod gap_tree;
mod kmalloc;
mod magazine;
mod stock;
mod streams;
mod vmem;
mod windows;

use crate::counting::Counting;
use crate::raw_face::RawFace;
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::{Design, Options};
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{
    Access, Capabilities, DomainConfig, DomainOf, Iommu, IovaRange, Open, PAGE_SIZE, PhysAddr, Protection,
};

/// One past the last page below 4 GiB, where the search begins.
const TOP: u64 = 1 << 20;

/// A domain on a host that counts the steps of its allocator.
struct Bench<'h, D: Design<&'h Counting<'h>, &'h FakeIommu<'h>>> {
    host: &'h Counting<'h>,
    iommu: &'h FakeIommu<'h>,
    domain: DomainOf<D, &'h Counting<'h>, &'h FakeIommu<'h>>,
}

impl<'h, D: Design<&'h Counting<'h>, &'h FakeIommu<'h>>> Bench<'h, D> {
    fn map_pages(&self, pages: u64) -> IovaRange {
        let iova = self.domain.raw_map(PhysAddr::new(0), pages * PAGE_SIZE, Access::DeviceWrites).expect("room");
        IovaRange::covering(iova, pages * PAGE_SIZE).expect("mapped")
    }

    /// Maps a page; returns its number and how many nodes the search passed.
    fn map(&self) -> (u64, usize) {
        self.host.take();
        let pfn = self.map_pages(1).first_pfn();
        (pfn, self.host.take().searched)
    }

    fn unmap(&self, range: IovaRange) {
        self.domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE).expect("mapped");
    }

    fn unmap_page(&self, pfn: u64) {
        self.unmap(IovaRange::new(pfn, 1).expect("a page"));
    }
}

/// Runs `test` on a domain of design `D` with these options, protection and address width, on hardware without large
/// leaves.
fn on<D>(options: &str, protection: Protection, address_bits: u8, test: impl FnOnce(&Bench<'_, D>))
where
    D: for<'h> Design<&'h Counting<'h>, &'h FakeIommu<'h>>,
{
    run_on(0);
    let host = FakeHost::default();
    let counting = Counting::new(&host);
    let capabilities = Capabilities { leaf_2m: false, leaf_1g: false, ..FakeIommu::new(&host).capabilities() };
    let iommu = FakeIommu::with_capabilities(&host, capabilities);
    let parse = || Options::parse(D::INFO.options, options).expect("options of the design");
    let options = if options.is_empty() { Options::NONE } else { parse() };
    let config = DomainConfig { address_bits, options, ..DomainConfig::new(protection) };
    let domain = D::open_with(&iommu, &counting, &config).expect("a domain");
    test(&Bench { host: &counting, iommu: &iommu, domain });
}
