//! Commits that share a submission.

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

/// Submits page `pfn`, shared. The commit boards a ride or departs.
fn share(unit: &Driver<'_>, pfn: u64) -> Ticket {
    unit.submit_shared(&[page(7, pfn)]).expect("room")
}

/// The pages executed, in order.
fn executed(fake: &FakeUnit<'_>) -> Vec<u64> {
    let executed = without_waits(fake.take_executed());
    executed.iter().map(|done| (0..10_000).find(|pfn| *done == page_descriptor(7, *pfn)).expect("a page")).collect()
}

/// The pages of the rides in flight.
const FLYING: [u64; 2] = [0, 90];

/// A unit with two rides in flight, the older one first.
fn with_rides_in_flight<'a>(fake: &'a FakeUnit<'a>, host: &'a Host) -> (Driver<'a>, [Ticket; 2]) {
    run_on(0);
    let unit = bring_up(fake, host);
    fake.behave(Behaviour::Holding);
    let flying = FLYING.map(|pfn| {
        let ticket = share(&unit, pfn);
        assert_eq!(executed(fake), [pfn], "a commit that finds fewer than two rides in flight departs at once");
        ticket
    });
    (unit, flying)
}

#[test]
fn several_commits_have_one_wait() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let (unit, [older, younger]) = with_rides_in_flight(&fake, &host);
    let before = (unit.queue_use(), fake.with(|state| state.tail_writes));
    let riders: Vec<Ticket> = (1..5).map(|pfn| share(&unit, pfn)).collect();
    let all_waiting = |done| riders.iter().all(|rider| unit.is_done(*rider) == Ok(done));
    assert!(all_waiting(false));
    assert_eq!(executed(&fake), [], "the hardware does not know of them");
    assert_eq!(unit.is_done(older), Ok(false));
    fake.land(0);
    assert_eq!((unit.is_done(older), unit.is_done(younger)), (Ok(true), Ok(false)));
    assert!(all_waiting(false), "the older ride has landed, not theirs");
    assert_eq!(executed(&fake), [1, 2, 3, 4], "in the order in which they boarded, and behind the younger");
    let after = (unit.queue_use(), fake.with(|state| state.tail_writes));
    assert_eq!((after.0.commits - before.0.commits, after.0.waits - before.0.waits, after.1 - before.1), (4, 1, 1));
    let next = share(&unit, 5);
    assert_eq!(unit.is_done(next), Ok(false));
    assert_eq!(executed(&fake), [], "the younger ride and theirs are two in flight again");
    fake.land(0);
    assert_eq!(unit.is_done(younger), Ok(true));
    assert!(all_waiting(false));
    assert_eq!(unit.is_done(next), Ok(false));
    assert_eq!(executed(&fake), [5]);
    fake.land(0);
    assert!(all_waiting(true));
    assert_eq!(unit.is_done(next), Ok(false));
    fake.land(0);
    assert_eq!(unit.is_done(next), Ok(true));
    // No ride is in flight any more.
    for pfn in 6..9 {
        share(&unit, pfn);
    }
    assert_eq!(executed(&fake), [6, 7]);
}

/// Submits page `pfn` at once, where it cannot be done at once.
fn board_at_once(unit: &Driver<'_>, pfn: u64) -> Ticket {
    match unit.try_invalidate(page(7, pfn)) {
        Err(Ok(Some(ticket))) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_command_at_once_boards_behind_two_rides() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_rides_in_flight(&fake, &host);
    let before = (unit.queue_use(), fake.with(|state| state.tail_writes));
    // One opens the ride, the other joins those on board.
    let riders = [board_at_once(&unit, 1), share(&unit, 2), board_at_once(&unit, 3)];
    let are_done = || riders.map(|rider| unit.is_done(rider).expect("no error"));
    assert_eq!(are_done(), [false; 3]);
    assert_eq!(executed(&fake), [], "the hardware does not know of them");
    fake.land(0);
    assert_eq!(are_done(), [false; 3], "the older ride has landed, not theirs");
    assert_eq!(executed(&fake), [1, 2, 3]);
    fake.land(0);
    assert_eq!(flying.map(|ride| unit.is_done(ride)), [Ok(true); 2]);
    assert_eq!(are_done(), [false; 3]);
    fake.land(0);
    assert_eq!(are_done(), [true; 3]);
    let after = (unit.queue_use(), fake.with(|state| state.tail_writes));
    assert_eq!((after.0.commits - before.0.commits, after.0.waits - before.0.waits, after.1 - before.1), (3, 1, 1));
    fake.behave(Behaviour::Prompt);
    assert_eq!(unit.try_invalidate(page(7, 4)), Ok(()), "nothing is in flight");
    assert_eq!(executed(&fake), [4]);
}

/// Both rides have landed, but those on board have not polled since. The command joins them, and all depart.
#[test]
fn a_command_at_once_takes_along_who_is_on_board() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_rides_in_flight(&fake, &host);
    let rider = share(&unit, 1);
    flying.iter().for_each(|_| fake.land(0));
    fake.behave(Behaviour::Prompt);
    let doorbells = fake.with(|state| state.tail_writes);
    let at_once = board_at_once(&unit, 2);
    assert_eq!(executed(&fake), [1, 2], "in the order in which they boarded");
    assert_eq!(fake.with(|state| state.tail_writes), doorbells + 1);
    assert_eq!([at_once, rider].map(|ticket| unit.is_done(ticket)), [Ok(true); 2]);
}

