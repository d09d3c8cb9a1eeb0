//! Leaves of 2 MiB and 1 GiB.

use crate::conformance::raw::{GIB, HIGH, MIB2, PHYS, Raw, Table, leaves, pages};
use crate::conformance::rig::A;
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, write_refused};
use portcullis::table::{EntryValue, Rights};
use portcullis::{PAGE_SIZE, PhysAddr};
use portcullis_vtd::spec::faults::FaultReason;

const RW: Rights = Rights::READ_WRITE;
const SIZE_2M: u64 = 2 << 20;

pub(super) const CHECKS: &[Check] = &[
    Check::raw("leaf-2m-lands", lands_2m),
    Check::raw("leaf-1g-lands", |stage| lands_1g(stage, 4)),
    Check::raw("leaf-1g-at-the-root-lands", |stage| lands_1g(stage, 3)),
    Check::raw("leaf-2m-ends", ends_2m),
    Check::raw("leaf-2m-rights", rights_2m),
    Check::raw("leaf-2m-is-one-entry", one_entry),
    Check::raw("leaf-1g-is-one-entry", one_entry_1g),
    Check::raw("leaf-2m-goes-with-its-first-page", |stage| part_2m(stage, 0, 0)),
    Check::raw("leaf-2m-goes-with-a-page-inside", |stage| part_2m(stage, 0x81 * PAGE_SIZE, 0)),
    Check::raw("leaf-2m-goes-with-its-last-page", |stage| part_2m(stage, SIZE_2M - PAGE_SIZE, 0)),
    Check::raw("leaf-2m-goes-with-all-its-pages", |stage| part_2m(stage, 0, 9)),
    Check::raw("leaf-1g-goes-with-a-page-inside", part_1g),
    Check::raw("leaf-1g-goes-with-all-its-pages", whole_1g),
    Check::raw("leaf-2m-misaligned-faults", |stage| reserved(stage, 2, PHYS + PAGE_SIZE)),
    Check::raw("leaf-1g-misaligned-faults", |stage| reserved(stage, 3, PHYS)),
    Check::raw("leaf-512g-faults", |stage| reserved(stage, 4, 0)),
    Check::raw("leaf-2m-over-the-interrupt-range", over_interrupts)
        .differs("QEMU refuses a large leaf whole where a part of it is in the interrupt range", refused_whole),
    Check::raw("leaf-2m-is-split", split),
    Check::raw("leaf-2m-is-joined", join),
];

/// A leaf of 2 MiB from [`MIB2`] to [`PHYS`].
fn leaf_2m(stage: &Stage) -> Result<(Raw<'_>, Table), Trouble> {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map_at(table, MIB2, PHYS, RW, 2)?;
    Ok((raw, table))
}

/// A 1 GiB leaf that maps the 1 GiB of [`HIGH`], or of [`GIB`] with 3 levels, to address zero.
fn leaf_1g(stage: &Stage, levels: u8) -> Result<(Raw<'_>, Table, u64), Trouble> {
    let raw = stage.raw()?;
    let table = raw.table(1, levels)?;
    raw.attach(A, table);
    let base = if levels == 4 { HIGH & !0x3fff_ffff } else { GIB };
    raw.map_at(table, base, 0, RW, 3)?;
    Ok((raw, table, base))
}

fn lands_2m(stage: &Stage) -> Checked {
    let (raw, _) = leaf_2m(stage)?;
    for offset in [0, 0x12_3000, 0x12_3456, SIZE_2M - 64] {
        agree!(raw.write(A, MIB2 + offset, PHYS + offset)?, Seen::Landed, "a write at {offset:#x}");
        agree!(raw.read(A, MIB2 + offset, PHYS + offset)?, Seen::Landed, "a read at {offset:#x}");
    }
    Ok(())
}

