//! Where a request leads: tables of 3 and 4 levels, and addresses that are not mapped.

use crate::conformance::raw::{HIGH, IOVA, PHYS, leaves};
use crate::conformance::rig::{A, Hardware, MEMORY_END};
use crate::conformance::{Check, Checked, Faults, Seen, Stage, agree, read_refused, write_refused};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest};
use portcullis_vtd::spec::registers::global;

const RW: Rights = Rights::READ_WRITE;

pub(super) const CHECKS: &[Check] = &[
    Check::raw("translation-off-lets-all-through", off),
    Check::raw("four-levels-write", |stage| lands(stage, 4, HIGH, false)),
    Check::raw("four-levels-read", |stage| lands(stage, 4, HIGH, true)),
    Check::raw("three-levels-write", |stage| lands(stage, 3, IOVA, false)),
    Check::raw("three-levels-read", |stage| lands(stage, 3, IOVA, true)),
    Check::raw("four-levels-last-page", |stage| lands(stage, 4, (1 << 48) - PAGE_SIZE, false)),
    Check::raw("three-levels-last-page", |stage| lands(stage, 3, (1 << 39) - PAGE_SIZE, false)),
    Check::raw("narrow-unit-last-page", |stage| lands(stage, 3, (1 << 39) - PAGE_SIZE, false)).on(Hardware::Narrow),
    Check::raw("dma-keeps-the-offset-in-the-page", offset),
    Check::raw("dma-crosses-to-a-page-elsewhere", crosses),
    Check::raw("dma-stops-at-a-page-that-is-absent", stops),
    Check::raw("two-addresses-of-one-page", alias),
    Check::raw("absent-leaf-write-faults", |stage| absent(stage, 1, false)),
    Check::raw("absent-leaf-read-faults", |stage| absent(stage, 1, true)),
    Check::raw("absent-level-2-faults", |stage| absent(stage, 2, false)),
    Check::raw("absent-level-3-faults", |stage| absent(stage, 3, false)),
    Check::raw("absent-level-4-faults", |stage| absent(stage, 4, true)),
    Check::raw("absent-is-not-cached", absent_is_not_cached),
    Check::raw("beyond-four-levels-faults", |stage| beyond(stage, 4, 1 << 48)),
    Check::raw("beyond-three-levels-faults", |stage| beyond(stage, 3, 1 << 39)),
    Check::raw("beyond-a-narrow-unit-faults", |stage| beyond(stage, 3, 1 << 39)).on(Hardware::Narrow),
    Check::raw("table-outside-memory-faults", table_outside),
    Check::raw("leaf-outside-memory-leads-nowhere", leaf_outside),
    Check::raw("interrupt-range-is-not-translated", interrupt_range),
    Check::raw("leaf-into-the-interrupt-range-faults", into_interrupt_range),
    Check::raw("entry-reserved-snoop-faults", |stage| reserved(stage, 1 << 11, 1)),
    Check::raw("entry-reserved-transient-faults", |stage| reserved(stage, 1 << 62, 1)),
    Check::raw("entry-reserved-address-faults", |stage| reserved(stage, 1 << 48, 1)),
    Check::raw("narrow-entry-reserved-address-faults", narrow_reserved).on(Hardware::Narrow),
    Check::raw("directory-reserved-snoop-faults", |stage| reserved(stage, 1 << 11, 2)),
    Check::raw("entry-ignored-bits-are-ignored", ignored),
    Check::raw("entry-in-the-cpu-cache-is-not-seen", hidden).differs(NO_COHERENCY, hidden_is_seen),
];

const NO_COHERENCY: &str = "QEMU walks through the CPU's caches, so what was not flushed is seen";

fn off(stage: &Stage) -> Checked {
    let raw = stage.raw_halted()?;
    agree!(raw.write(A, PHYS, PHYS)?, Seen::Landed, "with translation off");
    raw.command(global::TRANSLATION, true)?;
    agree!(raw.write(A, PHYS, PHYS)?, write_refused(A, PHYS, FaultReason::ContextNotPresent), "with translation on");
    raw.command(global::TRANSLATION, false)?;
    agree!(raw.write(A, PHYS, PHYS)?, Seen::Landed, "off again");
    Ok(())
}

