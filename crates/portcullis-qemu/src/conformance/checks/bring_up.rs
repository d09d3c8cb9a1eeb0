//! Bring-up, take-over, halt and shutdown of a unit.

use crate::conformance::driven::{gone, page};
use crate::conformance::raw::{HIGH, IOVA, PHYS};
use crate::conformance::rig::{A, B, Hardware};
use crate::conformance::wiring::Wired;
use crate::conformance::{Check, Checked, DMA_BYTES, Seen, Stage, Trouble, agree, dma, write_refused};
use portcullis::designs::Magazine;
use portcullis::iommu::AttachError;
use portcullis::{Access, Capabilities, DomainId, Iommu, Iova, Open, PAGE_SIZE, PhysAddr, Protection};
use portcullis_vtd::spec::faults::{FaultReason, status};
use portcullis_vtd::spec::registers::{FSTS, GSTS, global};
use portcullis_vtd::{BringUpError, Unit};

const BOTH: Access = Access::DeviceReadsAndWrites;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("bring-up-shuts-everybody-out", shuts_out),
    Check::driven("bring-up-forgets-what-was-cached", forgets),
    Check::driven("bring-up-forgets-faults", forgets_faults),
    Check::driven("bring-up-takes-over-a-stopped-queue", stopped_queue)
        .differs("QEMU does not turn a queue off that has stopped", stopped_queue_refused),
    Check::driven("bring-up-tells-what-the-unit-can", capabilities),
    Check::driven("bring-up-tells-what-a-narrow-unit-can", narrow).on(Hardware::Narrow),
    Check::driven("bring-up-tells-of-caching-mode", caching_mode).on(Hardware::CachingMode),
    Check::driven("bring-up-refuses-a-unit-in-use", refuses_in_use),
    Check::driven("a-dropped-unit-lets-no-device-through", dropped),
    Check::driven("a-forgotten-unit-lets-no-device-through", forgotten),
    Check::driven("a-take-over-lets-no-device-through", taken_over),
    Check::driven("a-take-over-carries-devices-on", carries_on),
    Check::driven("bring-up-may-be-repeated", repeated),
    Check::driven("bring-up-admits-devices", admits),
    Check::driven("a-halted-unit-comes-back", halted),
    Check::driven("shut-down-lets-everybody-through", shut_down),
    Check::driven("shut-down-gives-its-pages-back", gives_back),
];

/// Makes a device write to a physical address.
fn write(stage: &Stage, faults: &mut dyn FnMut() -> dma::Faults) -> Result<Seen, Trouble> {
    let to = dma::Target { device: A, iova: Iova::new(PHYS), phys: PhysAddr::new(PHYS), len: DMA_BYTES };
    dma::write(&*stage.rig, to, faults)
}

fn shuts_out(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let seen = driven.write(A, Iova::new(PHYS), page(0))?;
    agree!(seen, write_refused(A, PHYS, FaultReason::RootNotPresent), "a device in no domain");
    Ok(())
}

fn forgets(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "under the owner before");
    let (wait, _) = raw.wait(0);
    raw.run(&[wait])?;
    // The previous owner has cleared the entry but not flushed it.
    raw.clear(table, IOVA, 1)?;
    let driven = stage.take_over()?;
    agree!(driven.write(A, Iova::new(IOVA), PhysAddr::new(PHYS))?, gone(Iova::new(IOVA)), "what it had cached");
    Ok(())
}

/// A device keeps the access that its previous owner gave it, until it is released.
fn carries_on(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    let (wait, _) = raw.wait(0);
    raw.run(&[wait])?;
    let driven = stage.take_over()?;
    agree!(driven.unit.inherited_devices().collect::<Vec<_>>(), [A], "inherited devices");
    agree!(driven.write(A, Iova::new(IOVA), PhysAddr::new(PHYS))?, Seen::Landed, "under the owner after");
    agree!(raw.write(A, HIGH, PHYS)?, write_refused(A, HIGH, FaultReason::NoWrite), "what was not mapped");
    let refused = raw.write(B, IOVA, PHYS)?;
    agree!(refused, write_refused(B, IOVA, FaultReason::ContextNotPresent), "a device in no domain");
    let space = driven.open::<Magazine>(Protection::Strict)?;
    agree!(driven.iommu.attach(DomainId(1), A), Err(AttachError::NoSuchDomain(DomainId(1))), "its old domain");
    let inherited = Err(AttachError::Inherited(A));
    agree!(space.domain.attach(A), inherited, "another domain");
    driven.unit.release_inherited(A)?;
    agree!(driven.unit.inherited_devices().count(), 0, "inherited devices");
    let seen = driven.write(A, Iova::new(IOVA), PhysAddr::new(PHYS))?;
    agree!(seen, write_refused(A, IOVA, FaultReason::ContextNotPresent), "what was released");
    space.domain.attach(A)?;
    let iova = space.map(page(1), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(1))?, Seen::Landed, "what its own domain has mapped");
    agree!(driven.write(A, Iova::new(IOVA), PhysAddr::new(PHYS))?, gone(Iova::new(IOVA)), "what was mapped once");
    Ok(())
}

