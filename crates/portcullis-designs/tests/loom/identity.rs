//! Pages that mappings share: no count is lost, only the last unmap invalidates, and the remaining mappings reach
//! their pages. At most two mappings of a page can be counted here.

use super::{Bench, check};
use crate::raw_face::RawFace;
use loom::thread;
use portcullis::invalidation::QUEUE_TIMEOUT_US;
use portcullis::table::SHARES_MAX;
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr, Protection, RawUnmapError};
use portcullis_designs::Identity;
use std::sync::atomic::{AtomicUsize, Ordering};

type Shared = Bench<Identity>;

/// The address at which a page is mapped for writes, in the region of these rights.
fn own(pfn: u64) -> Iova {
    Iova::from_pfn(1 << 19 | pfn)
}

/// Maps `pages` pages from physical page `pfn` on. They may already be cached, because a cached translation leads to
/// the same memory.
fn map(bench: &Shared, pfn: u64, pages: u64) -> Iova {
    bench.domain.raw_map(PhysAddr::from_pfn(pfn), pages * PAGE_SIZE, Access::DeviceWrites).expect("room")
}

fn is_refused(result: Result<(), RawUnmapError>) -> bool {
    matches!(result, Err(RawUnmapError::Refused(_)))
}

/// One CPU unmaps a page that the other maps. The second mapping reaches the page in either order, and its unmap is
/// the last.
#[test]
fn a_map_beside_an_unmap_of_the_same_page() {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    static CLEARED: AtomicUsize = AtomicUsize::new(0);
    for protection in [Protection::Strict, Protection::Deferred] {
        check(move || {
            let bench = Shared::new(protection);
            let iova = map(&bench, 10, 1);
            assert_eq!(bench.reach(iova), Some(10));
            let other = bench.clone();
            let unmapped = thread::spawn(move || other.unmap(iova, 1));
            assert_eq!(map(&bench, 10, 1), iova);
            assert_eq!(bench.reach(iova), Some(10));
            unmapped.join().unwrap().expect("mapped");
            assert_eq!(bench.reach(iova), Some(10), "the survivor");
            let waits = bench.domain.usage().queued_unmaps;
            let seen = if bench.iommu.take_commands().len() + waits == 0 { &KEPT } else { &CLEARED };
            seen.fetch_add(1, Ordering::Relaxed);
            bench.unmap(iova, 1).expect("mapped");
            bench.host.advance_us(QUEUE_TIMEOUT_US);
            bench.domain.tick().expect("the hardware answers");
            assert_eq!((bench.reach(iova), bench.domain.usage().live_ranges), (None, 0));
            bench.close();
        });
    }
    assert!(KEPT.load(Ordering::Relaxed) > 0 && CLEARED.load(Ordering::Relaxed) > 0, "the map comes first, or last");
}

/// Both CPUs unmap a mapping of the same page. Exactly one of them invalidates it, and the device has lost it
/// afterwards.
#[test]
fn two_unmaps_of_a_page_invalidate_once() {
    check(|| {
        let bench = Shared::new(Protection::Strict);
        let (first, second) = (map(&bench, 10, 1), map(&bench, 10, 1));
        assert_eq!((first, bench.reach(first)), (second, Some(10)));
        let other = bench.clone();
        let unmapped = thread::spawn(move || other.unmap(second, 1));
        bench.unmap(first, 1).expect("mapped");
        unmapped.join().unwrap().expect("mapped");
        assert_eq!((bench.reach(first), bench.iommu.take_commands().len()), (None, 1), "S2");
        bench.close();
    });
}

/// Both CPUs map a page that is not yet mapped, and add its tables. This makes two mappings, each of which can be
/// unmapped.
#[test]
fn two_maps_of_a_page_are_two() {
    check(|| {
        let bench = Shared::new(Protection::Strict);
        let other = bench.clone();
        let second = thread::spawn(move || {
            let iova = map(&other, 10, 1);
            assert_eq!(other.reach(iova), Some(10));
            iova
        });
        let first = map(&bench, 10, 1);
        assert_eq!((second.join().unwrap(), bench.reach(first)), (first, Some(10)));
        bench.unmap(first, 1).expect("mapped");
        assert_eq!(bench.reach(first), Some(10), "the survivor");
        bench.unmap(first, 1).expect("mapped");
        assert_eq!(bench.reach(first), None);
        assert!(is_refused(bench.unmap(first, 1)));
        bench.close();
    });
}

