use super::fake_unit::*;
use super::host::Host;
use super::{CONFIG, Driver, bring_up};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use crate::spec::faults::status;
use crate::spec::registers::*;
use crate::{BringUpError, RegisterError, TakeOver, Unit, UnitConfig};
use portcullis::{Iommu, NoMemory, PhysAddr, QueueError};
use std::sync::atomic::Ordering;

/// Pages of a unit without devices: two root tables, of which one stays empty, and two of the queue.
const PAGES: usize = 4;

/// Takes over a unit that must be refused, checks that no page is left allocated, and returns the error.
fn refusal(host: &Host, fake: &FakeUnit<'_>) -> BringUpError {
    let error = take_over(host, fake).err().expect("a unit that cannot be driven");
    assert_eq!(host.fake.frames_lent(), 0, "{error}");
    error
}

fn take_over<'u>(host: &'u Host, fake: &'u FakeUnit<'u>) -> Result<Driver<'u>, BringUpError> {
    // SAFETY: no test drives a unit by other means after taking it over.
    unsafe { Unit::take_over(fake, host, CONFIG, TakeOver::Always, |_| Ok(())) }
}

fn shut_down(unit: Driver<'_>) -> Result<(), RegisterError> {
    // SAFETY: no memory is behind the fake unit.
    unsafe { unit.shut_down() }
}

/// Whether translation and queue are on.
fn running(fake: &FakeUnit<'_>) -> [bool; 2] {
    let status = fake.with(|state| state.status);
    [global::TRANSLATION, global::QUEUED_INVALIDATION].map(|bit| status & bit != 0)
}

#[test]
fn comes_up_in_order_and_leaves_nothing_behind() {
    for coherent in [true, false] {
        let host = Host::new(coherent);
        let fake = FakeUnit::new(&host);
        let unit = Unit::bring_up(&fake, &host, CONFIG).expect("a sound unit");
        assert_eq!(
            fake.with(|state| state.commands.clone()),
            [global::ROOT_TABLE, global::QUEUED_INVALIDATION, global::TRANSLATION]
        );
        assert_eq!(fake.with(|state| state.fault_event), fault_event::MASKED);
        let executed = fake.take_executed();
        assert_eq!(executed[0], InvalidationDescriptor::ContextCache(ContextScope::Global));
        assert_eq!(
            executed[1],
            InvalidationDescriptor::Iotlb { scope: IotlbScope::Global, drain_writes: true, drain_reads: true }
        );
        assert_eq!(executed.len(), 3);
        assert_eq!(unit.address_bits(), 48);
        assert_eq!(host.fake.frames_lent(), PAGES);
        shut_down(unit).expect("it stops");
        assert_eq!((running(&fake), host.fake.frames_lent()), ([false; 2], 0));
        let unit = Unit::bring_up(&fake, &host, CONFIG).expect("it comes up again");
        shut_down(unit).expect("it stops again");
        assert_eq!((running(&fake), host.fake.frames_lent()), ([false; 2], 0));
    }
}

/// Dropped, as by an early return, or forgotten: the unit goes on translating, and the pages that it reads are not
/// freed. So it is in use, and only a take-over gets it. The take-over never turns translation off.
#[test]
fn what_is_dropped_keeps_translating() {
    for forget in [false, true] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let unit = Unit::bring_up(&fake, &host, CONFIG).expect("a sound unit");
        let in_use = |error| matches!(error, Some(BringUpError::InUse { .. }));
        assert!(in_use(Unit::bring_up(&fake, &host, CONFIG).err()), "the first driver has it");
        assert_eq!(running(&fake), [true; 2]);
        if forget {
            core::mem::forget(unit)
        } else {
            drop(unit)
        }
        assert_eq!((running(&fake), host.fake.frames_lent()), ([true; 2], PAGES));
        assert!(in_use(Unit::bring_up(&fake, &host, CONFIG).err()), "it is still on");
        let root = fake.with(|state| state.root);
        let unit = take_over(&host, &fake).expect("a unit without a driver");
        assert_ne!(fake.with(|state| state.root), root, "it translates by the new root");
        assert_eq!(fake.with(|state| state.opened), 0);
        shut_down(unit).expect("it stops");
        assert_eq!((fake.with(|state| state.opened), host.fake.frames_lent()), (1, PAGES), "pages lost by the first");
    }
}