fn lands_1g(stage: &Stage, levels: u8) -> Checked {
    let (raw, _, base) = leaf_1g(stage, levels)?;
    for phys in [PHYS, PHYS + 0x345_6780] {
        agree!(raw.write(A, base + phys, phys)?, Seen::Landed, "a write to {phys:#x}");
        agree!(raw.read(A, base + phys, phys)?, Seen::Landed, "a read of {phys:#x}");
    }
    Ok(())
}

fn ends_2m(stage: &Stage) -> Checked {
    let (raw, _) = leaf_2m(stage)?;
    agree!(raw.write(A, MIB2 + SIZE_2M - 64, PHYS + SIZE_2M - 64)?, Seen::Landed, "the last bytes");
    for beyond in [MIB2 - 64, MIB2 + SIZE_2M] {
        let seen = raw.write(A, beyond, PHYS)?;
        agree!(seen, write_refused(A, beyond, FaultReason::NoWrite), "{beyond:#x} is beside it");
    }
    Ok(())
}

fn rights_2m(stage: &Stage) -> Checked {
    let (raw, table) = leaf_2m(stage)?;
    raw.map_at(table, MIB2, PHYS, Rights::READ, 2)?;
    let at = 0x4_5000;
    let seen = raw.write(A, MIB2 + at, PHYS + at)?;
    agree!(seen, write_refused(A, MIB2 + at, FaultReason::NoWrite), "a write");
    agree!(raw.read(A, MIB2 + at, PHYS + at)?, Seen::Landed, "a read");
    Ok(())
}

/// Once cached for one page, it serves the others.
fn one_entry(stage: &Stage) -> Checked {
    let (raw, table) = leaf_2m(stage)?;
    agree!(raw.write(A, MIB2, PHYS)?, Seen::Landed, "its first page");
    raw.clear(table, MIB2, 2)?;
    agree!(raw.write(A, MIB2 + 0x5_5000, PHYS + 0x5_5000)?, Seen::Landed, "another, stale");
    Ok(())
}

fn one_entry_1g(stage: &Stage) -> Checked {
    let (raw, table, base) = leaf_1g(stage, 4)?;
    agree!(raw.write(A, base + PHYS, PHYS)?, Seen::Landed, "one page");
    raw.clear(table, base, 3)?;
    agree!(raw.write(A, base + PHYS + 0x50_0000, PHYS + 0x50_0000)?, Seen::Landed, "another, stale");
    Ok(())
}

/// An invalidation of a part drops the whole leaf.
fn part_2m(stage: &Stage, offset: u64, mask: u8) -> Checked {
    let (raw, table) = leaf_2m(stage)?;
    agree!(raw.write(A, MIB2 + 0x5_5000, PHYS + 0x5_5000)?, Seen::Landed, "cached");
    raw.clear(table, MIB2, 2)?;
    raw.run(&[leaves(1, MIB2 + offset, mask)])?;
    for offset in [0, 0x5_5000, SIZE_2M - PAGE_SIZE] {
        let seen = raw.write(A, MIB2 + offset, PHYS + offset)?;
        agree!(seen, write_refused(A, MIB2 + offset, FaultReason::NoWrite), "invalidated, at {offset:#x}");
    }
    Ok(())
}

fn part_1g(stage: &Stage) -> Checked {
    let (raw, table, base) = leaf_1g(stage, 4)?;
    agree!(raw.write(A, base + PHYS, PHYS)?, Seen::Landed, "cached");
    raw.clear(table, base, 3)?;
    raw.run(&[leaves(1, base + 0x3000_0000 + 0x81 * PAGE_SIZE, 0)])?;
    let seen = raw.write(A, base + PHYS, PHYS)?;
    agree!(seen, write_refused(A, base + PHYS, FaultReason::NoWrite), "invalidated far from there");
    Ok(())
}

fn whole_1g(stage: &Stage) -> Checked {
    let (raw, table, base) = leaf_1g(stage, 4)?;
    agree!(raw.write(A, base + PHYS, PHYS)?, Seen::Landed, "cached");
    raw.clear(table, base, 3)?;
    raw.run(&[leaves(1, base, 18)])?;
    agree!(raw.write(A, base + PHYS, PHYS)?, write_refused(A, base + PHYS, FaultReason::NoWrite), "invalidated");
    Ok(())
}

