//! Maps that are made together: how many lines are flushed, and which buffers come back when one fails.

use crate::counting::Counting;
use crate::raw_face::RawFace;
use portcullis::designs::{Magazine, Portcullis};
use portcullis::domain::{DmaBuffer, RUN_BUFFERS_MAX, Refused, RingConfig};
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, Iommu, Iova, MapError, Open, PAGE_SIZE, PhysAddr, Protection, RawMapError, Segment, SourceId,
};

#[derive(Debug, PartialEq)]
struct Pages(Vec<Segment>);

// SAFETY: no memory is at its segments: only the fake IOMMU uses them. They never change.
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

/// A host that counts, and an IOMMU whose walks do not snoop.
fn not_snooping(fake: &FakeHost) -> (Counting<'_>, FakeIommu<'_>) {
    let capabilities = Capabilities { coherent: false, ..FakeIommu::new(fake).capabilities() };
    (Counting::new(fake), FakeIommu::with_capabilities(fake, capabilities))
}

/// A cache line of eight entries is flushed once for the maps of a batch and once for their unmaps. One by one, it is
/// flushed for each map and unmap.
#[test]
fn a_line_is_flushed_twice_for_eight_pages() {
    const BATCH: u64 = 64;
    let fake = FakeHost::default();
    let (host, iommu) = not_snooping(&fake);
    for protection in [Protection::Strict, Protection::Deferred] {
        let domain = Portcullis::open(&iommu, &host, protection).expect("a domain");
        let buffers: Vec<Segment> = (0..BATCH).map(|page| pages(100 + 2 * page, 1)).collect();
        // These maps flush the entries of the chunk and of the table.
        let warm: Vec<Iova> =
            buffers.iter().map(|one| domain.raw_map(one.phys, one.len, Access::DeviceWrites).expect("room")).collect();
        let lines = || host.take().lines;
        for iova in warm {
            domain.unmap_raw(iova, PAGE_SIZE).expect("mapped");
        }
        let mut iovas = Vec::new();
        lines();
        // SAFETY: the IOMMU of a test has no memory behind it.
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

/// Unmaps of two streams in turn, as of packets whose headers have buffers of their own: a line is flushed once for the
/// batch, and each stream takes one command.
#[test]
fn streams_that_alternate_take_no_line_and_no_command_twice() {
    const EACH: u64 = 32;
    let fake = FakeHost::default();
    let (host, iommu) = not_snooping(&fake);
    for protection in [Protection::Strict, Protection::Deferred] {
        let domain = Portcullis::open(&iommu, &host, protection).expect("a domain");
        let [first, second] = [Access::DeviceWrites, Access::DeviceReads].map(|access| {
            let buffers: Vec<Segment> = (0..EACH).map(|page| pages(100 + 2 * page, 1)).collect();
            let mut iovas = Vec::new();
            // SAFETY: the IOMMU of a test has no memory behind it.
            unsafe { domain.map_raw_batch(&buffers, access, |iova| iovas.push(iova)) }.expect("room");
            iovas
        });
        let mut batch = domain.raw_batch();
        for iova in first.into_iter().zip(second).flat_map(|(first, second)| [first, second]) {
            batch.unmap_raw(iova, PAGE_SIZE).expect("mapped");
        }
        assert_eq!(batch.revoked().count(), 2, "{protection:?}");
        host.take();
        iommu.take_commands();
        batch.commit().expect("the hardware answers");
        assert_eq!(host.take().lines as u64, 2 * EACH / 8, "{protection:?}");
        assert_eq!(iommu.take_commands().len(), if protection == Protection::Strict { 2 } else { 0 });
    }
}

/// Buffers of one page and of several in any order: each mapping leads to its own memory, and the buffers come back in
/// order.
#[test]
fn buffers_of_any_shape_are_mapped_together() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    const DEVICE: SourceId = SourceId::new(0, 5, 0);
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

/// A failed batch returns the buffers that it has taken and not mapped. Mapped ones stay mapped, and the rest is not
/// taken.
#[test]
fn a_buffer_that_is_refused_ends_the_batch() {
    fn refuses<D: portcullis::mapper::Design<&'static FakeHost, &'static FakeIommu<'static>>>() {
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        let domain = D::open(iommu, host, Protection::Strict).expect("a domain");
        let beyond = 1 << (iommu.capabilities().physical_bits - 12);
        for bad in [0, 1, 9, 15, 16, 20] {
            let buffer = |number| page(if number == bad { beyond } else { 100 + number });
            let (mut rest, mut mapped) = ((0..40).map(buffer), Vec::new());
            let refused = domain.map_batch(rest.by_ref(), Access::DeviceWrites, |mapping| mapped.push(mapping));
            let Err(Refused { value, error }) = refused else {
                panic!("a map beyond the physical addresses succeeded")
            };
            assert_eq!(error, RawMapError::Refused(MapError::PhysicalRange(PhysAddr::from_pfn(beyond))));
            // Buffers of a run in a chunk are mapped together or not at all. Under other designs, those before the bad
            // one are mapped.
            assert!(mapped.len() as u64 <= bad && value.len() <= RUN_BUFFERS_MAX, "{} before {bad}", mapped.len());
            let first = mapped.len() as u64;
            assert!((first..first + value.len() as u64).contains(&bad), "{bad} is not among the returned buffers");
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

/// After a failed invalidation, no buffer of the batch is handed back, and none is freed.
#[test]
fn a_batch_that_is_not_taken_is_freed_and_one_that_failed_is_lost() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mut mappings = Vec::new();
    domain.map_batch((1..9).map(page), Access::DeviceWrites, |mapping| mappings.push(mapping)).expect("room");
    let lost = portcullis::domain::lost_buffers;
    let before = lost();
    let mut batch = domain.batch();
    for mapping in mappings.drain(..4) {
        batch.unmap(mapping).expect("mapped");
    }
    assert_eq!(batch.commit_so_far().expect("the hardware answers").len(), 4);
    assert_eq!(lost(), before, "the buffers were freed");
    for mapping in mappings {
        batch.unmap(mapping).expect("mapped");
    }
    iommu.behave(Behaviour::Failing);
    assert!(batch.commit_so_far().is_err());
    assert!(lost() >= before + 4);
    iommu.behave(Behaviour::Prompt);
    assert_eq!(batch.commit_so_far().expect("nothing is left").len(), 0);
}
