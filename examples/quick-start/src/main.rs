//! Lends buffers to a device and takes them back once the device has lost them: one by one, in a batch, and by the
//! descriptor of a ring.

use portcullis::buffers::DmaArray;
use portcullis::designs::Portcullis;
use portcullis::domain::RingConfig;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{Access, Iova, Open, Protection, SourceId};
use std::error::Error;
use std::sync::Arc;

/// The network card: bus 0, device 5, function 0.
const NIC: SourceId = SourceId::new(0, 5, 0);

fn main() -> Result<(), Box<dyn Error>> {
    let host = Arc::new(FakeHost::default());
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, host.clone(), Protection::Strict)?;
    domain.attach(NIC)?;
    let nic_writes = |iova: Iova| iommu.access(NIC, iova, Rights::WRITE);

    // One buffer. The mapping owns the buffer while it is mapped, so the driver cannot touch it.
    let mapping = domain.map(DmaArray::new(host.clone(), 1)?, Access::DeviceWrites)?;
    let iova = mapping.iova();
    assert!(nic_writes(iova).is_some(), "the device writes to its page");
    let page = domain.unmap(mapping)?;
    assert_eq!(nic_writes(iova), None, "the device has lost the page, and the driver owns it again");
    println!("{page:?} was lent at {iova}");

    // Several buffers: one commit for all of them, and one wait.
    let mut batch = domain.batch();
    for _ in 0..32 {
        let mapping = domain.map(DmaArray::new(host.clone(), 1)?, Access::DeviceReads)?;
        batch.unmap(mapping)?;
    }
    let pages = batch.commit()?;
    println!("{} pages came back together", pages.len());

    // A ring of descriptors: the buffers of a descriptor have adjacent addresses, and are unmapped together.
    let mut ring = domain.ring(RingConfig { pages_per_descriptor: 16, ..RingConfig::default() })?;
    let pages = (0..16).map(|_| DmaArray::new(host.clone(), 1)).collect::<Result<_, _>>()?;
    let descriptor = ring.map(pages).expect("there is room for 16 pages");
    for mapping in descriptor.mappings() {
        assert!(nic_writes(mapping.iova()).is_some());
    }
    let pages = ring.unmap(descriptor).expect("they were mapped above");
    println!("{} pages of a descriptor came back", pages.len());
    Ok(())
}
