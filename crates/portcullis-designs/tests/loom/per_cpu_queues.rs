//! Flush queues of one unmap on each of two CPUs.

use super::{Bench, check_with};
use crate::raw_face::RawFace;
use loom::thread;
use portcullis::designs::Magazine;
use portcullis::invalidation::QUEUE_TIMEOUT_US;
use portcullis::platform::fake::run_on;
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr, Protection};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The flush of a full queue serves an unmap that another CPU has queued, but only if it was queued before the flush
/// began. The device uses the page once more after the flush.
#[test]
fn a_flush_beside_an_unmap_on_another_cpu() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    static STILL_THERE: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = Bench::<Magazine>::new(Protection::Deferred);
        let gone = bench.map(10, 1);
        let others: Vec<Iova> = (20..23).map(|pfn| bench.map(pfn, 1)).collect();
        assert_eq!(bench.reach(gone), Some(10));
        let other = bench.clone();
        let (first, second, third) = (others[0], others[1], others[2]);
        let flushed = thread::spawn(move || {
            run_on(1);
            other.unmap(first, 1).expect("mapped");
            other.unmap(second, 1).expect("mapped");
            STILL_THERE.fetch_add(usize::from(other.reach(gone).is_some()), Ordering::Relaxed);
        });
        run_on(0);
        bench.unmap(gone, 1).expect("mapped");
        bench.unmap(third, 1).expect("mapped");
        let new = bench.domain.raw_map(PhysAddr::from_pfn(30), PAGE_SIZE, Access::DeviceWrites).expect("room");
        flushed.join().unwrap();
        // The device of the other CPU may have used the new mapping by now, but must not have kept the old one.
        assert_eq!(bench.reach(new), Some(30), "S3");
        REUSED.fetch_add(usize::from(new == gone), Ordering::Relaxed);
        bench.close();
    });
    assert!(REUSED.load(Ordering::Relaxed) > 0, "the address is reused in some interleavings");
    assert!(STILL_THERE.load(Ordering::Relaxed) > 0, "the device came before the unmap in some");
}

/// The timer flushes for all CPUs while one of them queues and maps again. No unmap is left in a queue without a time
/// at which it is due.
#[test]
fn the_timer_beside_unmaps_on_another_cpu() {
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = Bench::<Magazine>::new(Protection::Deferred);
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
        let new = bench.map(30, 1);
        ticked.join().unwrap().expect("the hardware answers");
        assert_eq!(bench.reach(new), Some(30));
        let queued = bench.domain.usage().queued_unmaps;
        LEFT.fetch_add(queued, Ordering::Relaxed);
        assert!(queued == 0 || bench.domain.due_us().is_some(), "a tick is due if an unmap waits");
        bench.host.advance_us(QUEUE_TIMEOUT_US);
        bench.domain.tick().expect("the hardware answers");
        assert_eq!((bench.domain.usage().queued_unmaps, bench.domain.usage().live_ranges), (0, 1));
        bench.close();
    });
    assert!(LEFT.load(Ordering::Relaxed) > 0, "in some interleavings the unmap came after the timer");
}
