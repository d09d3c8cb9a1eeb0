//! Commits in two halves: between them nothing has come back, and after the second one everything has.

use crate::forwarding::forward_domains;
use crate::raw_face::RawFace;
use portcullis::domain::fake::FakeBuffer;
use portcullis::domain::{DomainRef, RawBatch, RingConfig, SubmitFailure, Submitted};
use portcullis::invalidation::BATCH_MAX;
use portcullis::iommu::TrySubmit;
use portcullis::iommu::fake::{Behaviour, FakeIommu, Ticket};
use portcullis::mapper::Mapper;
use portcullis::platform::fake::{FakeHost, lost_here, run_on};
use portcullis::table::Rights;
use portcullis::{
    Access, CommitError, Domain, DomainConfig, DynDomain, IN_FLIGHT_MAX, INVALIDATION_TIMEOUT_US, Invalidation, Iommu,
    Iova, MapError, Open, PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, Rule, Segment, SourceId,
};
use portcullis_designs::{DesignId, Magazine, Portcullis, Solaris, Stock};
use std::sync::Mutex;

const DEVICE: SourceId = SourceId::new(0, 2, 0);
const MEMORY: [Segment; 1] = [Segment { phys: PhysAddr::new(0), len: 64 << 20 }];
const WRITES: Access = Access::DeviceWrites;

/// The designs whose commits are more than one submission: they do the whole commit at once.
const AT_ONCE: [&str; 1] = ["riommu"];

fn open(design: DesignId) -> (&'static FakeHost, &'static FakeIommu<'static>, Box<DynDomain>) {
    let host: &FakeHost = Box::leak(Box::default());
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    let config = DomainConfig { memory: &MEMORY, ..DomainConfig::new(Protection::Strict) };
    let domain = DynDomain::open(design, iommu, host, &config).expect("a strict domain");
    domain.attach(DEVICE).expect("a device");
    (host, iommu, domain)
}

/// The designs that keep S2.
fn strict() -> impl Iterator<Item = DesignId> {
    let keeps = |design: &DesignId| {
        let info = design.info();
        info.protections.contains(&Protection::Strict) && !info.breaks(Protection::Strict, Rule::Strict)
    };
    DesignId::ALL.iter().copied().filter(keeps)
}

/// Maps `pages` single pages from physical page `pfn` on, which the device uses.
fn map<M: Mapper + ?Sized>(domain: &Domain<M>, iommu: &FakeIommu<'_>, pfn: u64, pages: u64) -> Vec<Iova> {
    let map = |pfn| {
        let iova = domain.raw_map(PhysAddr::from_pfn(pfn), PAGE_SIZE, WRITES).expect("room");
        assert_eq!(reach(iommu, iova), Some(pfn), "S3: the device reaches what was there before");
        iova
    };
    (pfn..pfn + pages).map(map).collect()
}

fn reach(iommu: &FakeIommu<'_>, iova: Iova) -> Option<u64> {
    iommu.access(DEVICE, iova, Rights::WRITE).map(PhysAddr::pfn)
}

/// Unmaps the pages and submits that.
fn submit<'d, M: Mapper + ?Sized>(
    domain: &'d Domain<M>,
    pages: &[Iova],
) -> Result<Submitted<RawBatch<&'d Domain<M>>>, CommitError>
where
    &'d Domain<M>: DomainRef,
{
    let mut batch = domain.raw_batch();
    pages.iter().for_each(|page| batch.unmap_raw(*page, PAGE_SIZE).expect("mapped"));
    batch.submit()
}

