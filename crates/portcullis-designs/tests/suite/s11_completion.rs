//! S11: if an invalidation fails or is never answered, no buffer is handed back, no address is used again, and the
//! domain reports it from then on.

use crate::raw_face::{RawFace, open};
use portcullis::invalidation::{CPU_QUEUE_CAPACITY, QUEUE_CAPACITY, QUEUE_TIMEOUT_US, Revocation};
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::{Design, DomainSetup, Mapper, Options};
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::table::Rights;
use portcullis::{
    Access, CommitError, Domain, DomainConfig, INVALIDATION_TIMEOUT_US, Invalidation, Iommu, Iova, IovaRange, MapError,
    Open, PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, RawUnmapError, Request, Segment, SourceId, SubPage,
    SyncError, UnmapError,
};
use portcullis_designs::{Magazine, Solaris, Static, Stock, Unprotected};
use std::panic::{AssertUnwindSafe, catch_unwind};

const DEVICE: SourceId = SourceId::new(0, 2, 0);
const BUFFER: PhysAddr = PhysAddr::new(0x4000);

/// Ways in which the queue fails, with the error that a commit then returns.
const FAILURES: [(Behaviour, QueueError); 2] =
    [(Behaviour::Failing, QueueError::Descriptor), (Behaviour::Silent, QueueError::Timeout(INVALIDATION_TIMEOUT_US))];

/// The error of the next commit. A domain waits for a hundredth of the time for hardware that has not answered.
fn again(error: QueueError) -> QueueError {
    match error {
        QueueError::Timeout(limit_us) => QueueError::Timeout(limit_us / 100),
        other => other,
    }
}

fn map<M: Mapper>(domain: &Domain<M>) -> Result<Iova, MapError> {
    domain.raw_map(BUFFER, PAGE_SIZE, Access::DeviceWrites)
}

fn use_page(iommu: &FakeIommu<'_>, iova: Iova) -> Option<PhysAddr> {
    iommu.access(DEVICE, iova, Rights::WRITE)
}

#[test]
fn a_strict_unmap_fails() {
    for (behaviour, error) in FAILURES {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
        domain.attach(DEVICE).unwrap();
        let (lost, kept) = (map(&domain).unwrap(), map(&domain).unwrap());
        assert_eq!(use_page(&iommu, lost), Some(BUFFER));
        iommu.behave(behaviour);
        let started_us = host.now_us();
        assert_eq!(domain.unmap_raw(lost, PAGE_SIZE), Err(RawUnmapError::Commit(CommitError(error))));
        assert!(host.now_us() - started_us <= INVALIDATION_TIMEOUT_US + 2, "the wait is bounded");
        assert_eq!(use_page(&iommu, lost), Some(BUFFER), "the device still has it");

        iommu.behave(Behaviour::Prompt);
        assert_eq!(map(&domain), Err(MapError::Poisoned));
        assert_eq!(domain.unmap_raw(lost, PAGE_SIZE), Err(RawUnmapError::Refused(UnmapError::NotMapped(lost))));
        assert_eq!(domain.usage().live_ranges, 2, "the lost address is quarantined");
        domain.unmap_raw(kept, PAGE_SIZE).expect("other mappings can be unmapped once the hardware answers");
        assert_eq!(domain.usage().live_ranges, 1);
        drop(domain);
        assert_eq!((host.frames_lent(), use_page(&iommu, lost)), (0, None));
    }
}

#[test]
fn a_batch_fails_as_a_whole() {
    for (behaviour, error) in FAILURES {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
        let mapped: Vec<Iova> = (0..5).map(|_| map(&domain).unwrap()).collect();
        let mut batch = domain.raw_batch();
        for iova in &mapped[..3] {
            batch.unmap(IovaRange::covering(*iova, PAGE_SIZE).unwrap()).unwrap();
        }
        iommu.behave(behaviour);
        assert_eq!(batch.commit(), Err(CommitError(error)));
        assert_eq!(map(&domain), Err(MapError::Poisoned));

        // A batch that is dropped has no caller to tell, but the domain is poisoned.
        iommu.behave(Behaviour::Prompt);
        let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
        let iova = map(&domain).unwrap();
        let mut batch = domain.raw_batch();
        batch.unmap(IovaRange::covering(iova, PAGE_SIZE).unwrap()).unwrap();
        iommu.behave(behaviour);
        drop(batch);
        assert_eq!(map(&domain), Err(MapError::Poisoned));
    }
}