/// A leaf at a `level` or address where none is allowed.
fn reserved(stage: &Stage, level: u8, phys: u64) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map_at(table, HIGH, phys, RW, level)?;
    agree!(raw.write(A, HIGH, PHYS)?, write_refused(A, HIGH, FaultReason::EntryReserved), "a leaf at level {level}");
    Ok(())
}

/// The first half of the leaf leads into the interrupt range, the second half to addresses without memory.
fn over_interrupts(stage: &Stage) -> Checked {
    let (raw, table) = leaf_2m(stage)?;
    raw.map_at(table, MIB2, 0xfee0_0000, RW, 2)?;
    let beside = MIB2 + SIZE_2M / 2;
    agree!(raw.write(A, beside, PHYS)?, Seen::Silent, "beside the range: translated, so no fault");
    agree!(raw.write(A, MIB2, PHYS)?, write_refused(A, MIB2, FaultReason::InterruptRange), "in it");
    Ok(())
}

fn refused_whole(stage: &Stage) -> Checked {
    let (raw, table) = leaf_2m(stage)?;
    raw.map_at(table, MIB2, 0xfee0_0000, RW, 2)?;
    for at in [MIB2, MIB2 + SIZE_2M / 2] {
        agree!(raw.write(A, at, PHYS)?, write_refused(A, at, FaultReason::InterruptRange), "at {at:#x}");
    }
    Ok(())
}

/// A 2 MiB leaf is replaced by 4 KiB pages.
fn split(stage: &Stage) -> Checked {
    let (raw, table) = leaf_2m(stage)?;
    let (kept, moved) = (MIB2 + 0x81 * PAGE_SIZE, MIB2 + 0x82 * PAGE_SIZE);
    let (old, new) = (PHYS + 0x82 * PAGE_SIZE, PHYS + 0x300 * PAGE_SIZE);
    agree!(raw.write(A, moved, old)?, Seen::Landed, "the leaf of 2 MiB");
    raw.clear(table, MIB2, 2)?;
    raw.map(table, kept, PHYS + 0x81 * PAGE_SIZE, RW)?;
    raw.map(table, moved, new, RW)?;
    agree!(raw.write(A, moved, old)?, Seen::Landed, "split, stale");
    raw.run(&[pages(1, MIB2, 9)])?;
    agree!(raw.write(A, moved, new)?, Seen::Landed, "split, invalidated");
    agree!(raw.write(A, kept, PHYS + 0x81 * PAGE_SIZE)?, Seen::Landed, "its neighbour");
    agree!(raw.write(A, MIB2, PHYS)?, write_refused(A, MIB2, FaultReason::NoWrite), "a page not mapped again");
    Ok(())
}

/// 4 KiB pages are replaced by a 2 MiB leaf.
fn join(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let (at, old) = (MIB2 + 0x81 * PAGE_SIZE, PHYS + 0x300 * PAGE_SIZE);
    raw.map(table, at, old, RW)?;
    agree!(raw.write(A, at, old)?, Seen::Landed, "a page of 4 KiB");
    raw.poke(raw.entry(table, MIB2, 2)?, EntryValue::leaf(PhysAddr::new(PHYS), RW, true).bits());
    agree!(raw.write(A, at, old)?, Seen::Landed, "joined, stale");
    let fresh = MIB2 + 0x90 * PAGE_SIZE;
    agree!(raw.write(A, fresh, PHYS + 0x90 * PAGE_SIZE)?, Seen::Landed, "joined, at a page not cached");
    raw.run(&[pages(1, MIB2, 9)])?;
    agree!(raw.write(A, at, PHYS + 0x81 * PAGE_SIZE)?, Seen::Landed, "joined, invalidated");
    Ok(())
}
