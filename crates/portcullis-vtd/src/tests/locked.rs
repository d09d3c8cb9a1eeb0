//! The queue as Linux has it.

use super::fake_unit::*;
use super::host::{Host, at_next_unlock};
use super::{Driver, finish, page, page_descriptor};
use crate::queue::SLOTS;
use crate::{Discipline, Ticket, Unit, UnitConfig};
use portcullis::iommu::{Iommu, QueueError};
use portcullis::platform::Step;
use portcullis::platform::fake::run_on;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn with<'a>(discipline: Discipline, fake: &'a FakeUnit<'a>, host: &'a Host) -> Driver<'a> {
    let config = UnitConfig { wait_us_max: 1000, discipline, ..UnitConfig::default() };
    let unit = Unit::bring_up(fake, host, config).expect("a sound unit");
    fake.take_executed();
    host.take_steps();
    unit
}

/// Submits page `pfn` on `cpu` in each way in which commits may be shared.
fn commit_in_each_way(unit: &Driver<'_>, cpu: u32, pfn: u64) -> [Ticket; 3] {
    run_on(cpu);
    let at_once = match unit.try_invalidate(page(7, pfn)) {
        Err(Ok(Some(ticket))) => ticket,
        other => panic!("{other:?}"),
    };
    let shared = unit.submit_shared(&[page(7, pfn + 1)]).expect("room");
    let burst = unit.try_submit_shared(&[page(7, pfn + 2), page(7, pfn + 3)]).expect("no error").expect("room");
    [at_once, shared, burst]
}

/// However many are in flight, no commit is posted and none shares a wait.
#[test]
fn every_commit_has_a_wait_of_its_own() {
    let waits = |discipline| {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let unit = with(discipline, &fake, &host);
        fake.behave(Behaviour::Holding);
        let before = unit.queue_use();
        let tickets = [0, 1, 2].map(|cpu| commit_in_each_way(&unit, cpu, u64::from(cpu) * 8));
        let after = unit.queue_use();
        while fake.with(|state| !state.held.is_empty()) {
            fake.land(0);
        }
        fake.behave(Behaviour::Prompt);
        tickets.into_iter().flatten().for_each(|ticket| finish(&unit, &host, ticket).expect("it lands"));
        after.waits - before.waits
    };
    assert_eq!(waits(Discipline::Linux), 9);
    assert!(waits(Discipline::Combining) < 9);
}

/// Each turn of a wait reads the fault status register, and takes the lock for that.
#[test]
fn each_turn_takes_the_lock_and_reads_the_register() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = with(Discipline::Linux, &fake, &host);
    fake.behave(Behaviour::Holding);
    let ticket = unit.submit_shared(&[page(7, 1)]).expect("room");
    host.take_steps();
    let reads = || host.take_steps().iter().filter(|step| **step == Step::RegisterRead).count();
    for _ in 0..3 {
        assert_eq!(unit.is_done(ticket), Ok(false));
        assert_eq!(reads(), 1);
    }
    let seen = Arc::new(AtomicBool::new(false));
    let unlocked = seen.clone();
    at_next_unlock(move || unlocked.store(true, Ordering::Relaxed));
    assert_eq!(unit.is_done(ticket), Ok(false));
    assert!(seen.load(Ordering::Relaxed), "it has held the lock");
    fake.land(0);
    assert_eq!(unit.is_done(ticket), Ok(true));
}

/// A refused command fails its own commit only (S11), of those that other CPUs have in flight. Late questions get the
/// same answers.
#[test]
fn a_refused_commit_fails_alone() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = with(Discipline::Linux, &fake, &host);
    fake.behave(Behaviour::Holding);
    let submit = |cpu, pfn| {
        run_on(cpu);
        unit.submit_shared(&[page(7, pfn)]).expect("room")
    };
    let sound = [submit(0, 1), submit(1, 2)];
    fake.with(|state| state.refuse = Some(page_descriptor(7, 3).encode()));
    let refused = submit(2, 3);
    let next = submit(3, 4);
    assert_eq!(finish(&unit, &host, refused), Err(QueueError::Descriptor));
    fake.behave(Behaviour::Prompt);
    while fake.with(|state| !state.held.is_empty()) {
        fake.land(0);
    }
    for ticket in [sound[0], sound[1], next] {
        assert_eq!(finish(&unit, &host, ticket), Ok(()));
    }
    // The ring goes round several times, so that every slot is used again.
    for turn in 0..3 * SLOTS as u64 {
        let ticket = unit.submit_shared(&[page(7, 8 + turn % 64)]).expect("room");
        assert_eq!(finish(&unit, &host, ticket), Ok(()));
    }
    assert_eq!(unit.is_done(refused), Err(QueueError::Descriptor));
    assert_eq!(unit.is_done(sound[0]), Ok(true));
}

/// What lands while the unit is halted is done. The rest fails when the unit resumes.
#[test]
fn a_halt_fails_what_has_not_landed() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = with(Discipline::Linux, &fake, &host);
    fake.behave(Behaviour::Holding);
    let [landed, lost] = [1, 2].map(|pfn| unit.submit_shared(&[page(7, pfn)]).expect("room"));
    unit.halt().expect("the queue goes off");
    fake.land(0);
    assert_eq!([landed, lost].map(|ticket| unit.is_done(ticket)), [Ok(true), Ok(false)]);
    fake.with(|state| state.held.clear());
    fake.behave(Behaviour::Prompt);
    unit.resume().expect("a sound unit");
    assert_eq!([landed, lost].map(|ticket| unit.is_done(ticket)), [Ok(true), Err(QueueError::Halted)]);
    let ticket = unit.submit_shared(&[page(7, 3)]).expect("room");
    assert_eq!(finish(&unit, &host, ticket), Ok(()));
}

/// A commit that finds the ring full waits for room, and goes on when there is some.
#[test]
fn a_full_ring_makes_room() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = with(Discipline::Linux, &fake, &host);
    fake.behave(Behaviour::Holding);
    let tickets: Vec<Ticket> =
        (0..SLOTS as u64 / 2 - 1).map(|pfn| unit.submit_shared(&[page(7, pfn)]).expect("room")).collect();
    assert_eq!(unit.try_submit_shared(&[page(7, 500), page(7, 502)]), Ok(None), "there is no room");
    assert_eq!(unit.submit_shared(&[page(7, 500), page(7, 502)]), Err(QueueError::Timeout(1000)));
    while fake.with(|state| !state.held.is_empty()) {
        fake.land(0);
    }
    fake.behave(Behaviour::Prompt);
    tickets.iter().for_each(|ticket| assert_eq!(unit.is_done(*ticket), Ok(true)));
    let ticket = unit.submit_shared(&[page(7, 500), page(7, 502)]).expect("there is room again");
    assert_eq!(finish(&unit, &host, ticket), Ok(()));
}
