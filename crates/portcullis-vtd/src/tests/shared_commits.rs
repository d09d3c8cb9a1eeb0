//! Commits that share a submission: what CPUs post while two submissions are in flight, or while another CPU holds the
//! ring.

use super::fake_unit::*;
use super::host::Host;
use super::{Driver, bring_up, finish, page, page_descriptor, without_waits};
use crate::Ticket;
use crate::queue::{BURST_MAX, SLOTS};
use portcullis::iommu::{DomainId, Invalidation, Iommu, QueueError};
use portcullis::platform::Wait;
use portcullis::platform::fake::run_on;
use portcullis::{Iova, Platform};
use std::sync::atomic::{AtomicU64, Ordering};

fn pages(first: u64, count: usize) -> Vec<Invalidation> {
    (first..first + count as u64).map(|pfn| page(7, pfn)).collect()
}

/// Submits page `pfn`, shared, on `cpu`. The commit is posted or departs.
pub(super) fn share(unit: &Driver<'_>, cpu: u32, pfn: u64) -> Ticket {
    run_on(cpu);
    unit.submit_shared(&[page(7, pfn)]).expect("room")
}

/// Submits page `pfn` on `cpu` as unmaps do, where it cannot be done at once.
fn share_at_once(unit: &Driver<'_>, cpu: u32, pfn: u64) -> Ticket {
    run_on(cpu);
    match unit.try_invalidate(page(7, pfn)) {
        Err(Ok(Some(ticket))) => ticket,
        other => panic!("{other:?}"),
    }
}

/// The pages executed, in order.
pub(super) fn executed(fake: &FakeUnit<'_>) -> Vec<u64> {
    let executed = without_waits(fake.take_executed());
    executed.iter().map(|done| (0..10_000).find(|pfn| *done == page_descriptor(7, *pfn)).expect("a page")).collect()
}

/// The pages of the submissions in flight.
const FLYING: [u64; 2] = [0, 90];

/// A unit with two submissions in flight, the older one first. Their CPU is number 0.
fn with_two_in_flight<'a>(fake: &'a FakeUnit<'a>, host: &'a Host) -> (Driver<'a>, [Ticket; 2]) {
    let unit = bring_up(fake, host);
    fake.behave(Behaviour::Holding);
    let flying = FLYING.map(|pfn| {
        let ticket = share(&unit, 0, pfn);
        assert_eq!(executed(fake), [pfn], "a commit that finds fewer than two in flight departs at once");
        ticket
    });
    (unit, flying)
}

#[test]
fn several_commits_have_one_wait() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let (unit, [older, younger]) = with_two_in_flight(&fake, &host);
    let before = (unit.queue_use(), fake.with(|state| state.tail_writes));
    let posted = [share(&unit, 1, 1), share_at_once(&unit, 2, 2), share(&unit, 3, 3)];
    let all = |done| posted.iter().all(|ticket| unit.is_done(*ticket) == Ok(done));
    assert!(all(false));
    assert_eq!(unit.is_done(older), Ok(false));
    assert_eq!(executed(&fake), [], "the hardware does not know of them");
    fake.land(0);
    assert_eq!((unit.is_done(older), unit.is_done(younger)), (Ok(true), Ok(false)));
    assert_eq!(executed(&fake), [1, 2, 3], "who is on duty submits them before it leaves");
    assert!(all(false), "the older submission has landed, not theirs");
    let after = (unit.queue_use(), fake.with(|state| state.tail_writes));
    assert_eq!((after.0.commits - before.0.commits, after.0.waits - before.0.waits, after.1 - before.1), (3, 1, 1));

    let next = share(&unit, 0, 4);
    assert_eq!((unit.is_done(next), unit.is_done(younger)), (Ok(false), Ok(false)));
    assert_eq!(executed(&fake), [], "the younger submission and theirs are two in flight again");
    fake.land(0);
    assert_eq!(unit.is_done(younger), Ok(true));
    assert_eq!(executed(&fake), [4]);
    assert!(all(false));
    fake.land(0);
    assert!(all(true));
    assert_eq!(unit.is_done(next), Ok(false));
    fake.land(0);
    assert_eq!(unit.is_done(next), Ok(true));
}

