//! Lends buffers to a device and takes them back once the device has lost them: one by one, in a batch, and by the
//! descriptor of a ring.

use portcullis::designs::Portcullis;
use portcullis::domain::{DmaBuffer, RingConfig};
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{Access, Iova, Open, PAGE_SIZE, PhysAddr, Protection, Segment, SourceId};
use std::error::Error;

/// The network card: bus 0, device 5, function 0.
const NIC: SourceId = SourceId::new(0, 5, 0);

/// A page of memory that it owns. A driver would allocate it, and know its physical address.
#[derive(Debug)]
struct Page([Segment; 1]);

impl Page {
    fn new(number: u64) -> Self {
        Self([Segment { phys: PhysAddr::from_pfn(number), len: PAGE_SIZE }])
    }
}

// SAFETY: the segment never changes, and no Rust object lies there: the fake IOMMU has no memory behind it.
unsafe impl DmaBuffer for Page {
    fn segments(&self) -> &[Segment] {
        &self.0
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
    domain.attach(NIC)?;
    let nic_writes = |iova: Iova| iommu.access(NIC, iova, Rights::WRITE);

    // One buffer. The mapping owns the buffer while it is mapped, so the driver cannot touch it.
    let mapping = domain.map(Page::new(100), Access::DeviceWrites)?;
    let iova = mapping.iova();
    assert_eq!(nic_writes(iova), Some(PhysAddr::from_pfn(100)), "the device writes to its page");
    let page = domain.unmap(mapping)?;
    assert_eq!(nic_writes(iova), None, "the device has lost the page, and the driver owns it again");
    println!("{page:?} was lent at {iova}");

    // Several buffers: one commit for all of them, and one wait.
    let mut batch = domain.batch();
    for number in 200..232 {
        let mapping = domain.map(Page::new(number), Access::DeviceReads)?;
        batch.unmap(mapping)?;
    }
    let pages = batch.commit()?;
    println!("{} pages came back together", pages.len());

    // A ring of descriptors: the buffers of a descriptor have adjacent addresses, and are unmapped together.
    let mut ring = domain.ring(RingConfig { pages_per_descriptor: 16, ..RingConfig::default() })?;
    let descriptor = ring.map((300..316).map(Page::new).collect()).expect("there is room for 16 pages");
    for mapping in descriptor.mappings() {
        assert!(nic_writes(mapping.iova()).is_some());
    }
    let pages = ring.unmap(descriptor).expect("they were mapped above");
    println!("{} pages of a descriptor came back", pages.len());
    Ok(())
}
