//! What a map promises: the device reaches the buffer at once, with the requested rights, and nothing else (S1, S5).

use crate::conformance::driven::{gone, page, plus};
use crate::conformance::rig::{A, Hardware};
use crate::conformance::{Check, Checked, DMA_BYTES, Seen, Stage, agree, read_refused};
use portcullis::designs::Magazine;
use portcullis::{Access, PAGE_SIZE, PhysAddr, Request, Segment};
use portcullis_vtd::spec::faults::FaultReason;

const BOTH: Access = Access::DeviceReadsAndWrites;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("map-is-visible-at-once", visible),
    Check::driven("map-for-reads-is-not-written", reads_only),
    Check::driven("map-for-writes-is-not-read", writes_only),
    Check::driven("map-for-both-is-read-and-written", both),
    Check::driven("map-keeps-the-offset-in-the-page", offset),
    Check::driven("map-reaches-no-neighbour", no_neighbour),
    Check::driven("map-of-a-buffer-that-crosses-pages", crosses),
    Check::driven("map-of-a-scatter-list", scatter),
    Check::driven("map-under-caching-mode-invalidates", caching_mode).on(Hardware::CachingMode),
    Check::driven("map-without-caching-mode-does-not", no_caching_mode),
    Check::driven("map-of-large-leaves", large),
];

fn visible(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    for index in 0..20 {
        let iova = space.map(page(index), PAGE_SIZE, BOTH)?;
        agree!(driven.write(A, iova, page(index))?, Seen::Landed, "page {index}");
    }
    Ok(())
}

/// The refused access comes first, so that it causes a walk.
fn reads_only(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, Access::DeviceReads)?;
    agree!(driven.write(A, iova, page(0))?, gone(iova), "a write");
    agree!(space.read(A, iova, page(0))?, Seen::Landed, "a read");
    let seen = driven.write(A, iova, page(0))?;
    agree!(seen.is_blocked(), true, "a write, with the page cached: {seen:?}");
    Ok(())
}

fn writes_only(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, Access::DeviceWrites)?;
    agree!(space.read(A, iova, page(0))?, read_refused(A, iova.as_u64(), FaultReason::NoRead), "a read");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write");
    let seen = space.read(A, iova, page(0))?;
    agree!(seen.is_blocked(), true, "a read, with the page cached: {seen:?}");
    Ok(())
}

fn both(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write");
    agree!(space.read(A, iova, page(0))?, Seen::Landed, "a read");
    Ok(())
}

fn offset(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let phys = PhysAddr::new(page(0).as_u64() + 0x123);
    let iova = space.map(phys, 100, BOTH)?;
    agree!(iova.page_offset(), 0x123, "the offset");
    agree!(driven.write(A, iova, phys)?, Seen::Landed, "a write");
    Ok(())
}

fn no_neighbour(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    // The pages are adjacent, from the highest address down. Then the pages on both sides are unmapped.
    let [above, iova, below] = [2, 1, 0].map(|index| space.map(page(index), PAGE_SIZE, BOTH));
    let [above, iova, below] = [above?, iova?, below?];
    agree!((plus(below, PAGE_SIZE), plus(iova, PAGE_SIZE)), (iova, above), "addresses side by side");
    space.domain.unmap_raw(above, PAGE_SIZE)?;
    space.domain.unmap_raw(below, PAGE_SIZE)?;
    agree!(driven.write(A, above, page(2))?, gone(above), "the address above");
    agree!(driven.write(A, below, page(0))?, gone(below), "the address below");
    agree!(driven.write(A, iova, page(1))?, Seen::Landed, "the page itself");
    Ok(())
}

fn crosses(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let phys = PhysAddr::new(page(3).as_u64() + PAGE_SIZE - 700);
    let iova = space.map(phys, 1522, Access::DeviceWrites)?;
    agree!(driven.write_len(A, iova, phys, 1522)?, Seen::Landed, "the whole buffer");
    space.domain.unmap_raw(iova, 1522)?;
    agree!(driven.write(A, iova, phys)?, gone(iova), "its first page");
    let behind = PhysAddr::new(phys.as_u64() + 1400);
    agree!(driven.write(A, plus(iova, 1400), behind)?, gone(plus(iova, 1400)), "its second");
    Ok(())
}

fn scatter(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let segments = [9, 4, 6].map(|index| Segment { phys: page(index), len: PAGE_SIZE });
    let range = space.map_request(&Request::new(&segments, BOTH)?)?;
    agree!(range.pages(), 3, "pages");
    for (place, segment) in (0..).zip(&segments) {
        let iova = plus(range.start(), place * PAGE_SIZE);
        agree!(driven.write(A, iova, segment.phys)?, Seen::Landed, "segment {place}");
    }
    space.domain.unmap_raw(range.start(), 3 * PAGE_SIZE)?;
    for (place, segment) in (0..).zip(&segments) {
        let iova = plus(range.start(), place * PAGE_SIZE);
        agree!(driven.write(A, iova, segment.phys)?, gone(iova), "segment {place}, unmapped");
    }
    Ok(())
}

fn caching_mode(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    driven.commands();
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.commands().len(), 1, "commands of a map");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write");
    Ok(())
}

fn no_caching_mode(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    driven.commands();
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.commands(), vec![], "commands of a map");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write");
    Ok(())
}

/// 4 MiB and a page, aligned, so that leaves of 2 MiB are used.
const LARGE: u64 = (4 << 20) + PAGE_SIZE;

fn large(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.strict::<Magazine>()?;
    let before = space.domain.table_pages();
    let iova = space.map(page(0), LARGE, BOTH)?;
    for offset in [0, 0x12_3456, 2 << 20, LARGE - DMA_BYTES as u64] {
        let phys = PhysAddr::new(page(0).as_u64() + offset);
        agree!(driven.write(A, plus(iova, offset), phys)?, Seen::Landed, "at {offset:#x}");
    }
    let tables = space.domain.table_pages() - before;
    agree!(tables < 3, true, "{tables} tables for 4 MiB in pages of 4 KiB would be 3");
    Ok(())
}
