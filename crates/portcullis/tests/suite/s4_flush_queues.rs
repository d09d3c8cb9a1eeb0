//! S4: what waits in a flush queue waits with its table pages.

use crate::raw_face::RawFace;
use portcullis::designs::{Choice, Stock};
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::table::Rights;
use portcullis::{Access, Capabilities, Domain, DomainConfig, Iommu, Iova, PAGE_SIZE, PhysAddr, Protection, SourceId};

const DEVICE: SourceId = SourceId(0x28);

/// An unmap takes table pages with it and waits, first or behind others; then the queue becomes full. The table pages go back
/// with its flush, and not before.
#[test]
fn table_pages_go_with_their_flush_and_not_before() {
    for queue in ["stock:queue=per-core", "stock:queue=global", "stock"] {
        for others_before in [0, 1, 100] {
            run_on(0);
            let host = FakeHost::default();
            let all = FakeIommu::new(&host).capabilities();
            let small_leaves = Capabilities { leaf_2m: false, leaf_1g: false, ..all };
            let iommu = FakeIommu::with_capabilities(&host, small_leaves);
            let choice = Choice::parse(queue).expect("a design");
            let config = DomainConfig { options: choice.options, ..DomainConfig::new(Protection::Deferred) };
            let domain = Domain::<Stock, _, _>::with_config(&iommu, &host, &config).expect("a domain");
            domain.attach(DEVICE).expect("a device");
            let map = |pfn: u64, pages: u64| -> Iova {
                domain.raw_map(PhysAddr::from_pfn(pfn), pages * PAGE_SIZE, Access::DeviceWrites).expect("room")
            };
            let unmap = |iova, pages: u64| domain.unmap_raw(iova, pages * PAGE_SIZE).expect("mapped");
            let large = map(0x1000, 512);
            let small: Vec<Iova> = (0..900).map(|number| map(0x9000 + number, 1)).collect();
            let (first, small) = small.split_first().expect("many");
            // A flush that is over, so that the numbers of flushes have begun.
            unmap(*first, 1);
            host.advance_us(20_000);
            domain.tick().expect("the hardware answers");
            let (before, behind) = small.split_at(others_before);
            before.iter().for_each(|iova| unmap(*iova, 1));
            assert!(iommu.access(DEVICE, large, Rights::WRITE).is_some());
            let lent = host.frames_lent();
            unmap(large, 512);
            iommu.take_commands();
            let went = behind.iter().position(|iova| {
                unmap(*iova, 1);
                // The fake panics as well, where the hardware may still walk what goes.
                let flushed = !iommu.take_commands().is_empty();
                assert!(flushed || host.frames_lent() == lent, "S4: {queue}: freed before any flush");
                host.frames_lent() < lent
            });
            assert!(went.is_some(), "{queue}: the queue never became full");
        }
    }
}
