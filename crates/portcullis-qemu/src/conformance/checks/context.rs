//! Root and context entries: which table each device uses, and which entries are refused.

use crate::conformance::raw::{IOVA, PHYS, Raw, device_context, domain, leaves, through};
use crate::conformance::rig::{A, B, C, Hardware, MEMORY_END};
use crate::conformance::{Check, Checked, Seen, Stage, agree, read_refused, write_refused};
use portcullis::table::Rights;
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::registers::{RTADDR, global};
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType};

const RW: Rights = Rights::READ_WRITE;

pub(super) const CHECKS: &[Check] = &[
    Check::raw("root-absent-faults", |stage| root(stage, [0, 0], FaultReason::RootNotPresent)),
    Check::raw("root-reserved-low-faults", |stage| root_bit(stage, 1 << 5, 0)),
    Check::raw("root-reserved-high-faults", |stage| root_bit(stage, 0, 1 << 40)),
    Check::raw("root-beyond-width-faults", |stage| root_bit(stage, 1 << 50, 0)),
    Check::raw("root-table-outside-memory-faults", root_outside),
    Check::raw("context-table-outside-memory-faults", context_outside),
    Check::raw("context-absent-faults", context_absent),
    Check::raw("context-reserved-low-faults", |stage| context_bit(stage, 1 << 4, 0, FaultReason::ContextReserved)),
    Check::raw("context-reserved-high-faults", |stage| context_bit(stage, 0, 1 << 7, FaultReason::ContextReserved)),
    Check::raw("context-ignored-bits-are-ignored", context_ignored),
    Check::raw("context-reserved-type-faults", |stage| context_bit(stage, 3 << 2, 0, FaultReason::ContextInvalid)),
    Check::raw("context-device-tlb-type-faults", |stage| context_bit(stage, 1 << 2, 0, FaultReason::ContextInvalid)),
    Check::raw("context-two-levels-faults", |stage| levels(stage, 2)),
    Check::raw("context-five-levels-faults", |stage| levels(stage, 5)),
    Check::raw("narrow-context-four-levels-faults", |stage| levels(stage, 4)).on(Hardware::Narrow),
    Check::raw("context-table-beyond-width-faults", beyond_width),
    Check::raw("fault-disabled-is-not-recorded", fault_disabled),
    Check::raw("fault-disabled-in-an-absent-context", fault_disabled_absent),
    Check::raw("devices-have-tables-of-their-own", isolated),
    Check::raw("devices-share-a-domain", shared),
    Check::raw("shared-domain-is-invalidated-for-all", shared_invalidated),
    Check::raw("shared-domain-shares-what-is-cached", shares_cached)
        .differs("QEMU tags what it caches by device as well as by domain", shares_not),
    Check::raw("domain-ids-of-16-bits", wide_id),
    Check::raw("pass-through-write", |stage| pass_through(stage, false)),
    Check::raw("pass-through-read", |stage| pass_through(stage, true)),
    Check::raw("pass-through-gives-way-to-a-table", pass_through_ends),
    Check::raw("table-gives-way-to-pass-through", pass_through_begins),
    Check::raw("device-moves-to-another-domain", moves),
];

/// Checks that device A is refused under `reason`, for reads and writes.
fn expect_refused(raw: &Raw<'_>, reason: FaultReason) -> Checked {
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, reason), "a write");
    agree!(raw.read(A, IOVA, PHYS)?, read_refused(A, IOVA, reason), "a read");
    Ok(())
}

fn root(stage: &Stage, entry: [u64; 2], reason: FaultReason) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    raw.poke128(raw.root, 0, entry);
    expect_refused(&raw, reason)?;
    raw.poke128(raw.root, 0, RootEntry { context_table: raw.contexts }.encode());
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a good entry: the bad one was not cached");
    Ok(())
}

fn root_bit(stage: &Stage, low: u64, high: u64) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    let good = RootEntry { context_table: raw.contexts }.encode();
    raw.poke128(raw.root, 0, [good[0] | low, good[1] | high]);
    expect_refused(&raw, FaultReason::RootReserved)
}

