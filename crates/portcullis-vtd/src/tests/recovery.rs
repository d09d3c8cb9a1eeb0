use super::WAIT_US_MAX;
use super::fake_unit::*;
use super::host::Host;
use super::{Driver, bring_up, finish, page, page_descriptor, pass_time, without_waits};
use crate::queue::SLOTS;
use crate::spec::faults::status;
use crate::spec::registers::GSTS;
use crate::{BringUpError, RegisterError, Ticket};
use portcullis::Platform;
use portcullis::iommu::{Iommu, QueueError};

/// Makes the unit refuse the descriptor for page `pfn` of domain 7.
fn refuse(fake: &FakeUnit<'_>, pfn: u64) {
    fake.with(|state| state.refuse = Some(page_descriptor(7, pfn).encode()));
}

#[test]
fn a_refused_descriptor_fails_its_owner_and_nobody_else() {
    // The refused descriptor is the first, in the middle and the last of its submission.
    for refused in [20, 21, 22] {
        for coherent in [true, false] {
            let host = Host::new(coherent);
            let fake = FakeUnit::new(&host);
            let unit = bring_up(&fake, &host);
            refuse(&fake, refused);
            let before = unit.submit(&[page(7, 10), page(7, 11)]).expect("room");
            let guilty = unit.submit(&[page(7, 20), page(7, 21), page(7, 22)]).expect("room");
            let after = unit.submit(&[page(7, 30)]).expect("room");
            assert_eq!(fake.with(|state| state.faults), status::QUEUE_ERROR);
            pass_time(&host);
            assert_eq!(unit.is_done(before), Ok(true));
            // The innocent submission is polled first, and that poll resumes the queue.
            assert_eq!(unit.is_done(after), Ok(true));
            assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
            assert_eq!(unit.is_done(before), Ok(true));
            assert_eq!(fake.with(|state| state.faults), 0);

            let executed = without_waits(fake.take_executed());
            assert!(!executed.contains(&page_descriptor(7, refused)));
            assert!(executed.contains(&page_descriptor(7, 30)));
            let next = unit.submit(&[page(7, 40)]).expect("room");
            assert_eq!(unit.is_done(next), Ok(true));
        }
    }
}

#[test]
fn a_failure_is_told_however_late() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    refuse(&fake, 20);
    let guilty = unit.submit(&[page(7, 20)]).expect("room");
    // Other submissions go round the ring and reuse the slot of the failed one, which was not polled yet.
    for pfn in 1000..1000 + 2 * SLOTS as u64 {
        let ticket = unit.submit(&[page(7, pfn)]).expect("room");
        assert_eq!(finish(&unit, &host, ticket), Ok(()));
    }
    assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
    assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
    // Another submission fails in the same slot, and the first failure is kept.
    refuse(&fake, 21);
    let again = loop {
        let ticket = unit.submit(&[page(7, 21)]).expect("room");
        pass_time(&host);
        assert_eq!(unit.is_done(ticket), Err(QueueError::Descriptor));
        if ticket.submission().slot() == guilty.submission().slot() {
            break ticket;
        }
    };
    assert_ne!(again, guilty);
    assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
}

#[test]
fn a_queue_that_stopped_while_full_makes_room_again() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    refuse(&fake, 0);
    // The first submission is refused, and the ring fills up behind it. Only the wait for room notices the error.
    let tickets: Vec<_> = (0..200).map(|pfn| unit.submit(&[page(7, pfn)]).expect("room")).collect();
    assert_eq!(unit.is_done(tickets[0]), Err(QueueError::Descriptor));
    assert!(tickets[1..].iter().all(|ticket| unit.is_done(*ticket) == Ok(true)));
    let executed = without_waits(fake.take_executed());
    assert_eq!(executed, (1..200).map(|pfn| page_descriptor(7, pfn)).collect::<Vec<_>>());
}

#[test]
fn a_failed_slot_that_hardware_has_not_passed_is_not_overwritten() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    refuse(&fake, 0);
    let guilty = unit.submit(&[page(7, 0)]).expect("room");
    // The error is handled, but the hardware is slow to continue.
    fake.behave(Behaviour::Silent);
    pass_time(&host);
    assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
    let mut tickets = Vec::new();
    while let Ok(ticket) = unit.submit(&[page(7, 1 + tickets.len() as u64)]) {
        tickets.push(ticket);
        assert!(tickets.len() < SLOTS, "the ring was overrun");
    }
    assert_eq!(tickets.len(), (SLOTS - 1) / 2 - 1);
    fake.behave(Behaviour::Prompt);
    let tail = crate::Mmio::read64(&&fake, crate::spec::registers::IQT);
    // SAFETY: writes the same tail to a software unit.
    unsafe { crate::Mmio::write64(&&fake, crate::spec::registers::IQT, tail) };
    assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(true)));
    assert_eq!(without_waits(fake.take_executed()).len(), tickets.len());
}