/// A command that goes alone is in flight for the next one.
#[test]
fn commands_at_once_are_two_in_flight() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    run_on(0);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let flying = [1, 2].map(|pfn| {
        let ticket = board_at_once(&unit, pfn);
        assert_eq!(executed(&fake), [pfn], "it departs at once");
        ticket
    });
    let third = board_at_once(&unit, 3);
    assert_eq!(executed(&fake), [], "it waits on board");
    fake.land(1);
    assert_eq!(flying.map(|ride| unit.is_done(ride)), [Ok(false), Ok(true)]);
    assert_eq!(unit.is_done(third), Ok(false));
    assert_eq!(executed(&fake), [], "the older of the two is still in flight");
    fake.land(0);
    assert_eq!(unit.is_done(third), Ok(false));
    assert_eq!(executed(&fake), [3]);
    fake.land(0);
    assert_eq!(unit.is_done(third), Ok(true));
}

/// The others give the leader some time, and then continue without it.
#[test]
fn nobody_waits_for_a_leader_that_has_stopped_asking() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_rides_in_flight(&fake, &host);
    share(&unit, 1);
    run_on(1);
    let follower = share(&unit, 2);
    fake.behave(Behaviour::Prompt);
    fake.land(0);
    for _ in 0..5 {
        assert_eq!(unit.is_done(follower), Ok(false));
    }
    assert_eq!(executed(&fake), [], "patience");
    assert_eq!(finish(&unit, &host, follower), Ok(()));
    assert_eq!(executed(&fake), [1, 2]);
}

#[test]
fn an_interrupt_on_the_leaders_cpu_departs_in_its_stead() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_rides_in_flight(&fake, &host);
    run_on(1);
    let leader = share(&unit, 1);
    let handler = share(&unit, 2);
    fake.behave(Behaviour::Prompt);
    fake.land(0);
    assert_eq!(unit.is_done(handler), Ok(true), "the leader is where it was interrupted");
    assert_eq!(unit.is_done(leader), Ok(true));
    assert_eq!(executed(&fake), [1, 2]);
}

/// An interrupt comes while a commit spins, and the next interrupt while the commit of the first one spins. Each ends
/// before the code that it has interrupted continues.
#[test]
fn commits_nest_in_the_spin_of_a_commit() {
    const LEVELS: u64 = 4;
    let host: &'static Host = Box::leak(Box::new(Host::new(false)));
    let fake: &'static FakeUnit<'static> = Box::leak(Box::new(FakeUnit::new(host)));
    let (unit, flying) = with_rides_in_flight(fake, host);
    let unit: &'static Driver<'static> = Box::leak(Box::new(unit));
    fake.behave(Behaviour::Prompt);
    let level = AtomicU64::new(0);
    host.on_pause(move || match level.fetch_add(1, Ordering::Relaxed) {
        level @ 0..LEVELS => {
            let nested = share(unit, 10 + level);
            assert_eq!(finish(unit, host, nested), Ok(()));
            let done = fake.with(|state| state.executed.contains(&page_descriptor(7, 10 + level)));
            assert!(done, "level {level} returned before its invalidation");
        }
        LEVELS => fake.land(0),
        _ => {}
    });
    let outermost = share(unit, 9);
    assert_eq!(finish(unit, host, outermost), Ok(()));
    assert_eq!(flying.map(|ride| unit.is_done(ride)), [Ok(true), Ok(false)]);
    assert_eq!(executed(fake), [9, 10, 11, 12, 13]);
}

