//! Buffers that are ready to be lent: none of them takes an unsafe trait of the driver.

use portcullis::buffers::{CoherentBox, DmaArray, Pool};
use portcullis::designs::Portcullis;
use portcullis::domain::DmaBuffer;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::{Access, DomainConfig, NoMemory, Open, PAGE_SIZE, PhysAddr, Protection, SubPage};
use std::collections::BTreeSet;
use std::sync::Arc;

fn host() -> Arc<FakeHost> {
    Arc::new(FakeHost::default())
}

#[test]
fn an_array_keeps_what_is_written_and_gives_its_pages_back() {
    let host = host();
    let iommu = FakeIommu::new(&host);
    let config = DomainConfig { sub_page: SubPage::Refuse, ..DomainConfig::new(Protection::Strict) };
    let domain = Portcullis::open_with(&iommu, host.clone(), &config).expect("a domain");
    let before = host.frames_lent();
    let mut array = DmaArray::new(host.clone(), 3).expect("memory");
    assert_eq!((array.pages(), host.frames_lent()), (3, before + 3));
    assert!((0..3).all(|page| array.page(page).iter().all(|byte| *byte == 0)));
    (0..3).for_each(|page| array.page_mut(page)[page..].fill(page as u8 + 1));
    // Whole pages, so nothing else is within reach (S8).
    assert_eq!(array.segments().iter().map(|segment| segment.len).sum::<u64>(), 3 * PAGE_SIZE);
    assert!(array.segments().iter().all(|segment| segment.phys.page_offset() == 0));
    let mapping = domain.map(array, Access::DeviceReads).expect("room");
    assert_eq!(mapping.range().pages(), 3);
    let array = domain.unmap(mapping).expect("it was mapped");
    for page in 0..3 {
        let (zeros, written) = array.page(page).split_at(page);
        assert!(zeros.iter().all(|byte| *byte == 0) && written.iter().all(|byte| *byte == page as u8 + 1));
    }
    let tables = host.frames_lent() - before - 3;
    drop(array);
    assert_eq!(host.frames_lent(), before + tables);
    // Without memory for all of it, none is kept.
    let before = host.frames_lent();
    host.limit_frames(2);
    assert_eq!(DmaArray::new(host.clone(), 3).err(), Some(NoMemory));
    assert_eq!(host.frames_lent(), before);
}

#[test]
fn a_coherent_box_is_used_while_the_device_has_it() {
    let host = host();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, host.clone(), Protection::Strict).expect("a domain");
    let ring = CoherentBox::new(host.clone(), 2).expect("memory");
    assert_eq!(ring.words(), 1024);
    let mapping = domain.map_shared(ring, Access::DeviceReadsAndWrites).expect("room");
    mapping.shared().store(0, 7);
    mapping.shared().store(1023, 9);
    // The device would read these words of physical memory.
    let segments: Vec<_> = mapping.shared().segments().to_vec();
    let last = segments.last().expect("a segment");
    let page = |phys| host.hardware_page(phys, true).expect("lent");
    assert_eq!(page(segments[0].phys)[0], 7);
    let at = last.phys.as_u64() + last.len - PAGE_SIZE;
    assert_eq!(page(PhysAddr::new(at))[511], 9);
    let ring = domain.unmap(mapping).expect("it was mapped");
    assert_eq!((ring.load(0), ring.load(1), ring.load(1023)), (7, 0, 9));
}

#[test]
fn a_pool_lends_each_buffer_once_and_takes_it_back() {
    let host = host();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, host.clone(), Protection::Strict).expect("a domain");
    let pool = Pool::new(host.clone(), 4, 1).expect("memory");
    let buffers: Vec<_> = (0..4).map(|_| pool.take().expect("a free one")).collect();
    let places: BTreeSet<_> = buffers.iter().map(|buffer| buffer.segments()[0].phys.as_u64()).collect();
    assert_eq!((places.len(), pool.free(), pool.take().is_none()), (4, 0, true));
    let mut mapped: Vec<_> =
        buffers.into_iter().map(|buffer| domain.map(buffer, Access::DeviceWrites).expect("room")).collect();
    let last = domain.unmap(mapped.pop().expect("four")).expect("it was mapped");
    assert_eq!(pool.free(), 0, "it is the driver's");
    drop(last);
    assert_eq!(pool.free(), 1);
    let again = pool.take().expect("the one that came back");
    assert!(places.contains(&again.segments()[0].phys.as_u64()));
    drop(again);
    // The pool may go first.
    drop(pool);
    mapped.into_iter().for_each(|mapping| drop(domain.unmap(mapping).expect("it was mapped")));
    drop(domain);
    assert_eq!(host.frames_lent(), 0);
}