/// The owners of the two in flight ask for neither of them. The next commit takes along what was posted.
#[test]
fn a_commit_takes_along_what_is_posted() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_two_in_flight(&fake, &host);
    let posted = [share(&unit, 1, 1), share_at_once(&unit, 2, 2)];
    flying.iter().for_each(|_| fake.land(0));
    fake.behave(Behaviour::Prompt);
    let doorbells = fake.with(|state| state.tail_writes);
    run_on(0);
    assert_eq!(unit.try_invalidate(page(7, 3)), Ok(()));
    assert_eq!(executed(&fake), [3, 1, 2]);
    assert_eq!(fake.with(|state| state.tail_writes), doorbells + 1);
    assert_eq!(posted.map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
}

/// Commits find the ring held by another CPU: they post, and the next one that takes the ring takes them along.
#[test]
fn a_commit_that_finds_the_ring_held_posts() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let posted = unit.queue.ring().with(|_| {
        std::thread::scope(|scope| {
            let unit = &unit;
            let post = |cpu| scope.spawn(move || share_at_once(unit, cpu, u64::from(cpu)));
            [1, 2, 3].map(|cpu| post(cpu).join().expect("it does not wait for the holder"))
        })
    });
    assert_eq!(executed(&fake), []);
    run_on(0);
    assert_eq!(unit.try_invalidate(page(7, 4)), Ok(()));
    assert_eq!(executed(&fake), [4, 1, 2, 3]);
    assert_eq!(posted.expect("no panic").map(|ticket| unit.is_done(ticket)), [Ok(true); 3]);
}

/// What is submitted alone is in flight for the next one, too.
#[test]
fn commits_at_once_are_two_in_flight() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let flying = [1, 2].map(|pfn| {
        let ticket = share_at_once(&unit, 0, pfn);
        assert_eq!(executed(&fake), [pfn], "it departs at once");
        ticket
    });
    let third = share_at_once(&unit, 0, 3);
    assert_eq!(executed(&fake), [], "it is posted");
    fake.land(1);
    assert_eq!(flying.map(|ticket| unit.is_done(ticket)), [Ok(false), Ok(true)]);
    assert_eq!(unit.is_done(third), Ok(false));
    assert_eq!(executed(&fake), [], "the older of the two is still in flight");
    fake.land(0);
    assert_eq!(unit.is_done(flying[0]), Ok(true));
    assert_eq!(executed(&fake), [3]);
    assert_eq!(unit.is_done(third), Ok(false));
    fake.land(0);
    assert_eq!(unit.is_done(third), Ok(true));
}

/// The first one whose post was taken is on duty, and no other.
#[test]
fn the_first_one_that_was_taken_serves_the_next() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, [older, _]) = with_two_in_flight(&fake, &host);
    let posted = [share(&unit, 1, 1), share(&unit, 2, 2)];
    fake.land(0);
    assert_eq!(unit.is_done(older), Ok(true));
    assert_eq!(executed(&fake), [1, 2]);
    share(&unit, 3, 3);
    // The younger of the first two has landed, and its owner does not ask.
    fake.land(0);
    assert_eq!(unit.is_done(posted[1]), Ok(false));
    assert_eq!(executed(&fake), []);
    assert_eq!(unit.is_done(posted[0]), Ok(false));
    assert_eq!(executed(&fake), [3]);
}

/// A commit that takes posts along stays on duty, and none of them is.
#[test]
fn a_commit_that_takes_posts_along_serves_the_next() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_two_in_flight(&fake, &host);
    let posted = share(&unit, 1, 1);
    flying.iter().for_each(|_| fake.land(0));
    let own = share(&unit, 2, 2);
    share(&unit, 0, 4);
    assert_eq!(executed(&fake), [2, 1, 4]);
    share(&unit, 3, 3);
    fake.land(0);
    assert_eq!(unit.is_done(posted), Ok(true));
    assert_eq!(executed(&fake), []);
    assert_eq!(unit.is_done(own), Ok(true));
    assert_eq!(executed(&fake), [3]);
}

