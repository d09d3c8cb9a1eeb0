//! A unit with which another driver remaps interrupts: its queue changes hands and comes back.

use super::fake_unit::*;
use super::host::Host;
use super::{CONFIG, Driver, finish, page, page_descriptor, without_waits};
use crate::spec::descriptors::{InvalidationDescriptor, StatusWrite};
use crate::spec::registers::*;
use crate::{BringUpError, Interrupts, RegisterError, TakeOver, Unit, UnitConfig};
use portcullis::{Iommu, PhysAddr, QueueError};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) const FOREIGN: UnitConfig = UnitConfig { interrupts: Interrupts::Foreign, ..CONFIG };
/// Interrupts are remapped, with the queue of the driver that does it.
pub(super) const REMAPS: u32 = global::INTERRUPT_REMAPPING | global::QUEUED_INVALIDATION;
/// Where that queue is, and its size.
const THEIR_QUEUE: u64 = 0x7654_3001;
/// How far that driver has got in it.
pub(super) const THEIR_TAIL: u64 = 0x420;
/// What it has written to the fault event control register.
const THEIR_EVENT: u32 = fault_event::PENDING;
/// Pages of a unit without devices.
pub(super) const PAGES: usize = 4;

/// A unit that remaps interrupts for another driver.
pub(super) fn remapping(host: &Host) -> FakeUnit<'_> {
    let fake = FakeUnit::new(host);
    fake.with(|state| {
        (state.status, state.queue) = (REMAPS, THEIR_QUEUE);
        (state.head, state.tail, state.fault_event) = (THEIR_TAIL, THEIR_TAIL, THEIR_EVENT);
    });
    fake
}

fn bring_up<'u>(host: &'u Host, fake: &'u FakeUnit<'u>) -> Result<Driver<'u>, BringUpError> {
    let prepared = Unit::prepare(fake, host, FOREIGN, TakeOver::Never, |_| Ok(()))?;
    // SAFETY: no test drives a unit by other means after taking it over.
    unsafe { prepared.switch() }
}

fn shut_down(unit: Driver<'_>) -> Result<(), RegisterError> {
    // SAFETY: no memory is behind the fake unit.
    unsafe { unit.shut_down() }
}

/// The other driver has its queue, at its beginning, and interrupts were remapped all the time.
#[track_caller]
pub(super) fn assert_handed_back(fake: &FakeUnit<'_>, and: u32) {
    fake.with(|state| {
        assert_eq!(state.status & !global::ROOT_TABLE, REMAPS | and);
        assert_eq!((state.queue, state.head, state.tail), (THEIR_QUEUE, 0, 0));
        assert_eq!((state.fault_event, state.unmapped_interrupts), (THEIR_EVENT, 0));
    });
}

/// The other driver has its queue as it was.
#[track_caller]
pub(super) fn assert_untouched(fake: &FakeUnit<'_>, tail: u64) {
    fake.with(|state| {
        assert_eq!((state.status, state.queue, state.head, state.tail), (REMAPS, THEIR_QUEUE, THEIR_TAIL, tail));
        assert_eq!((state.fault_event, state.unmapped_interrupts), (THEIR_EVENT, 0));
    });
}

pub(super) const LATE: RegisterError = RegisterError::Timeout { offset: GSTS, limit_us: CONFIG.wait_us_max };

/// The command for one interrupt entry.
pub(super) fn interrupt(index: u16) -> InvalidationDescriptor {
    InvalidationDescriptor::InterruptEntryCache { entries: Some((index, 0)) }
}

