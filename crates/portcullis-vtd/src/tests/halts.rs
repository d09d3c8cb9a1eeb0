//! Units that are taken over while devices work, and units that are halted and resumed.

use super::domains::TABLES;
use super::fake_unit::*;
use super::host::Host;
use super::{CONFIG, bring_up, close, finish, open, page, page_descriptor};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor};
use crate::spec::registers::*;
use crate::{BringUpError, RegisterError, TakeOver, Unit};
use portcullis::iommu::{AttachError, DomainId, Iommu, QueueError, SourceId, Translation};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DEVICE: SourceId = SourceId::new(1, 3, 0);
const OTHER: SourceId = SourceId::new(2, 0, 0);

/// A leaked unit, so that interrupt handlers can refer to it.
fn leaked(capability: Capability) -> (&'static Host, &'static FakeUnit<'static>, &'static super::Driver<'static>) {
    let host: &Host = Box::leak(Box::new(Host::new(true)));
    let fake: &FakeUnit<'_> = Box::leak(Box::new(FakeUnit::with_capabilities(host, capability, EXTENDED)));
    (host, fake, Box::leak(Box::new(bring_up(fake, host))))
}

fn running(fake: &FakeUnit<'_>) -> [bool; 2] {
    let status = fake.with(|state| state.status);
    [global::TRANSLATION, global::QUEUED_INVALIDATION].map(|bit| status & bit != 0)
}

/// An admitted device is in the tables before the hardware sees them, whether or not translation was on before.
#[test]
fn devices_are_admitted_before_translation() {
    for (status, caching) in [(0, false), (global::TRANSLATION, false), (0, true), (global::TRANSLATION, true)] {
        let host = Host::new(true);
        let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_cm(caching).with_rwbf(caching), EXTENDED);
        fake.with(|state| (state.status, state.watched) = (status, Some(DEVICE)));
        let mut domain = DomainId(0);
        let admit = |unit: &Unit<_, _>| {
            // A device that was attached by mistake can be detached, and an unneeded domain can be closed.
            let needless = open(unit, TABLES)?;
            unit.attach(needless, DEVICE)?;
            unit.detach(needless, DEVICE)?;
            unit.attach(needless, OTHER)?;
            close(unit, needless)?;
            domain = open(unit, Translation::PassThrough)?;
            unit.attach(domain, DEVICE)
        };
        // SAFETY: no memory is behind the fake unit.
        let unit = unsafe { Unit::take_over(&fake, &host, CONFIG, TakeOver::Firmware, admit) }.expect("a sound unit");
        assert_eq!(fake.with(|state| state.seen_at_root.clone()), [fake.context(DEVICE)]);
        assert_eq!(fake.context(DEVICE).map(|context| context.domain), Some(domain));
        assert_eq!(fake.context(OTHER), None);
        assert_eq!((running(&fake), fake.with(|state| state.opened)), ([true; 2], 0));
        assert_eq!(unit.attach(domain, DEVICE), Err(AttachError::Attached(DEVICE)));
        unit.detach(domain, DEVICE).expect("attached");
    }
}

/// If a device cannot be admitted, the unit gets no command, nothing is left behind, and invalidations fail before
/// there is a queue.
#[test]
fn a_refused_admission_leaves_the_unit_as_it_was() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let admit = |unit: &Unit<_, _>| {
        assert_eq!(unit.submit(&[page(1, 2)]).err(), Some(QueueError::Halted));
        assert_eq!(unit.submit_shared(&[page(1, 2)]).err(), Some(QueueError::Halted));
        assert_eq!(unit.resume(), Err(BringUpError::Changing), "it is not up yet");
        unit.halt().expect("it is off");
        unit.attach(open(unit, TABLES)?, DEVICE)?;
        unit.attach(DomainId(77), OTHER)
    };
    let refused = Unit::bring_up_with(&fake, &host, CONFIG, admit).err();
    assert_eq!(refused, Some(BringUpError::Admission(AttachError::NoSuchDomain(DomainId(77)))));
    assert_eq!((fake.with(|state| (state.commands.len(), state.tail_writes)), host.fake.frames_lent()), ((0, 0), 0));
}