#[test]
fn a_deferred_flush_fails() {
    for (behaviour, error) in FAILURES {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Stock::open(&iommu, &host, Protection::Deferred).unwrap();
        domain.attach(DEVICE).unwrap();
        let mapped: Vec<Iova> = (0..=QUEUE_CAPACITY).map(|_| map(&domain).unwrap()).collect();
        let (last, queued) = mapped.split_last().unwrap();
        assert_eq!(use_page(&iommu, *last), Some(BUFFER));
        iommu.behave(behaviour);
        for &iova in queued {
            domain.unmap_raw(iova, PAGE_SIZE).expect("an unmap that is queued does not need the hardware");
        }
        // The unmap that finds the queue full needs the flush.
        assert_eq!(domain.unmap_raw(*last, PAGE_SIZE), Err(RawUnmapError::Commit(CommitError(error))));
        assert_eq!(map(&domain), Err(MapError::Poisoned));
        host.advance_us(QUEUE_TIMEOUT_US);
        assert_eq!(domain.tick(), Err(CommitError(again(error))));
        assert_eq!(use_page(&iommu, *last), Some(BUFFER));
        let usage = domain.usage();
        assert_eq!((usage.queued_unmaps, usage.live_ranges), (QUEUE_CAPACITY, QUEUE_CAPACITY + 1));

        iommu.behave(Behaviour::Prompt);
        domain.tick().expect("not due so soon after a flush that failed");
        assert_eq!(domain.usage().queued_unmaps, QUEUE_CAPACITY);
        host.advance_us(QUEUE_TIMEOUT_US);
        domain.tick().expect("the hardware answers again");
        let usage = domain.usage();
        assert_eq!(
            (usage.queued_unmaps, usage.live_ranges),
            (0, 1),
            "all addresses but that of the failed commit are free"
        );
        assert_eq!(map(&domain), Err(MapError::Poisoned), "and the domain stays poisoned");
    }
}

/// The stale window ends with the first flush that fails: from then on, no buffer is handed back before its
/// invalidation.
#[test]
fn a_poisoned_domain_defers_nothing() {
    for (behaviour, error) in FAILURES {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Stock::open(&iommu, &host, Protection::Deferred).unwrap();
        domain.attach(DEVICE).unwrap();
        let (one, other, last) = (map(&domain).unwrap(), map(&domain).unwrap(), map(&domain).unwrap());
        for iova in [other, last] {
            assert_eq!(use_page(&iommu, iova), Some(BUFFER));
        }
        domain.unmap_raw(one, PAGE_SIZE).unwrap();
        iommu.behave(behaviour);
        host.advance_us(QUEUE_TIMEOUT_US);
        assert_eq!(domain.tick(), Err(CommitError(error)));
        assert_eq!(domain.unmap_raw(other, PAGE_SIZE), Err(RawUnmapError::Commit(CommitError(again(error)))));
        assert_eq!(use_page(&iommu, other), Some(BUFFER), "the device still has it, so it was not handed back");

        iommu.behave(Behaviour::Prompt);
        domain.unmap_raw(last, PAGE_SIZE).expect("the hardware answers again");
        assert_eq!(use_page(&iommu, last), None, "handed back only after the flush");
        assert_eq!(domain.usage().queued_unmaps, 0);
    }
}

/// A map that could not invalidate the old translation of its address: the device keeps the old translation and gets no
/// new one, and the address is never used again.
#[test]
fn an_invalidation_at_a_map_fails() {
    for (behaviour, error) in FAILURES {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Solaris::open(&iommu, &host, Protection::Deferred).unwrap();
        domain.attach(DEVICE).unwrap();
        let (gone, kept) = (map(&domain).unwrap(), map(&domain).unwrap());
        assert_eq!((use_page(&iommu, gone), use_page(&iommu, kept)), (Some(BUFFER), Some(BUFFER)));
        domain.unmap_raw(gone, PAGE_SIZE).unwrap();
        iommu.behave(behaviour);
        let other = PhysAddr::new(0x9000);
        assert_eq!(domain.raw_map_lost(other, PAGE_SIZE, Access::DeviceWrites), SyncError(error));
        assert_eq!(use_page(&iommu, gone), Some(BUFFER), "the declared stale window: nothing was invalidated");
        assert_eq!(domain.usage().live_ranges, 2, "the address is quarantined");
        assert_eq!(domain.unmap_raw(gone, PAGE_SIZE), Err(RawUnmapError::Refused(UnmapError::NotMapped(gone))));

        iommu.behave(Behaviour::Prompt);
        assert_eq!(iommu.submit(&[Invalidation::Global]).and_then(|ticket| iommu.is_done(ticket)), Ok(true));
        assert_eq!(use_page(&iommu, gone), None, "the failed map left no entry in the table");
        assert_eq!(map(&domain), Err(MapError::Poisoned));
        assert_eq!(use_page(&iommu, kept), Some(BUFFER));
        // No map will end the stale window of later unmaps, so the unmap invalidates.
        domain.unmap_raw(kept, PAGE_SIZE).expect("the hardware answers again");
        assert_eq!((use_page(&iommu, kept), domain.usage().live_ranges), (None, 1));
    }
}