#[test]
fn the_queue_changes_hands_and_comes_back() {
    let host = Host::new(true);
    let fake = remapping(&host);
    let prepared = Unit::prepare(&fake, &host, FOREIGN, TakeOver::Never, |_| Ok(())).expect("a sound unit");
    fake.with(|state| assert_eq!((state.commands.len(), state.tail_writes, state.queue), (0, 0, THEIR_QUEUE)));
    assert_eq!(host.fake.frames_lent(), PAGES);
    // Dropped, it has left no trace.
    drop(prepared);
    assert_eq!(host.fake.frames_lent(), 0);

    let unit = bring_up(&host, &fake).expect("a sound unit");
    fake.with(|state| {
        assert_eq!(state.status & !global::ROOT_TABLE, REMAPS | global::TRANSLATION);
        assert_ne!(state.queue, THEIR_QUEUE);
        assert_eq!((state.fault_event, state.unmapped_interrupts), (fault_event::MASKED, 0));
    });
    fake.take_executed();
    unit.submit_words(&[interrupt(7).encode(), interrupt(8).encode()]).expect("the hardware is prompt");
    let ours = unit.submit(&[page(1, 2)]).expect("room");
    finish(&unit, &host, ours).expect("the hardware is prompt");
    let executed = without_waits(fake.take_executed());
    assert_eq!(executed, [interrupt(7), interrupt(8), page_descriptor(1, 2)]);

    shut_down(unit).expect("it stops");
    assert_handed_back(&fake, 0);
    assert_eq!(host.fake.frames_lent(), 0);
    // Both drivers can begin again.
    shut_down(bring_up(&host, &fake).expect("it comes up again")).expect("it stops again");
    assert_handed_back(&fake, 0);
}

#[test]
fn a_switch_takes_no_memory() {
    let host = Host::new(true);
    let fake = remapping(&host);
    let prepared = Unit::prepare(&fake, &host, FOREIGN, TakeOver::Never, |_| Ok(())).expect("a sound unit");
    host.fake.limit_frames(0);
    // SAFETY: as above.
    let unit = unsafe { prepared.switch() }.expect("no memory is needed");
    shut_down(unit).expect("it stops");
}

/// A queue that was off, as that of a driver that has not begun yet, stays off.
#[test]
fn a_queue_that_was_off_is_left_off() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    fake.with(|state| state.status = global::INTERRUPT_REMAPPING);
    shut_down(bring_up(&host, &fake).expect("a sound unit")).expect("it stops");
    fake.with(|state| assert_eq!(state.status & !global::ROOT_TABLE, global::INTERRUPT_REMAPPING));
}

/// Nothing is lost that the other driver had submitted: the unit is not taken before the hardware has fetched it.
#[test]
fn what_the_other_driver_has_submitted_is_not_lost() {
    let host = Host::new(true);
    let fake = remapping(&host);
    fake.behave(Behaviour::Silent);
    fake.with(|state| state.tail += 0x10);
    let late = RegisterError::Timeout { offset: IQH, limit_us: CONFIG.wait_us_max };
    assert_eq!(bring_up(&host, &fake).err(), Some(BringUpError::NotTaken(late)));
    assert_untouched(&fake, THEIR_TAIL + 0x10);
    assert_eq!((fake.with(|state| state.commands.len()), host.fake.frames_lent()), (0, 0));
}

