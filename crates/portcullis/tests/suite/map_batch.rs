//! Maps made together: how much is flushed for them, what comes back when one fails.

use crate::counting::Counting;
use crate::raw_face::RawFace;
use portcullis::designs::{Magazine, Portcullis};
use portcullis::domain::{DmaBuffer, RUN_BUFFERS_MAX, Refused, RingConfig};
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, Domain, Iommu, Iova, MapError, PAGE_SIZE, PhysAddr, Protection, RawMapError, Segment,
    SourceId,
};

#[derive(Debug, PartialEq)]
struct Pages(Vec<Segment>);

// SAFETY: nothing is at its segments but what the fake IOMMU makes of them; they never change.
unsafe impl DmaBuffer for Pages {
    fn segments(&self) -> &[Segment] {
        &self.0
    }
}

fn pages(pfn: u64, count: u64) -> Segment {
    Segment { phys: PhysAddr::from_pfn(pfn), len: count * PAGE_SIZE }
}

fn page(pfn: u64) -> Pages {
    Pages(vec![pages(pfn, 1)])
}

/// A line of eight entries is flushed once for the maps of a batch, and once for their unmaps; one by one, once for each.
#[test]
fn a_line_is_flushed_twice_for_eight_pages() {
    const BATCH: u64 = 64;
    let fake = FakeHost::default();
    let host = Counting::new(&fake);
    let capabilities = Capabilities { coherent: false, ..FakeIommu::new(&fake).capabilities() };
    let iommu = FakeIommu::with_capabilities(&fake, capabilities);
    for protection in [Protection::Strict, Protection::Deferred] {
        let domain = Domain::<Portcullis, _, _>::new(&iommu, &host, protection).expect("a domain");
        let buffers: Vec<Segment> = (0..BATCH).map(|page| pages(100 + 2 * page, 1)).collect();
        // Whatever a chunk and a table take is flushed by now.
        let warm: Vec<Iova> =
            buffers.iter().map(|one| domain.raw_map(one.phys, one.len, Access::DeviceWrites).expect("room")).collect();
        let lines = || host.take().lines;
        for iova in warm {
            domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
        }
        let mut iovas = Vec::new();
        lines();
        // SAFETY: no memory is behind the IOMMU of a test.
        unsafe { domain.map_raw_batch(&buffers, Access::DeviceWrites, |iova| iovas.push(iova)) }.expect("room");
        assert_eq!(lines() as u64, BATCH / 8, "{protection:?}: maps");
        let mut batch = domain.raw_batch();
        iovas.iter().for_each(|iova| batch.unmap_raw(*iova, PAGE_SIZE).expect("mapped"));
        assert_eq!(lines(), 0, "{protection:?}: before the commit");
        batch.commit().expect("the hardware answers");
        assert_eq!(lines() as u64, BATCH / 8, "{protection:?}: unmaps");
        for one in &buffers {
            let iova = domain.raw_map(one.phys, one.len, Access::DeviceWrites).expect("room");
            domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
        }
        assert_eq!(lines() as u64, 2 * BATCH, "{protection:?}: one by one");
    }
}