/// Until the hardware is done, the device reaches what it has cached, and no address and no table page is used again
/// (S2, S3, S4). The fakes find a table page that is freed too early.
#[test]
fn nothing_comes_back_between_the_halves() {
    for design in strict() {
        let (host, iommu, domain) = open(design);
        let name = design.info().id;
        let pages = map(&*domain, iommu, 0x100, 40);
        iommu.behave(Behaviour::Slow);
        if AT_ONCE.contains(&name) {
            assert!(submit(&domain, &pages).expect("the hardware answers").is_done(), "{name}");
            assert!(pages.iter().all(|page| reach(iommu, *page).is_none()), "{name}: S2");
            continue;
        }
        let live = domain.usage().live_ranges;
        let mut submitted = submit(&domain, &pages).expect("room");
        assert_eq!(domain.usage().batches_in_flight, 1, "{name}");
        for (page, pfn) in pages.iter().zip(0x100..) {
            assert_eq!(reach(iommu, *page), Some(pfn), "{name}: the device still has it");
        }
        assert!(!submitted.is_done(), "{name}");
        // The clock stands still, so nothing completes: new pages lie elsewhere.
        iommu.behave(Behaviour::Slow);
        let others = map(&*domain, iommu, 0x1000, 200);
        assert!(others.iter().all(|other| !pages.contains(other)), "{name}: S3");
        assert_eq!(domain.usage().live_ranges, live + 200, "{name}");
        host.advance_us(1);
        assert!(submitted.is_done(), "{name}");
        submitted.wait().expect("it is done");
        assert!(pages.iter().all(|page| reach(iommu, *page).is_none()), "{name}: S2");
        assert_eq!((domain.usage().live_ranges, domain.usage().batches_in_flight), (200, 0), "{name}");
        iommu.behave(Behaviour::Prompt);
        submit(&domain, &others[..64]).and_then(|submitted| submitted.wait()).expect("the hardware answers");
        drop(domain);
        assert_eq!(host.frames_lent(), 0, "{name}");
    }
}

/// All pages of two tables are in flight. Their addresses are not handed out (S3), and without the flight they are.
#[test]
fn no_page_is_spent_between_the_halves() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let pages = map(&domain, &iommu, 0x100, (IN_FLIGHT_MAX * BATCH_MAX) as u64);
    iommu.behave(Behaviour::Slow);
    let flying: Vec<_> = pages.chunks(BATCH_MAX).map(|pages| submit(&domain, pages).expect("room")).collect();
    assert_eq!(domain.usage().batches_in_flight, IN_FLIGHT_MAX);
    // The clock stands still, so nothing completes.
    let others = map(&domain, &iommu, 0x10_000, 8 * pages.len() as u64);
    let of_pages = |page: &&Iova| pages.contains(page);
    assert_eq!(others.iter().filter(of_pages).count(), 0, "S3");
    flying.into_iter().for_each(|submitted| submitted.wait().expect("the hardware answers"));
    let others = map(&domain, &iommu, 0x10_000, 8 * pages.len() as u64);
    assert!(others.iter().filter(of_pages).count() > pages.len() / 2, "they are handed out again");
}

/// The last sweep has come and gone between the halves. The second half asks for another, which gives back the tables
/// that are empty only now (S7).
#[test]
fn a_late_wait_asks_for_a_sweep() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let pages = map(&domain, &iommu, 0x100, 40 * 512);
    let (flying, others) = pages.split_at(BATCH_MAX);
    let flying = submit(&domain, flying).expect("room");
    for pages in others.chunks(BATCH_MAX) {
        submit(&domain, pages).and_then(|submitted| submitted.wait()).expect("the hardware answers");
    }
    let tick = || {
        while let Some(due_us) = domain.due_us() {
            host.advance_us(due_us.saturating_sub(host.now_us()));
            domain.tick().expect("the hardware answers");
        }
    };
    tick();
    let before = domain.usage().table_pages;
    flying.wait().expect("the hardware answers");
    assert!(domain.due_us().is_some(), "a sweep");
    tick();
    assert!(domain.usage().table_pages < before, "{} table pages, as before", before);
}

#[test]
fn batches_are_waited_for_in_any_order_and_on_any_cpu() {
    for design in strict() {
        let (host, iommu, domain) = open(design);
        let pages = map(&*domain, iommu, 0x100, 60);
        iommu.behave(Behaviour::Slow);
        run_on(0);
        let mut submitted: Vec<_> = pages.chunks(12).map(|pages| submit(&domain, pages).expect("room")).collect();
        let at_once = AT_ONCE.contains(&design.info().id);
        assert_eq!(domain.usage().batches_in_flight, if at_once { 0 } else { 5 });
        host.advance_us(1);
        run_on(1);
        while !submitted.is_empty() {
            submitted.remove(submitted.len() / 2).wait().expect("the hardware answers");
        }
        run_on(0);
        let usage = domain.usage();
        assert_eq!((usage.live_ranges, usage.batches_in_flight), (0, 0), "{}", design.info().id);
    }
}

