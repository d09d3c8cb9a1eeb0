//! What an unmap promises: when it returns, the device has lost every page of the buffer and no other page (S2 to
//! S4).

use crate::conformance::driven::{Driven, gone, page, plus};
use crate::conformance::rig::{A, Hardware};
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, read_refused};
use portcullis::domain::DmaBuffer;
use portcullis::{Access, IovaRange, PAGE_SIZE, PhysAddr, Protection, Segment};
use portcullis_designs::{Magazine, Stock};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::faults::FaultReason;

const BOTH: Access = Access::DeviceReadsAndWrites;
/// 4 MiB and a page, aligned, so that leaves of 2 MiB are used.
const LARGE: u64 = (4 << 20) + PAGE_SIZE;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("unmap-revokes-a-write", |stage| revokes(stage, false)),
    Check::driven("unmap-revokes-a-read", |stage| revokes(stage, true)),
    Check::driven("unmap-spares-its-neighbours", spares_neighbours),
    Check::driven("unmap-of-2-pages-revokes-each", |stage| revokes_each(stage, 2)),
    Check::driven("unmap-of-7-pages-revokes-each", |stage| revokes_each(stage, 7)),
    Check::driven("unmap-of-64-pages-revokes-each", |stage| revokes_each(stage, 64)),
    Check::driven("unmap-of-513-pages-revokes-each", |stage| revokes_each(stage, 513)),
    Check::driven("unmap-of-large-leaves-revokes-each", revokes_large),
    Check::driven("unmap-beyond-the-largest-mask-takes-the-domain", beyond_the_mask),
    Check::driven("unmap-without-page-selection-takes-the-domain", whole_domain)
        .on(Hardware::WholeDomains)
        .differs("QEMU always has page-selective invalidation", page_by_page),
    Check::driven("unmap-asks-for-leaves-only", leaves_only),
    Check::driven("unmap-of-a-table-asks-for-all-levels", all_levels),
    Check::driven("unmapped-tables-are-not-walked", tables_not_walked).on(Hardware::PagingCaches),
    Check::driven("reused-address-leads-to-the-new-page", reused),
    Check::driven("batch-revokes-all", batch),
    Check::driven("batch-of-64-is-one-submission", batch_of_64),
    Check::driven("typed-buffer-comes-back-revoked", typed),
];

fn revokes(stage: &Stage, read: bool) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    let refused = if read {
        agree!(space.read(A, iova, page(0))?, Seen::Landed, "a read");
        space.domain.unmap_raw(iova, PAGE_SIZE)?;
        (space.read(A, iova, page(0))?, read_refused(A, iova.as_u64(), FaultReason::NoRead))
    } else {
        agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write");
        space.domain.unmap_raw(iova, PAGE_SIZE)?;
        (driven.write(A, iova, page(0))?, gone(iova))
    };
    agree!(refused.0, refused.1, "unmapped");
    Ok(())
}

fn spares_neighbours(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let mut iovas = Vec::new();
    for index in 0..5 {
        iovas.push(space.map(page(index), PAGE_SIZE, BOTH)?);
        agree!(driven.write(A, iovas[index as usize], page(index))?, Seen::Landed, "page {index}");
    }
    space.domain.unmap_raw(iovas[2], PAGE_SIZE)?;
    for (index, iova) in (0..).zip(&iovas) {
        let expected = if index == 2 { gone(*iova) } else { Seen::Landed };
        agree!(driven.write(A, *iova, page(index))?, expected, "page {index}");
    }
    Ok(())
}

/// Each page is cached separately, for up to a few dozen of them.
fn revokes_each(stage: &Stage, pages: u64) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    // Not aligned to 2 MiB, so that 4 KiB pages are used.
    let at = |index| page(1 + index);
    let iova = space.map(at(0), pages * PAGE_SIZE, BOTH)?;
    let step = (pages / 32).max(1) as usize;
    let touched = || (0..pages).step_by(step).chain([pages - 1]);
    for index in touched() {
        agree!(driven.write(A, plus(iova, index * PAGE_SIZE), at(index))?, Seen::Landed, "page {index}");
    }
    space.domain.unmap_raw(iova, pages * PAGE_SIZE)?;
    for index in touched() {
        let at_iova = plus(iova, index * PAGE_SIZE);
        agree!(driven.write(A, at_iova, at(index))?, gone(at_iova), "page {index}, unmapped");
    }
    Ok(())
}