/// Whatever fails, the unit does not translate afterwards, and the other driver goes on.
#[test]
fn after_a_failed_switch_the_unit_is_as_it_was() {
    // The queue does not go off.
    let host = Host::new(true);
    let fake = remapping(&host);
    fake.with(|state| state.stuck = global::QUEUED_INVALIDATION);
    assert_eq!(bring_up(&host, &fake).err(), Some(BringUpError::NotTaken(LATE)));
    assert_untouched(&fake, THEIR_TAIL);
    assert_eq!(host.fake.frames_lent(), 0);
    // It goes off too late, and begins again.
    let fake = remapping(&host);
    fake.with(|state| (state.stuck, state.goes_off_late) = (global::QUEUED_INVALIDATION, true));
    assert_eq!(bring_up(&host, &fake).err(), Some(LATE.into()));
    assert_handed_back(&fake, 0);
    assert_eq!(host.fake.frames_lent(), 0);

    for stuck in [global::ROOT_TABLE, global::TRANSLATION] {
        let host = Host::new(true);
        let fake = remapping(&host);
        fake.with(|state| state.stuck = stuck);
        assert_eq!(bring_up(&host, &fake).err(), Some(LATE.into()), "{stuck:#x}");
        assert_handed_back(&fake, 0);
        // The last command does not ask for translation any more.
        let last = fake.with(|state| state.commands.last().copied()).expect("a command");
        assert_eq!(last & global::TRANSLATION, 0, "{stuck:#x}");
        // Translation may still come on, so its tables stay out of use.
        let kept = if stuck == global::TRANSLATION { PAGES } else { 0 };
        assert_eq!(host.fake.frames_lent(), kept, "{stuck:#x}");
    }
    // Regions that firmware protects stay protected, after translation has come on.
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_plmr(true), EXTENDED);
    fake.with(|state| {
        (state.status, state.queue, state.fault_event) = (REMAPS, THEIR_QUEUE, THEIR_EVENT);
        state.protected = protected_memory::ENABLE | protected_memory::ENABLED;
        state.stuck_protected = true;
    });
    let settled = RegisterError::Timeout { offset: PMEN, limit_us: CONFIG.wait_us_max };
    assert_eq!(bring_up(&host, &fake).err(), Some(settled.into()));
    assert_handed_back(&fake, 0);
    let protected = protected_memory::ENABLE | protected_memory::ENABLED;
    assert_eq!((fake.with(|state| (state.opened, state.protected))), (1, protected));
    // And translation does not go off again.
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_plmr(true), EXTENDED);
    fake.with(|state| {
        (state.status, state.queue, state.fault_event) = (REMAPS, THEIR_QUEUE, THEIR_EVENT);
        (state.protected, state.stuck_protected) = (protected, true);
        state.undying = global::TRANSLATION;
    });
    assert_eq!(bring_up(&host, &fake).err(), Some(BringUpError::NotRestored(LATE)));
    assert_handed_back(&fake, global::TRANSLATION);

    // A unit that has translated goes on, and its pages stay out of use.
    let host = Host::new(true);
    let fake = remapping(&host);
    fake.with(|state| (state.status, state.dead) = (REMAPS | global::TRANSLATION, global::ROOT_TABLE));
    let prepared = Unit::prepare(&fake, &host, FOREIGN, TakeOver::Firmware, |_| Ok(())).expect("a sound unit");
    // SAFETY: as above.
    assert_eq!(unsafe { prepared.switch() }.err(), Some(LATE.into()));
    assert_handed_back(&fake, global::TRANSLATION);
    assert_eq!((fake.with(|state| state.opened), host.fake.frames_lent()), (0, PAGES));

    // The first invalidation is refused, and the error does not stop the other driver's queue.
    let host = Host::new(true);
    let fake = remapping(&host);
    let flush = InvalidationDescriptor::ContextCache(crate::spec::descriptors::ContextScope::Global);
    fake.with(|state| state.refuse = Some(flush.encode()));
    assert_eq!(bring_up(&host, &fake).err(), Some(BringUpError::Queue(QueueError::Descriptor)));
    assert_handed_back(&fake, 0);
    assert_eq!((fake.with(|state| state.faults), host.fake.frames_lent()), (0, 0));
}

/// The caller hears of a queue that the other driver cannot get back.
#[test]
fn a_queue_that_is_not_handed_back_is_told() {
    let host = Host::new(true);
    let fake = remapping(&host);
    // The root table is not taken, and no queue comes on again.
    fake.with(|state| state.dead = global::ROOT_TABLE | global::QUEUED_INVALIDATION);
    assert_eq!(bring_up(&host, &fake).err(), Some(BringUpError::NotRestored(LATE)));
    assert_eq!(host.fake.frames_lent(), 0);
    let fake = remapping(&host);
    let prepared = Unit::prepare(&fake, &host, FOREIGN, TakeOver::Never, |_| Ok(())).expect("a sound unit");
    // The unit goes away while it changes hands.
    fake.with(|state| state.gone = true);
    // SAFETY: as above.
    let gone = unsafe { prepared.switch() }.err();
    assert_eq!(gone, Some(BringUpError::NotTaken(RegisterError::Gone { offset: GSTS })));
    assert_eq!(host.fake.frames_lent(), 0);

    let fake = remapping(&host);
    let unit = bring_up(&host, &fake).expect("a sound unit");
    // Its queue does not come on again.
    fake.with(|state| (state.status, state.stuck) = (state.status & !REMAPS, global::QUEUED_INVALIDATION));
    assert_eq!(shut_down(unit).err(), Some(LATE));
    // The unit has stopped all the same.
    assert_eq!(host.fake.frames_lent(), 0);
}

