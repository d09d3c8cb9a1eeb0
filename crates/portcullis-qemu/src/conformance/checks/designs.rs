//! Every design over real translation: strict designs revoke at once, deferred designs within their bound, and the
//! unprotected designs let devices reach what they declare.

use crate::conformance::driven::page;
use crate::conformance::rig::{A, DATA_BASE};
use crate::conformance::wiring::{Wired, WiredUnit};
use crate::conformance::{Check, Checked, Seen, Stage, agree, write_refused};
use portcullis::mapper::Design;
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr, Protection, Rule};
use portcullis_designs::{
    Eiovar, FastAndSafe, FreeBsd, Identity, Magazine, Portcullis, Solaris, Static, Stock, Unprotected,
};
use portcullis_vtd::spec::faults::FaultReason;

const BOTH: Access = Access::DeviceReadsAndWrites;
/// Turns of a spin within which a unit completes a few invalidations.
const HARDWARE_TURNS: u32 = 1000;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("design-stock-is-strict", strict::<Stock>),
    Check::driven("design-eiovar-is-strict", strict::<Eiovar>),
    Check::driven("design-identity-is-strict", strict::<Identity>),
    Check::driven("design-magazine-is-strict", strict::<Magazine>),
    Check::driven("design-freebsd-is-strict", strict::<FreeBsd>),
    Check::driven("design-stock-is-strict-after-each-wait", halves::<Stock>),
    Check::driven("design-eiovar-is-strict-after-each-wait", halves::<Eiovar>),
    Check::driven("design-freebsd-is-strict-after-each-wait", halves::<FreeBsd>),
    Check::driven("design-identity-is-strict-after-each-wait", halves::<Identity>),
    Check::driven("design-magazine-is-strict-after-each-wait", halves::<Magazine>),
    Check::driven("design-fast-and-safe-is-strict-after-each-wait", halves::<FastAndSafe>),
    Check::driven("design-portcullis-is-strict-after-each-wait", halves::<Portcullis>),
    Check::driven("design-stock-deferred-ends-with-a-tick", deferred_tick::<Stock>),
    Check::driven("design-eiovar-deferred-ends-with-a-tick", deferred_tick::<Eiovar>),
    Check::driven("design-identity-deferred-ends-with-a-tick", deferred_tick::<Identity>),
    Check::driven("design-magazine-deferred-ends-with-a-tick", deferred_tick::<Magazine>),
    Check::driven("design-stock-deferred-ends-when-full", deferred_full::<Stock>),
    Check::driven("design-identity-deferred-ends-when-full", deferred_full::<Identity>),
    Check::driven("design-magazine-deferred-ends-when-full", deferred_full::<Magazine>),
    Check::driven("design-identity-counts-the-mappings-of-a-page", counts),
    Check::driven("design-solaris-reaches-until-used-again", until_used_again),
    Check::driven("design-none-reaches-all-memory", none),
    Check::driven("design-static-reaches-what-it-was-told", identity),
];

/// What holds for every design that translates.
pub(super) fn of<D: Design<Wired, WiredUnit>>() -> Vec<Check> {
    if D::INFO.physical_addresses() || D::INFO.is_hypothetical() {
        return Vec::new();
    }
    let checks = D::INFO.protections.iter().map(|protection| match protection {
        Protection::Strict => vec![
            Check::driven("design-is-strict", strict::<D>),
            Check::driven("design-is-strict-after-each-wait", halves::<D>),
            Check::driven("design-strict-gives-the-rights-asked-for", rights::<D, false>),
        ],
        Protection::Deferred => vec![
            Check::driven("design-deferred-ends-in-its-window", deferred_window::<D>),
            Check::driven("design-deferred-gives-the-rights-asked-for", rights::<D, true>),
        ],
        Protection::None => Vec::new(),
    });
    checks.flatten().collect()
}

/// Rounds of map, DMA, unmap and DMA, with other mappings alive.
fn strict<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(Protection::Strict)?;
    space.domain.attach(A)?;
    let kept = space.map(page(100), PAGE_SIZE, BOTH)?;
    for (round, pages) in (0..).zip([1, 3, 1, 8, 2, 1]) {
        let len = pages * PAGE_SIZE;
        let iova = space.map(page(10 * round), len, BOTH)?;
        let last = (Iova::new(iova.as_u64() + len - PAGE_SIZE), page(10 * round + pages - 1));
        for (at, phys) in [(iova, page(10 * round)), last] {
            agree!(driven.write(A, at, phys)?, Seen::Landed, "round {round} at {at}");
        }
        space.domain.unmap_raw(iova, len)?;
        for (at, phys) in [(iova, page(10 * round)), last] {
            let expected = write_refused(A, at.as_u64(), FaultReason::NoWrite);
            agree!(driven.write(A, at, phys)?, expected, "{}: round {round} at {at}, unmapped", Rule::Strict);
        }
        agree!(driven.write(A, kept, page(100))?, Seen::Landed, "{}: a page that stayed mapped", Rule::Reach);
    }
    Ok(())
}