fn forgets_faults(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    let (wait, _) = raw.wait(0);
    raw.run(&[wait])?;
    raw.attempt(A, HIGH)?;
    agree!(raw.rig.read32(FSTS), status::PENDING, "the owner before had a fault");
    let driven = stage.take_over()?;
    agree!(driven.faults(), dma::Faults::default(), "faults of the owner before");
    Ok(())
}

/// Takes over a unit whose queue has stopped at an error, and returns the error, if any.
fn over_stopped_queue(stage: &Stage) -> Result<Option<BringUpError>, Trouble> {
    let raw = stage.raw()?;
    raw.push([0xf, 0]);
    raw.ring();
    raw.until("the queue error", || raw.rig.read32(FSTS) & status::QUEUE_ERROR != 0)?;
    Ok(stage.take_over().err())
}

fn stopped_queue(stage: &Stage) -> Checked {
    agree!(over_stopped_queue(stage)?, None, "why it was not brought up");
    Ok(())
}

fn stopped_queue_refused(stage: &Stage) -> Checked {
    let error = over_stopped_queue(stage)?;
    agree!(matches!(error, Some(BringUpError::Register(_))), true, "an error that names the register: {error:?}");
    Ok(())
}

fn capabilities(stage: &Stage) -> Checked {
    let expected = Capabilities {
        three_level: true,
        four_level: true,
        leaf_2m: true,
        leaf_1g: true,
        address_mask_max: Some(18),
        coherent: false,
        caches_absent: false,
        rings: false,
        pass_through: true,
        address_bits: 48,
        physical_bits: 48,
    };
    let driven = stage.driven()?;
    agree!(driven.unit.capabilities(), expected, "capabilities");
    agree!(driven.unit.capability().domain_id_bits(), Some(16), "bits of a domain id");
    agree!(driven.unit.capability().fault_records(), 1, "fault registers");
    Ok(())
}

fn narrow(stage: &Stage) -> Checked {
    let capabilities = stage.driven()?.unit.capabilities();
    agree!((capabilities.three_level, capabilities.four_level), (true, false), "depths of table");
    agree!(capabilities.address_bits, 39, "bits of an address");
    Ok(())
}

fn caching_mode(stage: &Stage) -> Checked {
    agree!(stage.driven()?.unit.capabilities().caches_absent, true, "absent entries may be cached");
    Ok(())
}

fn close_down(unit: Unit<Wired, Wired>) -> Checked {
    // SAFETY: the memory of a rig holds no Rust objects.
    Ok(unsafe { unit.shut_down() }?)
}

/// Checks that a device in no domain reaches nothing. The faults that it causes stay in their registers.
fn is_shut(stage: &Stage, when: &str) -> Checked {
    let seen = write(stage, &mut dma::Faults::default)?;
    agree!(seen.is_blocked(), true, "a device in no domain, {when}: {seen:?}");
    Ok(())
}

fn refuses_in_use(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(1), PAGE_SIZE, BOTH)?;
    let second = stage.bring_up().err();
    agree!(
        matches!(second, Some(BringUpError::InUse { .. })),
        true,
        "a second unit over the same registers: {second:?}"
    );
    agree!(driven.write(A, iova, page(1))?, Seen::Landed, "what the first has mapped");
    space.domain.unmap_raw(iova, PAGE_SIZE)?;
    agree!(driven.write(A, iova, page(1))?, gone(iova), "what the first has unmapped");
    Ok(())
}

