//! The typed interface: a buffer belongs to the device or to the driver, never to both, and is never lost by accident.

use portcullis::domain::{DmaBuffer, MapFailure, Mapping, UnmapFailure, leaked_mappings};
use portcullis::invalidation::BATCH_MAX;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::Addressing;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainOf, Iommu, Iova, IovaRange, MapError, Open, PAGE_SIZE, PhysAddr, Protection,
    QueueError, Segment, SourceId, SyncError, UnmapError,
};
use portcullis_designs::Stock;
use std::cell::Cell;
use std::rc::Rc;

type Stocked<'h> = DomainOf<Stock, &'h FakeHost, &'h FakeIommu<'h>>;

const DEVICE: SourceId = SourceId::new(0, 3, 0);

/// A buffer that counts the freed buffers of its kind.
#[derive(Debug)]
struct Counted {
    segments: Vec<Segment>,
    freed: Rc<Cell<usize>>,
}

impl Counted {
    fn page(pfn: u64, freed: &Rc<Cell<usize>>) -> Self {
        let segment = Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE };
        Self { segments: vec![segment], freed: Rc::clone(freed) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.freed.set(self.freed.get() + 1);
    }
}

// SAFETY: the segments never change, and only the fake IOMMU ever “reaches” them.
unsafe impl DmaBuffer for Counted {
    fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

fn stocked<'h>(iommu: &'h FakeIommu<'h>, host: &'h FakeHost) -> Stocked<'h> {
    Stock::open(iommu, host, Protection::Strict).unwrap()
}

fn map(domain: &Stocked<'_>, pfn: u64, freed: &Rc<Cell<usize>>) -> Mapping<Counted> {
    domain.map(Counted::page(pfn, freed), Access::DeviceWrites).unwrap()
}

fn writes(iommu: &FakeIommu<'_>, iova: Iova) -> Option<PhysAddr> {
    iommu.access(DEVICE, iova, Rights::WRITE)
}

#[test]
fn a_buffer_goes_to_the_device_and_comes_back() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = stocked(&iommu, &host);
    domain.attach(DEVICE).unwrap();
    // Two segments: the second crosses a page boundary, and each has its own offset in its first page.
    let segments = vec![
        Segment { phys: PhysAddr::new(0x5_0800), len: 0x100 },
        Segment { phys: PhysAddr::new(0x9_0ff0), len: 0x20 },
    ];
    let buffer = Counted { segments: segments.clone(), freed: Rc::clone(&freed) };
    let mapping = domain.map(buffer, Access::DeviceWrites).unwrap();
    assert_eq!((mapping.range().pages(), mapping.access()), (3, Access::DeviceWrites));
    assert_eq!(mapping.segment_iova(0), mapping.iova());
    let iovas = [mapping.segment_iova(0), mapping.segment_iova(1)];
    for (iova, segment) in iovas.into_iter().zip(&segments) {
        let last = segment.len - 1;
        assert_eq!(writes(&iommu, iova), Some(segment.phys));
        assert_eq!(writes(&iommu, iova.checked_add(last).unwrap()), segment.phys.checked_add(last));
    }
    let buffer = domain.unmap(mapping).unwrap();
    assert_eq!(buffer.segments, segments);
    assert_eq!((freed.get(), iovas.map(|iova| writes(&iommu, iova))), (0, [None, None]));
}

#[test]
fn a_refused_map_gives_the_buffer_back() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = stocked(&iommu, &host);
    let empty = Counted { segments: vec![], freed: Rc::clone(&freed) };
    let failure = domain.map(empty, Access::DeviceReads).unwrap_err();
    let MapFailure::Refused(refused) = failure else { panic!("{failure:?}") };
    assert_eq!((refused.error, freed.get()), (MapError::Empty, 0));
}

/// A map that had to invalidate and could not: the device may have cached the buffer's translation, so the buffer is
/// never handed back (S11).
#[test]
fn a_map_that_could_not_be_settled_loses_the_buffer() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let capabilities = Capabilities { caches_absent: true, ..FakeIommu::new(&host).capabilities() };
    let iommu = FakeIommu::with_capabilities(&host, capabilities);
    let domain = stocked(&iommu, &host);
    iommu.behave(Behaviour::Failing);
    let failure = domain.map(Counted::page(4, &freed), Access::DeviceWrites).unwrap_err();
    assert!(matches!(failure, MapFailure::Lost(SyncError(QueueError::Descriptor))), "{failure:?}");
    drop(failure);
    assert_eq!(freed.get(), 0, "not dropped");
    iommu.behave(Behaviour::Prompt);
}

#[test]
fn a_mapping_goes_back_to_its_own_domain() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    // The id and the address are the same in both IOMMUs: only the domain tells the mappings apart.
    let other_iommu = FakeIommu::new(&host);
    let (domain, other) = (stocked(&iommu, &host), stocked(&other_iommu, &host));
    assert_eq!(domain.id(), other.id());
    let (mapping, twin) = (map(&domain, 1, &freed), map(&other, 2, &freed));
    assert_eq!(mapping.range(), twin.range());
    let mapping = match other.unmap(mapping) {
        Err(UnmapFailure::Refused(refused)) => {
            assert_eq!(refused.error, UnmapError::WrongDomain);
            refused.value
        }
        other => panic!("{other:?}"),
    };
    let mut batch = other.batch();
    let refused = batch.unmap(mapping).unwrap_err();
    assert_eq!(refused.error, UnmapError::WrongDomain);
    assert!(batch.commit().unwrap().is_empty());
    assert_eq!((other.usage().live_ranges, freed.get()), (1, 0));
    domain.unmap(refused.value).unwrap();
    other.unmap(twin).unwrap();
}