#[test]
fn two_refused_descriptors_of_one_submission() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    refuse(&fake, 20);
    // The same page twice, so that it is refused twice.
    let guilty = unit.submit(&[page(7, 20), page(7, 20)]).expect("room");
    let innocent = unit.submit(&[page(7, 30)]).expect("room");
    assert_eq!(finish(&unit, &host, innocent), Ok(()));
    assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
}

#[test]
fn a_device_that_does_not_answer_fails_the_waits_of_that_moment() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let before = unit.submit(&[page(7, 1)]).expect("room");
    fake.behave(Behaviour::Holding);
    let (one, two) = (unit.submit(&[page(7, 2)]).expect("room"), unit.submit(&[page(7, 3)]).expect("room"));
    fake.land(1);
    fake.time_out();
    fake.behave(Behaviour::Prompt);
    // It was not fetched when the error came, so it is executed once the error is cleared.
    let later = unit.submit(&[page(7, 4)]).expect("room");
    pass_time(&host);
    assert_eq!(unit.is_done(before), Ok(true));
    assert_eq!(unit.is_done(one), Err(QueueError::Device));
    assert_eq!(unit.is_done(two), Ok(true));
    assert_eq!(unit.is_done(later), Ok(true));
    assert_eq!(fake.with(|state| state.faults), 0);
    // The slots of the dropped waits are free again.
    for pfn in 0..2 * SLOTS as u64 {
        let ticket = unit.submit(&[page(7, pfn)]).expect("room");
        assert_eq!(unit.is_done(ticket), Ok(true));
    }
    assert_eq!(unit.is_done(one), Err(QueueError::Device));
}

#[test]
fn an_unexpected_completion_is_cleared_and_hits_nobody() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let ticket = unit.submit(&[page(7, 1)]).expect("room");
    fake.with(|state| state.faults |= status::COMPLETION_ERROR);
    for cleared in [false, true] {
        assert_eq!(unit.is_done(ticket), Ok(false));
        assert_eq!(fake.with(|state| state.faults == 0), cleared, "errors are looked for once in some time");
        pass_time(&host);
    }
    fake.land(0);
    assert_eq!(unit.is_done(ticket), Ok(true));
}

#[test]
fn a_unit_that_is_gone_completes_nothing() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let done = unit.submit(&[page(7, 1)]).expect("room");
    fake.behave(Behaviour::Silent);
    let lost = unit.submit(&[page(7, 2)]).expect("room");
    fake.with(|state| state.gone = true);
    let before_us = host.now_us();
    pass_time(&host);
    assert_eq!(unit.is_done(lost), Err(QueueError::Gone));
    assert_eq!(unit.is_done(done), Ok(true));
    assert_eq!(unit.submit(&[page(7, 3)]), Err(QueueError::Gone));
    assert_eq!(unit.halt(), Err(RegisterError::Gone { offset: GSTS }));
    assert_eq!(unit.shut_out_all(), Err(RegisterError::Gone { offset: GSTS }));
    assert_eq!(unit.resume(), Err(BringUpError::Gone));
    assert!(host.now_us() - before_us < WAIT_US_MAX, "nothing was waited for");
    drop(unit);
    assert_eq!(host.fake.frames_lent(), 4, "it was not seen stopped");
}

#[test]
fn an_error_at_no_descriptor_of_ours_fails_all_that_is_unfinished() {
    let errors = [
        (0x10, status::QUEUE_ERROR),
        (0x8000, status::QUEUE_ERROR),
        (5 * 16 + 8, status::QUEUE_ERROR),
        (0x8000, status::TIMEOUT_ERROR),
    ];
    for (head, error) in errors {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let unit = bring_up(&fake, &host);
        let done = unit.submit(&[page(7, 1)]).expect("room");
        let done_too = unit.submit(&[page(7, 1)]).expect("room");
        // `head` moves only when there is no room, so the ring is filled to move it.
        for pfn in 0..SLOTS as u64 {
            unit.submit(&[page(7, pfn)]).expect("room");
        }
        fake.behave(Behaviour::Silent);
        let unfinished = [unit.submit(&[page(7, 2)]).expect("room"), unit.submit(&[page(7, 3)]).expect("room")];
        fake.with(|state| {
            state.head = head;
            state.faults |= error;
        });
        pass_time(&host);
        for ticket in unfinished {
            assert_eq!(unit.is_done(ticket), Err(QueueError::Descriptor), "head {head:#x}");
        }
        assert_eq!((unit.is_done(done), unit.is_done(done_too)), (Ok(true), Ok(true)));
        assert_eq!(
            unit.submit(&[page(7, 4)]),
            Err(QueueError::Descriptor),
            "no command is queued that would not be executed"
        );
    }
}

