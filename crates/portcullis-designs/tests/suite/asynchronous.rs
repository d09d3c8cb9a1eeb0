//! Invalidations that no unmap waits for (`macos`). The buffer is handed back at once. The address is freed when the
//! hardware has reported that its invalidation is done (S3). If the hardware never does, the domain reports that (S11).

use crate::forwarding::forward_domains;
use crate::raw_face::RawFace;
use portcullis::invalidation::QUEUE_TIMEOUT_US;
use portcullis::iommu::fake::{Behaviour, FakeIommu, Ticket};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, CommitError, DomainConfig, DomainOf, INVALIDATION_TIMEOUT_US, Invalidation, Iommu, Iova, IovaRange,
    MapError, Open, PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, RawUnmapError, SourceId,
};
use portcullis_designs::MacOs;
use portcullis_designs::macos::ASYNCHRONOUS_CAPACITY;
use std::collections::BTreeMap;
use std::sync::Mutex;

const DEVICE: SourceId = SourceId::new(0, 2, 0);
const BUFFER: PhysAddr = PhysAddr::new(0x4000);
const FULL: usize = ASYNCHRONOUS_CAPACITY;
const TIMEOUT: QueueError = QueueError::Timeout(INVALIDATION_TIMEOUT_US);

/// The fake, with fixed answers about some submissions. They are numbered since they were last taken.
struct Answering<'h> {
    fake: FakeIommu<'h>,
    answers: Mutex<BTreeMap<usize, Result<bool, QueueError>>>,
    submissions: Mutex<Vec<Vec<Invalidation>>>,
    /// The submissions whose completion was polled.
    asked: Mutex<Vec<usize>>,
}

impl<'h> Answering<'h> {
    fn new(host: &'h FakeHost) -> Self {
        let (answers, submissions, asked) = Default::default();
        Self { fake: FakeIommu::new(host), answers, submissions, asked }
    }

    fn answer(&self, number: usize, answer: Result<bool, QueueError>) {
        self.answers.lock().unwrap().insert(number, answer);
    }

    fn take_asked(&self) -> Vec<usize> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn take_submissions(&self) -> Vec<Vec<Invalidation>> {
        std::mem::take(&mut self.submissions.lock().unwrap())
    }

    /// The memory that a write by the device reaches.
    fn write(&self, iova: Iova) -> Option<PhysAddr> {
        self.fake.access(DEVICE, iova, Rights::WRITE)
    }
}

// SAFETY: no memory is behind it.
unsafe impl Iommu for Answering<'_> {
    type Ticket = (usize, Ticket);

    forward_domains!(fake);

    fn submit(&self, commands: &[Invalidation]) -> Result<(usize, Ticket), QueueError> {
        let mut submissions = self.submissions.lock().unwrap();
        submissions.push(commands.to_vec());
        Ok((submissions.len() - 1, self.fake.submit(commands)?))
    }

    fn is_done(&self, (number, ticket): (usize, Ticket)) -> Result<bool, QueueError> {
        self.asked.lock().unwrap().push(number);
        match self.answers.lock().unwrap().get(&number) {
            None | Some(Ok(true)) => self.fake.is_done(ticket),
            Some(answer) => *answer,
        }
    }
}

type Mac<'h> = DomainOf<MacOs, &'h FakeHost, &'h Answering<'h>>;

/// Runs `test` on a domain with one device.
fn on(address_bits: u8, test: impl FnOnce(&FakeHost, &Answering<'_>, Mac<'_>)) {
    let host = FakeHost::default();
    let iommu = Answering::new(&host);
    let config = DomainConfig { address_bits, ..DomainConfig::new(Protection::Deferred) };
    let domain = MacOs::open_with(&iommu, &host, &config).unwrap();
    domain.attach(DEVICE).unwrap();
    test(&host, &iommu, domain);
}

fn try_map(domain: &Mac<'_>) -> Result<Iova, MapError> {
    domain.raw_map(BUFFER, PAGE_SIZE, Access::DeviceWrites)
}

fn map(domain: &Mac<'_>) -> Iova {
    try_map(domain).unwrap()
}

fn unmap(domain: &Mac<'_>, iova: Iova) -> Result<(), RawUnmapError> {
    domain.unmap_raw(iova, PAGE_SIZE)
}