#[test]
fn the_error_of_a_rider_is_not_the_others_for_good() {
    for refused in [1, 2, 3] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let (unit, flying) = with_rides_in_flight(&fake, &host);
        fake.behave(Behaviour::Prompt);
        fake.with(|state| state.refuse = Some(page_descriptor(7, refused).encode()));
        let riders: Vec<Ticket> = (1..4).map(|pfn| share(&unit, pfn)).collect();
        fake.land(0);
        for rider in &riders {
            assert_eq!(finish(&unit, &host, *rider), Err(QueueError::Descriptor));
        }
        assert_eq!(flying.map(|ride| unit.is_done(ride)), [Ok(true), Ok(false)]);
        fake.land(0);
        assert_eq!(flying.map(|ride| unit.is_done(ride)), [Ok(true); 2]);
        for (pfn, rider) in (1..4).zip(&riders) {
            let alone = unit.submit(&[page(7, pfn)]).expect("room");
            let expected = if pfn == refused { Err(QueueError::Descriptor) } else { Ok(()) };
            assert_eq!(finish(&unit, &host, alone), expected);
            assert_eq!(unit.is_done(*rider), Err(QueueError::Descriptor), "a failure stays a failure");
        }
        let next = share(&unit, 9);
        assert_eq!(unit.is_done(next), Ok(true));
    }
}

/// For a misaligned run, hardware would invalidate different pages than intended.
#[test]
fn a_misaligned_run_does_not_board() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_rides_in_flight(&fake, &host);
    let first = share(&unit, 1);
    let before = unit.queue_use();
    for (first, mask) in [(0x1000, 1), (0x1000, 3), (0x1800, 0), (0x1_0000, 5), (0x1000, 63)] {
        let bad = Invalidation::Pages { domain: DomainId(7), first: Iova::new(first), mask, leaf_only: true };
        for commands in [vec![bad], vec![page(7, 2), bad], vec![bad, page(7, 2)], [pages(2, 63), vec![bad]].concat()] {
            assert_eq!(unit.submit_shared(&commands), Err(QueueError::Unsupported));
        }
        assert_eq!(unit.try_invalidate(bad), Err(Ok(None)));
    }
    assert_eq!(unit.queue_use(), before);
    // The commits that did board continue unaffected.
    let last = share(&unit, 3);
    fake.behave(Behaviour::Prompt);
    fake.land(0);
    assert_eq!([first, last].map(|rider| finish(&unit, &host, rider)), [Ok(()); 2]);
    assert_eq!(executed(&fake), [1, 3]);
}

/// The rides in flight are dropped because a device did not answer. The commits on board were not in the hardware,
/// and continue.
#[test]
fn rides_that_are_dropped_let_the_next_go() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_rides_in_flight(&fake, &host);
    let rider = share(&unit, 1);
    fake.time_out();
    fake.behave(Behaviour::Prompt);
    assert_eq!(finish(&unit, &host, rider), Ok(()));
    assert_eq!(flying.map(|ride| unit.is_done(ride)), [Err(QueueError::Device); 2]);
    assert_eq!(executed(&fake), [1]);
}

#[test]
fn who_is_on_board_when_the_unit_goes_is_told() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, flying) = with_rides_in_flight(&fake, &host);
    let rider = share(&unit, 1);
    fake.with(|state| state.gone = true);
    assert_eq!(unit.is_done(rider), Err(QueueError::Descriptor));
    assert_eq!(flying.map(|ride| unit.is_done(ride)), [Err(QueueError::Descriptor); 2]);
    assert_eq!(unit.submit_shared(&[page(7, 2)]), Err(QueueError::Descriptor));
}

#[test]
fn a_submission_of_its_own_takes_the_riders_along() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_rides_in_flight(&fake, &host);
    let riders = [share(&unit, 1), share(&unit, 2)];
    let doorbells = fake.with(|state| state.tail_writes);
    let alone = unit.submit(&[page(7, 3)]).expect("room");
    assert_eq!(fake.with(|state| state.tail_writes), doorbells + 1);
    assert_eq!(executed(&fake), [1, 2, 3]);
    // The wait of the unshared submission lands first, which says nothing about the ride's wait.
    fake.land(3);
    assert_eq!(unit.is_done(alone), Ok(true));
    assert_eq!(riders.map(|rider| unit.is_done(rider)), [Ok(false), Ok(false)]);
    fake.land(2);
    assert_eq!(riders.map(|rider| unit.is_done(rider)), [Ok(true), Ok(true)]);
}

