use super::fake_unit::*;
use super::host::Host;
use super::{bring_up, finish, page, page_descriptor, without_waits};
use crate::queue::SLOTS;
use crate::spec::faults::status;
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
        assert_eq!(unit.is_done(ticket), Err(QueueError::Descriptor));
        if ticket.submission.slot() == guilty.submission.slot() {
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
    assert_eq!(unit.is_done(ticket), Ok(false));
    assert_eq!(fake.with(|state| state.faults), 0);
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
    assert_eq!(unit.is_done(lost), Err(QueueError::Descriptor));
    assert_eq!(unit.is_done(done), Ok(true));
    assert_eq!(unit.submit(&[page(7, 3)]), Err(QueueError::Descriptor));
    drop(unit);
    assert_eq!(host.fake.frames_lent(), 3, "it was not seen stopped");
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
