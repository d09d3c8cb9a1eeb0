//! What is cached, and which invalidations drop it: pages, domains, everything; leaves and, if a unit caches them,
//! the pointers to tables.

use crate::conformance::raw::{GIB, HIGH, IOVA, PHYS, Raw, Table, domain, global_flush, leaves, pages};
use crate::conformance::rig::{A, B, Hardware};
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, write_refused};
use portcullis::PAGE_SIZE;
use portcullis::table::Rights;
use portcullis_vtd::spec::descriptors::InvalidationDescriptor;
use portcullis_vtd::spec::faults::FaultReason;

const RW: Rights = Rights::READ_WRITE;
const NO_PAGING_CACHES: &str = "QEMU caches no pointers to tables, so a cleared one counts at once";

pub(super) const CHECKS: &[Check] = &[
    Check::raw("stale-until-invalidated-by-page", |stage| stale(stage, leaves(1, IOVA, 0))),
    Check::raw("stale-until-invalidated-by-page-all-levels", |stage| stale(stage, pages(1, IOVA, 0))),
    Check::raw("stale-until-invalidated-by-domain", |stage| stale(stage, domain(1))),
    Check::raw("stale-until-invalidated-globally", |stage| stale(stage, global_flush())),
    Check::raw("stale-read-until-invalidated", stale_read),
    Check::raw("page-invalidation-spares-its-neighbours", neighbours),
    Check::raw("page-invalidation-spares-other-domains", |stage| other_domain(stage, leaves(2, IOVA, 0))),
    Check::raw("domain-invalidation-spares-other-domains", |stage| other_domain(stage, domain(2))),
    Check::raw("domain-invalidation-takes-leaves-of-all-sizes", all_sizes),
    Check::raw("global-invalidation-takes-all-domains", all_domains),
    Check::raw("remapped-page-leads-elsewhere-after-invalidation", remapped),
    Check::raw("invalidation-of-what-is-not-cached", nothing_cached),
    Check::raw("iotlb-holds-1024-pages", holds),
    Check::raw("iotlb-is-emptied-when-full", overflows),
    Check::raw("paging-caches-survive-a-leaf-invalidation", leaf_only)
        .on(Hardware::PagingCaches)
        .differs(NO_PAGING_CACHES, directory_at_once),
    Check::raw("paging-caches-go-with-a-page-at-all-levels", |stage| all_levels(stage, pages(1, SIBLING, 0)))
        .on(Hardware::PagingCaches)
        .differs(NO_PAGING_CACHES, directory_at_once),
    Check::raw("paging-caches-go-with-their-domain", |stage| all_levels(stage, domain(1)))
        .on(Hardware::PagingCaches)
        .differs(NO_PAGING_CACHES, directory_at_once),
    Check::raw("paging-caches-go-globally", |stage| all_levels(stage, global_flush()))
        .on(Hardware::PagingCaches)
        .differs(NO_PAGING_CACHES, directory_at_once),
    Check::raw("paging-caches-of-upper-levels-are-used", upper_levels_are_used)
        .on(Hardware::PagingCaches)
        .differs(NO_PAGING_CACHES, directory_at_once),
    Check::raw("paging-caches-of-upper-levels-go-too", |stage| upper_levels(stage, pages(1, IOVA, 0)))
        .on(Hardware::PagingCaches),
    Check::raw("paging-caches-spare-what-serves-other-pages", spares_other_tables)
        .on(Hardware::PagingCaches)
        .differs(NO_PAGING_CACHES, directory_at_once),
];

/// A page that the leaf table of [`IOVA`] also serves.
const SIBLING: u64 = IOVA + PAGE_SIZE;

fn gone(iova: u64) -> Seen {
    write_refused(A, iova, FaultReason::NoWrite)
}

fn stale(stage: &Stage, command: InvalidationDescriptor) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 1)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "cleared, but cached");
    raw.run(&[command])?;
    agree!(raw.write(A, IOVA, PHYS)?, gone(IOVA), "invalidated");
    Ok(())
}

fn stale_read(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.read(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 1)?;
    agree!(raw.read(A, IOVA, PHYS)?, Seen::Landed, "cleared, but cached");
    raw.run(&[leaves(1, IOVA, 0)])?;
    let seen = raw.read(A, IOVA, PHYS)?;
    agree!(seen, crate::conformance::read_refused(A, IOVA, FaultReason::NoRead), "invalidated");
    Ok(())
}