#[test]
fn without_barriers_a_non_coherent_unit_reads_garbage() {
    for forgotten in [false, true] {
        let host = Host::new(false);
        let fake = FakeUnit::new(&host);
        host.forget_barriers.store(forgotten, Ordering::Relaxed);
        let _unit = bring_up(&fake, &host);
        let root = fake.with(|state| state.root);
        let is_empty = host.fake.hardware_page(PhysAddr::new(root), false).expect("lent").iter().all(|word| *word == 0);
        assert_eq!(is_empty, !forgotten);
    }
}

#[test]
fn refuses_registers_of_nobody() {
    let host = Host::new(true);
    let gone = FakeUnit::new(&host);
    gone.with(|state| state.gone = true);
    assert_eq!(refusal(&host, &gone), BringUpError::Gone);

    let zeros = FakeUnit::with_capabilities(&host, Capability(0), ExtendedCapability(0));
    zeros.with(|state| state.version = 0);
    assert_eq!(refusal(&host, &zeros), BringUpError::NoUnit { version: 0, capability: 0, extended: 0 });

    let noise = FakeUnit::new(&host);
    noise.with(|state| state.version = 0xdead_beef);
    assert!(matches!(refusal(&host, &noise), BringUpError::NoUnit { version: 0xdead_beef, .. }));

    let half = FakeUnit::new(&host);
    half.with(|state| state.status = u32::MAX);
    assert_eq!(refusal(&host, &half), BringUpError::Gone);
}

#[test]
fn refuses_what_it_cannot_drive() {
    let host = Host::new(true);
    let refused = |capability, extended| {
        let fake = FakeUnit::with_capabilities(&host, capability, extended);
        let error = refusal(&host, &fake);
        assert_eq!(fake.with(|state| state.commands.len()), 0, "refused before it was touched");
        error
    };
    assert_eq!(refused(CAPABILITY, EXTENDED.with_qi(false)), BringUpError::NoInvalidationQueue);
    assert_eq!(refused(CAPABILITY.with_sagaw(0b01000), EXTENDED), BringUpError::NoTableFormat(8));
    assert_eq!(refused(CAPABILITY.with_nd(7), EXTENDED), BringUpError::DomainIds);
    assert_eq!(refused(CAPABILITY.with_fro(0xa), EXTENDED), BringUpError::FaultRecords(0xa0));
    // The last of 64 fault records ends on the second page.
    let far = CAPABILITY.with_fro(0xff).with_nfr(63);
    assert_eq!(refused(far, EXTENDED), BringUpError::Block { needed: 0x2000, bytes: 0x1000 });

    let fake = FakeUnit::new(&host);
    // Interrupts are remapped, with the queue of their driver on or off.
    for queue in [0, global::QUEUED_INVALIDATION] {
        fake.with(|state| state.status = queue | global::INTERRUPT_REMAPPING);
        assert_eq!(refusal(&host, &fake), BringUpError::RemapsInterrupts);
        assert_eq!(Unit::bring_up(&fake, &host, CONFIG).err(), Some(BringUpError::RemapsInterrupts));
    }
    // On and so in use, whichever of the two is on.
    for status in [global::TRANSLATION, global::QUEUED_INVALIDATION] {
        fake.with(|state| state.status = status);
        assert_eq!(Unit::bring_up(&fake, &host, CONFIG).err(), Some(BringUpError::InUse { status }));
        assert_eq!((fake.with(|state| state.commands.len()), host.fake.frames_lent()), (0, 0));
    }
}

