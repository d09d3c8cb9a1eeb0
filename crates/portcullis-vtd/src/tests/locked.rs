//! The queue as Linux has it.

use super::fake_unit::*;
use super::host::{Host, at_next_unlock};
use super::{Driver, finish, page, page_descriptor};
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

/// A refused command fails its own commit only (S11).
#[test]
fn a_refused_commit_fails_alone() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = with(Discipline::Linux, &fake, &host);
    fake.behave(Behaviour::Holding);
    let sound = unit.submit_shared(&[page(7, 1)]).expect("room");
    fake.with(|state| state.refuse = Some(page_descriptor(7, 2).encode()));
    let refused = unit.submit_shared(&[page(7, 2)]).expect("room");
    assert_eq!(finish(&unit, &host, refused), Err(QueueError::Descriptor));
    fake.behave(Behaviour::Prompt);
    fake.land(0);
    assert_eq!(finish(&unit, &host, sound), Ok(()));
}