fn root_outside(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    raw.rig.poke64(RTADDR, 4 * MEMORY_END);
    raw.command(global::ROOT_TABLE, true)?;
    expect_refused(&raw, FaultReason::RootAccess)
}

fn context_outside(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    raw.poke128(raw.root, 0, RootEntry { context_table: PhysAddr::new(4 * MEMORY_END) }.encode());
    expect_refused(&raw, FaultReason::ContextAccess)
}

fn context_absent(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let seen = raw.write(B, IOVA, PHYS)?;
    agree!(seen, write_refused(B, IOVA, FaultReason::ContextNotPresent), "a device in no domain");
    raw.attach(B, table);
    agree!(raw.write(B, IOVA, PHYS)?, Seen::Landed, "attached, without an invalidation");
    Ok(())
}

/// Sets bits in addition to a valid context entry.
fn context_bit(stage: &Stage, low: u64, high: u64, reason: FaultReason) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let good = through(table).encode();
    raw.context(A, [good[0] | low, good[1] | high]);
    expect_refused(&raw, reason)?;
    raw.context(A, good);
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a good entry: the bad one was not cached");
    Ok(())
}

fn context_ignored(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let good = through(table).encode();
    // Bits 70:67 are available to software.
    raw.context(A, [good[0], good[1] | 0xf << 3]);
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a write");
    Ok(())
}

fn levels(stage: &Stage, levels: u8) -> Checked {
    let raw = stage.raw()?;
    let table = raw.table(1, 3)?;
    raw.map(table, IOVA, PHYS, RW)?;
    raw.context(A, ContextEntry { levels, ..through(table) }.encode());
    expect_refused(&raw, FaultReason::ContextInvalid)
}

fn beyond_width(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let root = PhysAddr::new(table.root.as_u64() | 1 << 50);
    raw.context(A, ContextEntry { table: root, ..through(table) }.encode());
    expect_refused(&raw, FaultReason::ContextReserved)
}

fn fault_disabled(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.context(A, ContextEntry { faults_disabled: true, ..through(table) }.encode());
    let absent = IOVA + PAGE_SIZE;
    agree!(raw.write(A, absent, PHYS)?, Seen::Silent, "a write to what is not mapped");
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a write to what is");
    Ok(())
}

fn fault_disabled_absent(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.context(A, [1 << 1, 0]);
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Silent, "a write of a device in no domain");
    raw.context(A, [0, 0]);
    let seen = raw.write(A, IOVA, PHYS)?;
    agree!(seen, write_refused(A, IOVA, FaultReason::ContextNotPresent), "without the bit");
    Ok(())
}

fn isolated(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    let other = raw.table(2, 4)?;
    raw.attach(C, other);
    raw.map(other, IOVA, PHYS + PAGE_SIZE, RW)?;
    raw.map(other, IOVA + PAGE_SIZE, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "one device");
    agree!(raw.write(C, IOVA, PHYS + PAGE_SIZE)?, Seen::Landed, "the other, at the same address");
    let alone = IOVA + PAGE_SIZE;
    agree!(raw.write(C, alone, PHYS)?, Seen::Landed, "the other, where the one has nothing");
    agree!(raw.write(A, alone, PHYS)?, write_refused(A, alone, FaultReason::NoWrite), "the one, there");
    Ok(())
}

fn shared(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.attach(B, table);
    raw.attach(C, table);
    for device in [A, B, C] {
        agree!(raw.write(device, IOVA, PHYS)?, Seen::Landed, "device {:#x}", device.requester());
        agree!(raw.read(device, IOVA, PHYS)?, Seen::Landed, "device {:#x}", device.requester());
    }
    Ok(())
}

fn shared_invalidated(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.attach(C, table);
    for device in [A, C] {
        agree!(raw.write(device, IOVA, PHYS)?, Seen::Landed, "device {:#x}", device.requester());
    }
    raw.clear(table, IOVA, 1)?;
    for device in [A, C] {
        agree!(raw.write(device, IOVA, PHYS)?, Seen::Landed, "device {:#x}, stale", device.requester());
    }
    raw.run(&[leaves(1, IOVA, 0)])?;
    for device in [A, C] {
        let seen = raw.write(device, IOVA, PHYS)?;
        agree!(
            seen,
            write_refused(device, IOVA, FaultReason::NoWrite),
            "device {:#x}, invalidated",
            device.requester()
        );
    }
    Ok(())
}