fn revokes_large(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), LARGE, BOTH)?;
    let offsets = [0x12_3000, (2 << 20) + 0x5000, 4 << 20];
    for offset in offsets {
        let phys = PhysAddr::new(page(0).as_u64() + offset);
        agree!(driven.write(A, plus(iova, offset), phys)?, Seen::Landed, "at {offset:#x}");
    }
    space.domain.unmap_raw(iova, LARGE)?;
    for offset in offsets {
        let phys = PhysAddr::new(page(0).as_u64() + offset);
        agree!(driven.write(A, plus(iova, offset), phys)?, gone(plus(iova, offset)), "at {offset:#x}, unmapped");
    }
    Ok(())
}

/// The scopes of the IOTLB commands since the last call.
fn scopes(driven: &Driven) -> Vec<IotlbScope> {
    let scope = |descriptor| match descriptor {
        InvalidationDescriptor::Iotlb { scope, .. } => Some(scope),
        _ => None,
    };
    driven.commands().into_iter().filter_map(scope).collect()
}

/// 2 GiB are more than a mask of 18 covers.
fn beyond_the_mask(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let (phys, len) = (PhysAddr::new(0), 2 << 30);
    let iova = space.map(phys, len, BOTH)?;
    let inside = plus(iova, page(0).as_u64());
    agree!(driven.write(A, inside, page(0))?, Seen::Landed, "a page of 2 GiB");
    driven.commands();
    space.domain.unmap_raw(iova, len)?;
    agree!(scopes(&driven), vec![IotlbScope::Domain(space.domain.id())], "commands");
    agree!(driven.write(A, inside, page(0))?, gone(inside), "unmapped");
    Ok(())
}

/// Unmaps a page that a device has written, checks that it is gone, and returns its one command and the
/// page-selective command that fits it.
fn unmap_one(driven: &Driven) -> Result<(IotlbScope, IotlbScope), Trouble> {
    let space = driven.strict::<Magazine>()?;
    let first = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, first, page(0))?, Seen::Landed, "a write");
    driven.commands();
    space.domain.unmap_raw(first, PAGE_SIZE)?;
    let commands = scopes(driven);
    agree!(driven.write(A, first, page(0))?, gone(first), "unmapped");
    agree!(commands.len(), 1, "commands: {commands:?}");
    let domain = space.domain.id();
    Ok((commands[0], IotlbScope::Pages { domain, first, mask: 0, leaf_only: true }))
}

fn whole_domain(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (command, _) = unmap_one(&driven)?;
    agree!(matches!(command, IotlbScope::Domain(_)), true, "the command: {command:?}");
    Ok(())
}

fn page_by_page(stage: &Stage) -> Checked {
    let (command, page_selective) = unmap_one(&stage.driven()?)?;
    agree!(command, page_selective, "the command");
    Ok(())
}

fn leaves_only(stage: &Stage) -> Checked {
    let (command, leaf_only) = unmap_one(&stage.driven()?)?;
    agree!(command, leaf_only, "the command");
    Ok(())
}

/// One unmap covers a leaf table, which `stock` then frees.
fn all_levels(stage: &Stage) -> Checked {
    const LEN: u64 = 512 * PAGE_SIZE;
    let driven = stage.driven()?;
    let space = driven.open::<Stock>(Protection::Strict)?;
    space.domain.attach(A)?;
    // Not aligned to 2 MiB in memory, so that 4 KiB pages are used.
    let iova = space.map(page(1), LEN, BOTH)?;
    agree!(iova.as_u64() % LEN, 0, "where the addresses begin");
    agree!(driven.write(A, iova, page(1))?, Seen::Landed, "a write");
    let before = space.domain.table_pages();
    driven.commands();
    space.domain.unmap_raw(iova, LEN)?;
    let expected = IotlbScope::Pages { domain: space.domain.id(), first: iova, mask: 9, leaf_only: false };
    agree!(scopes(&driven), vec![expected], "commands");
    agree!(before - space.domain.table_pages(), 1, "tables that were freed");
    agree!(driven.write(A, iova, page(1))?, gone(iova), "unmapped");
    Ok(())
}