fn neighbours(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    for page in 0..3 {
        raw.map(table, IOVA + page * PAGE_SIZE, PHYS + page * PAGE_SIZE, RW)?;
        agree!(raw.write(A, IOVA + page * PAGE_SIZE, PHYS + page * PAGE_SIZE)?, Seen::Landed, "page {page}");
        raw.clear(table, IOVA + page * PAGE_SIZE, 1)?;
    }
    raw.run(&[leaves(1, IOVA + PAGE_SIZE, 0)])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "the page before");
    agree!(raw.write(A, IOVA + PAGE_SIZE, PHYS + PAGE_SIZE)?, gone(IOVA + PAGE_SIZE), "the page");
    agree!(raw.write(A, IOVA + 2 * PAGE_SIZE, PHYS + 2 * PAGE_SIZE)?, Seen::Landed, "the page behind");
    Ok(())
}

fn other_domain(stage: &Stage, command: InvalidationDescriptor) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let other = raw.table(2, 4)?;
    raw.attach(B, other);
    raw.map(other, IOVA, PHYS + PAGE_SIZE, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "one domain");
    agree!(raw.write(B, IOVA, PHYS + PAGE_SIZE)?, Seen::Landed, "the other");
    raw.clear(table, IOVA, 1)?;
    raw.clear(other, IOVA, 1)?;
    raw.run(&[command])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "the one was not named");
    let seen = raw.write(B, IOVA, PHYS + PAGE_SIZE)?;
    agree!(seen, write_refused(B, IOVA, FaultReason::NoWrite), "the other was");
    Ok(())
}

fn all_sizes(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let (large, huge) = (GIB + 0x0800_0000, HIGH & !0x3fff_ffff);
    raw.map_at(table, large, PHYS, RW, 2)?;
    raw.map_at(table, huge, 0, RW, 3)?;
    let all = [(IOVA, PHYS, 1), (large, PHYS, 2), (huge + PHYS, PHYS, 3)];
    for (iova, phys, level) in all {
        agree!(raw.write(A, iova, phys)?, Seen::Landed, "level {level}");
        raw.clear(table, iova, level)?;
        agree!(raw.write(A, iova, phys)?, Seen::Landed, "level {level}, stale");
    }
    raw.run(&[domain(1)])?;
    for (iova, phys, level) in all {
        agree!(raw.write(A, iova, phys)?, gone(iova), "level {level}, invalidated");
    }
    Ok(())
}

fn all_domains(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let other = raw.table(0xffff, 3)?;
    raw.attach(B, other);
    raw.map(other, IOVA, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "one domain");
    agree!(raw.write(B, IOVA, PHYS)?, Seen::Landed, "the other");
    raw.clear(table, IOVA, 1)?;
    raw.clear(other, IOVA, 1)?;
    raw.run(&[global_flush()])?;
    agree!(raw.write(A, IOVA, PHYS)?, gone(IOVA), "the one");
    agree!(raw.write(B, IOVA, PHYS)?, write_refused(B, IOVA, FaultReason::NoWrite), "the other");
    Ok(())
}

fn remapped(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let elsewhere = PHYS + 7 * PAGE_SIZE;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.map(table, IOVA, elsewhere, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "remapped, but cached");
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(raw.write(A, IOVA, elsewhere)?, Seen::Landed, "invalidated");
    Ok(())
}

fn nothing_cached(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.one_page()?;
    raw.run(&[leaves(1, HIGH, 0), domain(9), pages(9, 0, 18), global_flush()])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "a page, afterwards");
    Ok(())
}

/// Maps `count` pages, all to one physical page, has each cached, and clears them.
fn fill(stage: &Stage, count: u64) -> Result<(Raw<'_>, Table), Trouble> {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    for page in 0..count {
        raw.map(table, IOVA + page * PAGE_SIZE, PHYS, RW)?;
        raw.attempt(A, IOVA + page * PAGE_SIZE)?;
    }
    for page in 0..count {
        raw.clear(table, IOVA + page * PAGE_SIZE, 1)?;
    }
    agree!(raw.faults().records.len(), 0, "faults while they were mapped");
    Ok((raw, table))
}