/// An unmap leaves its translation, and the domain is poisoned before the commit. The commit then clears the
/// translation, because no map ever will.
#[test]
fn a_commit_in_a_domain_poisoned_meanwhile_takes_the_translation_away() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Solaris::open(&iommu, &host, Protection::Deferred).unwrap();
    domain.attach(DEVICE).unwrap();
    let gone = map(&domain).unwrap();
    assert_eq!(use_page(&iommu, gone), Some(BUFFER));
    let mut batch = domain.raw_batch();
    batch.unmap(IovaRange::covering(gone, PAGE_SIZE).unwrap()).unwrap();
    iommu.behave(Behaviour::Failing);
    assert_eq!(domain.raw_map_lost(BUFFER, PAGE_SIZE, Access::DeviceWrites), SyncError(QueueError::Descriptor));
    iommu.behave(Behaviour::Prompt);
    assert_eq!(batch.commit(), Ok(()));
    assert_eq!(use_page(&iommu, gone), None);
}

/// The unmaps of one domain cannot be committed at another.
#[test]
#[should_panic(expected = "must be committed by the mapper of its unmaps")]
fn a_revocation_belongs_to_its_domain() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let build = || {
        let setup = DomainSetup {
            iommu: &iommu,
            platform: &host,
            protection: Protection::Strict,
            width: 48,
            reserved: &[],
            memory: &[],
            options: &Options::NONE,
            sub_page: SubPage::Expose,
        };
        // SAFETY: the protection is one of the design's, and the width one of the fake's.
        unsafe { <Stock as Design<_, _>>::build(setup) }.unwrap()
    };
    let (one, other) = (build(), build());
    let segments = [Segment { phys: BUFFER, len: PAGE_SIZE }];
    // SAFETY: no memory is behind the fake.
    let range = unsafe { one.map(&Request::new(&segments, Access::DeviceWrites).unwrap()) }.unwrap();
    let mut revocation = Revocation::new();
    one.unmap(range, &mut revocation).unwrap();
    assert_eq!(other.unmap(range, &mut revocation), Err(UnmapError::WrongDomain));
    let _ = other.commit(&mut revocation);
}

/// They cannot be committed at a domain without protection either, whose own unmaps leave nothing to commit.
#[test]
fn a_domain_without_protection_commits_no_other_domains_unmaps() {
    fn commit_of_another<D: for<'h> Design<&'h FakeHost, &'h FakeIommu<'h>>>() {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
        domain.attach(DEVICE).unwrap();
        let iova = map(&domain).unwrap();
        assert_eq!(use_page(&iommu, iova), Some(BUFFER));
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 20 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(Protection::None) };
        let other = open::<D, _, _>(&iommu, &host, &config).unwrap();
        let mut revocation = Revocation::new();
        other.unmap_raw_into(IovaRange::covering(iova, PAGE_SIZE).unwrap(), &mut revocation).unwrap();
        assert!(revocation.is_empty());
        domain.unmap_raw_into(IovaRange::covering(iova, PAGE_SIZE).unwrap(), &mut revocation).unwrap();
        let committed = catch_unwind(AssertUnwindSafe(|| other.commit_raw(&mut revocation)));
        assert!(committed.is_err(), "{}: {committed:?}", other.info().id);
        // The unmap is still to be committed, at its own domain.
        assert_eq!(revocation.unmaps(), 1);
        domain.commit_raw(&mut revocation).unwrap();
        assert_eq!(use_page(&iommu, iova), None);
    }
    commit_of_another::<Unprotected>();
    commit_of_another::<Static>();
}

#[test]
fn an_iommu_that_does_not_let_go_keeps_the_tables() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
    domain.attach(DEVICE).unwrap();
    let (one, other) = (map(&domain).unwrap(), map(&domain).unwrap());
    assert_eq!(use_page(&iommu, one), Some(BUFFER));
    iommu.behave(Behaviour::Silent);
    drop(domain);
    assert!(host.frames_lent() > 0, "the hardware may still walk them");
    // The fake panics on a walk into a table page that was freed.
    assert_eq!(use_page(&iommu, other), Some(BUFFER));
}

/// A failed flush frees nothing: the next one that succeeds serves all unmaps queued before it, on every CPU.
#[test]
fn queues_per_core_recover() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Magazine::open(&iommu, &host, Protection::Deferred).unwrap();
    domain.attach(DEVICE).unwrap();
    let map = || domain.raw_map(BUFFER, PAGE_SIZE, Access::DeviceWrites).unwrap();
    let unmap = |iova| domain.unmap_raw(iova, PAGE_SIZE);
    let other = map();
    let mapped: Vec<Iova> = (0..=CPU_QUEUE_CAPACITY).map(|_| map()).collect();
    let (last, fitting) = mapped.split_last().unwrap();
    fitting.iter().for_each(|iova| unmap(*iova).unwrap());
    iommu.behave(Behaviour::Failing);
    assert!(matches!(unmap(*last), Err(RawUnmapError::Commit(_))), "the full queue cannot be flushed");
    run_on(1);
    assert!(matches!(unmap(other), Err(RawUnmapError::Commit(_))), "a poisoned domain defers nothing");
    run_on(0);
    iommu.behave(Behaviour::Prompt);
    host.advance_us(QUEUE_TIMEOUT_US);
    domain.tick().unwrap();
    assert_eq!(domain.usage().queued_unmaps, 0);
    // The address that found no room in the queue is lost for good.
    assert_eq!(domain.usage().live_ranges, 1);
}
