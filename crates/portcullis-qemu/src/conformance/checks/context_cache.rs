//! The context cache: what it keeps, and which invalidations drop it.

use crate::conformance::raw::{IOVA, PHYS, Raw, device_context, domain, through};
use crate::conformance::rig::{A, B, C};
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, write_refused};
use portcullis::iommu::SourceId;
use portcullis::table::Rights;
use portcullis::{DomainId, PAGE_SIZE};
use portcullis_vtd::spec::descriptors::{ContextScope, InvalidationDescriptor};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::tables::ContextEntry;

const ALL_GO: &str = "QEMU drops every context where those of one domain are named";
const ANY_DOMAIN: &str = "QEMU looks at the device only, not at the domain that is named with it";

pub(super) const CHECKS: &[Check] = &[
    Check::raw("context-is-cached", cached),
    Check::raw("context-device-selective", |stage| dropped(stage, device_context(1, A, 0), &[A])),
    Check::raw("context-device-selective-other-device", |stage| dropped(stage, device_context(3, C, 0), &[C])),
    Check::raw("context-function-mask-1", |stage| dropped(stage, device_context(1, A, 1), &[A, B])),
    Check::raw("context-function-mask-2", |stage| dropped(stage, device_context(1, B, 2), &[A, B])),
    Check::raw("context-function-mask-3", |stage| dropped(stage, device_context(1, B, 3), &[A, B])),
    Check::raw("context-global", |stage| dropped(stage, GLOBAL, &[A, B, C])),
    Check::raw("context-domain-selective", |stage| dropped(stage, of_domain(1), &[A, B]))
        .differs(ALL_GO, |stage| dropped(stage, of_domain(1), &[A, B, C])),
    Check::raw("context-domain-selective-takes-its-own", |stage| takes(stage, of_domain(1), A)),
    Check::raw("context-device-selective-wrong-domain", |stage| dropped(stage, device_context(7, A, 0), &[]))
        .differs(ANY_DOMAIN, |stage| dropped(stage, device_context(7, A, 0), &[A])),
    Check::raw("context-invalidation-leaves-the-iotlb", leaves_iotlb)
        .differs("QEMU looks at the IOTLB before the context", leaves_iotlb_qemu),
    Check::raw("context-fault-disable-is-cached", fault_disable),
];

const GLOBAL: InvalidationDescriptor = InvalidationDescriptor::ContextCache(ContextScope::Global);

const fn of_domain(id: u16) -> InvalidationDescriptor {
    InvalidationDescriptor::ContextCache(ContextScope::Domain(DomainId(id)))
}

/// A page behind the context of which nothing was cached.
const FRESH: u64 = IOVA + PAGE_SIZE;

/// Devices A and B are in domain 1, C is in domain 3. The context of each was cached and then cleared in memory. Page
/// [`FRESH`] is mapped for all, and cached for none.
fn cleared(stage: &Stage) -> Result<Raw<'_>, Trouble> {
    let raw = stage.raw()?;
    let tables = [raw.one_page()?, raw.table(3, 4)?];
    raw.map(tables[1], IOVA, PHYS, Rights::READ_WRITE)?;
    tables.iter().try_for_each(|table| raw.map(*table, FRESH, PHYS + PAGE_SIZE, Rights::READ_WRITE))?;
    for (device, table) in [(A, tables[0]), (B, tables[0]), (C, tables[1])] {
        raw.attach(device, table);
        agree!(raw.write(device, IOVA, PHYS)?, Seen::Landed, "device {:#x}, attached", device.requester());
        raw.context(device, [0, 0]);
    }
    Ok(raw)
}

fn cached(stage: &Stage) -> Checked {
    let raw = cleared(stage)?;
    for device in [A, B, C] {
        let seen = raw.write(device, FRESH, PHYS + PAGE_SIZE)?;
        agree!(seen, Seen::Landed, "device {:#x}, through its cached context", device.requester());
    }
    Ok(())
}

/// The command drops the contexts of the devices in `named`, and no others.
fn dropped(stage: &Stage, command: InvalidationDescriptor, named: &[SourceId]) -> Checked {
    let raw = cleared(stage)?;
    raw.run(&[command])?;
    let mut gone = Vec::new();
    for device in [A, B, C] {
        match raw.write(device, FRESH, PHYS + PAGE_SIZE)? {
            Seen::Landed => {}
            seen => {
                let expected = write_refused(device, FRESH, FaultReason::ContextNotPresent);
                agree!(seen, expected, "device {:#x}, without a context", device.requester());
                gone.push(device);
            }
        }
    }
    agree!(gone, named.to_vec(), "devices whose context went");
    Ok(())
}

fn takes(stage: &Stage, command: InvalidationDescriptor, device: SourceId) -> Checked {
    let raw = cleared(stage)?;
    raw.run(&[command])?;
    let expected = write_refused(device, FRESH, FaultReason::ContextNotPresent);
    agree!(raw.write(device, FRESH, PHYS + PAGE_SIZE)?, expected, "invalidated");
    Ok(())
}

/// Only the context is dropped. Once it is restored, the cached pages are still there.
fn leaves_iotlb(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.context(A, [0, 0]);
    raw.clear(table, IOVA, 1)?;
    raw.run(&[GLOBAL])?;
    let seen = raw.write(A, IOVA, PHYS)?;
    agree!(seen, write_refused(A, IOVA, FaultReason::ContextNotPresent), "no context, a cached page");
    raw.context(A, through(table).encode());
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "the context is back, the page is cached");
    raw.run(&[domain(1)])?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "the page is not");
    Ok(())
}

fn leaves_iotlb_qemu(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.context(A, [0, 0]);
    raw.run(&[GLOBAL])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "no context, a cached page");
    raw.run(&[domain(1)])?;
    let seen = raw.write(A, IOVA, PHYS)?;
    agree!(seen, write_refused(A, IOVA, FaultReason::ContextNotPresent), "no page either");
    Ok(())
}

fn fault_disable(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.context(A, ContextEntry { faults_disabled: true, ..through(table) }.encode());
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.context(A, through(table).encode());
    agree!(raw.write(A, FRESH, PHYS)?, Seen::Silent, "the cached context still says so");
    raw.run(&[device_context(1, A, 0)])?;
    agree!(raw.write(A, FRESH, PHYS)?, write_refused(A, FRESH, FaultReason::NoWrite), "invalidated");
    Ok(())
}
