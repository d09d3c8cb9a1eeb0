//! The rights of a device to a page (S5).

use crate::conformance::raw::{HIGH, IOVA, PHYS, Raw, Table, leaves};
use crate::conformance::rig::A;
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, read_refused, write_refused};
use portcullis::PhysAddr;
use portcullis::table::{EntryValue, Rights};
use portcullis_vtd::spec::faults::FaultReason;

const RW: Rights = Rights::READ_WRITE;
const SILENT_HIT: &str = "QEMU records no fault where an IOTLB hit lacks the right";

pub(super) const CHECKS: &[Check] = &[
    Check::raw("read-only-page-is-read", |stage| allowed(stage, Rights::READ)),
    Check::raw("read-only-page-write-faults", read_only),
    Check::raw("write-only-page-is-written", |stage| allowed(stage, Rights::WRITE)),
    Check::raw("write-only-page-read-faults", write_only),
    Check::raw("read-only-directory-level-2", |stage| directory(stage, 2, Rights::READ)),
    Check::raw("read-only-directory-level-3", |stage| directory(stage, 3, Rights::READ)),
    Check::raw("read-only-directory-level-4", |stage| directory(stage, 4, Rights::READ)),
    Check::raw("write-only-directory-level-2", |stage| directory(stage, 2, Rights::WRITE)),
    Check::raw("write-only-directory-level-4", |stage| directory(stage, 4, Rights::WRITE)),
    Check::raw("rights-cached-by-a-read-serve-a-write", cached_by_a_read),
    Check::raw("rights-narrowed-hold-after-invalidation", narrowed),
    Check::raw("rights-widened-hold-after-invalidation", widened),
    Check::raw("cached-read-only-write-is-blocked", |stage| cached_blocks(stage, Rights::READ)),
    Check::raw("cached-write-only-read-is-blocked", |stage| cached_blocks(stage, Rights::WRITE)),
    Check::raw("cached-read-only-write-faults", |stage| cached_faults(stage, Rights::READ))
        .differs(SILENT_HIT, |stage| cached_is_silent(stage, Rights::READ)),
    Check::raw("cached-write-only-read-faults", |stage| cached_faults(stage, Rights::WRITE))
        .differs(SILENT_HIT, |stage| cached_is_silent(stage, Rights::WRITE)),
];

/// A page mapped with these rights.
fn page(stage: &Stage, rights: Rights) -> Result<(Raw<'_>, Table), Trouble> {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map(table, IOVA, PHYS, rights)?;
    Ok((raw, table))
}

/// The one access that the rights allow, twice.
fn allowed(stage: &Stage, rights: Rights) -> Checked {
    let (raw, _) = page(stage, rights)?;
    for time in ["walked", "cached"] {
        agree!(right_access(&raw, rights)?, Seen::Landed, "{time}");
    }
    Ok(())
}

fn right_access(raw: &Raw<'_>, rights: Rights) -> Result<Seen, Trouble> {
    if rights == Rights::READ { raw.read(A, IOVA, PHYS) } else { raw.write(A, IOVA, PHYS) }
}

fn wrong_access(raw: &Raw<'_>, rights: Rights) -> Result<Seen, Trouble> {
    if rights == Rights::READ { raw.write(A, IOVA, PHYS) } else { raw.read(A, IOVA, PHYS) }
}

fn refusal(rights: Rights) -> Seen {
    if rights == Rights::READ {
        write_refused(A, IOVA, FaultReason::NoWrite)
    } else {
        read_refused(A, IOVA, FaultReason::NoRead)
    }
}

fn read_only(stage: &Stage) -> Checked {
    let (raw, _) = page(stage, Rights::READ)?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "a write, nothing cached");
    Ok(())
}

fn write_only(stage: &Stage) -> Checked {
    let (raw, _) = page(stage, Rights::WRITE)?;
    agree!(raw.read(A, IOVA, PHYS)?, read_refused(A, IOVA, FaultReason::NoRead), "a read, nothing cached");
    Ok(())
}

/// The leaf grants both rights, and an entry above it grants only one.
fn directory(stage: &Stage, level: u8, rights: Rights) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map(table, HIGH, PHYS, RW)?;
    let entry = raw.entry(table, HIGH, level)?;
    let below = raw.rig.frame(PhysAddr::from_pfn(entry.pfn()))[entry.page_offset() as usize / 8].load().phys();
    raw.poke(entry, EntryValue::leaf(below, rights, false).bits());
    let (granted, refused, refusal) = if rights == Rights::READ {
        let refused = raw.write(A, HIGH, PHYS)?;
        (raw.read(A, HIGH, PHYS)?, refused, write_refused(A, HIGH, FaultReason::NoWrite))
    } else {
        let refused = raw.read(A, HIGH, PHYS)?;
        (raw.write(A, HIGH, PHYS)?, refused, read_refused(A, HIGH, FaultReason::NoRead))
    };
    agree!(refused, refusal, "what level {level} does not grant");
    agree!(granted, Seen::Landed, "what it grants");
    Ok(())
}

fn cached_by_a_read(stage: &Stage) -> Checked {
    let (raw, table) = page(stage, RW)?;
    agree!(raw.read(A, IOVA, PHYS)?, Seen::Landed, "a read");
    raw.clear(table, IOVA, 1)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a write, from what the read cached");
    Ok(())
}

fn narrowed(stage: &Stage) -> Checked {
    let (raw, table) = page(stage, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "with both rights");
    raw.map(table, IOVA, PHYS, Rights::READ)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "stale rights");
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "a write, invalidated");
    agree!(raw.read(A, IOVA, PHYS)?, Seen::Landed, "a read, invalidated");
    Ok(())
}

fn widened(stage: &Stage) -> Checked {
    let (raw, table) = page(stage, Rights::READ)?;
    agree!(raw.read(A, IOVA, PHYS)?, Seen::Landed, "a read");
    raw.map(table, IOVA, PHYS, RW)?;
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a write, invalidated");
    Ok(())
}

fn cached_blocks(stage: &Stage, rights: Rights) -> Checked {
    let (raw, _) = page(stage, rights)?;
    agree!(right_access(&raw, rights)?, Seen::Landed, "what is granted");
    let seen = wrong_access(&raw, rights)?;
    agree!(seen.is_blocked(), true, "what is not, from the IOTLB: {seen:?}");
    agree!(right_access(&raw, rights)?, Seen::Landed, "what is granted, again");
    Ok(())
}

fn cached_faults(stage: &Stage, rights: Rights) -> Checked {
    let (raw, _) = page(stage, rights)?;
    agree!(right_access(&raw, rights)?, Seen::Landed, "what is granted");
    agree!(wrong_access(&raw, rights)?, refusal(rights), "what is not, from the IOTLB");
    Ok(())
}

fn cached_is_silent(stage: &Stage, rights: Rights) -> Checked {
    let (raw, _) = page(stage, rights)?;
    agree!(right_access(&raw, rights)?, Seen::Landed, "what is granted");
    agree!(wrong_access(&raw, rights)?, Seen::Silent, "what is not, from the IOTLB");
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(wrong_access(&raw, rights)?, refusal(rights), "the same, walked");
    Ok(())
}
