//! S11: a flush that comes late to a queue and then fails frees nothing that was queued after a later flush had
//! succeeded.

use crate::interrupted::{Interrupted, Moment};
use crate::raw_face::RawFace;
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{Access, DomainOf, Iova, Open, PAGE_SIZE, PhysAddr, Protection};
use std::sync::Mutex;

/// The largest number of waiting unmaps of a CPU.
const QUEUED_MAX: usize = 128;

type Interrupt = Box<dyn FnOnce() + Send>;

/// A flush on CPU 0 is delayed before its lock number `at`, counted from 0. Meanwhile, CPU 1 ticks and unmaps a page,
/// and the hardware starts to fail. The flush then continues and fails, and CPU 1 fills its queue. Returns how many
/// commands the hardware had been sent by then, and whether anything was freed after the last flush that succeeded.
fn late_flush(at: usize) -> (usize, bool) {
    run_on(0);
    let host: &FakeHost = Box::leak(Box::default());
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    let interrupt: &Mutex<Option<(usize, Interrupt)>> = Box::leak(Box::default());
    let handler = Box::leak(Box::new(|moment| {
        if moment == Moment::BeforeLock {
            let mut waiting = interrupt.lock().expect("not poisoned");
            match waiting.take() {
                Some((0, act)) => {
                    drop(waiting);
                    act();
                }
                Some((locks, act)) => *waiting = Some((locks - 1, act)),
                None => {}
            }
        }
    }));
    let platform: &Interrupted<'_> = Box::leak(Box::new(Interrupted::new(host, handler)));
    let domain: &DomainOf<Portcullis, _, _> =
        Box::leak(Box::new(Portcullis::open(iommu, platform, Protection::Deferred).expect("a domain")));
    let map = |page: usize| {
        domain.raw_map(PhysAddr::from_pfn(0x1000 + page as u64), PAGE_SIZE, Access::DeviceWrites).expect("room")
    };
    let unmap = |iova: Iova| domain.unmap_raw(iova, PAGE_SIZE);
    let here: Vec<Iova> = (0..=QUEUED_MAX).map(map).collect();
    run_on(1);
    let there: Vec<Iova> = (0..2 * QUEUED_MAX).map(|page| map(1000 + page)).collect();
    // An unmap waits there, so that the tick has something to flush.
    unmap(there[0]).expect("mapped");
    let late = there[1];
    run_on(0);
    let (full, before) = here.split_last().expect("some");
    before.iter().for_each(|iova| unmap(*iova).expect("mapped"));
    iommu.take_commands();
    let act = move || {
        run_on(1);
        host.advance_us(1000);
        domain.tick().expect("the hardware answers");
        domain.unmap_raw(late, PAGE_SIZE).expect("mapped");
        iommu.behave(Behaviour::Failing);
        run_on(0);
    };
    *interrupt.lock().expect("not poisoned") = Some((at, Box::new(act)));
    let _ = unmap(*full);
    if interrupt.lock().expect("not poisoned").take().is_some() {
        // The flush takes fewer locks.
        return (0, false);
    }
    let flushes = iommu.take_commands().len();
    let before = domain.usage().live_ranges;
    run_on(1);
    // The domain is poisoned: each of these needs a flush, and none succeeds.
    for iova in &there[2..] {
        let _ = unmap(*iova);
    }
    (flushes, domain.usage().live_ranges < before)
}

#[test]
fn nothing_comes_back_by_a_flush_that_began_before_it() {
    let mut interrupted = 0;
    for at in 0..12 {
        let (flushes, is_back) = late_flush(at);
        interrupted += usize::from(flushes > 0);
        assert!(!is_back, "before lock {at}");
    }
    assert!(interrupted > 3, "{interrupted}");
}