/// The others give who is on duty some time, and then one of them takes the ring for all.
#[test]
fn no_poster_waits_for_a_cpu_on_duty_that_has_stopped() {
    for asks in [1, 2] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let (unit, flying) = with_two_in_flight(&fake, &host);
        let posted = [share(&unit, 1, 1), share(&unit, 2, 2)];
        flying.iter().for_each(|_| fake.land(0));
        fake.behave(Behaviour::Prompt);
        let asking = posted[asks - 1];
        for _ in 0..5 {
            assert_eq!(unit.is_done(asking), Ok(false));
        }
        assert_eq!(executed(&fake), [], "patience");
        assert_eq!(finish(&unit, &host, asking), Ok(()));
        assert_eq!(executed(&fake), [1, 2]);
        assert_eq!(posted.map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
    }
}

/// The cell of the CPU is in use, so the interrupt takes the ring, and the post along.
#[test]
fn an_interrupt_within_a_commit_takes_the_ring() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_two_in_flight(&fake, &host);
    let interrupted = share(&unit, 1, 1);
    let handler = share(&unit, 1, 2);
    assert_eq!(executed(&fake), [2, 1], "though two are in flight");
    assert_eq!([handler, interrupted].map(|ticket| unit.is_done(ticket)), [Ok(false); 2]);
    (0..3).for_each(|_| fake.land(0));
    assert_eq!([handler, interrupted].map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
    // A post whose owner has not asked, and that has landed well, does not keep the cell.
    fake.behave(Behaviour::Holding);
    let flying = FLYING.map(|pfn| share(&unit, 0, pfn));
    let unread = share(&unit, 1, 3);
    fake.land(0);
    assert_eq!(unit.is_done(flying[0]), Ok(true));
    (0..2).for_each(|_| fake.land(0));
    executed(&fake);
    FLYING.iter().for_each(|pfn| _ = share(&unit, 0, *pfn));
    let next = share(&unit, 1, 4);
    assert_eq!(executed(&fake), FLYING, "it was posted");
    assert_eq!((unit.is_done(next), unit.is_done(unread)), (Ok(false), Ok(true)));
}

/// An interrupt comes while a commit spins, and another one between its post and its first poll. Each ends before the
/// code that it has interrupted goes on.
#[test]
fn commits_nest_in_the_spin_of_a_commit() {
    const NESTED: u64 = 4;
    let host: &'static Host = Box::leak(Box::new(Host::new(false)));
    let fake: &'static FakeUnit<'static> = Box::leak(Box::new(FakeUnit::new(host)));
    let (unit, flying) = with_two_in_flight(fake, host);
    let unit: &'static Driver<'static> = Box::leak(Box::new(unit));
    fake.behave(Behaviour::Prompt);
    let count = AtomicU64::new(0);
    host.on_pause(move || match count.fetch_add(1, Ordering::Relaxed) {
        nested @ 0..NESTED => {
            let ticket = share(unit, 0, 10 + nested);
            assert_eq!(finish(unit, host, ticket), Ok(()));
            let done = fake.with(|state| state.executed.contains(&page_descriptor(7, 10 + nested)));
            assert!(done, "interrupt {nested} returned before its invalidation");
        }
        NESTED => fake.land(0),
        _ => {}
    });
    let outermost = share(unit, 0, 9);
    let between = share(unit, 0, 8);
    assert_eq!(finish(unit, host, outermost), Ok(()));
    (0..=NESTED).for_each(|_| host.pause(Wait::Invalidation));
    assert_eq!(finish(unit, host, between), Ok(()));
    assert_eq!(unit.is_done(flying[0]), Ok(true));
    let mut all = executed(fake);
    all.sort_unstable();
    assert_eq!(all, [8, 9, 10, 11, 12, 13], "each once");
}

#[test]
fn the_error_of_one_is_not_the_others_for_good() {
    for refused in [1, 2, 3] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let (unit, flying) = with_two_in_flight(&fake, &host);
        fake.behave(Behaviour::Prompt);
        fake.with(|state| state.refuse = Some(page_descriptor(7, refused).encode()));
        let posted = [1, 2, 3].map(|cpu| share(&unit, cpu, u64::from(cpu)));
        fake.land(0);
        assert_eq!(unit.is_done(flying[0]), Ok(true));
        for ticket in &posted {
            assert_eq!(finish(&unit, &host, *ticket), Err(QueueError::Descriptor));
        }
        fake.land(0);
        assert_eq!(unit.is_done(flying[1]), Ok(true));
        for (pfn, ticket) in (1..4).zip(&posted) {
            let alone = unit.submit(&[page(7, pfn)]).expect("room");
            let expected = if pfn == refused { Err(QueueError::Descriptor) } else { Ok(()) };
            assert_eq!(finish(&unit, &host, alone), expected);
            assert_eq!(unit.is_done(*ticket), Err(QueueError::Descriptor), "a failure stays a failure");
        }
        let next = share(&unit, 0, 9);
        assert_eq!(unit.is_done(next), Ok(true));
    }
}