/// The freed table page becomes a table of another domain. A stale walk through it would reach that domain's page
/// (S4).
fn tables_not_walked(stage: &Stage) -> Checked {
    const LEN: u64 = 512 * PAGE_SIZE;
    let driven = stage.driven()?;
    let (one, other) = (driven.open::<Stock>(Protection::Strict)?, driven.open::<Stock>(Protection::Strict)?);
    one.domain.attach(A)?;
    let iova = one.map(page(1), LEN, BOTH)?;
    agree!(driven.write(A, iova, page(1))?, Seen::Landed, "a write");
    one.domain.unmap_raw(iova, LEN)?;
    other.map(page(1), LEN, BOTH)?;
    let neighbour = plus(iova, PAGE_SIZE);
    agree!(driven.write(A, neighbour, page(2))?, gone(neighbour), "a page that the device had not touched");
    Ok(())
}

fn reused(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let mut last = None;
    for index in 0..10 {
        let iova = space.map(page(index), PAGE_SIZE, BOTH)?;
        agree!(driven.write(A, iova, page(index))?, Seen::Landed, "round {index}");
        agree!(last.is_none_or(|last| last == iova), true, "the address of the round before is used again");
        space.domain.unmap_raw(iova, PAGE_SIZE)?;
        last = Some(iova);
    }
    Ok(())
}

fn batch(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let mut iovas = Vec::new();
    for index in 0..10 {
        iovas.push(space.map(page(index), PAGE_SIZE, BOTH)?);
        agree!(driven.write(A, iovas[index as usize], page(index))?, Seen::Landed, "page {index}");
    }
    let mut batch = space.domain.raw_batch();
    // Every other page, so that no two are adjacent.
    for iova in iovas.iter().step_by(2) {
        batch.unmap(IovaRange::covering(*iova, PAGE_SIZE).expect("a page"))?;
    }
    batch.commit()?;
    for (index, iova) in (0..).zip(&iovas) {
        let expected = if index % 2 == 0 { gone(*iova) } else { Seen::Landed };
        agree!(driven.write(A, *iova, page(index))?, expected, "page {index}");
    }
    Ok(())
}

fn batch_of_64(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let mut iovas = Vec::new();
    for index in 0..64 {
        iovas.push(space.map(page(index), PAGE_SIZE, BOTH)?);
        driven.attempt(A, iovas[index as usize])?;
    }
    driven.commands();
    let before = driven.tails();
    let mut batch = space.domain.raw_batch();
    for iova in &iovas {
        batch.unmap(IovaRange::covering(*iova, PAGE_SIZE).expect("a page"))?;
    }
    batch.commit()?;
    agree!(driven.tails() - before, 1, "submissions");
    for (index, iova) in (0..).zip(&iovas) {
        agree!(driven.write(A, *iova, page(index))?, gone(*iova), "page {index}");
    }
    Ok(())
}

/// A page of the rig's memory that a driver owns.
#[derive(Debug)]
struct OnePage([Segment; 1]);

#[allow(unsafe_code, reason = "a buffer on loan to a device")]
// SAFETY: each check uses a page of the rig's memory for one purpose, and the page does not move.
unsafe impl DmaBuffer for OnePage {
    fn segments(&self) -> &[Segment] {
        &self.0
    }
}

fn typed(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let buffer = OnePage([Segment { phys: page(5), len: PAGE_SIZE }]);
    let mapping = space.domain.map(buffer, driven.wired.wiring.access(BOTH)).map_err(|failure| failure.error())?;
    let iova = mapping.iova();
    agree!(driven.write(A, iova, page(5))?, Seen::Landed, "on loan");
    let buffer = space.domain.unmap(mapping).map_err(|failure| Trouble::Broken(format!("{failure:?}")))?;
    agree!(buffer.0[0].phys, page(5), "the buffer that came back");
    agree!(driven.write(A, iova, page(5))?, gone(iova), "back with its owner");
    Ok(())
}