/// Each CPU has so many places. Then a batch is committed as a whole, or refused.
#[test]
fn what_is_in_flight_is_bounded() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let pages = map(&domain, &iommu, 0x100, IN_FLIGHT_MAX as u64 + 3);
    iommu.behave(Behaviour::Slow);
    run_on(0);
    let (others, most) = pages.split_at(3);
    let mut flying: Vec<_> = most.iter().map(|page| submit(&domain, &[*page]).expect("room")).collect();
    let usage = domain.usage();
    assert_eq!(usage.batches_in_flight, IN_FLIGHT_MAX);
    assert_eq!(usage.batches_in_flight_max % IN_FLIGHT_MAX, 0);
    let mut batch = domain.raw_batch();
    batch.unmap_raw(others[0], PAGE_SIZE).expect("mapped");
    let Err(SubmitFailure::Full(batch)) = batch.try_submit() else { panic!("there is no place") };
    assert_eq!(reach(&iommu, others[0]), Some(0x100), "nothing was submitted");
    let before_us = host.now_us();
    let mut whole = batch.submit().expect("the hardware answers");
    assert!(host.now_us() > before_us, "it has waited");
    assert_eq!((whole.is_done(), reach(&iommu, others[0])), (true, None));
    whole.wait().expect("it is done");
    // Another CPU has places of its own.
    run_on(1);
    let elsewhere = submit(&domain, &others[1..2]).expect("room");
    assert_eq!(domain.usage().batches_in_flight, IN_FLIGHT_MAX + 1);
    run_on(0);
    elsewhere.wait().expect("the hardware answers");
    flying.pop().expect("one").wait().expect("the hardware answers");
    flying.push(submit(&domain, &others[2..]).expect("room again"));
    assert_eq!(domain.usage().batches_in_flight, IN_FLIGHT_MAX);
    flying.into_iter().for_each(|submitted| submitted.wait().expect("the hardware answers"));
    assert_eq!((domain.usage().batches_in_flight, domain.usage().live_ranges), (0, 0));
}

/// A wait that begins long after the submission has the whole time limit, and a healthy queue answers at once.
#[test]
fn a_driver_that_comes_late_gets_its_buffers() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let pages = map(&domain, &iommu, 0x100, 2);
    let mut looked_at = submit(&domain, &pages[..1]).expect("room");
    let waited_for = submit(&domain, &pages[1..]).expect("room");
    host.advance_us(100 * INVALIDATION_TIMEOUT_US);
    assert!(looked_at.is_done());
    waited_for.wait().expect("the hardware answers");
    looked_at.wait().expect("it is done");
}

#[test]
fn dropped_batches_are_waited_for_and_forgotten_ones_leak() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Magazine::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let lost = lost_here();
    let pages = map(&domain, &iommu, 0x100, 2);
    iommu.behave(Behaviour::Slow);
    drop(submit(&domain, &pages[..1]).expect("room"));
    assert_eq!(reach(&iommu, pages[0]), None);
    std::mem::forget(submit(&domain, &pages[1..]).expect("room"));
    assert_eq!((domain.usage().live_ranges, domain.usage().batches_in_flight), (1, 1), "it leaks its place as well");
    assert_eq!(lost_here(), lost);
    drop(domain);
    assert_eq!((host.frames_lent(), reach(&iommu, pages[1])), (0, None));
}