/// A cell whose post has failed is used again once its owner knows. Who asks again then, is not told that it was done.
#[test]
fn s11_a_post_that_failed_is_never_done() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_two_in_flight(&fake, &host);
    let landed = share(&unit, 2, 7);
    fake.land(0);
    assert_eq!(unit.is_done(flying[0]), Ok(true));
    (0..2).for_each(|_| fake.land(0));
    let post = |pfn| {
        fake.behave(Behaviour::Holding);
        let flying = FLYING.map(|pfn| share(&unit, 0, pfn));
        let posted = share(&unit, 2, pfn);
        executed(&fake);
        (0..2).for_each(|_| fake.land(0));
        assert_eq!(flying.map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
        posted
    };
    fake.with(|state| state.refuse = Some(page_descriptor(7, 1).encode()));
    let failed = post(1);
    // Another caller resumes the queue. The owner of the post does not know of the failure yet, so its cell is kept.
    let other = unit.submit(&[page(7, 50)]).expect("room");
    assert_eq!(unit.is_done(other), Ok(false));
    let until_known = share(&unit, 2, 2);
    assert_eq!(finish(&unit, &host, failed), Err(QueueError::Descriptor));
    fake.with(|state| state.refuse = None);
    fake.behave(Behaviour::Prompt);
    while fake.with(|state| !state.held.is_empty()) {
        fake.land(0);
    }
    assert_eq!(finish(&unit, &host, until_known), Ok(()));
    // The cell says that a later post has landed, then that another one waits, and that it was done in between.
    for pfn in 3..6 {
        let later = post(pfn);
        assert_eq!(unit.is_done(failed), Err(QueueError::Descriptor), "it was not made");
        assert_ne!(unit.is_done(landed), Ok(false), "it may be reported as failed, which is safe");
        fake.land(0);
        assert_eq!(finish(&unit, &host, later), Ok(()));
        assert_eq!(unit.is_done(failed), Err(QueueError::Descriptor), "it was not made");
    }
}

/// For a misaligned run, hardware would invalidate different pages than intended.
#[test]
fn a_misaligned_run_is_not_posted() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_two_in_flight(&fake, &host);
    let first = share(&unit, 1, 1);
    let before = unit.queue_use();
    run_on(2);
    for (first, mask) in [(0x1000, 1), (0x1000, 3), (0x1800, 0), (0x1_0000, 5), (0x1000, 63)] {
        let bad = Invalidation::Pages { domain: DomainId(7), first: Iova::new(first), mask, leaf_only: true };
        for commands in [vec![bad], vec![page(7, 2), bad], vec![bad, page(7, 2)], [pages(2, 63), vec![bad]].concat()] {
            assert_eq!(unit.submit_shared(&commands), Err(QueueError::Unsupported));
        }
        assert_eq!(unit.try_invalidate(bad), Err(Ok(None)));
    }
    assert_eq!(unit.queue_use(), before);
    // The commits that were posted continue unaffected.
    let last = share(&unit, 2, 3);
    fake.behave(Behaviour::Prompt);
    fake.land(0);
    assert_eq!([first, last].map(|ticket| finish(&unit, &host, ticket)), [Ok(()); 2]);
    assert_eq!(executed(&fake), [1, 3]);
}

/// What no post can carry waits for the ring: here, a whole domain.
#[test]
fn a_command_that_cannot_be_posted_takes_posts_along() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_two_in_flight(&fake, &host);
    let posted = share(&unit, 1, 1);
    run_on(2);
    let whole = unit.submit_shared(&[Invalidation::Domain(DomainId(7))]).expect("room");
    let descriptors = without_waits(fake.take_executed());
    assert_eq!((descriptors.len(), descriptors[1]), (2, page_descriptor(7, 1)));
    (0..3).for_each(|_| fake.land(0));
    assert_eq!([whole, posted].map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
}