/// Batches in two halves, two of them in flight. After the wait for one, the device reaches none of its mappings; it
/// reaches those that stayed.
fn halves<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(Protection::Strict)?;
    space.domain.attach(A)?;
    let kept = space.map(page(1000), PAGE_SIZE, BOTH)?;
    let submit = |first: u64| {
        let mut batch = space.domain.raw_batch();
        let mut mapped = Vec::new();
        for number in first..first + 8 {
            // Two neighbours, and a distance to the next two.
            let phys = page(10 * (number / 2) + number % 2);
            let iova = space.map(phys, PAGE_SIZE, BOTH)?;
            agree!(driven.write(A, iova, phys)?, Seen::Landed, "{}: {iova}", Rule::Reach);
            mapped.push((iova, phys));
        }
        for (iova, _) in &mapped {
            batch.unmap_raw(*iova, PAGE_SIZE)?;
        }
        Ok((batch.submit()?, mapped))
    };
    for round in 0..3 {
        let (first, second) = (submit(16 * round)?, submit(16 * round + 8)?);
        for (submitted, mapped) in [second, first] {
            submitted.wait()?;
            for (iova, phys) in mapped {
                let expected = write_refused(A, iova.as_u64(), FaultReason::NoWrite);
                agree!(driven.write(A, iova, phys)?, expected, "{}: round {round} at {iova}, unmapped", Rule::Strict);
            }
            agree!(driven.write(A, kept, page(1000))?, Seen::Landed, "{}: a page that stayed mapped", Rule::Reach);
        }
    }
    Ok(())
}

/// Checks batches of mappings: after the window that the design declares, and a tick if one is due, the device reaches
/// none of them. If the design declares no window, only the accesses to live mappings are checked.
fn deferred_window<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(Protection::Deferred)?;
    space.domain.attach(A)?;
    let kept = space.map(page(1000), PAGE_SIZE, BOTH)?;
    for round in 0..4 {
        let mut mapped = Vec::new();
        for number in 0..8 {
            let phys = page(10 * (8 * round + number));
            let iova = space.map(phys, PAGE_SIZE, BOTH)?;
            agree!(driven.write(A, iova, phys)?, Seen::Landed, "{}: round {round} at {iova}", Rule::Reach);
            mapped.push((iova, phys));
        }
        for (iova, _) in &mapped {
            space.domain.unmap_raw(*iova, PAGE_SIZE)?;
        }
        if let Some(window_us) = space.domain.usage().window_us_max {
            driven.pass_us(window_us + 1);
            // The hardware takes some time for submitted commands, on its own clock.
            (0..HARDWARE_TURNS).for_each(|_| driven.rig().pause());
            if space.domain.due_us().is_some() {
                space.domain.tick()?;
            }
            for (iova, phys) in mapped {
                let expected = write_refused(A, iova.as_u64(), FaultReason::NoWrite);
                agree!(driven.write(A, iova, phys)?, expected, "{}: round {round} at {iova}, unmapped", Rule::Strict);
            }
        }
        agree!(driven.write(A, kept, page(1000))?, Seen::Landed, "{}: a page that stayed mapped", Rule::Reach);
    }
    Ok(())
}

/// A device gets the access that a mapping grants, and no other.
fn rights<D: Design<Wired, WiredUnit>, const DEFERRED: bool>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(if DEFERRED { Protection::Deferred } else { Protection::Strict })?;
    space.domain.attach(A)?;
    let (read, written) =
        (space.map(page(0), PAGE_SIZE, Access::DeviceReads)?, space.map(page(1), PAGE_SIZE, Access::DeviceWrites)?);
    agree!(space.read(A, read, page(0))?, Seen::Landed, "{}: a read", Rule::Reach);
    agree!(driven.write(A, written, page(1))?, Seen::Landed, "{}: a write", Rule::Reach);
    // QEMU does not record a fault that is due to a cached translation.
    agree!(driven.write(A, read, page(0))?.is_blocked(), true, "{}: a write to a page mapped for reads", Rule::Rights);
    agree!(space.read(A, written, page(1))?.is_blocked(), true, "{}: a read of a page mapped for writes", Rule::Rights);
    Ok(())
}