fn failed(error: QueueError) -> Result<(), RawUnmapError> {
    Err(RawUnmapError::Commit(CommitError(error)))
}

/// The number of queued unmaps, and of ranges in use, which include those of the queued unmaps.
fn queued(domain: &Mac<'_>) -> (usize, usize) {
    let usage = domain.usage();
    assert_eq!((usage.queued_unmaps_max, usage.window_us_max), (FULL, Some(0)));
    (usage.queued_unmaps, usage.live_ranges)
}

#[test]
fn the_hardware_is_told_at_once_and_not_asked() {
    on(48, |host, iommu, domain| {
        let gone = map(&domain);
        assert_eq!(iommu.write(gone), Some(BUFFER));
        unmap(&domain, gone).unwrap();
        let command = Invalidation::Pages { domain: domain.id(), first: gone, mask: 0, leaf_only: true };
        assert_eq!((iommu.take_submissions(), iommu.take_asked()), (vec![vec![command]], vec![]));
        assert_eq!(iommu.write(gone), Some(BUFFER), "the stale window is open");
        assert_eq!((queued(&domain), domain.due_us()), ((1, 1), Some(QUEUE_TIMEOUT_US)));
        assert_ne!(map(&domain), gone, "{}", portcullis::Rule::Reuse);
        host.advance_us(1);
        assert_eq!(iommu.write(gone), None, "the hardware is done, polled or not");
        domain.tick().unwrap();
        assert_eq!((iommu.take_asked(), queued(&domain)), (vec![], (1, 2)), "not due");
        host.advance_us(QUEUE_TIMEOUT_US - 1);
        domain.tick().unwrap();
        assert_eq!((iommu.take_asked(), queued(&domain), domain.due_us()), (vec![0], (0, 1), None));
        assert_eq!(map(&domain), gone);
    });
}

#[test]
fn a_batch_is_one_submission() {
    on(48, |host, iommu, domain| {
        let mapped: Vec<Iova> = (0..64).map(|_| map(&domain)).collect();
        let mut batch = domain.raw_batch();
        mapped.iter().for_each(|iova| batch.unmap(IovaRange::new(iova.pfn(), 1).unwrap()).unwrap());
        batch.commit().unwrap();
        let submissions = iommu.take_submissions();
        assert_eq!((submissions.len(), submissions[0].len()), (1, 64));
        host.advance_us(QUEUE_TIMEOUT_US);
        domain.tick().unwrap();
        assert_eq!((iommu.take_asked(), queued(&domain)), (vec![0; 64], (0, 0)));
        // An empty batch submits nothing.
        domain.raw_batch().commit().unwrap();
        assert_eq!((iommu.take_submissions().len(), domain.due_us()), (0, None));
    });
}

/// Hardware may finish in any order. An address is freed when its own submission is done, and not with another.
#[test]
fn what_is_done_out_of_order_waits_for_the_oldest() {
    on(48, |host, iommu, domain| {
        let gone = [(); 3].map(|()| map(&domain));
        gone.into_iter().for_each(|iova| unmap(&domain, iova).unwrap());
        iommu.answer(0, Ok(false));
        let tick = |asked: &[usize], left| {
            host.advance_us(QUEUE_TIMEOUT_US);
            domain.tick().unwrap();
            assert_eq!((iommu.take_asked(), queued(&domain).0), (asked.to_vec(), left));
            assert_eq!(domain.due_us(), (left > 0).then_some(host.now_us() + QUEUE_TIMEOUT_US));
        };
        tick(&[0], 3);
        iommu.answer(0, Ok(true));
        iommu.answer(1, Ok(false));
        tick(&[0, 1], 2);
        assert_eq!(map(&domain), gone[0]);
        iommu.answer(1, Ok(true));
        tick(&[1, 2], 0);
    });
}

