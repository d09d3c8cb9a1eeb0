//! S4: the table pages of a queued unmap wait in the flush queue with it.

use crate::raw_face::RawFace;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, Iommu, Iova, MapOptions, Open, PAGE_SIZE, PhysAddr, Platform, Protection,
    SourceId, Stream,
};
use portcullis_designs::{Choice, Portcullis, Stock};
use proptest::collection::vec;
use proptest::prelude::*;

const DEVICE: SourceId = SourceId::new(0, 5, 0);

/// An unmap that removes table pages waits in the queue, first or behind others. Then the queue becomes full. The flush
/// frees the table pages, and nothing does before it.
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
            let domain = Stock::open_with(&iommu, &host, &config).expect("a domain");
            domain.attach(DEVICE).expect("a device");
            let map = |pfn: u64, pages: u64| -> Iova {
                domain.raw_map(PhysAddr::from_pfn(pfn), pages * PAGE_SIZE, Access::DeviceWrites).expect("room")
            };
            let unmap = |iova, pages: u64| domain.unmap_raw(iova, pages * PAGE_SIZE).expect("mapped");
            let large = map(0x1000, 512);
            let small: Vec<Iova> = (0..900).map(|number| map(0x9000 + number, 1)).collect();
            let (first, small) = small.split_first().expect("many");
            // A flush that is over, so that flushes have numbers above zero.
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
                // The fake also panics if the hardware may still walk a freed page.
                let flushed = !iommu.take_commands().is_empty();
                assert!(flushed || host.frames_lent() == lent, "S4: {queue}: freed before any flush");
                host.frames_lent() < lent
            });
            assert!(went.is_some(), "{queue}: the queue never became full");
        }
    }
}

proptest! {
    /// S7: for unmaps of a CPU in any order, by ring or at random, no more wait than the limit, and the latest ones
    /// wait.
    #[test]
    fn no_more_wait_on_a_cpu_than_may(unmaps in vec((0..4usize, any::<bool>()), 1..500)) {
        run_on(0);
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Portcullis::open(&iommu, &host, Protection::Deferred).expect("a domain");
        let most = domain.usage().queued_unmaps_max / host.cpus() as usize;
        prop_assert_eq!(most, 128);
        let mut rings: Vec<Vec<Iova>> = (0..4u32).map(|ring| {
            let options = MapOptions { stream: Stream(Some(ring)), ..MapOptions::default() };
            let map = |page: u64| domain.raw_map_with(PhysAddr::from_pfn(0x1000 + page), PAGE_SIZE, Access::DeviceWrites, &options);
            (0..unmaps.len() as u64).map(|page| map(page).expect("room")).collect()
        }).collect();
        let mut flushes = 0;
        for (number, (ring, in_order)) in unmaps.iter().enumerate() {
            let ring = &mut rings[*ring];
            let iova = ring.remove(if *in_order { 0 } else { ring.len() / 2 });
            domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
            flushes += usize::from(!iommu.take_commands().is_empty());
            let waiting = domain.usage().queued_unmaps;
            prop_assert!((1..=most).contains(&waiting), "{} unmaps wait", waiting);
            prop_assert!(flushes > 0 || waiting == number + 1, "{} of {} unmaps wait", waiting, number + 1);
            prop_assert!(domain.due_us().is_some());
        }
        // Each flush serves at least half of a queue.
        prop_assert!(flushes <= unmaps.len() / (most / 2));
        host.advance_us(500);
        domain.tick().expect("the hardware answers");
        prop_assert_eq!((domain.usage().queued_unmaps, domain.due_us()), (0, None));
    }

    /// S7: unmaps that were joined are counted one by one, also if the batch contains a placed mapping.
    #[test]
    fn a_batch_with_a_placed_mapping_counts_its_unmaps(pages in 1..63u64) {
        run_on(0);
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Portcullis::open(&iommu, &host, Protection::Deferred).expect("a domain");
        let options = MapOptions { at: Some(Iova::new(0x4000_0000)), ..MapOptions::default() };
        let placed = domain.raw_map_with(PhysAddr::from_pfn(1), PAGE_SIZE, Access::DeviceWrites, &options).expect("a place");
        let map = |page| domain.raw_map(PhysAddr::from_pfn(100 + page), PAGE_SIZE, Access::DeviceWrites).expect("room");
        let iovas: Vec<Iova> = (0..pages).map(map).collect();
        let mut batch = domain.raw_batch();
        let (before, behind) = iovas.split_at(iovas.len() / 2);
        for iova in before.iter().chain([&placed]).chain(behind) {
            batch.unmap_raw(*iova, PAGE_SIZE).expect("mapped");
        }
        batch.commit().expect("the hardware answers");
        prop_assert_eq!(domain.usage().queued_unmaps as u64, pages);
    }
}