/// After the unmap, the device still reaches the page: the declared stale window. After the tick, it does not.
fn deferred_tick<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(Protection::Deferred)?;
    space.domain.attach(A)?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "mapped");
    space.domain.unmap_raw(iova, PAGE_SIZE)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "in the window");
    driven.pass_us(11_000);
    agree!(space.domain.due_us().is_some(), true, "something is due");
    space.domain.tick()?;
    let expected = write_refused(A, iova.as_u64(), FaultReason::NoWrite);
    agree!(driven.write(A, iova, page(0))?, expected, "after the tick");
    Ok(())
}

/// When the queue is full, it is flushed without a tick.
fn deferred_full<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(Protection::Deferred)?;
    space.domain.attach(A)?;
    let first = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, first, page(0))?, Seen::Landed, "mapped");
    space.domain.unmap_raw(first, PAGE_SIZE)?;
    agree!(driven.write(A, first, page(0))?, Seen::Landed, "in the window");
    let most = space.domain.usage().queued_unmaps_max as u64;
    agree!(most > 0, true, "the bound of the queue");
    for _ in 0..=most {
        let iova = space.map(page(1), PAGE_SIZE, BOTH)?;
        space.domain.unmap_raw(iova, PAGE_SIZE)?;
    }
    let expected = write_refused(A, first.as_u64(), FaultReason::NoWrite);
    agree!(driven.write(A, first, page(0))?, expected, "{most} unmaps later");
    Ok(())
}

/// All mappings of a page with the same rights share one entry, which stays as long as one of them does. Mappings
/// with other rights have another entry.
fn counts(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<Identity>(Protection::Strict)?;
    space.domain.attach(A)?;
    let (first, second) = (space.map(page(0), PAGE_SIZE, BOTH)?, space.map(page(0), PAGE_SIZE, BOTH)?);
    let written = space.map(page(0), PAGE_SIZE, Access::DeviceWrites)?;
    agree!((first == second, first == written), (true, false), "the addresses");
    agree!(driven.write(A, first, page(0))?, Seen::Landed, "mapped twice");
    space.domain.unmap_raw(first, PAGE_SIZE)?;
    agree!(driven.write(A, second, page(0))?, Seen::Landed, "mapped once");
    agree!(space.read(A, second, page(0))?, Seen::Landed, "mapped once");
    space.domain.unmap_raw(second, PAGE_SIZE)?;
    let expected = write_refused(A, second.as_u64(), FaultReason::NoWrite);
    agree!(driven.write(A, second, page(0))?, expected, "no longer mapped");
    agree!(driven.write(A, written, page(0))?, Seen::Landed, "mapped for writes only");
    agree!(space.read(A, written, page(0))?.is_blocked(), true, "a read of a page mapped for writes");
    Ok(())
}

/// After the unmap the device still reaches the page, without a time limit, until a map gets the address.
fn until_used_again(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<Solaris>(Protection::Deferred)?;
    space.domain.attach(A)?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "mapped");
    space.domain.unmap_raw(iova, PAGE_SIZE)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "unmapped");
    driven.pass_us(1_000_000);
    agree!(space.domain.due_us(), None, "nothing is due");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a second later");
    agree!(space.map(page(1), PAGE_SIZE, Access::DeviceReads)?, iova, "the address of the next map");
    let expected = write_refused(A, iova.as_u64(), FaultReason::NoWrite);
    agree!(driven.write(A, iova, page(0))?, expected, "the device may only read now");
    agree!(space.read(A, iova, page(1))?, Seen::Landed, "the new page");
    Ok(())
}

fn none(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<Unprotected>(Protection::None)?;
    space.domain.attach(A)?;
    let iova = space.map(page(0), PAGE_SIZE, Access::DeviceReads)?;
    agree!(iova.as_u64(), page(0).as_u64(), "the address");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write to a page mapped for reads");
    let other = page(77);
    agree!(driven.write(A, Iova::new(other.as_u64()), other)?, Seen::Landed, "a page that was not mapped");
    space.domain.unmap_raw(iova, PAGE_SIZE)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "unmapped");
    Ok(())
}

fn identity(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<Static>(Protection::None)?;
    space.domain.attach(A)?;
    for phys in [page(0), page(1000), PhysAddr::new(DATA_BASE)] {
        let iova = Iova::new(phys.as_u64());
        agree!(driven.write(A, iova, phys)?, Seen::Landed, "{phys}");
        agree!(space.read(A, iova, phys)?, Seen::Landed, "{phys}");
    }
    // The tables lie below this memory.
    let below = Iova::new(DATA_BASE - PAGE_SIZE);
    let expected = write_refused(A, below.as_u64(), FaultReason::NoWrite);
    agree!(driven.write(A, below, PhysAddr::new(DATA_BASE - PAGE_SIZE))?, expected, "memory that was not listed");
    Ok(())
}