#[test]
fn buffers_come_back_in_order_or_not_at_all() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let mut ring = domain.ring(RingConfig::default()).expect("a ring");
    let buffers = || {
        (1..=9u8).map(|number| {
            let mut buffer = FakeBuffer::new(1);
            buffer[0] = number;
            buffer
        })
    };
    let descriptor = ring.map(buffers().collect()).unwrap_or_else(|_| panic!("room"));
    iommu.behave(Behaviour::Slow);
    let submitted = ring.submit(descriptor).unwrap_or_else(|_| panic!("room"));
    let back = submitted.wait().expect("the hardware answers");
    assert!(back.iter().map(|buffer| buffer[0]).eq(1..=9));
    // The hardware refuses, or never answers: no buffer comes back, and none is freed (S11).
    for (behaviour, error) in [
        (Behaviour::Failing, QueueError::Descriptor),
        (Behaviour::Silent, QueueError::Timeout(INVALIDATION_TIMEOUT_US)),
    ] {
        let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
        iommu.behave(Behaviour::Prompt);
        let lost = lost_here();
        let mut batch = domain.batch();
        for buffer in buffers() {
            let mapping = domain.map(buffer, WRITES).unwrap_or_else(|_| panic!("room"));
            batch.unmap(mapping).unwrap_or_else(|_| panic!("mapped"));
        }
        iommu.behave(behaviour);
        let failed = match batch.submit() {
            Ok(mut submitted) => {
                assert_eq!(domain.usage().batches_in_flight, 1);
                assert!(!submitted.is_done());
                host.advance_us(2 * INVALIDATION_TIMEOUT_US);
                assert!(submitted.is_done(), "a look waits in the end");
                submitted.wait().map(|_| ())
            }
            Err(error) => Err(error),
        };
        assert_eq!(failed, Err(CommitError(error)));
        assert_eq!(lost_here(), lost + 9);
        let refused = domain.raw_map(PhysAddr::from_pfn(7), PAGE_SIZE, WRITES).expect_err("the domain is poisoned");
        assert_eq!(refused, MapError::Poisoned);
        assert_eq!(domain.usage().batches_in_flight, 0);
        iommu.behave(Behaviour::Prompt);
    }
}

#[test]
fn a_dropped_batch_that_fails_is_counted() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let pages = map(&domain, &iommu, 0x100, 3);
    iommu.behave(Behaviour::Silent);
    let submitted = submit(&domain, &pages).expect("accepted");
    let lost = lost_here();
    drop(submitted);
    assert_eq!(lost_here(), lost + 3);
    assert_eq!(domain.raw_map(PhysAddr::from_pfn(7), PAGE_SIZE, WRITES), Err(MapError::Poisoned));
    iommu.behave(Behaviour::Prompt);
}

/// Deferred domains queue the unmaps at once, and have nothing in flight.
#[test]
fn deferred_domains_return_at_once() {
    for &design in DesignId::ALL {
        if !design.info().protections.contains(&Protection::Deferred) {
            continue;
        }
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        let config = DomainConfig { memory: &MEMORY, ..DomainConfig::new(Protection::Deferred) };
        let domain = DynDomain::open(design, iommu, host, &config).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        let pages = map(&*domain, iommu, 0x100, 2);
        iommu.behave(Behaviour::Slow);
        let mut submitted = submit(&domain, &pages).expect("the hardware is not needed");
        assert!(submitted.is_done(), "{}", design.info().id);
        submitted.wait().expect("it is queued");
        assert_eq!(domain.usage().batches_in_flight, 0);
    }
}

/// A batch that is submitted in its place is empty after the wait, and can be used again. If what was submitted is
/// forgotten, the next commit covers it as well.
#[test]
fn a_batch_is_submitted_in_its_place() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let (mut raw, mut typed) = (domain.raw_batch(), domain.batch());
    for round in 0..3 {
        let mapping = domain.map(FakeBuffer::new(1), WRITES).unwrap_or_else(|_| panic!("room"));
        let (iova, page) = (mapping.iova(), map(&domain, &iommu, 0x100, 1)[0]);
        assert!(reach(&iommu, iova).is_some());
        typed.unmap(mapping).unwrap_or_else(|_| panic!("mapped"));
        raw.unmap_raw(page, PAGE_SIZE).expect("mapped");
        iommu.behave(Behaviour::Slow);
        let (typed, raw) = (typed.submit_so_far().expect("room"), raw.submit_so_far().expect("room"));
        assert!(reach(&iommu, iova).is_some() && reach(&iommu, page).is_some());
        if round == 1 {
            std::mem::forget((typed, raw));
        } else {
            assert_eq!(typed.wait().expect("the hardware answers").count(), if round == 0 { 1 } else { 2 });
            raw.wait().expect("the hardware answers");
            assert!(reach(&iommu, iova).is_none() && reach(&iommu, page).is_none(), "S2");
        }
        iommu.behave(Behaviour::Prompt);
    }
    let usage = domain.usage();
    assert_eq!((usage.live_ranges, usage.batches_in_flight), (0, 2), "the forgotten ones keep their places");
}

