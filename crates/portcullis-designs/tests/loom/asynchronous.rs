//! Invalidations that no CPU waits for, with room for one of them: the next unmap waits for it.

use super::{Bench, check_with};
use crate::raw_face::RawFace;
use loom::thread;
use portcullis::invalidation::QUEUE_TIMEOUT_US;
use portcullis::platform::fake::run_on;
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr, Protection};
use portcullis_designs::MacOs;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One CPU unmaps twice, and its second unmap takes the first address out of the queue. The other CPU maps, perhaps
/// at that address. Meanwhile the device uses the first mapping. It may still reach it after the unmap, but never
/// through the new mapping (S3).
#[test]
fn an_address_is_back_when_the_hardware_is_done() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    static STALE: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = Bench::<MacOs>::new(Protection::Deferred);
        let (gone, next) = (bench.map(10, 1), bench.map(11, 1));
        assert_eq!(bench.reach(gone), Some(10));
        let other = bench.clone();
        let unmapped = thread::spawn(move || {
            run_on(1);
            other.unmap(gone, 1).expect("mapped");
            STALE.fetch_add(usize::from(other.reach(gone) == Some(10)), Ordering::Relaxed);
            other.unmap(next, 1).expect("mapped");
        });
        run_on(0);
        let new = bench.domain.raw_map(PhysAddr::from_pfn(30), PAGE_SIZE, Access::DeviceWrites).expect("room");
        assert_eq!(bench.reach(new), Some(30), "S3");
        unmapped.join().unwrap();
        assert_eq!(bench.reach(new), Some(30), "S3");
        REUSED.fetch_add(usize::from(new == gone), Ordering::Relaxed);
        let usage = bench.domain.usage();
        assert_eq!((usage.queued_unmaps, usage.live_ranges), (1, 2));
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the address is reused in some interleavings");
    assert!(STALE.load(Ordering::Relaxed) > 0, "the device still reaches the old mapping in some");
}

/// Three pages are all in use. A map finds no room, and waits for an address that another CPU unmaps, if that unmap
/// comes first. The address that it gets has no other mapping, and the device has lost the old one.
#[test]
fn a_full_space_beside_an_unmap() {
    static WAITED: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = Bench::<MacOs>::with_width(Protection::Deferred, 14);
        let mapped: Vec<Iova> = (10..13).map(|pfn| bench.map(pfn, 1)).collect();
        assert_eq!(bench.reach(mapped[1]), Some(11));
        let (other, gone) = (bench.clone(), mapped[1]);
        let unmapped = thread::spawn(move || {
            run_on(1);
            other.unmap(gone, 1).expect("mapped");
        });
        run_on(0);
        let new = bench.domain.raw_map(PhysAddr::from_pfn(30), PAGE_SIZE, Access::DeviceWrites);
        if let Ok(new) = new {
            assert_eq!((new, bench.reach(new)), (gone, Some(30)), "S3");
            WAITED.fetch_add(1, Ordering::Relaxed);
        }
        unmapped.join().unwrap();
        let usage = bench.domain.usage();
        assert_eq!((usage.queued_unmaps, usage.live_ranges), (usize::from(new.is_err()), 3));
        assert_eq!(bench.domain.due_us().is_some(), new.is_err(), "a tick is due exactly if an unmap waits");
        bench.close();
    });
    assert!(WAITED.load(Ordering::Relaxed) > 0, "in some interleavings the unmap comes first");
}

/// The timer asks about the queue while another CPU unmaps and waits for room. Each address comes back once.
#[test]
fn the_timer_beside_unmaps_on_another_cpu() {
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = Bench::<MacOs>::new(Protection::Deferred);
        let (early, late) = (bench.map(10, 1), bench.map(11, 1));
        assert_eq!((bench.reach(early), bench.reach(late)), (Some(10), Some(11)));
        run_on(0);
        bench.unmap(early, 1).expect("mapped");
        let other = bench.clone();
        let ticked = thread::spawn(move || {
            run_on(1);
            other.host.advance_us(QUEUE_TIMEOUT_US);
            other.domain.tick()
        });
        bench.unmap(late, 1).expect("mapped");
        ticked.join().unwrap().expect("the hardware answers");
        let queued = bench.domain.usage().queued_unmaps;
        LEFT.fetch_add(queued, Ordering::Relaxed);
        assert_eq!(queued > 0, bench.domain.due_us().is_some(), "a tick is due exactly if an unmap waits");
        bench.host.advance_us(QUEUE_TIMEOUT_US);
        bench.domain.tick().expect("the hardware answers");
        let usage = bench.domain.usage();
        assert_eq!((usage.queued_unmaps, usage.live_ranges, bench.domain.due_us()), (0, 0, None));
        assert_eq!((bench.reach(early), bench.reach(late)), (None, None));
        bench.close();
    });
    assert!(LEFT.load(Ordering::Relaxed) > 0, "in some interleavings the unmap came after the timer");
}
