//! Waits for hardware: no lock and no walk is held meanwhile, and all of them end when the host's time limit is over.

use crate::raw_face::{RawFace, open};
use portcullis::forward_platform;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::{Design, Visitor};
use portcullis::platform::fake::FakeHost;
use portcullis::platform::{Lock, LockClass, WAIT_US_LEAST, Wait};
use portcullis::{
    Access, CommitError, DomainConfig, INVALIDATION_TIMEOUT_US, IovaRange, MapError, Open, PAGE_SIZE, PhysAddr,
    Platform, Protection, QueueError, RawUnmapError, Segment, SourceId,
};
use portcullis_designs::{DesignId, Portcullis};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Longer than a flush queue of any design keeps an unmap.
const TICK_US: u64 = 200_000;
const DEVICE: SourceId = SourceId::new(0, 5, 0);

/// Makes all kinds of waits, in a domain whose hardware answers only when time passes. The host panics if a walk or a
/// lock is held.
struct Waits<'h> {
    host: &'h FakeHost,
    iommu: &'h FakeIommu<'h>,
    protection: Protection,
}

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for Waits<'h> {
    type Output = ();

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) {
        let Self { host, iommu, protection } = self;
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 40 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
        let domain = open::<D, _, _>(iommu, host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        iommu.behave(Behaviour::Slow);
        for pages in [1, 3, 64, 200, 512] {
            let len = pages * PAGE_SIZE;
            let map = |number: u64| {
                domain.raw_map(PhysAddr::from_pfn(0x1_0000 + number * 512), len, Access::DeviceWrites).expect("room")
            };
            // More unmaps than any queue holds.
            for number in 0..300 {
                domain.unmap_raw(map(number), len).expect("the hardware answers");
            }
            let mapped: Vec<_> = (0..64).map(map).collect();
            let mut batch = domain.raw_batch();
            for iova in mapped {
                batch.unmap(IovaRange::covering(iova, len).expect("its range")).expect("mapped");
            }
            batch.commit().expect("the hardware answers");
            host.advance_us(TICK_US);
            domain.tick().expect("the hardware answers");
        }
        domain.detach(DEVICE).expect("attached");
    }
}

#[test]
fn nothing_is_held_while_hardware_is_waited_for() {
    for &design in DesignId::ALL {
        for protection in design.info().protections {
            let host = FakeHost::default();
            let iommu = FakeIommu::new(&host);
            let before_us = host.now_us();
            design.visit(Waits { host: &host, iommu: &iommu, protection: *protection });
            let waits = design.info().physical_addresses() || host.now_us() - before_us > 5 * TICK_US;
            assert!(waits, "{} {protection}: no time passed except between ticks", design.info().id);
        }
    }
}

/// The fake host detects such waits.
#[test]
fn a_wait_in_a_walk_or_with_a_lock_is_found() {
    let host = FakeHost::default();
    let lock = host.lock(LockClass::InvalidationQueue, ());
    host.pause(Wait::Invalidation);
    let in_walk = catch_unwind(|| FakeHost::default().walk(|| FakeHost::default().pause(Wait::Invalidation)));
    let with_lock = catch_unwind(std::panic::AssertUnwindSafe(|| lock.with(|()| host.pause(Wait::QueueRoom))));
    for (found, words) in [(in_walk, "within a walk"), (with_lock, "with a lock held")] {
        let complaint = found.expect_err("a panic");
        let complaint = complaint.downcast_ref::<String>().expect("words");
        assert!(complaint.contains(words), "{complaint}");
    }
    host.pause(Wait::Invalidation);
}

/// A host that must not spin for a second sets a shorter limit. A commit that times out loses its buffers as usual
/// (S11).
#[test]
fn a_wait_ends_when_the_host_says() {
    for asked_us in [0, 50, 5_000, INVALIDATION_TIMEOUT_US] {
        let host = FakeHost::default();
        host.limit_waits(asked_us);
        let limit_us = asked_us.max(WAIT_US_LEAST);
        let iommu = FakeIommu::new(&host);
        let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
        let map = || domain.raw_map(PhysAddr::from_pfn(0x100), PAGE_SIZE, Access::DeviceWrites);
        let iova = map().expect("room");
        iommu.behave(Behaviour::Silent);
        let begun_us = host.now_us();
        let lost = RawUnmapError::Commit(CommitError(QueueError::Timeout(limit_us)));
        assert_eq!(domain.unmap_raw(iova, PAGE_SIZE), Err(lost));
        let waited_us = host.now_us() - begun_us;
        assert!((limit_us..=limit_us + 2).contains(&waited_us), "{waited_us} of {limit_us}");
        assert_eq!(map(), Err(MapError::Poisoned));
        iommu.behave(Behaviour::Prompt);
    }
}

