//! The fault registers: which faults are recorded, merged or lost.

use crate::conformance::dma::Faults;
use crate::conformance::raw::{HIGH, IOVA, PHYS, Raw};
use crate::conformance::rig::{A, B, C, Hardware};
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, write_refused};
use portcullis::iommu::SourceId;
use portcullis::{Iova, PAGE_SIZE};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest, status};
use portcullis_vtd::spec::registers::{CAP, Capability, FSTS};

const ONE_REGISTER: &str = "QEMU has one fault register";

pub(super) const CHECKS: &[Check] = &[
    Check::raw("fault-none-to-begin-with", none),
    Check::raw("fault-is-pending-until-cleared", pending),
    Check::raw("fault-register-is-cleared-by-a-one-only", cleared_by_one),
    Check::raw("fault-record-stays-while-pending", stays),
    Check::raw("faults-of-one-device-are-merged", merged),
    Check::raw("fault-of-another-device-overflows", overflows),
    Check::raw("fault-overflow-stops-recording", stops_recording),
    Check::raw("fault-overflow-ends-when-cleared", ends),
    Check::raw("fault-storm-leaves-one-record", storm),
    Check::raw("fault-registers-fill-in-order", fill).on(Hardware::FaultRegisters).differs(ONE_REGISTER, overflows),
    Check::raw("fault-registers-go-round", go_round).on(Hardware::FaultRegisters).differs(ONE_REGISTER, overflows),
];

/// A device with a page at [`IOVA`] and nothing else mapped. The other devices have no context.
fn faulty(stage: &Stage) -> Result<Raw<'_>, Trouble> {
    let raw = stage.raw()?;
    raw.one_page()?;
    Ok(raw)
}

fn record(source: SourceId, page: u64, reason: FaultReason) -> FaultRecord {
    FaultRecord { source, page: Iova::new(page), request: FaultRequest::Write, reason }
}

fn only(record: FaultRecord) -> Faults {
    Faults { records: vec![record], lost: false }
}

fn none(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    agree!(raw.rig.read32(FSTS), 0, "the fault status");
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a DMA");
    agree!(raw.rig.read32(FSTS), 0, "the fault status, afterwards");
    Ok(())
}

fn pending(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(A, HIGH)?;
    agree!(raw.rig.read32(FSTS), status::PENDING, "the fault status");
    agree!(raw.faults(), only(record(A, HIGH, FaultReason::NoWrite)), "the record");
    agree!(raw.rig.read32(FSTS), 0, "the fault status, cleared");
    agree!(raw.faults(), Faults::default(), "no record");
    Ok(())
}

/// Writing zeros, or ones to other bits, clears nothing.
fn cleared_by_one(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(A, HIGH)?;
    let at = Capability(raw.rig.read64(CAP)).fault_record_offset(0);
    raw.rig.poke32(at + 12, 0);
    raw.rig.poke32(at + 12, !FaultRecord::FAULT_UPPER);
    raw.rig.poke32(FSTS, status::PENDING);
    agree!(raw.rig.read32(FSTS), status::PENDING, "the fault status");
    agree!(raw.faults(), only(record(A, HIGH, FaultReason::NoWrite)), "the record");
    Ok(())
}

fn stays(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(A, HIGH)?;
    let at = Capability(raw.rig.read64(CAP)).fault_record_offset(0);
    let words = [raw.rig.read64(at), raw.rig.read64(at + 8)];
    agree!(FaultRecord::decode(words), Some(record(A, HIGH, FaultReason::NoWrite)), "the record");
    raw.attempt(A, IOVA + PAGE_SIZE)?;
    raw.attempt(C, HIGH)?;
    agree!([raw.rig.read64(at), raw.rig.read64(at + 8)], words, "the register after two more faults");
    Ok(())
}

fn merged(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(A, HIGH)?;
    raw.attempt(A, HIGH + PAGE_SIZE)?;
    raw.rig.device_reads(A, Iova::new(HIGH), crate::conformance::FETCHED, 64)?;
    agree!(raw.faults(), only(record(A, HIGH, FaultReason::NoWrite)), "three faults");
    let seen = raw.write(A, HIGH + PAGE_SIZE, PHYS)?;
    agree!(seen, write_refused(A, HIGH + PAGE_SIZE, FaultReason::NoWrite), "the next is recorded");
    Ok(())
}

fn overflows(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(A, HIGH)?;
    raw.attempt(B, HIGH)?;
    agree!(raw.rig.read32(FSTS), status::PENDING | status::OVERFLOW, "the fault status");
    let first = Faults { lost: true, ..only(record(A, HIGH, FaultReason::NoWrite)) };
    agree!(raw.faults(), first, "the first is kept, the second lost");
    Ok(())
}

fn stops_recording(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(A, HIGH)?;
    raw.attempt(B, HIGH)?;
    // The register is freed, but the overflow bit stays.
    let at = Capability(raw.rig.read64(CAP)).fault_record_offset(0);
    raw.rig.poke32(at + 12, FaultRecord::FAULT_UPPER);
    raw.attempt(C, HIGH)?;
    agree!(raw.rig.read32(FSTS), status::OVERFLOW, "the fault status");
    agree!(raw.faults(), Faults { records: vec![], lost: true }, "records");
    Ok(())
}

fn ends(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(A, HIGH)?;
    raw.attempt(B, HIGH)?;
    raw.faults();
    raw.attempt(C, HIGH)?;
    agree!(raw.faults(), only(record(C, HIGH, FaultReason::ContextNotPresent)), "after the overflow");
    Ok(())
}

fn storm(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    for fault in 0..200 {
        raw.attempt(A, HIGH + fault * PAGE_SIZE)?;
    }
    agree!(raw.faults(), only(record(A, HIGH, FaultReason::NoWrite)), "200 faults");
    agree!(raw.faults(), Faults::default(), "nothing is left");
    Ok(())
}

fn fill(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    raw.attempt(C, HIGH)?;
    raw.attempt(A, HIGH)?;
    raw.attempt(B, HIGH)?;
    let expected = [
        record(C, HIGH, FaultReason::ContextNotPresent),
        record(A, HIGH, FaultReason::NoWrite),
        record(B, HIGH, FaultReason::ContextNotPresent),
    ];
    agree!(raw.faults(), Faults { records: expected.to_vec(), lost: false }, "three devices");
    Ok(())
}

fn go_round(stage: &Stage) -> Checked {
    let raw = faulty(stage)?;
    // Six faults go to registers 0 to 5 and are taken. The next three go to registers 6, 7 and 0.
    for _ in 0..2 {
        for device in [A, B, C] {
            raw.attempt(device, HIGH)?;
        }
        raw.faults();
    }
    for device in [B, C, A] {
        raw.attempt(device, HIGH)?;
    }
    agree!(status::first_record(raw.rig.read32(FSTS)), 6, "the register of the oldest");
    let sources: Vec<_> = raw.faults().records.iter().map(|record| record.source).collect();
    agree!(sources, vec![B, C, A], "the sources, oldest first");
    Ok(())
}