fn shares_cached(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.attach(C, table);
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "one device");
    raw.clear(table, IOVA, 1)?;
    agree!(raw.write(C, IOVA, PHYS)?, Seen::Landed, "the other, from what the one cached");
    Ok(())
}

fn shares_not(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.attach(C, table);
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "one device");
    raw.clear(table, IOVA, 1)?;
    agree!(raw.write(C, IOVA, PHYS)?, write_refused(C, IOVA, FaultReason::NoWrite), "the other walks");
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "the one does not");
    Ok(())
}

fn wide_id(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    // The ids differ only in their top bits.
    for (device, id) in [(A, 0x0001), (B, 0x0101), (C, 0x8001)] {
        let table = raw.table(id, 4)?;
        raw.attach(device, table);
        raw.map(table, IOVA, PHYS, RW)?;
        agree!(raw.write(device, IOVA, PHYS)?, Seen::Landed, "domain {id:#x}");
        raw.clear(table, IOVA, 1)?;
    }
    raw.run(&[domain(0x8001)])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "domain 1 was not named");
    agree!(raw.write(B, IOVA, PHYS)?, Seen::Landed, "nor was 0x101");
    agree!(raw.write(C, IOVA, PHYS)?, write_refused(C, IOVA, FaultReason::NoWrite), "0x8001 was");
    Ok(())
}

/// A context entry that passes a device through.
fn open(id: u16) -> [u64; 2] {
    ContextEntry {
        faults_disabled: false,
        translation_type: TranslationType::PassThrough,
        table: PhysAddr::new(0),
        levels: 4,
        domain: portcullis::DomainId(id),
    }
    .encode()
}

fn pass_through(stage: &Stage, read: bool) -> Checked {
    let raw = stage.raw()?;
    raw.context(A, open(1));
    for phys in [PHYS, PHYS + 0x12_3456] {
        let seen = if read { raw.read(A, phys, phys)? } else { raw.write(A, phys, phys)? };
        agree!(seen, Seen::Landed, "physical address {phys:#x}");
    }
    let seen = raw.write(B, PHYS, PHYS)?;
    agree!(seen, write_refused(B, PHYS, FaultReason::ContextNotPresent), "another device");
    Ok(())
}

fn pass_through_ends(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.context(A, open(1));
    agree!(raw.write(A, PHYS, PHYS)?, Seen::Landed, "passed through");
    let table = raw.table(2, 4)?;
    raw.map(table, IOVA, PHYS, RW)?;
    raw.context(A, through(table).encode());
    raw.run(&[device_context(1, A, 0), domain(1)])?;
    agree!(raw.write(A, PHYS, PHYS)?, write_refused(A, PHYS, FaultReason::NoWrite), "no longer");
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "through the table");
    Ok(())
}

fn pass_through_begins(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "through the table");
    raw.context(A, open(2));
    raw.run(&[device_context(1, A, 0), domain(1)])?;
    agree!(raw.write(A, PHYS, PHYS)?, Seen::Landed, "passed through");
    raw.rig.store(PhysAddr::new(PHYS), &[0xee; 8]);
    raw.rig.device_writes(A, Iova::new(IOVA), 0, 8)?;
    let mut there = [0; 8];
    raw.rig.load(PhysAddr::new(PHYS), &mut there);
    agree!(there, [0xee; 8], "where the table led, no longer");
    Ok(())
}

fn moves(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    let other = raw.table(2, 3)?;
    raw.map(other, IOVA, PHYS + PAGE_SIZE, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "in one domain");
    raw.context(A, through(other).encode());
    raw.run(&[device_context(1, A, 0), domain(1)])?;
    agree!(raw.write(A, IOVA, PHYS + PAGE_SIZE)?, Seen::Landed, "in the other");
    Ok(())
}