#[test]
fn words_are_submitted_in_order_and_waited_for() {
    let host = Host::new(true);
    let fake = remapping(&host);
    let unit = bring_up(&host, &fake).expect("a sound unit");
    fake.take_executed();
    let all: Vec<InvalidationDescriptor> = (0..150).map(interrupt).collect();
    let words: Vec<[u64; 2]> = all.iter().map(|one| one.encode()).collect();
    unit.submit_words(&words).expect("the hardware is prompt");
    unit.submit_words(&[]).expect("nothing to do");
    assert_eq!(without_waits(fake.take_executed()), all);

    // Fetched, and not known to be done.
    fake.behave(Behaviour::Holding);
    assert_eq!(unit.submit_words(&words[..1]), Err(QueueError::Timeout(CONFIG.wait_us_max)));
    fake.land(0);
    fake.behave(Behaviour::Prompt);
    fake.take_executed();

    // A wait could write to any memory.
    let status = Some(StatusWrite { address: PhysAddr::new(0x1000), data: 1 });
    let wait = InvalidationDescriptor::Wait { status, interrupt: false, fence: false, drain_page_requests: false };
    for wait in [wait.encode(), [0x0e05, 0]] {
        assert_eq!(unit.submit_words(&[words[0], wait]), Err(QueueError::Descriptor));
    }
    assert_eq!(fake.take_executed(), []);
    // What the hardware refuses fails alone.
    assert_eq!(unit.submit_words(&[[0xf, 0]]), Err(QueueError::Descriptor));
    unit.submit_words(&words[..1]).expect("the queue goes on");
    shut_down(unit).expect("it stops");
    assert_handed_back(&fake, 0);
}

/// A halt hands the queue back as well, once, and a resume takes it again.
#[test]
fn a_halted_unit_leaves_the_other_driver_its_queue() {
    for power_is_lost in [false, true] {
        let host = Host::new(true);
        let fake = remapping(&host);
        let unit = bring_up(&host, &fake).expect("a sound unit");
        unit.halt().expect("it stops");
        assert_handed_back(&fake, global::TRANSLATION);
        assert_eq!(unit.submit_words(&[interrupt(1).encode()]), Err(QueueError::Halted));
        // The other driver goes on by itself. A second halt must not take its queue from it.
        fake.with(|state| (state.head, state.tail) = (THEIR_TAIL, THEIR_TAIL));
        unit.halt().expect("it is halted");
        fake.with(|state| assert_eq!((state.queue, state.tail), (THEIR_QUEUE, THEIR_TAIL)));
        if power_is_lost {
            fake.lose_power();
            // The other driver has brought interrupts back.
            fake.with(|state| (state.status, state.queue, state.fault_event) = (REMAPS, THEIR_QUEUE, THEIR_EVENT));
        }
        unit.resume().expect("it comes back");
        fake.take_executed();
        unit.submit_words(&[interrupt(2).encode()]).expect("the hardware is prompt");
        assert_eq!(without_waits(fake.take_executed()), [interrupt(2)]);
        // A resume that fails leaves the other driver its queue, too.
        fake.with(|state| state.stuck = global::ROOT_TABLE);
        unit.halt().expect("it stops");
        fake.with(|state| (state.status, state.head, state.tail) = (state.status & !global::ROOT_TABLE, 0, 0));
        assert_eq!(unit.resume().err(), Some(LATE.into()));
        assert_handed_back(&fake, global::TRANSLATION);
        // Shut down while it is halted.
        fake.with(|state| (state.stuck, state.head, state.tail) = (0, THEIR_TAIL, THEIR_TAIL));
        shut_down(unit).expect("it stops");
        fake.with(|state| {
            assert_eq!(state.status & !global::ROOT_TABLE, REMAPS);
            assert_eq!((state.queue, state.tail, state.unmapped_interrupts), (THEIR_QUEUE, THEIR_TAIL, 0));
        });
        assert_eq!(host.fake.frames_lent(), 0);
    }
}

/// A unit that does not stop keeps its pages, and the other driver gets its queue all the same.
#[test]
fn a_unit_that_does_not_stop_hands_the_queue_back() {
    let host = Host::new(true);
    let fake = remapping(&host);
    let unit = bring_up(&host, &fake).expect("a sound unit");
    fake.with(|state| state.stuck = global::TRANSLATION);
    assert_eq!(shut_down(unit).err(), Some(LATE));
    assert_handed_back(&fake, global::TRANSLATION);
    assert_eq!(host.fake.frames_lent(), PAGES);
}