fn lands(stage: &Stage, levels: u8, iova: u64, read: bool) -> Checked {
    let raw = stage.raw()?;
    let table = raw.table(1, levels)?;
    raw.attach(A, table);
    raw.map(table, iova, PHYS, RW)?;
    let seen = if read { raw.read(A, iova, PHYS)? } else { raw.write(A, iova, PHYS)? };
    agree!(seen, Seen::Landed, "{levels} levels at {iova:#x}");
    // Once more, now from the IOTLB.
    let seen = if read { raw.read(A, iova, PHYS)? } else { raw.write(A, iova, PHYS)? };
    agree!(seen, Seen::Landed, "cached");
    Ok(())
}

fn offset(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    for offset in [1, 0x123, PAGE_SIZE - 64] {
        agree!(raw.write(A, IOVA + offset, PHYS + offset)?, Seen::Landed, "a write at offset {offset:#x}");
        agree!(raw.read(A, IOVA + offset, PHYS + offset)?, Seen::Landed, "a read at offset {offset:#x}");
    }
    Ok(())
}

fn crosses(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let elsewhere = PHYS + 9 * PAGE_SIZE;
    raw.map(table, IOVA + PAGE_SIZE, elsewhere, RW)?;
    // 32 bytes in each page.
    raw.rig.store(PhysAddr::new(PHYS + PAGE_SIZE - 32), &[0xee; 64]);
    raw.rig.store(PhysAddr::new(elsewhere), &[0xee; 64]);
    raw.attempt(A, IOVA + PAGE_SIZE - 32)?;
    let mut landed = [0; 64];
    raw.rig.load(PhysAddr::new(PHYS + PAGE_SIZE - 32), &mut landed[..32]);
    raw.rig.load(PhysAddr::new(elsewhere), &mut landed[32..]);
    let expected: [u8; 64] = core::array::from_fn(|index| crate::conformance::pattern(A, index));
    agree!(landed, expected, "the two halves");
    let mut behind = [0; 32];
    raw.rig.load(PhysAddr::new(elsewhere + 32), &mut behind);
    agree!(behind, [0xee; 32], "behind them");
    agree!(raw.faults().records.len(), 0, "faults");
    Ok(())
}

fn stops(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    let at = PHYS + PAGE_SIZE - 32;
    let page = Iova::new(IOVA + PAGE_SIZE);
    let fault = FaultRecord { source: A, page, request: FaultRequest::Write, reason: FaultReason::NoWrite };
    let half = Seen::Odd { bytes: 32, faults: Faults { records: vec![fault], lost: false } };
    agree!(raw.write_len(A, IOVA + PAGE_SIZE - 32, at, 64)?, half, "a DMA half of which is mapped");
    Ok(())
}

fn alias(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map(table, HIGH, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "one address");
    agree!(raw.write(A, HIGH, PHYS)?, Seen::Landed, "the other");
    raw.clear(table, IOVA, 1)?;
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "the one is gone");
    agree!(raw.write(A, HIGH, PHYS)?, Seen::Landed, "the other is not");
    Ok(())
}

/// The entry at `level` is absent; everything below it is present.
fn absent(stage: &Stage, level: u8, read: bool) -> Checked {
    let raw = stage.raw()?;
    let table = raw.table(1, 4)?;
    raw.attach(A, table);
    raw.map(table, HIGH, PHYS, RW)?;
    raw.clear(table, HIGH, level)?;
    let at = HIGH + 0x123;
    let seen = if read { raw.read(A, at, PHYS)? } else { raw.write(A, at, PHYS)? };
    let expected =
        if read { read_refused(A, HIGH, FaultReason::NoRead) } else { write_refused(A, HIGH, FaultReason::NoWrite) };
    agree!(seen, expected, "nothing at level {level}");
    Ok(())
}

fn absent_is_not_cached(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.table(1, 4)?;
    raw.attach(A, table);
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "absent");
    raw.map(table, IOVA, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped, without an invalidation");
    Ok(())
}

