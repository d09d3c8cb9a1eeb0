//! Posts that gather while the hardware is busy, instead of departing one by one.

use super::fake_unit::*;
use super::host::Host;
use super::shared_commits::{executed, share};
use super::{Driver, bring_up_merging, finish, page, pages_descriptor, without_waits};
use crate::Ticket;
use crate::queue::{BURST_MAX, SLOTS};
use portcullis::Iommu;
use portcullis::iommu::QueueError;
use portcullis::platform::fake::{CPUS, run_on};

/// If so many commits share a submission, one command replaces theirs. The host has one CPU more.
const MERGED: u8 = 3;

/// A unit of which all CPUs have posted of late, with one submission in flight: that of CPU 0.
fn with_one_in_flight<'a>(fake: &'a FakeUnit<'a>, host: &'a Host) -> (Driver<'a>, Ticket) {
    let unit = bring_up_merging(fake, host, Some(MERGED));
    // Each turn of a holder may leave out a cell. After these it is the turn of cells that there are not.
    for _ in 0..CPUS {
        unit.submit_shared(&[page(7, 0), page(7, 1)]).expect("room");
    }
    fake.behave(Behaviour::Holding);
    let flying = [90, 91].map(|pfn| share(&unit, 0, pfn));
    let posted = [0, 1, 2, 3].map(|cpu| share(&unit, cpu, cpu.into()));
    fake.take_executed();
    fake.land(0);
    assert_eq!(unit.is_done(flying[0]), Ok(true));
    assert_eq!(without_waits(fake.take_executed()), [pages_descriptor(7, 0, 2)]);
    (0..2).for_each(|_| fake.land(0));
    assert_eq!(posted.map(|ticket| unit.is_done(ticket)), [Ok(true); 4]);
    let flying = share(&unit, 0, 50);
    assert_eq!(executed(fake), [50], "the hardware was idle");
    (unit, flying)
}

#[test]
fn commits_wait_for_each_other_while_the_hardware_is_busy() {
    for last in [3, 0] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let (unit, on_duty) = with_one_in_flight(&fake, &host);
        // CPU 0 does not post first: it looks at the ring, and posts if they are too few.
        let cpus = if last == 0 { [1, 2] } else { [0, 1] };
        let mut posted = Vec::new();
        for cpu in cpus {
            posted.push(share(&unit, cpu, cpu.into()));
            assert_eq!(unit.is_done(on_duty), Ok(false));
            assert_eq!(executed(&fake), [], "they would not be merged");
        }
        posted.push(share(&unit, last, last.into()));
        assert_eq!(unit.is_done(on_duty), Ok(false));
        assert_eq!(without_waits(fake.take_executed()), [pages_descriptor(7, 0, 2)]);
        (0..2).for_each(|_| fake.land(0));
        assert!(posted.iter().all(|ticket| unit.is_done(*ticket) == Ok(true)));
    }
}

#[test]
fn a_single_post_departs_when_the_hardware_is_idle() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, on_duty) = with_one_in_flight(&fake, &host);
    let single = share(&unit, 1, 1);
    assert_eq!((unit.is_done(on_duty), executed(&fake)), (Ok(false), vec![]));
    fake.land(0);
    assert_eq!(unit.is_done(on_duty), Ok(true), "who leaves duty submits it");
    assert_eq!(executed(&fake), [1]);
    fake.land(0);
    assert_eq!(unit.is_done(single), Ok(true));
}

/// What is in flight may never land, and the caller on duty may never ask.
#[test]
fn a_single_post_departs_when_the_patience_of_its_poster_ends() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_one_in_flight(&fake, &host);
    let single = share(&unit, 1, 1);
    assert_eq!((unit.is_done(single), executed(&fake)), (Ok(false), vec![]));
    host.fake.advance_us(2);
    assert_eq!((unit.is_done(single), executed(&fake)), (Ok(false), vec![1]));
}

/// The error hits what is in flight. The caller on duty resumes the queue, and what has gathered goes on.
#[test]
fn posts_that_gather_outlive_an_error() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, on_duty) = with_one_in_flight(&fake, &host);
    let single = share(&unit, 1, 1);
    fake.time_out();
    fake.behave(Behaviour::Prompt);
    run_on(0);
    assert_eq!(finish(&unit, &host, on_duty), Err(QueueError::Device));
    assert_eq!(finish(&unit, &host, single), Ok(()));
    assert_eq!(executed(&fake), [1]);
}

/// The caller on duty finds no room for a post, and no other caller asks. If some is left, a greater commit wants it.
#[test]
fn a_caller_on_duty_without_room_resumes_the_queue() {
    for left in [0, 1, 40] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let unit = bring_up_merging(&fake, &host, None);
        fake.behave(Behaviour::Holding);
        let pages = |first, count| (first..first + count).map(|pfn| page(7, pfn)).collect::<Vec<_>>();
        let great = BURST_MAX as u64;
        let before = [1000, 2000, 3000].map(|first| unit.submit(&pages(first, great)).expect("room"));
        let [_, on_duty] = [0, 1].map(|cpu| share(&unit, cpu, 90 + u64::from(cpu)));
        let posted = share(&unit, 2, 92);
        let used = before.len() * (BURST_MAX + 1) + 2 * 2;
        unit.submit(&pages(4000, (SLOTS - 1 - used - 1 - left) as u64)).expect("room");
        if left > 1 {
            assert_eq!(unit.try_submit_shared(&pages(5000, great)), Ok(None));
        }
        fake.land(before.len());
        fake.take_executed();
        run_on(1);
        assert_eq!((unit.is_done(on_duty), executed(&fake)), (Ok(false), vec![]), "{left} slots are left");
        fake.time_out();
        fake.behave(Behaviour::Prompt);
        assert_eq!(finish(&unit, &host, on_duty), Err(QueueError::Device));
        run_on(2);
        assert_eq!(finish(&unit, &host, posted), Ok(()));
        assert_eq!(executed(&fake), [92]);
    }
}

#[test]
fn posts_that_gather_are_told_when_the_unit_is_gone() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (unit, _) = with_one_in_flight(&fake, &host);
    let single = share(&unit, 1, 1);
    fake.behave(Behaviour::Silent);
    fake.with(|state| state.gone = true);
    assert_eq!(finish(&unit, &host, single), Err(QueueError::Gone));
}