/// Halted in the middle of a resume, which must not happen: the resume then leaves the other driver its queue, and no
/// page is given back that the hardware reads (S4).
#[test]
fn a_halt_in_the_middle_of_a_resume_leaves_no_queue_of_ours() {
    let host: &'static Host = Box::leak(Box::new(Host::new(true)));
    let fake: &'static FakeUnit<'_> = Box::leak(Box::new(remapping(host)));
    fake.with(|state| state.capability = CAPABILITY.with_rwbf(true).0);
    let unit: &'static Driver<'_> = Box::leak(Box::new(bring_up(host, fake).expect("a sound unit")));
    unit.halt().expect("it stops");
    // In a wait before there is a queue.
    fake.with(|state| state.stuck = global::WRITE_BUFFER_FLUSH);
    static HALTS: AtomicUsize = AtomicUsize::new(0);
    host.on_pause(|| {
        if HALTS.fetch_add(1, Ordering::Relaxed) == 0 {
            unit.halt().expect("it stops");
            fake.with(|state| state.status &= !global::WRITE_BUFFER_FLUSH);
        }
    });
    assert_eq!(unit.resume(), Err(BringUpError::Changing), "only the halt prevented the resume");
    assert!(HALTS.load(Ordering::Relaxed) > 0, "it has waited");
    fake.with(|state| assert_eq!((state.queue, state.status & REMAPS), (THEIR_QUEUE, REMAPS)));
}

/// A command that turns translation on may be under way while it reads as off. It is taken back before pages go back
/// (S4).
#[test]
fn a_unit_that_may_still_come_on_is_told_not_to() {
    let host = Host::new(true);
    let fake = remapping(&host);
    let unit = bring_up(&host, &fake).expect("a sound unit");
    unit.halt().expect("it stops");
    fake.lose_power();
    fake.with(|state| (state.status, state.queue, state.stuck) = (REMAPS, THEIR_QUEUE, global::TRANSLATION));
    assert_eq!(unit.resume().err(), Some(LATE.into()));
    shut_down(unit).expect("it does not translate");
    let last = fake.with(|state| state.commands.last().copied()).expect("a command");
    assert_eq!((last & global::TRANSLATION, host.fake.frames_lent()), (0, 0));
}

/// Power goes between two attempts to halt: a unit that has lost its table is not told to translate.
#[test]
fn a_unit_that_has_lost_its_table_is_not_turned_on() {
    let host = Host::new(true);
    let fake = remapping(&host);
    let unit = bring_up(&host, &fake).expect("a sound unit");
    fake.with(|state| state.dead = global::QUEUED_INVALIDATION);
    assert_eq!(unit.halt(), Err(LATE), "the other driver does not get its queue");
    fake.lose_power();
    fake.with(|state| state.status = global::INTERRUPT_REMAPPING);
    unit.halt().expect("it stops");
    fake.with(|state| assert_eq!(state.status & !global::ROOT_TABLE, REMAPS));
    assert!(fake.with(|state| state.commands.iter().all(|command| command & global::TRANSLATION == 0)));
}

/// The other driver unmasks its fault event when it moves the event to another CPU.
#[test]
fn a_fault_event_that_was_unmasked_is_masked_again() {
    let host = Host::new(true);
    let fake = remapping(&host);
    let unit = bring_up(&host, &fake).expect("a sound unit");
    fake.with(|state| state.fault_event = 0);
    unit.faults(&mut |_| {}).expect("it is there");
    assert_eq!(fake.with(|state| state.fault_event), fault_event::MASKED);
    // Not while it has its queue.
    unit.halt().expect("it stops");
    unit.faults(&mut |_| {}).expect("it is there");
    assert_eq!(fake.with(|state| state.fault_event), THEIR_EVENT);
    shut_down(unit).expect("it stops");
}

/// Only a caller that answers for the other driver shares a unit, and devices that are admitted cannot be shut out
/// before the hardware knows our tables.
#[test]
fn a_unit_is_shared_only_with_care() {
    let host = Host::new(true);
    let fake = remapping(&host);
    assert_eq!(Unit::bring_up(&fake, &host, FOREIGN).err(), Some(BringUpError::RemapsInterrupts));
    let admit = |unit: &Driver<'_>| {
        unit.shut_out_all().expect("nothing to do");
        unit.halt().expect("nothing to do");
        Ok(())
    };
    drop(Unit::prepare(&fake, &host, FOREIGN, TakeOver::Never, admit).expect("a sound unit"));
    assert_untouched(&fake, THEIR_TAIL);
    assert_eq!((fake.with(|state| state.commands.len()), host.fake.frames_lent()), (0, 0));
}