fn holds(stage: &Stage) -> Checked {
    let (raw, _) = fill(stage, 1024)?;
    for page in [0, 1, 511, 1022, 1023] {
        agree!(raw.write(A, IOVA + page * PAGE_SIZE, PHYS)?, Seen::Landed, "page {page} of 1024");
    }
    Ok(())
}

fn overflows(stage: &Stage) -> Checked {
    let (raw, _) = fill(stage, 1025)?;
    for page in [0, 1, 1023] {
        agree!(raw.write(A, IOVA + page * PAGE_SIZE, PHYS)?, gone(IOVA + page * PAGE_SIZE), "page {page} of 1025");
    }
    agree!(raw.write(A, IOVA + 1024 * PAGE_SIZE, PHYS)?, Seen::Landed, "the last, for which room was made");
    Ok(())
}

/// Two pages behind one leaf table, the first of them cached. Then the pointer to the table is cleared.
fn detached(stage: &Stage) -> Result<(Raw<'_>, Table), Trouble> {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.map(table, SIBLING, PHYS + PAGE_SIZE, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 2)?;
    Ok((raw, table))
}

fn leaf_only(stage: &Stage) -> Checked {
    let (raw, _) = detached(stage)?;
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "walked again from the cached pointer");
    agree!(raw.write(A, SIBLING, PHYS + PAGE_SIZE)?, Seen::Landed, "its neighbour, likewise");
    Ok(())
}

fn all_levels(stage: &Stage, command: InvalidationDescriptor) -> Checked {
    let (raw, _) = detached(stage)?;
    agree!(raw.write(A, SIBLING, PHYS + PAGE_SIZE)?, Seen::Landed, "through the cached pointer");
    raw.run(&[command])?;
    agree!(raw.write(A, SIBLING, PHYS + PAGE_SIZE)?, gone(SIBLING), "invalidated at all levels");
    Ok(())
}

/// Cached pointers nearer the root serve far more than the named page. They are dropped too.
fn upper_levels(stage: &Stage, command: InvalidationDescriptor) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    // In another 1 GiB of the same 512 GiB. Its walk begins at the pointer that both share.
    let far = IOVA + (1 << 30);
    raw.map(table, far, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 4)?;
    raw.run(&[command])?;
    agree!(raw.write(A, far, PHYS)?, gone(far), "the shared pointer went with the page");
    Ok(())
}

/// Without the invalidation, the walk would use that pointer.
fn upper_levels_are_used(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    let far = IOVA + (1 << 30);
    raw.map(table, far, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 4)?;
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(raw.write(A, far, PHYS)?, Seen::Landed, "through the shared pointer");
    Ok(())
}

/// Pointers of other subtrees stay.
fn spares_other_tables(stage: &Stage) -> Checked {
    let (raw, table) = detached(stage)?;
    raw.map(table, HIGH, PHYS, RW)?;
    raw.map(table, HIGH + PAGE_SIZE, PHYS + PAGE_SIZE, RW)?;
    agree!(raw.write(A, HIGH, PHYS)?, Seen::Landed, "another subtree");
    raw.clear(table, HIGH, 2)?;
    raw.run(&[pages(1, IOVA, 0)])?;
    agree!(raw.write(A, IOVA, PHYS)?, gone(IOVA), "the page named");
    agree!(raw.write(A, HIGH + PAGE_SIZE, PHYS + PAGE_SIZE)?, Seen::Landed, "through the pointer of the other subtree");
    Ok(())
}

/// What QEMU shows: the cached leaf is stale, and all other pages are walked.
fn directory_at_once(stage: &Stage) -> Checked {
    let (raw, table) = detached(stage)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "the cached leaf");
    agree!(raw.write(A, SIBLING, PHYS + PAGE_SIZE)?, gone(SIBLING), "its neighbour, not cached");
    raw.run(&[leaves(1, IOVA, 0)])?;
    agree!(raw.write(A, IOVA, PHYS)?, gone(IOVA), "invalidated");
    // Mapped again through a new table: no absent entry was cached.
    raw.map(table, IOVA, PHYS, RW)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped again");
    Ok(())
}
