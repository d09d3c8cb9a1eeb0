//! When the owner of a submission asks for it, another CPU may have gone round the ring, and the slot may be that of
//! another submission.

use super::fake_unit::*;
use super::host::{Host, at_next_unlock};
use super::{Driver, bring_up, finish, page, page_descriptor, without_waits};
use crate::queue::SLOTS;
use crate::spec::faults::status;
use portcullis::iommu::{Iommu, QueueError};

/// What refers to each other is leaked, because the other CPU does so.
struct Bench {
    host: &'static Host,
    fake: &'static FakeUnit<'static>,
    unit: &'static Driver<'static>,
}

impl Bench {
    fn new(turned: usize) -> &'static Self {
        let host: &Host = Box::leak(Box::new(Host::new(true)));
        let fake: &FakeUnit<'_> = Box::leak(Box::new(FakeUnit::new(host)));
        let unit: &Driver<'_> = Box::leak(Box::new(bring_up(fake, host)));
        for _ in 0..turned {
            assert_eq!(unit.submit(&[]).and_then(|ticket| finish(unit, host, ticket)), Ok(()));
        }
        fake.take_executed();
        Box::leak(Box::new(Self { host, fake, unit }))
    }

    /// The slot that is written next.
    fn next_slot(&self) -> u8 {
        let ticket = self.unit.submit(&[]).expect("room");
        assert_eq!(finish(self.unit, self.host, ticket), Ok(()));
        ticket.submission().slot().wrapping_add(1)
    }

    /// Goes round the ring to the end of `slot`, or up to it.
    fn go_round(&self, slot: u8, up_to: bool) {
        for _ in 0..SLOTS {
            let next = self.next_slot();
            if next == if up_to { slot } else { slot.wrapping_add(1) } {
                return;
            }
        }
        panic!("slot {slot} was not reached");
    }

    fn resume(&self) {
        let ticket = self.unit.submit(&[page(7, 30)]).expect("room");
        assert_eq!(finish(self.unit, self.host, ticket), Ok(()));
        assert_eq!(self.fake.with(|state| state.faults), 0);
    }
}

/// Where the command lies: also where it, or its wait, is the last slot of the ring.
const TURNED: [usize; 5] = [0, 100, 250, 251, 252];

/// The next submission in the slot is held by the hardware. It could only begin because the command was done.
#[test]
fn a_command_is_done_though_its_slot_is_in_use_again() {
    for turned in TURNED {
        let bench = Bench::new(turned);
        let slot = bench.next_slot();
        at_next_unlock(move || {
            bench.go_round(slot, true);
            bench.fake.behave(Behaviour::Holding);
            let next = bench.unit.submit(&[page(7, 21)]).expect("room");
            assert_eq!(next.submission().slot(), slot);
            assert_eq!(bench.unit.is_done(next), Ok(false));
        });
        assert_eq!(bench.unit.try_invalidate(page(7, 20)), Ok(()), "in a ring turned by {turned}");
        assert!(bench.fake.take_executed().contains(&page_descriptor(7, 20)));
        bench.fake.land(0);
    }
}

/// The unit refuses the command. Another CPU sees the error, and resumes the queue. Later submissions in the slot are
/// done.
#[test]
fn s11_a_refused_command_is_not_done_when_its_slot_is_in_use_again() {
    for turned in TURNED {
        let bench = Bench::new(turned);
        let slot = bench.next_slot();
        bench.fake.with(|state| state.refuse = Some(page_descriptor(7, 20).encode()));
        at_next_unlock(move || {
            assert_eq!(bench.fake.with(|state| state.faults), status::QUEUE_ERROR);
            bench.resume();
            bench.go_round(slot, false);
        });
        match bench.unit.try_invalidate(page(7, 20)) {
            Err(Ok(Some(ticket))) => {
                assert_eq!(ticket.submission().slot(), slot);
                assert_eq!(bench.unit.is_done(ticket), Err(QueueError::Descriptor));
            }
            other => panic!("{other:?}: in a ring turned by {turned}"),
        }
        assert!(!bench.fake.take_executed().contains(&page_descriptor(7, 20)));
    }
}

/// The same where the hardware drops the wait of the command.
#[test]
fn s11_a_command_whose_wait_is_dropped_is_not_done_when_its_slot_is_in_use_again() {
    for turned in TURNED {
        let bench = Bench::new(turned);
        let slot = bench.next_slot();
        bench.fake.behave(Behaviour::Holding);
        at_next_unlock(move || {
            bench.fake.time_out();
            bench.fake.behave(Behaviour::Prompt);
            bench.resume();
            bench.go_round(slot, false);
        });
        match bench.unit.try_invalidate(page(7, 20)) {
            Err(Ok(Some(ticket))) => assert_eq!(bench.unit.is_done(ticket), Err(QueueError::Device)),
            other => panic!("{other:?}: in a ring turned by {turned}"),
        }
    }
}

/// The queue has stopped in front of another submission, and the other CPU resumes it before the command is asked for.
#[test]
fn a_command_is_done_when_another_cpu_has_resumed_the_queue() {
    let bench = Bench::new(0);
    bench.fake.with(|state| state.refuse = Some(page_descriptor(7, 10).encode()));
    let guilty = bench.unit.submit(&[page(7, 10)]).expect("room");
    at_next_unlock(|| bench.resume());
    match bench.unit.try_invalidate(page(7, 20)) {
        Err(Ok(Some(ticket))) => assert_eq!(bench.unit.is_done(ticket), Ok(true)),
        other => panic!("{other:?}"),
    }
    assert_eq!(without_waits(bench.fake.take_executed()), [20, 30].map(|pfn| page_descriptor(7, pfn)));
    assert_eq!(bench.unit.is_done(guilty), Err(QueueError::Descriptor));
}
