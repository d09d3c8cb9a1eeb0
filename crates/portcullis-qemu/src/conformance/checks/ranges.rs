//! Which pages a page-selective invalidation drops: 2^AM aligned pages, and no others.

use crate::conformance::raw::{GIB, IOVA, PHYS, Raw, leaves, pages};
use crate::conformance::rig::A;
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, write_refused};
use portcullis::PAGE_SIZE;
use portcullis::table::Rights;
use portcullis_vtd::spec::faults::FaultReason;

const EIGHT_BITS: &str = "QEMU 7.2 keeps the page mask in 8 bits, and takes pages equal modulo 256 along";

pub(super) const CHECKS: &[Check] = &[
    Check::raw("range-of-1-page-is-exact", exact::<0>),
    Check::raw("range-of-2-pages-is-exact", exact::<1>),
    Check::raw("range-of-4-pages-is-exact", exact::<2>),
    Check::raw("range-of-8-pages-is-exact", exact::<3>),
    Check::raw("range-of-16-pages-is-exact", exact::<4>),
    Check::raw("range-of-32-pages-is-exact", exact::<5>),
    Check::raw("range-of-64-pages-is-exact", exact::<6>),
    Check::raw("range-of-128-pages-is-exact", exact::<7>),
    Check::raw("range-of-256-pages-is-exact", exact::<8>).differs(EIGHT_BITS, covers::<8>),
    Check::raw("range-of-512-pages-is-exact", exact::<9>).differs(EIGHT_BITS, covers::<9>),
    Check::raw("range-of-262144-pages-is-exact", exact::<18>).differs(EIGHT_BITS, covers::<18>),
    Check::raw("range-all-levels-is-exact", all_levels),
    Check::raw("range-is-aligned-by-the-unit", aligned),
    Check::raw("range-of-one-page-spares-the-page-256-on", spares_256).differs(EIGHT_BITS, takes_256),
];

/// Pages inside and just outside a range of 2^AM pages that begins at `first`. They are counted from [`GIB`].
fn probes(first: u64, am: u8) -> (Vec<u64>, [u64; 2]) {
    let count = 1 << am;
    let mut inside = vec![first, first + count / 2, first + count - 1];
    inside.dedup();
    (inside, [first - 1, first + count])
}

/// Maps the pages, each to a different physical page, has them cached, and clears them.
fn cache(raw: &Raw<'_>, at: &[u64]) -> Checked {
    let table = raw.one_page()?;
    for (index, page) in at.iter().enumerate() {
        let (iova, phys) = (GIB + page * PAGE_SIZE, PHYS + index as u64 * PAGE_SIZE);
        raw.map(table, iova, phys, Rights::READ_WRITE)?;
        agree!(raw.write(A, iova, phys)?, Seen::Landed, "page {page:#x}");
        raw.clear(table, iova, 1)?;
    }
    Ok(())
}

/// The pages that still translate.
fn alive(raw: &Raw<'_>, at: &[u64]) -> Result<Vec<u64>, Trouble> {
    let mut alive = Vec::new();
    for (index, page) in at.iter().enumerate() {
        let (iova, phys) = (GIB + page * PAGE_SIZE, PHYS + index as u64 * PAGE_SIZE);
        match raw.write(A, iova, phys)? {
            Seen::Landed => alive.push(*page),
            seen => agree!(seen, write_refused(A, iova, FaultReason::NoWrite), "page {page:#x}, invalidated"),
        }
    }
    Ok(alive)
}

/// The first page of a range of 2^AM pages, counted from [`GIB`]. It is the second such range, so that one lies
/// before it.
const fn first(am: u8) -> u64 {
    1 << am
}

fn exact<const AM: u8>(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let (inside, outside) = probes(first(AM), AM);
    let all = [&inside[..], &outside].concat();
    cache(&raw, &all)?;
    raw.run(&[leaves(1, GIB + first(AM) * PAGE_SIZE, AM)])?;
    agree!(alive(&raw, &all)?, outside.to_vec(), "pages that survive {} from {:#x}", 1u64 << AM, first(AM));
    Ok(())
}

fn covers<const AM: u8>(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let (inside, outside) = probes(first(AM), AM);
    let all = [&inside[..], &outside].concat();
    cache(&raw, &all)?;
    raw.run(&[leaves(1, GIB + first(AM) * PAGE_SIZE, AM)])?;
    agree!(alive(&raw, &all)?, Vec::<u64>::new(), "pages that survive");
    Ok(())
}

fn all_levels(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let all: Vec<u64> = (0x40..0x50).collect();
    cache(&raw, &all)?;
    raw.run(&[pages(1, GIB + 0x44 * PAGE_SIZE, 2)])?;
    let expected: Vec<u64> = (0x40..0x44).chain(0x48..0x50).collect();
    agree!(alive(&raw, &all)?, expected, "pages that survive 4 from 0x44");
    Ok(())
}

/// The address bits that the mask covers are ignored.
fn aligned(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let all: Vec<u64> = (0x40..0x50).collect();
    cache(&raw, &all)?;
    raw.run(&[leaves(1, GIB + 0x47 * PAGE_SIZE, 2)])?;
    let expected: Vec<u64> = (0x40..0x44).chain(0x48..0x50).collect();
    agree!(alive(&raw, &all)?, expected, "pages that survive the 4 around 0x47");
    Ok(())
}

fn spares_256(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let all = [0x40, 0x140];
    cache(&raw, &all)?;
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(alive(&raw, &all)?, vec![0x140], "pages that survive the first");
    Ok(())
}

fn takes_256(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let all = [0x40, 0x140, 0x41];
    cache(&raw, &all)?;
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(alive(&raw, &all)?, vec![0x41], "pages that survive the first");
    Ok(())
}