#[test]
fn a_full_queue_asks_for_the_oldest() {
    on(48, |host, iommu, domain| {
        let mapped: Vec<Iova> = (0..FULL + 3).map(|_| map(&domain)).collect();
        let (fitting, more) = mapped.split_at(FULL);
        fitting.iter().for_each(|iova| unmap(&domain, *iova).unwrap());
        assert_eq!((iommu.take_asked(), queued(&domain)), (vec![], (FULL, FULL + 3)));
        unmap(&domain, more[0]).unwrap();
        assert_eq!((iommu.take_asked(), queued(&domain), host.now_us()), (vec![0], (FULL, FULL + 2), 0));
        // If the oldest submission is not done, the unmap waits. Its own submission has been made already.
        iommu.fake.behave(Behaviour::Slow);
        unmap(&domain, more[1]).unwrap();
        assert_eq!((iommu.take_asked(), queued(&domain), host.now_us()), (vec![1, 1], (FULL, FULL + 1), 1));
        // A single unmap found the queue full last. A batch as large as the queue finds room too.
        let mut batch = domain.raw_batch();
        batch.unmap(IovaRange::new(more[2].pfn(), 1).unwrap()).unwrap();
        (1..64).for_each(|_| batch.unmap(IovaRange::new(map(&domain).pfn(), 1).unwrap()).unwrap());
        batch.commit().unwrap();
        assert_eq!(queued(&domain).0, FULL);
        assert_eq!(iommu.take_asked(), (2..66).collect::<Vec<_>>());
    });
}

/// An address width of 16 KiB: three pages beside page 0.
#[test]
fn a_full_space_waits_for_what_is_on_its_way_back() {
    on(14, |host, iommu, domain| {
        let mapped = [(); 3].map(|()| map(&domain));
        assert_eq!(try_map(&domain), Err(MapError::Exhausted { pages: 1, limit_bits: 14 }));
        assert_eq!(iommu.write(mapped[1]), Some(BUFFER));
        iommu.fake.behave(Behaviour::Slow);
        mapped.into_iter().for_each(|iova| unmap(&domain, iova).unwrap());
        assert_eq!((queued(&domain), host.now_us()), ((3, 3), 0));
        let pages = 2;
        let large =
            domain.raw_map(BUFFER, pages * PAGE_SIZE, Access::DeviceWrites).expect("the freed ranges are joined");
        assert_eq!((large, queued(&domain), host.now_us()), (Iova::from_pfn(2), (0, 1), 1));
        assert_eq!(domain.due_us(), None);
        assert!(!iommu.fake.is_cached(domain.id(), mapped[1].pfn()), "{}", portcullis::Rule::Reuse);
        // If the invalidations never complete, the request fails with that error, within the time limit.
        iommu.fake.behave(Behaviour::Silent);
        domain.unmap_raw(large, pages * PAGE_SIZE).unwrap();
        let begun_us = host.now_us();
        map(&domain);
        assert_eq!(try_map(&domain), Err(MapError::Queue(TIMEOUT)));
        assert!((1..=2).contains(&(host.now_us() - begun_us - INVALIDATION_TIMEOUT_US)));
        assert_eq!((try_map(&domain), queued(&domain).0), (Err(MapError::Poisoned), 1));
    });
}

/// Asserts the state after the hardware has failed in any way: queued addresses stay out of use, no buffer is handed
/// back without an invalidation of the whole domain, and the first one that succeeds frees all of them.
fn after_a_failure(host: &FakeHost, iommu: &Answering<'_>, domain: &Mac<'_>, kept: [Iova; 2], quarantined: usize) {
    iommu.answers.lock().unwrap().clear();
    assert_eq!(try_map(domain), Err(MapError::Poisoned));
    let (left, live) = queued(domain);
    iommu.fake.behave(Behaviour::Failing);
    assert_eq!(unmap(domain, kept[0]), failed(QueueError::Descriptor), "a poisoned domain defers nothing");
    host.advance_us(QUEUE_TIMEOUT_US);
    assert_eq!(domain.tick().is_err(), left > 0);
    assert_eq!(queued(domain), (left, live));
    iommu.fake.behave(Behaviour::Slow);
    assert_eq!(iommu.write(kept[1]), Some(BUFFER));
    iommu.take_submissions();
    unmap(domain, kept[1]).expect("the hardware answers again");
    assert_eq!(iommu.take_submissions(), [[Invalidation::Domain(domain.id())]]);
    assert_eq!(iommu.write(kept[1]), None, "the unmap waited for the invalidation");
    // Addresses whose commit failed are lost for good.
    assert_eq!((queued(domain), domain.due_us()), ((0, quarantined + 1), None));
    assert_eq!(try_map(domain), Err(MapError::Poisoned));
}