/// A look that finds a failure loses the buffers, even if the submission is then forgotten: no later commit gives them
/// back (S11).
#[test]
fn a_failure_that_a_look_has_found_cannot_be_forgotten() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let [lost, kept] = [(); 2].map(|()| domain.map(FakeBuffer::new(1), WRITES).unwrap_or_else(|_| panic!("room")));
    let iova = lost.iova();
    assert!(reach(&iommu, iova).is_some());
    let mut batch = domain.batch();
    batch.unmap(lost).unwrap_or_else(|_| panic!("mapped"));
    iommu.behave(Behaviour::Silent);
    let mut submitted = batch.submit_so_far().expect("accepted");
    assert!(!submitted.is_done());
    host.advance_us(2 * INVALIDATION_TIMEOUT_US);
    let before = lost_here();
    assert!(submitted.is_done());
    std::mem::forget(submitted);
    assert_eq!(lost_here(), before + 1);
    iommu.behave(Behaviour::Prompt);
    batch.unmap(kept).unwrap_or_else(|_| panic!("mapped"));
    assert_eq!(batch.commit().expect("the hardware answers").len(), 1);
    assert!(reach(&iommu, iova).is_some(), "the device still has the first");
}

/// A typed batch that is dropped between the halves frees its buffers, whether a look has found it done or not. A
/// borrowed one can be used again.
#[test]
fn a_dropped_batch_frees_its_buffers() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let before = lost_here();
    let mut borrowed = domain.batch();
    for is_looked_at in [false, true] {
        let mut owned = domain.batch();
        for batch in [&mut owned, &mut borrowed] {
            for _ in 0..BATCH_MAX {
                let mapping = domain.map(FakeBuffer::new(1), WRITES).unwrap_or_else(|_| panic!("room"));
                batch.unmap(mapping).unwrap_or_else(|_| panic!("mapped"));
            }
        }
        let (mut owned, mut of_borrowed) = (owned.submit().expect("room"), borrowed.submit_so_far().expect("room"));
        if is_looked_at {
            assert!(owned.is_done() && of_borrowed.is_done());
        }
        drop((owned, of_borrowed));
        assert!(borrowed.commit_so_far().expect("it is empty").next().is_none());
    }
    assert_eq!((lost_here(), domain.usage().live_ranges), (before, 0));
    // Forgotten buffers are lost, and are no hindrance.
    for round in 0..2 {
        for _ in 0..BATCH_MAX {
            let mapping = domain.map(FakeBuffer::new(1), WRITES).unwrap_or_else(|_| panic!("room"));
            borrowed.unmap(mapping).unwrap_or_else(|_| panic!("mapped"));
        }
        let mut submitted = borrowed.submit_so_far().expect("room");
        assert!(submitted.is_done());
        if round == 0 {
            std::mem::forget(submitted);
        } else {
            assert_eq!(submitted.wait().expect("it is done").count(), BATCH_MAX);
        }
    }
    assert_eq!(lost_here(), before + BATCH_MAX);
}