#[test]
fn a_unit_is_taken_from_those_whom_the_policy_names() {
    let queue = global::QUEUED_INVALIDATION;
    for (status, taken_from) in [
        (0, &[TakeOver::Never, TakeOver::Firmware, TakeOver::Always][..]),
        (global::TRANSLATION, &[TakeOver::Firmware, TakeOver::Always]),
        (queue, &[TakeOver::Always]),
        (global::TRANSLATION | queue, &[TakeOver::Always]),
    ] {
        for from in [TakeOver::Never, TakeOver::Firmware, TakeOver::Always] {
            let host = Host::new(true);
            let fake = FakeUnit::new(&host);
            fake.with(|state| state.status = status);
            // SAFETY: no memory is behind the fake unit.
            let taken = unsafe { Unit::take_over(&fake, &host, CONFIG, from, |_| Ok(())) };
            if taken_from.contains(&from) {
                assert!(taken.is_ok(), "{from:?} {status:#x}");
                assert_eq!(running(&fake), [true; 2]);
            } else {
                assert_eq!(taken.err(), Some(BringUpError::InUse { status }), "{from:?}");
                assert_eq!((fake.with(|state| state.commands.len()), host.fake.frames_lent()), (0, 0));
            }
        }
    }
}

/// A halt takes no lock, and devices keep their access. Commits in flight or made later fail. After the
/// resume, with or without a loss of power, everything is as before.
#[test]
fn a_unit_comes_back_with_all_that_it_had() {
    for power_is_lost in [false, true] {
        for locked in [false, true] {
            let host = Host::new(true);
            let fake = FakeUnit::new(&host);
            let unit = bring_up(&fake, &host);
            let domain = open(&unit, TABLES).expect("an id");
            unit.attach(domain, DEVICE).expect("a free device");
            let context = fake.context(DEVICE);
            let done = unit.submit(&[page(domain.0, 1)]).expect("room");
            fake.behave(Behaviour::Holding);
            let in_flight = [2, 3].map(|pfn| unit.submit_shared(&[page(domain.0, pfn)]).expect("room"));
            let posted = unit.submit_shared(&[page(domain.0, 4)]).expect("room");
            if locked {
                unit.queue.ring().with(|_| unit.halt()).expect("no panic").expect("it stops");
            } else {
                unit.halt().expect("it stops");
            }
            assert_eq!((running(&fake), fake.context(DEVICE)), ([true, false], context));
            assert!(unit.queue_use().commits > 0, "the counts of use are kept");
            for refused in [unit.submit(&[page(domain.0, 5)]), unit.submit_shared(&[page(domain.0, 5)])] {
                assert_eq!(refused, Err(QueueError::Halted));
            }
            assert_eq!(unit.try_submit_shared(&[page(domain.0, 5)]), Err(QueueError::Halted));
            assert_eq!(unit.try_invalidate(page(domain.0, 5)), Err(Err(QueueError::Halted)));
            assert_eq!(
                unit.detach(domain, DEVICE),
                Err(AttachError::Queue(QueueError::Halted)),
                "it cannot be flushed"
            );
            if power_is_lost {
                fake.lose_power();
            }
            fake.take_executed();
            fake.behave(Behaviour::Prompt);
            fake.with(|state| (state.watched, state.opened) = (Some(DEVICE), 0));
            unit.resume().expect("a sound unit");
            assert_eq!((running(&fake), fake.with(|state| state.opened)), ([true; 2], 0));
            // The detach that failed has cleared the entry, so the device still reaches nothing.
            assert_eq!(fake.with(|state| state.seen_at_root.clone()), [None]);
            assert_eq!(fake.take_executed()[0], InvalidationDescriptor::ContextCache(ContextScope::Global));
            assert_eq!(unit.is_done(done), Ok(true));
            for ticket in in_flight {
                assert_eq!(finish(&unit, &host, ticket), Err(QueueError::Halted));
            }
            assert_eq!(finish(&unit, &host, posted), Ok(()), "it was not in the queue");
            assert!(fake.take_executed().contains(&page_descriptor(domain.0, 4)));
            unit.detach(domain, DEVICE).expect("attached still");
            unit.attach(domain, DEVICE).expect("a free device");
            assert_eq!(fake.context(DEVICE), context);
            for pfn in 0..1000 {
                let ticket = unit.submit_shared(&[page(domain.0, pfn)]).expect("room");
                assert_eq!(finish(&unit, &host, ticket), Ok(()), "{pfn}");
            }
        }
    }
}