#[test]
fn takes_over_what_firmware_left_on() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_plmr(true), EXTENDED);
    fake.with(|state| {
        state.status = global::TRANSLATION | global::QUEUED_INVALIDATION | global::COMPATIBILITY_INTERRUPTS;
        state.faults = status::OVERFLOW | status::QUEUE_ERROR;
        state.protected = protected_memory::ENABLE | protected_memory::ENABLED;
        state.records.insert(0x220, [0x1000, 0x8000_0005_0000_0018]);
    });
    let unit = take_over(&host, &fake).expect("a unit that was in use");
    fake.with(|state| {
        assert_eq!(state.faults, 0);
        assert_eq!(state.protected, 0);
        assert_eq!(state.records[&0x220][1] >> 63, 0);
        assert_ne!(state.status & global::COMPATIBILITY_INTERRUPTS, 0, "other commands stay set");
    });
    drop(unit);
}

#[test]
fn every_hand_shake_has_a_time_limit() {
    let timeout = |offset| BringUpError::Register(RegisterError::Timeout { offset, limit_us: 50 });
    for (stuck, status) in [
        (global::ROOT_TABLE, 0),
        (global::QUEUED_INVALIDATION, 0),
        (global::QUEUED_INVALIDATION, global::QUEUED_INVALIDATION),
    ] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        fake.with(|state| (state.stuck, state.status) = (stuck, status));
        assert_eq!(refusal(&host, &fake), timeout(GSTS));
    }
    // Translation was requested and may come on late, so its root table must stay. If translation was on, it still
    // is.
    for (stuck, status) in [(global::TRANSLATION, 0), (global::ROOT_TABLE, global::TRANSLATION)] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        fake.with(|state| (state.stuck, state.status) = (stuck, status));
        assert_eq!(take_over(&host, &fake).err(), Some(timeout(GSTS)));
        assert_eq!(host.fake.frames_lent(), PAGES);
        assert_eq!(running(&fake)[0], status != 0);
    }
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_rwbf(true), EXTENDED);
    fake.with(|state| state.stuck = global::WRITE_BUFFER_FLUSH);
    assert_eq!(refusal(&host, &fake), timeout(GSTS));
}

#[test]
fn a_silent_queue_is_a_timeout() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    fake.behave(Behaviour::Silent);
    assert_eq!(refusal(&host, &fake), BringUpError::Queue(QueueError::Timeout(50)));
    assert_eq!(fake.with(|state| state.status & global::TRANSLATION), 0);
}

#[test]
fn pages_of_a_unit_that_does_not_stop_are_never_given_back() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = Unit::bring_up(&fake, &host, CONFIG).expect("a sound unit");
    fake.with(|state| state.stuck = global::TRANSLATION);
    assert_eq!(shut_down(unit), Err(RegisterError::Timeout { offset: GSTS, limit_us: 50 }));
    assert_eq!(host.fake.frames_lent(), PAGES);
}

#[test]
fn no_memory_leaves_nothing_behind() {
    for pages in 0..3 {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        host.fake.limit_frames(pages);
        assert_eq!(refusal(&host, &fake), BringUpError::NoMemory(NoMemory));
        assert_eq!(fake.with(|state| state.commands.len()), 0);
    }
}

#[test]
fn write_buffers_are_flushed_where_the_unit_has_them() {
    for (rwbf, flushes) in [(false, 0), (true, 1)] {
        let host = Host::new(true);
        let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_rwbf(rwbf), EXTENDED);
        let unit = Unit::bring_up(&fake, &host, CONFIG).expect("a sound unit");
        assert_eq!(fake.with(|state| state.write_buffer_flushes), flushes);
        drop(unit);
    }
    // A chipset whose units do not report their buffer.
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = Unit::bring_up(&fake, &host, UnitConfig { flushes_writes: true, ..CONFIG }).expect("a sound unit");
    assert_eq!(fake.with(|state| state.write_buffer_flushes), 1);
    assert!(unit.capabilities().caches_absent, "a new entry is visible only after an invalidation");
    drop(unit);
}