/// Returns many buffers to hardware that does not answer any more.
struct Rings<'h> {
    host: &'h FakeHost,
    iommu: &'h FakeIommu<'h>,
    protection: Protection,
}

/// The time limit of the host of [`Rings`], in microseconds.
const LIMIT_US: u64 = 5_000;

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for Rings<'h> {
    type Output = ();

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) {
        let Self { host, iommu, protection } = self;
        let name = D::INFO.id;
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 40 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
        let domain = open::<D, _, _>(iommu, host, &config).expect("a domain");
        let map = |number: u64| {
            domain.raw_map(PhysAddr::from_pfn(0x1_0000 + number), PAGE_SIZE, Access::DeviceWrites).expect("room")
        };
        let mut mapped: Vec<_> = (0..664).map(map).collect();
        let batched = mapped.split_off(600);
        iommu.behave(Behaviour::Silent);
        let begun_us = host.now_us();
        let failed = mapped.into_iter().filter(|iova| domain.unmap_raw(*iova, PAGE_SIZE).is_err()).count();
        let mut batch = domain.raw_batch();
        let taken =
            batched.into_iter().map(|iova| batch.unmap(IovaRange::covering(iova, PAGE_SIZE).expect("its range")));
        assert_eq!(taken.filter(Result::is_err).count(), 0, "{name} {protection}");
        let is_lost = batch.commit().is_err();
        host.advance_us(TICK_US);
        let is_late = domain.tick().is_err();
        let waited_us = host.now_us() - begun_us - TICK_US;
        // Some designs that defer without bound need no hardware here.
        let needed = protection == Protection::Strict || failed > 0 || is_lost || is_late;
        assert!(protection == Protection::Deferred || (failed == 600 && is_lost), "{name}: {failed} lost");
        let allowed = if needed { LIMIT_US..LIMIT_US + LIMIT_US / 50 } else { 0..1 };
        assert!(allowed.contains(&waited_us), "{name} {protection}: {waited_us} µs of waiting for {failed} failures");
        // If the hardware answers after all, buffers come back. What has been lost stays lost.
        iommu.behave(Behaviour::Prompt);
        host.advance_us(TICK_US);
        domain.tick().expect("the hardware answers");
    }
}

/// A driver that returns a whole ring waits once in all: not once for each buffer.
#[test]
fn a_ring_that_is_returned_to_dead_hardware_waits_once_in_all() {
    for &design in DesignId::ALL {
        for &protection in design.info().protections.iter().filter(|protection| **protection != Protection::None) {
            let host = FakeHost::default();
            host.limit_waits(LIMIT_US);
            let iommu = FakeIommu::new(&host);
            design.visit(Rings { host: &host, iommu: &iommu, protection });
        }
    }
}

/// A host that looks, while it is told to, whether a lock is held when a walk begins.
struct Watchful<'h> {
    fake: &'h FakeHost,
    watches: AtomicBool,
    walks: AtomicUsize,
}

// SAFETY: the fake keeps the promises.
unsafe impl Platform for Watchful<'_> {
    type Lock<T: Send> = <FakeHost as Platform>::Lock<T>;
    type CpuWords = <FakeHost as Platform>::CpuWords;

    forward_platform!(self => self.fake; lock, cpu, cpus, allocate_frame, frame, free_frame, table_barrier, cpu_words,
        now_us, pause, walks_now, walks_are_over);

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        if self.watches.load(Ordering::Relaxed) {
            self.walks.fetch_add(1, Ordering::Relaxed);
            // The fake panics if the caller holds a lock.
            self.fake.pause(Wait::Register);
        }
        self.fake.walk(walk)
    }
}

/// Maps of other CPUs would wait for that lock, with interrupts off.
#[test]
fn usage_looks_at_each_table_without_a_lock() {
    const TABLES: u64 = 40;
    let fake = FakeHost::default();
    let iommu = FakeIommu::new(&fake);
    let host = Watchful { fake: &fake, watches: AtomicBool::default(), walks: AtomicUsize::default() };
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    for pfn in 0..TABLES * 512 {
        domain.raw_map(PhysAddr::from_pfn(0x1_0000 + pfn), PAGE_SIZE, Access::DeviceWrites).expect("room");
    }
    host.watches.store(true, Ordering::Relaxed);
    assert_eq!(domain.usage().live_ranges as u64, TABLES * 512);
    assert!(host.walks.load(Ordering::Relaxed) as u64 >= TABLES, "it has looked at nothing");
}