#[test]
fn a_full_batch_gives_the_mapping_back() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = stocked(&iommu, &host);
    let mut batch = domain.batch();
    for pfn in 0..BATCH_MAX as u64 {
        batch.unmap(map(&domain, pfn, &freed)).unwrap();
    }
    let refused = batch.unmap(map(&domain, 1000, &freed)).unwrap_err();
    assert_eq!(refused.error, UnmapError::BatchFull);
    let buffers = batch.commit().unwrap();
    let pfns: Vec<u64> = buffers.iter().map(|buffer| buffer.segments[0].phys.pfn()).collect();
    assert_eq!(pfns, Vec::from_iter(0..BATCH_MAX as u64), "in the order of their unmaps");
    assert_eq!(freed.get(), 0);
    domain.unmap(refused.value).unwrap();
}

#[test]
fn a_batch_keeps_its_buffers_until_it_commits() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = stocked(&iommu, &host);
    domain.attach(DEVICE).unwrap();
    let mapping = map(&domain, 7, &freed);
    let iova = mapping.iova();
    assert!(writes(&iommu, iova).is_some());
    let mut batch = domain.batch();
    batch.unmap(mapping).unwrap();
    assert_eq!((freed.get(), iommu.take_commands().len()), (0, 0));
    drop(batch);
    assert_eq!((freed.get(), iommu.take_commands().len()), (1, 1), "a batch that is dropped commits");
    assert_eq!(writes(&iommu, iova), None);
}

#[test]
fn a_failed_commit_frees_no_buffer() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let single = stocked(&iommu, &host);
    let mapping = map(&single, 1, &freed);
    let (named, dropped) = (stocked(&iommu, &host), stocked(&iommu, &host));
    let mut named_batch = named.batch();
    named_batch.unmap(map(&named, 2, &freed)).unwrap();
    let mut dropped_batch = dropped.batch();
    dropped_batch.unmap(map(&dropped, 3, &freed)).unwrap();

    iommu.behave(Behaviour::Failing);
    assert!(matches!(single.unmap(mapping), Err(UnmapFailure::Commit(_))));
    assert_eq!(freed.get(), 0, "after an unmap");
    assert!(named_batch.commit().is_err());
    assert_eq!(freed.get(), 0, "after a commit");
    drop(dropped_batch);
    assert_eq!(freed.get(), 0, "after a drop");
}

#[test]
fn what_is_forgotten_stays_with_the_device() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = stocked(&iommu, &host);
    domain.attach(DEVICE).unwrap();
    let (mapping, batched) = (map(&domain, 5, &freed), map(&domain, 6, &freed));
    let (iova, batched_iova) = (mapping.iova(), batched.iova());
    assert!(writes(&iommu, iova).is_some() && writes(&iommu, batched_iova).is_some());
    std::mem::forget(mapping);
    let mut batch = domain.batch();
    batch.unmap(batched).unwrap();
    std::mem::forget(batch);
    // Never invalidated, so never freed and never handed out again.
    assert_eq!((writes(&iommu, iova), writes(&iommu, batched_iova)).0, Some(PhysAddr::from_pfn(5)));
    assert_eq!(domain.usage().live_ranges, 2);
    let next = map(&domain, 8, &freed);
    assert!(next.iova() != iova && next.iova() != batched_iova);
    domain.unmap(next).unwrap();
    assert_eq!(freed.get(), 1, "only the buffer that was handed back");
    drop(domain);
    assert_eq!((writes(&iommu, iova), host.frames_lent(), freed.get()), (None, 0, 1));
}

#[test]
#[should_panic(expected = "1 mappings were dropped without an unmap")]
fn a_dropped_mapping_fails_the_test_of_a_driver() {
    let (host, freed) = (FakeHost::default(), Rc::default());
    let iommu = FakeIommu::new(&host);
    let domain = stocked(&iommu, &host);
    domain.attach(DEVICE).unwrap();
    let mapping = map(&domain, 5, &freed);
    let (iova, leaked) = (mapping.iova(), leaked_mappings());
    drop(mapping);
    assert!(leaked_mappings() > leaked);
    assert_eq!((writes(&iommu, iova), freed.get()), (Some(PhysAddr::from_pfn(5)), 0), "leaked, safely");
    // The host is dropped now.
}

/// Each segment begins behind all pages of the segments before it, at its offset in its first page.
#[test]
fn segments_of_several_pages_lie_behind_one_another() {
    let segment = |phys, len| Segment { phys: PhysAddr::new(phys), len };
    let segments = [segment(0x5000, 3 * 4096), segment(0x9010, 8), segment(0x2_0ff8, 4096), segment(0x7000, 4096)];
    let range = IovaRange::new(0x100, 7).expect("a range");
    let seen: Vec<u64> = (0..4).map(|index| Addressing::Own.segment_iova(&segments, index, range).as_u64()).collect();
    assert_eq!(seen, [0x10_0000, 0x10_3010, 0x10_4ff8, 0x10_6000]);
    let physical = |index| Addressing::Physical.segment_iova(&segments, index, range).as_u64();
    assert_eq!((0..4).map(physical).collect::<Vec<u64>>(), segments.map(|segment| segment.phys.as_u64()));
}