fn beyond(stage: &Stage, levels: u8, iova: u64) -> Checked {
    let raw = stage.raw()?;
    let table = raw.table(1, levels)?;
    raw.attach(A, table);
    // If the bits beyond the width were ignored, the address would be this one.
    raw.map(table, 0, PHYS, RW)?;
    agree!(raw.write(A, iova, PHYS)?, write_refused(A, iova, FaultReason::AddressBeyondWidth), "a write");
    agree!(raw.read(A, iova, PHYS)?, read_refused(A, iova, FaultReason::AddressBeyondWidth), "a read");
    Ok(())
}

fn table_outside(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let nowhere = EntryValue::table(PhysAddr::new(4 * MEMORY_END));
    raw.poke(raw.entry(table, IOVA, 2)?, nowhere.bits());
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::TableAccess), "a write");
    agree!(raw.read(A, IOVA, PHYS)?, read_refused(A, IOVA, FaultReason::TableAccess), "a read");
    Ok(())
}

fn leaf_outside(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map(table, IOVA, 4 * MEMORY_END, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Silent, "a write to where no memory is: translated, so no fault");
    Ok(())
}

fn interrupt_range(stage: &Stage) -> Checked {
    const INTERRUPTS: u64 = 0xfee0_0000;
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    for iova in [INTERRUPTS, INTERRUPTS + 0xf_f000] {
        raw.map(table, iova, PHYS, RW)?;
        let seen = raw.write(A, iova, PHYS)?;
        agree!(seen.is_blocked(), true, "{iova:#x} is mapped, but never translated; seen {seen:?}");
    }
    for iova in [INTERRUPTS - PAGE_SIZE, INTERRUPTS + 0x10_0000] {
        raw.map(table, iova, PHYS, RW)?;
        agree!(raw.write(A, iova, PHYS)?, Seen::Landed, "{iova:#x} is beside the range");
    }
    Ok(())
}

fn into_interrupt_range(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map(table, IOVA, 0xfee0_0000, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::InterruptRange), "a write");
    agree!(raw.read(A, IOVA, PHYS)?, read_refused(A, IOVA, FaultReason::InterruptRange), "a read");
    Ok(())
}

/// Sets `bit` in the entry at `level`.
fn reserved(stage: &Stage, bit: u64, level: u8) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let entry = raw.entry(table, IOVA, level)?;
    let below = raw.rig.frame(PhysAddr::from_pfn(entry.pfn()))[entry.page_offset() as usize / 8].load_bits();
    raw.poke(entry, below | bit);
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::EntryReserved), "a write");
    agree!(raw.read(A, IOVA, PHYS)?, read_refused(A, IOVA, FaultReason::EntryReserved), "a read");
    raw.poke(entry, below);
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "the bit is gone");
    Ok(())
}

fn narrow_reserved(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.table(1, 3)?;
    raw.attach(A, table);
    raw.map(table, IOVA, PHYS | 1 << 39, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::EntryReserved), "beyond 39 bits");
    raw.map(table, IOVA, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "within");
    Ok(())
}

fn ignored(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    // Bits 61:52 and 10:8 are available to software. Bit 7 has no meaning in a 4 KiB leaf.
    let bits = EntryValue::leaf(PhysAddr::new(PHYS), RW, false).bits() | 0x3ff << 52 | 0x780;
    raw.poke(raw.entry(table, IOVA, 1)?, bits);
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a write");
    agree!(raw.read(A, IOVA, PHYS)?, Seen::Landed, "a read");
    Ok(())
}

fn hidden(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let entry = raw.entry(table, IOVA, 1)?;
    raw.poke(entry, 0);
    let line = raw.hide(entry, EntryValue::leaf(PhysAddr::new(PHYS), RW, false).bits());
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "not flushed");
    raw.rig.flush(core::slice::from_ref(line));
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "flushed");
    Ok(())
}

fn hidden_is_seen(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let entry = raw.entry(table, IOVA, 1)?;
    raw.poke(entry, 0);
    raw.hide(entry, EntryValue::leaf(PhysAddr::new(PHYS), RW, false).bits());
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "not flushed");
    Ok(())
}