#[test]
fn a_submission_that_is_refused() {
    on(48, |host, iommu, domain| {
        let (queued_before, lost, kept) = (map(&domain), map(&domain), [map(&domain), map(&domain)]);
        unmap(&domain, queued_before).unwrap();
        iommu.fake.behave(Behaviour::Failing);
        assert_eq!(unmap(&domain, lost), failed(QueueError::Descriptor));
        after_a_failure(host, iommu, &domain, kept, 1);
    });
}

/// The buffer has been handed back by then, since the design does not wait. The address has not been freed.
#[test]
fn a_submission_that_fails_later() {
    for asked_by_tick in [true, false] {
        on(48, |host, iommu, domain| {
            let (gone, kept) = (map(&domain), [map(&domain), map(&domain)]);
            unmap(&domain, gone).unwrap();
            iommu.answer(0, Err(QueueError::Device));
            if asked_by_tick {
                host.advance_us(QUEUE_TIMEOUT_US);
                assert_eq!(domain.tick(), Err(CommitError(QueueError::Device)));
                assert_eq!(queued(&domain), (1, 3));
                assert_eq!(domain.due_us(), Some(2 * QUEUE_TIMEOUT_US), "due again, but not at once");
                after_a_failure(host, iommu, &domain, kept, 0);
            } else {
                let mapped: Vec<Iova> = (0..FULL).map(|_| map(&domain)).collect();
                let (lost, fitting) = mapped.split_last().unwrap();
                fitting.iter().for_each(|iova| unmap(&domain, *iova).unwrap());
                assert_eq!(unmap(&domain, *lost), failed(QueueError::Device));
                assert_eq!(queued(&domain), (FULL, FULL + 3));
                after_a_failure(host, iommu, &domain, kept, 1);
            }
        });
    }
}

#[test]
fn a_submission_that_is_never_answered() {
    for asked_by_tick in [true, false] {
        on(48, |host, iommu, domain| {
            let kept = [map(&domain), map(&domain)];
            let mapped: Vec<Iova> = (0..=FULL).map(|_| map(&domain)).collect();
            let (lost, fitting) = mapped.split_last().unwrap();
            iommu.fake.behave(Behaviour::Silent);
            fitting.iter().for_each(|iova| unmap(&domain, *iova).unwrap());
            if asked_by_tick {
                // Ticks poll and do not wait, until the time limit is reached.
                while host.now_us() < INVALIDATION_TIMEOUT_US {
                    host.advance_us(QUEUE_TIMEOUT_US);
                    domain.tick().unwrap();
                }
                host.advance_us(QUEUE_TIMEOUT_US);
                let now_us = host.now_us();
                assert_eq!((domain.tick(), host.now_us()), (Err(CommitError(TIMEOUT)), now_us));
                iommu.fake.behave(Behaviour::Prompt);
                unmap(&domain, *lost).unwrap();
                assert_eq!(queued(&domain), (0, 2));
            } else {
                assert_eq!(unmap(&domain, *lost), failed(TIMEOUT));
                assert!(host.now_us() <= INVALIDATION_TIMEOUT_US + 2, "the wait is bounded");
                after_a_failure(host, iommu, &domain, kept, 1);
            }
        });
    }
}

/// Even if no call polls these submissions, the domain's tables go back only when the hardware has lost the domain
/// (S10).
#[test]
fn a_domain_goes_with_unmaps_that_nobody_asked_about() {
    for behaviour in [Behaviour::Prompt, Behaviour::Slow, Behaviour::Silent] {
        on(48, |host, iommu, domain| {
            let (gone, live) = (map(&domain), map(&domain));
            assert_eq!((iommu.write(gone), iommu.write(live)), (Some(BUFFER), Some(BUFFER)));
            iommu.fake.behave(behaviour);
            unmap(&domain, gone).unwrap();
            // Without the table pages that are kept for the next map: no hardware has seen these.
            let shown = host.frames_lent() - domain.tables_max(1);
            drop(domain);
            let reached = behaviour == Behaviour::Silent;
            assert_eq!((host.frames_lent(), iommu.take_asked()), (if reached { shown } else { 0 }, vec![]));
            assert_eq!(iommu.write(live).is_some(), reached, "tables outlive a domain that the hardware still uses");
        });
    }
}