/// A device uses a page while the last mapping but one is unmapped, and then the last.
#[test]
fn a_device_beside_two_unmaps() {
    static LET_THROUGH: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let bench = Shared::new(Protection::Strict);
        let iova = map(&bench, 10, 1);
        map(&bench, 10, 1);
        let device = bench.clone();
        let device = thread::spawn(move || device.reach(iova));
        bench.unmap(iova, 1).expect("mapped");
        bench.unmap(iova, 1).expect("mapped");
        assert_eq!(bench.reach(iova), None, "S2");
        LET_THROUGH.fetch_add(usize::from(device.join().unwrap().is_some()), Ordering::Relaxed);
        bench.close();
    });
    assert!(LET_THROUGH.load(Ordering::Relaxed) > 0, "the device came first in some interleavings");
}

/// A map of two pages races with another CPU, which takes the last count of the second page and then unmaps the
/// first. If the map has to use other addresses, it may have kept the first page from being invalidated. It then
/// invalidates the page itself (S2).
#[test]
fn a_map_that_finds_no_room_half_way() {
    static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);
    static UNDONE: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let bench = Shared::new(Protection::Strict);
        assert_eq!((map(&bench, 10, 1), map(&bench, 11, 1)), (own(10), own(11)));
        assert_eq!((bench.reach(own(10)), SHARES_MAX), (Some(10), 2));
        let other = bench.clone();
        let raced = thread::spawn(move || {
            let last = map(&other, 11, 1);
            other.unmap(own(10), 1).expect("mapped");
            last
        });
        let both = map(&bench, 10, 2);
        assert_eq!(bench.reach(both), Some(10));
        let last = raced.join().unwrap();
        assert_eq!((bench.reach(last), bench.reach(own(11))), (Some(11), Some(11)));
        if both != own(10) {
            assert_eq!(bench.reach(own(10)), None, "S2");
            ELSEWHERE.fetch_add(1, Ordering::Relaxed);
            UNDONE.fetch_add(usize::from(bench.iommu.take_commands().len() > 1), Ordering::Relaxed);
        }
        bench.unmap(both, 2).expect("mapped");
        bench.unmap(last, 1).expect("mapped");
        bench.unmap(own(11), 1).expect("mapped");
        let reached = [own(10), own(11), both, last].map(|iova| bench.reach(iova));
        assert_eq!((reached, bench.domain.usage().live_ranges), ([None; 4], 0));
        bench.close();
    });
    let seen = (ELSEWHERE.load(Ordering::Relaxed) > 0, UNDONE.load(Ordering::Relaxed) > 0);
    assert_eq!(seen, (true, true), "in some interleavings it goes elsewhere, in some of these after it has counted");
}

/// Two CPUs unmap the same mapping of two pages, the first of which has another mapping too. This driver error is
/// found because the second page is gone. One unmap is refused, and the other mapping still reaches its page.
#[test]
fn of_two_unmaps_of_one_mapping_one_succeeds() {
    for shared in [false, true] {
        check(move || {
            let bench = Shared::new(Protection::Strict);
            let iova = map(&bench, 10, 2);
            if shared {
                map(&bench, 10, 1);
            }
            assert_eq!((bench.reach(iova), bench.reach(own(11))), (Some(10), Some(11)));
            let other = bench.clone();
            let second = thread::spawn(move || other.unmap(iova, 2));
            let results = [bench.unmap(iova, 2), second.join().unwrap()];
            assert_eq!(results.map(is_refused).into_iter().filter(|refused| *refused).count(), 1, "{results:?}");
            assert_eq!(bench.reach(own(11)), None, "S2");
            assert_eq!(bench.reach(iova), shared.then_some(10));
            if shared {
                bench.unmap(iova, 1).expect("mapped");
            }
            assert_eq!((bench.reach(iova), bench.domain.usage().live_ranges), (None, 0));
            bench.close();
        });
    }
}
