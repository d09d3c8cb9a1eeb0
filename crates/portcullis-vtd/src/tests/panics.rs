//! A panic in the registers or in the host, at every access: translation that was on stays on, no invalidation is
//! reported as done that was not made, and later calls return errors instead of panicking again.

use super::fake_unit::FakeUnit;
use super::host::Host;
use super::{close, open, page, page_descriptor};
use crate::spec::registers::global;
use crate::{Interrupts, Mmio, TakeOver, Unit, UnitConfig};
use portcullis::iommu::{AttachError, DomainId, Iommu, SourceId, Translation};
use portcullis::platform::fake::hooks::{HookedHost, has_panicked, hooked, panic_at};
use portcullis::{PhysAddr, QueueError};
use std::panic::{AssertUnwindSafe, catch_unwind};

const DEVICE: SourceId = SourceId::new(3, 2, 0);
const TABLES: Translation = Translation::Tables { root: PhysAddr::new(0x5000), levels: 4 };

/// The registers, with hooks before and after each access.
struct Hooked<'a>(&'a FakeUnit<'a>);

// SAFETY: forwards to registers that keep the promises.
unsafe impl Mmio for &Hooked<'_> {
    fn read32(&self, offset: u32) -> u32 {
        hooked(|| self.0.read32(offset))
    }

    fn read64(&self, offset: u32) -> u64 {
        hooked(|| self.0.read64(offset))
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.write32(offset, value) });
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        hooked(|| unsafe { self.0.write64(offset, value) });
    }
}

/// The result of `operation`, if no hook has panicked in it. A second panic is an error.
fn step<R>(number: usize, operation: impl FnOnce() -> R) -> Option<R> {
    let had_panicked = has_panicked();
    let ended = catch_unwind(AssertUnwindSafe(operation));
    assert!(ended.is_ok() || !had_panicked, "hook {number}: a second panic");
    ended.ok()
}

fn is_on(fake: &FakeUnit<'_>) -> bool {
    fake.with(|state| state.status & global::TRANSLATION != 0)
}

/// How a command is submitted.
#[derive(Clone, Copy)]
enum Way {
    Alone,
    Shared,
    /// By [`Iommu::try_invalidate`], as unmaps are.
    AtOnce,
}

/// Commits an unmap of page `pfn`. Returns whether the driver reports it as done.
fn commit<I: Iommu>(unit: &I, domain: DomainId, pfn: u64, way: Way) -> Result<bool, QueueError> {
    let commands = [page(domain.0, pfn)];
    let ticket = match way {
        Way::Alone => unit.submit(&commands)?,
        Way::Shared => unit.submit_shared(&commands)?,
        Way::AtOnce => match unit.try_invalidate(commands[0]) {
            Ok(()) => return Ok(true),
            Err(left) => left?.map_or_else(|| unit.submit_shared(&commands), Ok)?,
        },
    };
    for _ in 0..100 {
        if unit.is_done(ticket)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A run with a panic at access `number`. Returns whether there was one.
fn run(number: usize) -> bool {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let (registers, hooked_host) = (Hooked(&fake), HookedHost(&host.fake));
    panic_at(number);
    let config = UnitConfig { wait_us_max: 50, ..UnitConfig::default() };
    let unit = step(number, || Unit::bring_up(&registers, &hooked_host, config).expect("a sound unit"));
    if let Some(unit) = unit {
        let reaches = || fake.context(DEVICE).is_some();
        let domain = step(number, || open(&unit, TABLES)).and_then(Result::ok).unwrap_or(DomainId(1));
        _ = step(number, || unit.attach(domain, DEVICE));
        for pfn in 1..4 {
            for way in [Way::Alone, Way::Shared, Way::AtOnce] {
                fake.take_executed();
                let done = step(number, || commit(&unit, domain, pfn, way));
                if done == Some(Ok(true)) {
                    assert!(fake.take_executed().contains(&page_descriptor(domain.0, pfn)), "hook {number}: not made");
                }
            }
        }
        if step(number, || unit.detach(domain, DEVICE)) == Some(Ok(())) {
            assert!(!reaches(), "hook {number}: it was reported as detached");
        }
        _ = step(number, || unit.attach(domain, DEVICE));
        if step(number, || close(&unit, domain)) == Some(Ok(())) {
            assert!(!reaches(), "hook {number}: its domain was reported as closed");
        }
        // State that a panic has left half changed must not be used.
        let after = step(number, || open(&unit, TABLES));
        assert!(
            !matches!(after, Some(Err(error)) if error != AttachError::Queue(QueueError::Panicked)),
            "hook {number}"
        );
        _ = step(number, || drop(unit));
        assert!(is_on(&fake), "hook {number}: a dropped unit translates");
    }
    assert_eq!(fake.with(|state| state.opened), 0, "hook {number}: nothing turns translation off");
    let panicked = has_panicked();
    panic_at(0);
    panicked
}

#[test]
fn a_panic_at_any_access_leaves_the_gate_shut() {
    let hooks = (1..).take_while(|number| run(*number)).count();
    assert!(hooks > 100, "there are more than {hooks} accesses");
}

/// The unit changes hands, with a panic at access `number` of that. Returns whether there was one.
fn run_switch(number: usize) -> bool {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    fake.with(|state| state.status = global::INTERRUPT_REMAPPING | global::QUEUED_INVALIDATION);
    let (registers, hooked_host) = (Hooked(&fake), HookedHost(&host.fake));
    let config = UnitConfig { wait_us_max: 50, interrupts: Interrupts::Foreign, ..UnitConfig::default() };
    let prepared = Unit::prepare(&registers, &hooked_host, config, TakeOver::Never, |_| Ok(())).expect("a sound unit");
    let pages = host.fake.frames_lent();
    panic_at(number);
    // SAFETY: there is no other driver.
    let switched = step(number, || unsafe { prepared.switch() }.expect("a sound unit"));
    assert_eq!(switched.is_none(), has_panicked(), "hook {number}");
    assert_eq!(host.fake.frames_lent(), pages, "hook {number}: the hardware may know the pages (S4)");
    let panicked = has_panicked();
    panic_at(0);
    panicked
}

#[test]
fn a_panic_in_the_middle_of_a_switch_gives_no_page_back() {
    let hooks = (1..).take_while(|number| run_switch(*number)).count();
    assert!(hooks > 20, "there are more than {hooks} accesses");
}