#[test]
fn a_ride_has_at_most_as_many_descriptors_as_a_submission() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_rides_in_flight(&fake, &host);
    let first = unit.submit_shared(&pages(100, 40)).expect("room");
    let second = unit.submit_shared(&pages(200, BURST_MAX - 40 + 1)).expect("room");
    assert_eq!(executed(&fake).len(), 40, "a commit that finds no room on board makes the others depart");
    let third = unit.submit_shared(&pages(300, BURST_MAX)).expect("room");
    assert_eq!(executed(&fake).len(), BURST_MAX - 40 + 1 + BURST_MAX, "a full ride departs at once");
    let large = {
        fake.behave(Behaviour::Prompt);
        (0..5).for_each(|_| fake.land(0));
        unit.submit_shared(&pages(400, BURST_MAX + 1)).expect("in pieces")
    };
    for ticket in [first, second, third, large] {
        assert_eq!(unit.is_done(ticket), Ok(true));
    }
    assert_eq!(executed(&fake).len(), BURST_MAX + 1);
}

#[test]
fn a_full_ring_is_waited_for() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_rides_in_flight(&fake, &host);
    fake.behave(Behaviour::Silent);
    let mut riders = Vec::new();
    let refused = loop {
        match unit.submit_shared(&pages(100 * riders.len() as u64, 50)) {
            Ok(rider) => riders.push(rider),
            Err(error) => break error,
        }
        assert!(riders.len() < SLOTS, "the ring was overrun");
    };
    assert_eq!(refused, QueueError::Timeout(1000));
    assert_eq!(riders.len(), (SLOTS - 1 - 2 * FLYING.len()) / 51);
    assert!(riders.iter().all(|rider| unit.is_done(*rider) == Ok(false)));
    fake.land(0);
    fake.behave(Behaviour::Lagging);
    for rider in riders {
        assert_eq!(finish(&unit, &host, rider), Ok(()));
    }
}

/// A landed ride is never mistaken for one in flight, however many submissions later its status is read.
#[test]
fn a_ride_of_long_ago_keeps_nobody_waiting() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_rides_in_flight(&fake, &host);
    FLYING.iter().for_each(|_| fake.land(0));
    fake.behave(Behaviour::Prompt);
    // One revolution, and then so many sequences that a comparison modulo 2^32 cannot tell old from new.
    for revolution in 0..2 {
        for pfn in 0..SLOTS as u64 {
            unit.submit(&[page(7, pfn)]).expect("room");
        }
        if revolution == 0 {
            unit.queue.ring.with(|ring| ring.skip(1 << 31)).expect("no panic");
        }
    }
    executed(&fake);
    for pfn in [1, 2] {
        let ticket = share(&unit, pfn);
        assert_eq!(executed(&fake), [pfn], "neither the older nor the younger");
        assert_eq!(unit.is_done(ticket), Ok(true));
    }
}

#[test]
fn rides_wrap_with_the_ring_and_the_sequences() {
    for start in [0, u64::from(u32::MAX) - 300, (1 << 31) - 300] {
        for size in [1, 3, 7, 21] {
            let host = Host::new(false);
            let fake = FakeUnit::new(&host);
            let (unit, _) = with_rides_in_flight(&fake, &host);
            FLYING.iter().for_each(|_| fake.land(0));
            unit.queue.ring.with(|ring| ring.skip(start)).expect("no panic");
            for round in 0..300 {
                let rides = [100, 200, 300, 400].map(|first| unit.submit_shared(&pages(first, size)).expect("room"));
                let done = || rides.map(|rider| unit.is_done(rider).expect("no error"));
                assert_eq!(done(), [false; 4], "round {round} of {size}");
                fake.land(0);
                assert_eq!(done(), [true, false, false, false], "round {round} of {size}");
                fake.land(0);
                assert_eq!(done(), [true, true, false, false], "round {round} of {size}");
                fake.land(0);
                assert_eq!(done(), [true; 4], "round {round} of {size}: one wait for the last two");
                assert_eq!(executed(&fake).len(), 4 * size);
            }
        }
    }
}

#[test]
fn threads_share_rides() {
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