/// Pages and others in any order: each leads to its own memory, and comes back in its turn.
#[test]
fn buffers_of_any_shape_are_mapped_together() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Domain::<Portcullis, _, _>::new(&iommu, &host, Protection::Strict).expect("a domain");
    const DEVICE: SourceId = SourceId(0x28);
    domain.attach(DEVICE).expect("a device");
    let buffer = |number: u64| match number % 7 {
        3 => Pages(vec![pages(1000 * number, 3)]),
        5 => Pages(vec![pages(1000 * number, 1), pages(1000 * number + 7, 2)]),
        _ => page(1000 * number),
    };
    let mut ring =
        domain.ring(RingConfig { access: Access::DeviceReadsAndWrites, ..RingConfig::default() }).expect("a ring");
    let mut mappings = Vec::new();
    ring.map_batch((1..60).map(buffer), |mapping| mappings.push(mapping)).expect("room");
    assert_eq!(mappings.len(), 59);
    for (mapping, number) in mappings.iter().zip(1..) {
        let reached: Vec<_> = (mapping.range().first_pfn()..mapping.range().end_pfn())
            .map(|pfn| iommu.access(DEVICE, Iova::from_pfn(pfn), Rights::WRITE).expect("mapped").pfn())
            .collect();
        let pfns =
            buffer(number).0.iter().flat_map(|one| one.phys.pfn()..one.phys.pfn() + one.pages()).collect::<Vec<_>>();
        assert_eq!(reached, pfns, "buffer {number}");
    }
    let mut batch = domain.batch();
    mappings.into_iter().for_each(|mapping| batch.unmap(mapping).expect("mapped"));
    let back = batch.commit_so_far().expect("the hardware answers");
    assert!(back.eq((1..60).map(buffer)));
    assert_eq!(domain.usage().live_ranges, 0);
}

/// What a failed map was given and did not map is back, those that were mapped stay so, and the rest was never taken.
#[test]
fn a_buffer_that_is_refused_ends_the_batch() {
    fn refuses<D: portcullis::design::Design<&'static FakeHost, &'static FakeIommu<'static>>>() {
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        let domain = Domain::<D, _, _>::new(iommu, host, Protection::Strict).expect("a domain");
        let beyond = 1 << (iommu.capabilities().physical_bits - 12);
        for bad in [0, 1, 9, 15, 16, 20] {
            let buffer = |number| page(if number == bad { beyond } else { 100 + number });
            let (mut rest, mut mapped) = ((0..40).map(buffer), Vec::new());
            let refused = domain.map_batch(rest.by_ref(), Access::DeviceWrites, |mapping| mapped.push(mapping));
            let Err(Refused { value, error }) = refused else { panic!("memory that there is not") };
            assert_eq!(error, RawMapError::Refused(MapError::PhysicalRange(PhysAddr::from_pfn(beyond))));
            // None of the run of the bad one is mapped in a chunk; under other designs those before it are.
            assert!(mapped.len() as u64 <= bad && value.len() <= RUN_BUFFERS_MAX, "{} before {bad}", mapped.len());
            let first = mapped.len() as u64;
            assert!((first..first + value.len() as u64).contains(&bad), "{bad} is not among those that came back");
            assert!(value.iter().eq((first..first + value.len() as u64).map(buffer).collect::<Vec<_>>().iter()));
            assert!(rest.eq((first + value.len() as u64..40).map(buffer)));
            for mapping in mapped {
                domain.unmap(mapping).expect("mapped");
            }
        }
        assert_eq!(domain.usage().live_ranges, 0);
    }
    refuses::<Portcullis>();
    refuses::<Magazine>();
}

/// After a failed invalidation no buffer of the batch is given back, and none is freed.
#[test]
fn a_batch_that_is_not_taken_is_freed_and_one_that_failed_is_lost() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Domain::<Portcullis, _, _>::new(&iommu, &host, Protection::Strict).expect("a domain");
    let mut mappings = Vec::new();
    domain.map_batch((1..9).map(page), Access::DeviceWrites, |mapping| mappings.push(mapping)).expect("room");
    let lost = portcullis::domain::lost_buffers;
    let before = lost();
    let mut batch = domain.batch();
    for mapping in mappings.drain(..4) {
        batch.unmap(mapping).expect("mapped");
    }
    assert_eq!(batch.commit_so_far().expect("the hardware answers").len(), 4);
    assert_eq!(lost(), before, "they are freed");
    for mapping in mappings {
        batch.unmap(mapping).expect("mapped");
    }
    iommu.behave(Behaviour::Failing);
    assert!(batch.commit_so_far().is_err());
    assert!(lost() >= before + 4);
    iommu.behave(Behaviour::Prompt);
    assert_eq!(batch.commit_so_far().expect("nothing is left").len(), 0);
}