/// A poisoned domain leaves no translation behind a submission, whatever its design leaves to later maps otherwise.
#[test]
fn a_poisoned_deferred_domain_clears_what_is_submitted() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Solaris::open(&iommu, &host, Protection::Deferred).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let page = map(&domain, &iommu, 0x100, 1)[0];
    let mut batch = domain.raw_batch();
    batch.unmap_raw(page, PAGE_SIZE).expect("mapped");
    iommu.behave(Behaviour::Failing);
    // SAFETY: no memory is behind the IOMMU.
    unsafe { domain.map_raw(PhysAddr::from_pfn(7), PAGE_SIZE, WRITES) }.expect_err("its invalidation fails");
    iommu.behave(Behaviour::Prompt);
    batch.submit().expect("the hardware answers").wait().expect("it is done");
    assert_eq!(reach(&iommu, page), None, "S2");
}

/// Hardware whose shared submissions fail after they were accepted, or that has no room.
struct Crowded<'h> {
    fake: &'h FakeIommu<'h>,
    has_room: Mutex<bool>,
    shared_fail: bool,
}

// SAFETY: no memory is behind it.
unsafe impl Iommu for Crowded<'_> {
    type Ticket = Option<Ticket>;

    forward_domains!(fake);

    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        self.fake.submit(commands).map(Some)
    }

    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        if self.shared_fail { Ok(None) } else { self.submit(commands) }
    }

    fn try_submit_shared(&self, commands: &[Invalidation]) -> TrySubmit<Self::Ticket> {
        if *self.has_room.lock().expect("not poisoned") { self.submit_shared(commands).map(Some) } else { Ok(None) }
    }

    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError> {
        ticket.map_or(Err(QueueError::Device), |ticket| self.fake.is_done(ticket))
    }
}

/// Another commit in the submission has failed: the second half submits the batch again, alone (S11).
#[test]
fn a_shared_submission_that_fails_in_flight_is_tried_again_alone() {
    let host = FakeHost::default();
    let fake = FakeIommu::new(&host);
    let iommu = Crowded { fake: &fake, has_room: Mutex::new(false), shared_fail: true };
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let pages = map(&domain, &fake, 0x100, 40);
    let submitted = submit(&domain, &pages).expect("accepted");
    assert!(fake.take_commands().is_empty(), "nothing has reached the hardware");
    submitted.wait().expect("it was submitted again");
    assert!(!fake.take_commands().is_empty());
    assert!(pages.iter().all(|page| reach(&fake, *page).is_none()), "S2");
    assert_eq!(domain.usage().live_ranges, 0);
}

/// A full queue refuses `try_submit`, and the batch is as it was.
#[test]
fn a_full_queue_refuses() {
    let host = FakeHost::default();
    let fake = FakeIommu::new(&host);
    let iommu = Crowded { fake: &fake, has_room: Mutex::new(false), shared_fail: false };
    // One run of pages takes one command; pages here and there take several.
    for stride in [1, 2] {
        let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        let pages = map(&domain, &fake, 0x100, 20);
        let mut batch = domain.raw_batch();
        pages.iter().step_by(stride).for_each(|page| batch.unmap_raw(*page, PAGE_SIZE).expect("mapped"));
        *iommu.has_room.lock().expect("not poisoned") = false;
        let Err(SubmitFailure::Full(batch)) = batch.try_submit() else { panic!("there is no room") };
        assert_eq!(batch.revoked().map(|revoked| revoked.unmaps).sum::<usize>(), 20 / stride);
        assert_eq!((fake.take_commands().len(), domain.usage().batches_in_flight), (0, 0));
        *iommu.has_room.lock().expect("not poisoned") = true;
        let submitted = batch.try_submit().unwrap_or_else(|_| panic!("there is room"));
        assert_eq!(fake.take_commands().len(), if stride == 1 { 1 } else { 10 });
        submitted.wait().expect("the hardware answers");
        assert!(pages.iter().step_by(stride).all(|page| reach(&fake, *page).is_none()), "S2");
        domain.detach(DEVICE).expect("attached");
    }
}

/// An empty batch has nothing to submit.
#[test]
fn an_empty_batch_is_done() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mut raw = domain.raw_batch().submit().expect("nothing to do");
    assert!(raw.is_done());
    raw.wait().expect("nothing to do");
    let typed = domain.batch::<FakeBuffer>().submit().expect("nothing to do");
    assert!(typed.wait().expect("nothing to do").is_empty());
    assert!(iommu.take_commands().is_empty());
}
