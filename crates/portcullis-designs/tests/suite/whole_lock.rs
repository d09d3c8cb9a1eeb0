//! One lock around allocator and table, for ranges that the buddy allocator serves, and none for larger ones (XNU;
//! ATC'15, §3.4). It is never held during a wait for the hardware.

use crate::raw_face::RawFace;
use portcullis::forward_platform;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::fake::{FakeHost, FakeLock};
use portcullis::platform::{Lock, LockClass, Step, Wait, WordLines};
use portcullis::{Access, DomainConfig, Open, PAGE_SIZE, PhysAddr, Platform, Protection};
use portcullis_designs::MacOs;
use portcullis_designs::macos::BUDDY_PAGES_MAX;
use std::cell::RefCell;

/// An event. It is recorded with the locks that were held.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
    Taken,
    Step(Step),
    Paused,
}

std::thread_local! {
    static HELD: RefCell<Vec<LockClass>> = const { RefCell::new(Vec::new()) };
    static EVENTS: RefCell<Vec<(Vec<LockClass>, Event)>> = const { RefCell::new(Vec::new()) };
}

fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push((HELD.with_borrow(Clone::clone), event)));
}

struct Noting<T>(LockClass, FakeLock<T>);

impl<T: Send> Lock<T> for Noting<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        HELD.with_borrow_mut(|held| held.push(self.0));
        note(Event::Taken);
        let result = self.1.with(critical);
        HELD.with_borrow_mut(Vec::pop);
        result
    }
}

/// The fake host, with a record of events.
struct Host(FakeHost);

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Platform for Host {
    type Lock<T: Send> = Noting<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.0; cpu, cpus, cpu_words, allocate_frame, frame, free_frame, table_barrier, now_us);

    fn lock<T: Send>(&self, class: LockClass, value: T) -> Noting<T> {
        Noting(class, self.0.lock(class, value))
    }

    fn pause(&self, wait: Wait) {
        note(Event::Paused);
        self.0.pause(wait)
    }

    fn probe(&self, step: Step) {
        note(Event::Step(step));
    }
}

/// The events during `run`.
fn events(run: impl FnOnce()) -> Vec<(Vec<LockClass>, Event)> {
    EVENTS.take();
    run();
    EVENTS.take()
}

/// Whether these steps were taken inside the lock of the domain. Either all of them must have been, or none.
fn inside(events: &[(Vec<LockClass>, Event)], of_interest: impl Fn(Step) -> bool) -> bool {
    let steps = events.iter().filter(|(_, event)| matches!(event, Event::Step(step) if of_interest(*step)));
    let inside: Vec<bool> = steps.map(|(held, _)| held.contains(&LockClass::Domain)).collect();
    assert!(!inside.is_empty() && inside.iter().all(|is| *is == inside[0]), "{events:?}");
    inside[0]
}

/// How often the lock of the domain was taken.
fn taken(events: &[(Vec<LockClass>, Event)]) -> usize {
    events.iter().filter(|(held, event)| *event == Event::Taken && held.last() == Some(&LockClass::Domain)).count()
}

#[test]
fn short_ranges_are_mapped_and_unmapped_under_one_lock() {
    let host = Host(FakeHost::default());
    let iommu = FakeIommu::new(&host.0);
    let domain = MacOs::open(&iommu, &host, Protection::Deferred).unwrap();
    for pages in [1, 5, 600, BUDDY_PAGES_MAX, BUDDY_PAGES_MAX + 1] {
        let short = pages <= BUDDY_PAGES_MAX;
        let mut iova = None;
        let map = events(|| iova = domain.raw_map(PhysAddr::new(0), pages * PAGE_SIZE, Access::DeviceReads).ok());
        let allocates = |step| matches!(step, Step::ListPop | Step::TreeInsert);
        let writes = |step| matches!(step, Step::TableWalk { .. } | Step::TableWrite { .. });
        assert_eq!((inside(&map, allocates), inside(&map, writes)), (short, short), "{pages} pages");
        assert_eq!(taken(&map), usize::from(short), "taken once, and not released in between");

        let unmap = events(|| domain.unmap_raw(iova.expect("room"), pages * PAGE_SIZE).unwrap());
        let claims = |step| matches!(step, Step::TableClaim | Step::TreeFind);
        let clears = |step| matches!(step, Step::TableClear { .. });
        assert_eq!((inside(&unmap, claims), inside(&unmap, clears)), (short, short), "{pages} pages");
        assert_eq!(taken(&unmap), usize::from(short));
        assert!(!inside(&unmap, |step| step == Step::FlushQueuePush), "the submission is made outside the lock");
    }
}

#[test]
fn the_hardware_is_waited_for_without_the_lock() {
    let host = Host(FakeHost::default());
    let iommu = FakeIommu::new(&host.0);
    let config = DomainConfig { address_bits: 14, ..DomainConfig::new(Protection::Deferred) };
    let domain = MacOs::open_with(&iommu, &host, &config).unwrap();
    let map = || domain.raw_map(PhysAddr::new(0), PAGE_SIZE, Access::DeviceReads).expect("room");
    let mapped = [map(), map(), map()];
    mapped.into_iter().for_each(|iova| domain.unmap_raw(iova, PAGE_SIZE).unwrap());
    iommu.behave(Behaviour::Slow);
    let full = events(|| {
        map();
    });
    let pauses: Vec<_> = full.iter().filter(|(_, event)| *event == Event::Paused).collect();
    assert!(!pauses.is_empty(), "the space was full");
    assert!(pauses.iter().all(|(held, _)| !held.contains(&LockClass::Domain)), "{pauses:?}");
    assert_eq!(taken(&full), 2, "before and after the wait");
}