/// The submissions in flight are dropped because a device did not answer. What was posted was not in the hardware, and
/// goes on.
#[test]
fn submissions_that_are_dropped_let_the_next_go() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_two_in_flight(&fake, &host);
    let posted = share(&unit, 1, 1);
    fake.time_out();
    fake.behave(Behaviour::Prompt);
    assert_eq!(finish(&unit, &host, posted), Ok(()));
    assert_eq!(flying.map(|ticket| unit.is_done(ticket)), [Err(QueueError::Device); 2]);
    assert_eq!(executed(&fake), [1]);
}

#[test]
fn who_has_posted_when_the_unit_goes_is_told() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_two_in_flight(&fake, &host);
    let posted = share(&unit, 1, 1);
    fake.with(|state| state.gone = true);
    assert_eq!(finish(&unit, &host, posted), Err(QueueError::Gone));
    assert_eq!(flying.map(|ticket| unit.is_done(ticket)), [Err(QueueError::Gone); 2]);
    run_on(2);
    assert_eq!(unit.submit_shared(&[page(7, 2)]), Err(QueueError::Gone));
    assert_eq!(unit.try_invalidate(page(7, 3)), Err(Err(QueueError::Gone)));
}

/// An unshared submission fails alone, so it takes no post along.
#[test]
fn a_submission_of_its_own_leaves_posts_where_they_are() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_two_in_flight(&fake, &host);
    let posted = [share(&unit, 1, 1), share(&unit, 2, 2)];
    let alone = unit.submit(&[page(7, 3)]).expect("room");
    assert_eq!(executed(&fake), [3]);
    (0..3).for_each(|_| fake.land(0));
    assert_eq!(unit.is_done(alone), Ok(true));
    assert_eq!(executed(&fake), []);
    assert_eq!(unit.is_done(flying[1]), Ok(true));
    assert_eq!(executed(&fake), [1, 2]);
    fake.land(0);
    assert_eq!(posted.map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
}

#[test]
fn a_submission_has_at_most_so_many_descriptors() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_two_in_flight(&fake, &host);
    let posted = [1, 2, 3].map(|cpu| share(&unit, cpu, u64::from(cpu)));
    run_on(0);
    let before = unit.queue_use();
    let large = unit.submit_shared(&pages(100, BURST_MAX - 1)).expect("room");
    assert_eq!(executed(&fake)[BURST_MAX - 2..], [162, 1], "there was room for one of them");
    let after = unit.queue_use();
    assert_eq!((after.commits - before.commits, after.waits - before.waits), (2, 1));
    fake.behave(Behaviour::Prompt);
    (0..3).for_each(|_| fake.land(0));
    assert_eq!(unit.is_done(large), Ok(true));
    for ticket in posted {
        assert_eq!(finish(&unit, &host, ticket), Ok(()));
    }
    assert_eq!(executed(&fake), [2, 3], "none is left out");
    let larger = unit.submit_shared(&pages(400, BURST_MAX + 1)).expect("in pieces");
    assert_eq!(unit.is_done(larger), Ok(true));
    assert_eq!(executed(&fake).len(), BURST_MAX + 1);
}

#[test]
fn a_full_ring_is_waited_for() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_two_in_flight(&fake, &host);
    fake.behave(Behaviour::Silent);
    let mut tickets = Vec::new();
    let refused = loop {
        match unit.submit_shared(&pages(100 * tickets.len() as u64, 50)) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() < SLOTS, "the ring was overrun");
    };
    assert_eq!(refused, QueueError::Timeout(1000));
    assert_eq!(tickets.len(), (SLOTS - 1 - 2 * FLYING.len()) / 51);
    assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(false)));
    fake.land(0);
    fake.behave(Behaviour::Lagging);
    for ticket in tickets {
        assert_eq!(finish(&unit, &host, ticket), Ok(()));
    }
}