/// Devices that were not changed in the meantime have their entries when the root table is set, before translation
/// comes on.
#[test]
fn devices_are_back_before_translation() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, TABLES).expect("an id");
    unit.attach(domain, DEVICE).expect("a free device");
    for _ in 0..3 {
        unit.halt().expect("it stops");
        fake.lose_power();
        fake.with(|state| state.watched = Some(DEVICE));
        unit.resume().expect("a sound unit");
        assert_eq!(fake.with(|state| state.seen_at_root.clone()), [fake.context(DEVICE)]);
        assert_eq!(fake.context(DEVICE).map(|context| context.domain), Some(domain));
        let commands = fake.with(|state| state.commands.clone());
        assert_eq!(commands, [global::ROOT_TABLE, global::QUEUED_INVALIDATION, global::TRANSLATION]);
    }
}

#[test]
fn a_unit_that_does_not_come_back_stays_halted() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.with(|state| state.stuck = global::QUEUED_INVALIDATION);
    assert_eq!(unit.halt(), Err(RegisterError::Timeout { offset: GSTS, limit_us: 1000 }));
    assert_eq!(unit.submit(&[page(1, 1)]), Err(QueueError::Halted), "it is halted nevertheless");
    fake.with(|state| state.gone = true);
    assert_eq!(unit.resume(), Err(BringUpError::Gone));
    fake.with(|state| (state.gone, state.stuck) = (false, 0));
    fake.behave(Behaviour::Silent);
    assert_eq!(unit.resume(), Err(BringUpError::Queue(QueueError::Timeout(1000))));
    assert_eq!(unit.submit(&[page(1, 1)]), Err(QueueError::Halted));
    fake.behave(Behaviour::Prompt);
    unit.resume().expect("at last");
    unit.submit(&[page(1, 1)]).expect("room");
}

/// A unit is opened only if its translation reads as off. One whose queue does not stop keeps translating.
#[test]
fn a_unit_that_is_opened_is_seen_to_be_open() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    // SAFETY: no memory is behind the fake unit.
    let open = || unsafe { unit.halt_open() };
    let timeout = Err(RegisterError::Timeout { offset: GSTS, limit_us: 1000 });
    fake.with(|state| state.stuck = global::QUEUED_INVALIDATION);
    assert_eq!((open(), running(&fake)), (timeout, [true; 2]));
    fake.with(|state| state.stuck = global::TRANSLATION);
    assert_eq!((open(), running(&fake)), (timeout, [true, false]));
    fake.with(|state| state.stuck = 0);
    assert_eq!((open(), running(&fake)), (Ok(()), [false; 2]));
}

/// While an attach or a detach waits, other calls for the device are refused; they do not wait for a lock.
#[test]
fn a_device_that_is_being_moved_is_left_alone() {
    let (host, fake, unit) = leaked(CAPABILITY.with_cm(true));
    let domain = open(unit, TABLES).expect("an id");
    let interrupts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&interrupts);
    host.on_pause(move || {
        // Act once per wait, because the allowed calls wait too.
        if count.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return;
        }
        assert_eq!(unit.attach(domain, DEVICE), Err(AttachError::Busy(DEVICE)));
        assert_eq!(unit.detach(domain, DEVICE), Err(AttachError::Busy(DEVICE)));
        assert_eq!(close(unit, domain), Err(AttachError::Busy(DEVICE)));
        let other = open(unit, TABLES).expect("an id");
        assert_ne!(other, domain);
    });
    fake.behave(Behaviour::Slow(1));
    unit.attach(domain, DEVICE).expect("a free device");
    fake.behave(Behaviour::Slow(1));
    unit.detach(domain, DEVICE).expect("an attached device");
    assert!(interrupts.load(Ordering::Relaxed) >= 2);
    assert_eq!(fake.context(DEVICE), None);
    close(unit, domain).expect("no device is in it");
}