/// The unit is lost, and its domain was forgotten with a device in it, as an early return or an unwinding panic could
/// do. `kept` lives until the check ends and not for ever, because a forgotten unit would keep its machine running.
fn lost<K>(stage: &Stage, lose: impl FnOnce(Unit<Wired, Wired>) -> K) -> Checked {
    let (wired, unit) = stage.bring_up()?;
    // By reference, so that the forgotten domain does not keep the machine running either.
    let domain = Magazine::open(&unit, &wired, Protection::Strict)?;
    domain.attach(A)?;
    // SAFETY: the memory of a rig holds no Rust objects.
    let iova = unsafe { domain.map_raw(page(1), PAGE_SIZE, BOTH) }?;
    domain.unmap_raw(iova, PAGE_SIZE)?;
    core::mem::forget(domain);
    let kept = lose(unit);
    let physical = dma::Target { device: A, iova: Iova::new(PHYS), phys: PhysAddr::new(PHYS), len: DMA_BYTES };
    for target in [physical, dma::Target { iova, phys: page(1), ..physical }] {
        let seen = dma::write(&*stage.rig, target, &mut dma::Faults::default)?;
        agree!(seen.is_blocked(), true, "at {}: {seen:?}", target.iova);
    }
    let again = stage.bring_up().err();
    agree!(matches!(again, Some(BringUpError::InUse { .. })), true, "brought up again: {again:?}");
    drop(kept);
    Ok(())
}

fn admits(stage: &Stage) -> Checked {
    let driven = stage.bring_up_with_a()?;
    agree!(driven.write(A, Iova::new(PHYS), PhysAddr::new(PHYS))?, Seen::Landed, "a device that was let in");
    agree!(driven.write(B, Iova::new(PHYS), page(0))?.is_blocked(), true, "another");
    Ok(())
}

/// Devices keep the access that they have, and gain none, while the queue is off and after it is back.
fn halted(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let [kept, unmapped] = [space.map(page(1), PAGE_SIZE, BOTH)?, space.map(page(2), PAGE_SIZE, BOTH)?];
    agree!(driven.write(A, unmapped, page(2))?, Seen::Landed, "what is mapped");
    space.domain.unmap_raw(unmapped, PAGE_SIZE)?;
    for round in 0..3 {
        driven.unit.halt()?;
        agree!(driven.write(A, kept, page(1))?, Seen::Landed, "what is mapped, halted {round}");
        agree!(driven.write(A, unmapped, page(2))?, gone(unmapped), "what was unmapped before, halted {round}");
        driven.unit.resume()?;
        agree!(driven.write(A, kept, page(1))?, Seen::Landed, "what is mapped, resumed {round}");
        let again = space.map(page(3), PAGE_SIZE, BOTH)?;
        agree!(driven.write(A, again, page(3))?, Seen::Landed, "what is mapped now {round}");
        space.domain.unmap_raw(again, PAGE_SIZE)?;
        agree!(driven.write(A, again, page(3))?, gone(again), "what is unmapped now {round}");
    }
    Ok(())
}

fn dropped(stage: &Stage) -> Checked {
    lost(stage, drop)
}

fn forgotten(stage: &Stage) -> Checked {
    lost(stage, |unit| unit)
}

fn taken_over(stage: &Stage) -> Checked {
    drop(stage.driven()?);
    is_shut(stage, "dropped")?;
    let driven = stage.take_over()?;
    is_shut(stage, "taken over")?;
    // Frees the fault register, because further faults of a device are merged while one is pending.
    driven.faults();
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(1), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(1))?, Seen::Landed, "what the second has mapped");
    space.domain.unmap_raw(iova, PAGE_SIZE)?;
    agree!(driven.write(A, iova, page(1))?, gone(iova), "what the second has unmapped");
    Ok(())
}

fn repeated(stage: &Stage) -> Checked {
    for _ in 0..3 {
        let (_, unit) = stage.bring_up()?;
        agree!(stage.rig.read32(GSTS) & global::TRANSLATION, global::TRANSLATION, "translation");
        close_down(unit)?;
        agree!(stage.rig.read32(GSTS) & global::TRANSLATION, 0, "translation, shut down");
    }
    Ok(())
}

fn shut_down(stage: &Stage) -> Checked {
    let (_, unit) = stage.bring_up()?;
    let seen = write(stage, &mut || {
        let mut faults = dma::Faults::default();
        let lost = unit.faults(&mut |record| faults.records.push(record));
        faults.lost = lost.unwrap_or(true);
        faults
    })?;
    agree!(seen, write_refused(A, PHYS, FaultReason::RootNotPresent), "a device in no domain");
    close_down(unit)?;
    agree!(write(stage, &mut dma::Faults::default)?, Seen::Landed, "the same device, shut down");
    Ok(())
}

fn gives_back(stage: &Stage) -> Checked {
    let before = stage.rig.lent();
    let (_, unit) = stage.bring_up()?;
    agree!(stage.rig.lent() > before, true, "pages while it is up");
    close_down(unit)?;
    agree!(stage.rig.lent(), before, "pages afterwards");
    Ok(())
}