/// A submission that has landed is never mistaken for one in flight, however many submissions later its status is read.
#[test]
fn a_submission_of_long_ago_keeps_nobody_waiting() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_two_in_flight(&fake, &host);
    FLYING.iter().for_each(|_| fake.land(0));
    fake.behave(Behaviour::Prompt);
    // One revolution, and then so many sequences that a comparison modulo 2^32 cannot tell old from new.
    for revolution in 0..2 {
        for pfn in 0..SLOTS as u64 {
            unit.submit(&[page(7, pfn)]).expect("room");
        }
        if revolution == 0 {
            unit.queue.ring().with(|ring| ring.skip(1 << 31)).expect("no panic");
        }
    }
    executed(&fake);
    for pfn in [1, 2] {
        let ticket = share(&unit, 0, pfn);
        assert_eq!(executed(&fake), [pfn], "neither the older nor the younger");
        assert_eq!(unit.is_done(ticket), Ok(true));
    }
}

#[test]
fn shared_submissions_wrap_with_the_ring_and_the_sequences() {
    for start in [0, u64::from(u32::MAX) - 300, (1 << 31) - 300] {
        for posters in [1, 2, 3] {
            let host = Host::new(false);
            let fake = FakeUnit::new(&host);
            let (unit, _) = with_two_in_flight(&fake, &host);
            FLYING.iter().for_each(|_| fake.land(0));
            unit.queue.ring().with(|ring| ring.skip(start)).expect("no panic");
            for round in 0..300 {
                let flying = FLYING.map(|pfn| share(&unit, 0, pfn));
                let posted: Vec<_> = (1..=posters).map(|cpu| share(&unit, cpu, u64::from(cpu))).collect();
                let all = |done| posted.iter().all(|ticket| unit.is_done(*ticket) == Ok(done));
                assert!(all(false), "round {round} of {posters}");
                fake.land(0);
                assert_eq!(flying.map(|ticket| unit.is_done(ticket)), [Ok(true), Ok(false)]);
                fake.land(0);
                assert!(all(false), "round {round} of {posters}");
                fake.land(0);
                assert!(all(true), "round {round} of {posters}: one wait for all");
                assert_eq!(executed(&fake).len(), 2 + posters as usize);
            }
        }
    }
}

/// Posts on `cpu` for longer than idle cells of other CPUs are searched.
fn post_for_long(unit: &Driver<'_>, fake: &FakeUnit<'_>, cpu: u32) {
    let take_executed = || without_waits(fake.take_executed());
    for round in 0..3_000 {
        let flying = FLYING.map(|pfn| share(unit, 0, pfn));
        let posted = share(unit, cpu, 1);
        assert_eq!(
            take_executed(),
            FLYING.map(|pfn| page_descriptor(7, pfn)),
            "it is posted in round {round} of {cpu}"
        );
        (0..2).for_each(|_| fake.land(0));
        assert_eq!(flying.map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
        assert_eq!(take_executed(), [page_descriptor(7, 1)], "it is found in round {round} of {cpu}");
        fake.land(0);
        assert_eq!(unit.is_done(posted), Ok(true));
    }
}

/// A CPU that has not posted for a long time is searched again when it posts. If so many submissions were made in the
/// meantime that a comparison modulo 2^32 cannot tell old from new, it posts as before.
#[test]
fn a_cpu_that_comes_back_is_found() {
    for skipped in [0, 1 << 31] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let (unit, _) = with_two_in_flight(&fake, &host);
        FLYING.iter().for_each(|_| fake.land(0));
        [2, 1].into_iter().for_each(|cpu| post_for_long(&unit, &fake, cpu));
        unit.queue.ring().with(|ring| ring.skip(skipped)).expect("no panic");
        [3, 2].into_iter().for_each(|cpu| post_for_long(&unit, &fake, cpu));
    }
}

#[test]
fn threads_share_submissions() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Lagging);
    std::thread::scope(|scope| {
        for thread in 0..4u16 {
            let (unit, fake, host) = (&unit, &fake, &host);
            scope.spawn(move || {
                run_on(u32::from(thread));
                for pfn in 0..300 {
                    let ticket = unit.submit_shared(&[page(thread + 1, pfn)]).expect("room");
                    while !unit.is_done(ticket).expect("no error") {
                        host.pause(Wait::Invalidation);
                    }
                    let own = page_descriptor(thread + 1, pfn);
                    assert!(
                        fake.with(|state| state.executed.iter().rev().any(|done| *done == own)),
                        "reported as done too early"
                    );
                }
            });
        }
    });
    assert_eq!(without_waits(fake.take_executed()).len(), 4 * 300);
}