/// While a close waits, no device is attached to the domain or detached from it, and the domain is not closed again.
#[test]
fn a_domain_that_is_being_closed_is_left_alone() {
    let (host, fake, unit) = leaked(CAPABILITY);
    let domain = open(unit, TABLES).expect("an id");
    unit.attach(domain, DEVICE).expect("a free device");
    let other = open(unit, TABLES).expect("an id");
    let interrupts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&interrupts);
    host.on_pause(move || {
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(unit.attach(other, DEVICE), Err(AttachError::Busy(DEVICE)));
        let closed = AttachError::NoSuchDomain(domain);
        assert_eq!(unit.attach(domain, OTHER), Err(closed));
        assert_eq!(unit.detach(domain, DEVICE), Err(AttachError::Busy(DEVICE)));
        assert_eq!(close(unit, domain), Err(closed));
    });
    fake.behave(Behaviour::Slow(1));
    close(unit, domain).expect("it is flushed");
    assert!(interrupts.load(Ordering::Relaxed) > 0, "it has waited");
    assert_eq!([DEVICE, OTHER].map(|device| fake.context(device)), [None; 2]);
}

/// A halt during a resume is not undone, and a second resume at the same time is refused. A command that is computed
/// from the status does not turn translation off if the status does not show it yet.
#[test]
fn a_halt_in_the_middle_of_a_resume_holds() {
    // In the flush at the end of the resume, in its last step, and before there is a queue.
    for stuck in [0, global::TRANSLATION, global::WRITE_BUFFER_FLUSH] {
        let (host, fake, unit) = leaked(CAPABILITY.with_rwbf(stuck == global::WRITE_BUFFER_FLUSH));
        unit.halt().expect("it stops");
        fake.lose_power();
        let interrupts = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&interrupts);
        host.on_pause(move || {
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                assert_eq!(unit.resume(), Err(BringUpError::Changing));
                unit.halt().expect("it stops");
                fake.with(|state| state.status &= !global::WRITE_BUFFER_FLUSH);
            }
        });
        fake.behave(if stuck == 0 { Behaviour::Slow(1) } else { Behaviour::Prompt });
        fake.with(|state| state.stuck = stuck);
        let resumed = unit.resume();
        assert!(interrupts.load(Ordering::Relaxed) > 0, "it has waited");
        assert!(resumed.is_err(), "{stuck:#x}");
        if stuck == global::WRITE_BUFFER_FLUSH {
            assert_eq!(resumed, Err(BringUpError::Changing), "only the halt prevented the resume");
        }
        assert_eq!(unit.submit(&[page(1, 1)]), Err(QueueError::Halted));
        assert!(!running(fake)[1], "the queue is off");
        if stuck == global::TRANSLATION {
            // The last command was that of the halt.
            let last = fake.with(|state| *state.commands.last().expect("commands"));
            assert_eq!(last, global::TRANSLATION, "a requested translation that is not on yet stays requested");
        }
        fake.with(|state| state.stuck = 0);
        fake.behave(Behaviour::Prompt);
        unit.resume().expect("a sound unit");
        assert_eq!(running(fake), [true; 2]);
        let ticket = unit.submit(&[page(1, 1)]).expect("room");
        assert_eq!(finish(unit, host, ticket), Ok(()));
    }
}

/// The last resort while the queue does not answer: no device has a context, translation stays on, and a unit that is
/// resumed shows its tables again.
#[test]
fn a_unit_whose_queue_is_dead_shuts_all_devices_out() {
    let (_, fake, unit) = leaked(CAPABILITY);
    let domain = open(unit, TABLES).expect("an id");
    [DEVICE, OTHER].into_iter().for_each(|device| unit.attach(domain, device).expect("a free device"));
    fake.behave(Behaviour::Silent);
    assert!(matches!(unit.detach(domain, DEVICE), Err(AttachError::Queue(QueueError::Timeout(_)))));
    assert!(fake.context(OTHER).is_some());
    for _ in 0..2 {
        assert_eq!(unit.shut_out_all(), Ok(()));
        assert_eq!([DEVICE, OTHER].map(|device| fake.context(device)), [None; 2]);
        assert_eq!((running(fake), fake.with(|state| state.opened)), ([true; 2], 0));
    }
    fake.behave(Behaviour::Prompt);
    unit.resume().expect("the unit answers again");
    assert!(fake.context(DEVICE).is_none() && fake.context(OTHER).is_some());
}