/// A ticket for page `pfn` of domain 7, which was to be invalidated at once and is not done.
fn unfinished(unit: &Driver<'_>, pfn: u64) -> Ticket {
    match unit.try_invalidate(page(7, pfn)) {
        Err(Ok(Some(ticket))) => ticket,
        other => panic!("{other:?}: it was not executed, and there is room (S11)"),
    }
}

/// The error comes with the doorbell of the command, before its status is read.
#[test]
fn s11_a_refused_command_at_once_is_never_done() {
    for turned in [0, 1, 253, 254, 255] {
        let host = Host::new(turned % 2 == 0);
        let fake = FakeUnit::new(&host);
        let unit = bring_up(&fake, &host);
        for _ in 0..turned {
            assert_eq!(unit.submit(&[]).and_then(|ticket| finish(&unit, &host, ticket)), Ok(()));
        }
        fake.take_executed();
        refuse(&fake, 20);
        let guilty = unfinished(&unit, 20);
        assert_eq!(fake.with(|state| state.faults), status::QUEUE_ERROR);
        // The queue has stopped, so the next command is not executed either, until the first poll.
        let innocent = unfinished(&unit, 30);
        assert_eq!(without_waits(fake.take_executed()), []);
        pass_time(&host);
        assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
        assert_eq!(unit.is_done(innocent), Ok(true));
        assert_eq!(without_waits(fake.take_executed()), [page_descriptor(7, 30)]);

        // As callers do: a submission of its own. It is refused as long as the unit refuses the descriptor.
        let again = unit.submit(&[page(7, 20)]).expect("room");
        assert_eq!(finish(&unit, &host, again), Err(QueueError::Descriptor));
        fake.with(|state| state.refuse = None);
        let again = unit.submit(&[page(7, 20)]).expect("room");
        assert_eq!(finish(&unit, &host, again), Ok(()));
        assert_eq!(without_waits(fake.take_executed()), [page_descriptor(7, 20)]);

        // The failure is that of its slot for good, and of no later command in that slot.
        for pfn in 1000..1000 + 2 * SLOTS as u64 {
            assert_eq!(unit.try_invalidate(page(7, pfn)), Ok(()));
        }
        assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor), "it was not made, however late it is asked");
        assert_eq!(unit.is_done(innocent), Ok(true));
    }
}

/// A command at once is behind a submission that the unit refuses.
#[test]
fn a_command_at_once_survives_the_error_of_another() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    refuse(&fake, 20);
    let guilty = unit.submit(&[page(7, 20)]).expect("room");
    let innocent = unfinished(&unit, 30);
    // The innocent command is polled first, and that poll resumes the queue.
    pass_time(&host);
    assert_eq!(unit.is_done(innocent), Ok(true));
    assert_eq!(unit.is_done(guilty), Err(QueueError::Descriptor));
    assert_eq!(without_waits(fake.take_executed()), [page_descriptor(7, 30)]);
    assert_eq!(unit.try_invalidate(page(7, 31)), Ok(()));
}

#[test]
fn s11_a_command_at_once_whose_wait_is_dropped_is_never_done() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let dropped = unfinished(&unit, 1);
    fake.time_out();
    fake.behave(Behaviour::Prompt);
    // The queue stands still until a poll clears the error, and the next command has its wait behind the error.
    let later = unfinished(&unit, 2);
    pass_time(&host);
    assert_eq!(unit.is_done(dropped), Err(QueueError::Device));
    assert_eq!(unit.is_done(later), Ok(true));
    let again = unit.submit(&[page(7, 1)]).expect("room");
    assert_eq!(finish(&unit, &host, again), Ok(()));
    for pfn in 0..2 * SLOTS as u64 {
        assert_eq!(unit.try_invalidate(page(7, pfn)), Ok(()), "the slot of the dropped wait is free again");
    }
    assert_eq!(unit.is_done(dropped), Err(QueueError::Device));
}

#[test]
fn a_unit_that_is_gone_takes_no_command_at_once() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Silent);
    fake.with(|state| state.gone = true);
    let lost = unfinished(&unit, 1);
    pass_time(&host);
    assert_eq!(unit.is_done(lost), Err(QueueError::Gone));
    assert_eq!(unit.try_invalidate(page(7, 2)), Err(Err(QueueError::Gone)));
}
