//! Taking a unit over, and letting it go.

use crate::conformance::driven::page;
use crate::conformance::raw::{HIGH, IOVA, PHYS};
use crate::conformance::rig::{A, Hardware};
use crate::conformance::{Check, Checked, DMA_BYTES, Seen, Stage, Trouble, agree, dma, write_refused};
use portcullis::{Capabilities, Iommu, Iova, PhysAddr};
use portcullis_vtd::BringUpError;
use portcullis_vtd::spec::faults::{FaultReason, status};
use portcullis_vtd::spec::registers::{FSTS, GSTS, global};

pub(super) const CHECKS: &[Check] = &[
    Check::driven("bring-up-shuts-everybody-out", shuts_out),
    Check::driven("bring-up-forgets-what-was-cached", forgets),
    Check::driven("bring-up-forgets-faults", forgets_faults),
    Check::driven("bring-up-takes-over-a-stopped-queue", stopped_queue)
        .differs("QEMU does not turn a queue off that has stopped", stopped_queue_refused),
    Check::driven("bring-up-tells-what-the-unit-can", capabilities),
    Check::driven("bring-up-tells-what-a-narrow-unit-can", narrow).on(Hardware::Narrow),
    Check::driven("bring-up-tells-of-caching-mode", caching_mode).on(Hardware::CachingMode),
    Check::driven("bring-up-may-be-repeated", repeated),
    Check::driven("shut-down-lets-everybody-through", shut_down),
    Check::driven("shut-down-gives-its-pages-back", gives_back),
];

/// A device writes to a physical address.
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
    raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "under the owner before");
    let (wait, _) = raw.wait(0);
    raw.run(&[wait])?;
    let driven = stage.driven()?;
    let seen = driven.write(A, Iova::new(IOVA), page(0))?;
    agree!(seen, write_refused(A, IOVA, FaultReason::RootNotPresent), "what it had cached");
    Ok(())
}

fn forgets_faults(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    let (wait, _) = raw.wait(0);
    raw.run(&[wait])?;
    raw.attempt(A, HIGH)?;
    agree!(raw.rig.read32(FSTS), status::PENDING, "the owner before had a fault");
    let driven = stage.driven()?;
    agree!(driven.faults(), dma::Faults::default(), "faults of the owner before");
    Ok(())
}

/// What comes of taking a unit over whose queue has stopped at an error.
fn over_stopped_queue(stage: &Stage) -> Result<Option<BringUpError>, Trouble> {
    let raw = stage.raw()?;
    raw.push([0xf, 0]);
    raw.ring();
    raw.until("the queue error", || raw.rig.read32(FSTS) & status::QUEUE_ERROR != 0)?;
    Ok(stage.bring_up().err())
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

fn repeated(stage: &Stage) -> Checked {
    for _ in 0..3 {
        let (_, unit) = stage.bring_up()?;
        agree!(stage.rig.read32(GSTS) & global::TRANSLATION, global::TRANSLATION, "translation");
        drop(unit);
        agree!(stage.rig.read32(GSTS) & global::TRANSLATION, 0, "translation, dropped");
    }
    Ok(())
}

fn shut_down(stage: &Stage) -> Checked {
    let (_, unit) = stage.bring_up()?;
    let seen = write(stage, &mut || {
        let mut faults = dma::Faults::default();
        faults.lost = unit.faults(&mut |record| faults.records.push(record));
        faults
    })?;
    agree!(seen, write_refused(A, PHYS, FaultReason::RootNotPresent), "a device in no domain");
    unit.shut_down()?;
    agree!(write(stage, &mut dma::Faults::default)?, Seen::Landed, "the same device, shut down");
    Ok(())
}

fn gives_back(stage: &Stage) -> Checked {
    let before = stage.rig.lent();
    let (_, unit) = stage.bring_up()?;
    agree!(stage.rig.lent() > before, true, "pages while it is up");
    unit.shut_down()?;
    agree!(stage.rig.lent(), before, "pages afterwards");
    Ok(())
}
