//! Domains that are dropped while devices still have mappings in them (S10).

use crate::conformance::driven::page;
use crate::conformance::rig::{A, B, C};
use crate::conformance::wiring::{Wired, WiredUnit};
use crate::conformance::{Check, Checked, Seen, Stage, agree, write_refused};
use portcullis::mapper::Design;
use portcullis::{Access, PAGE_SIZE, Protection};
use portcullis_designs::{Magazine, Stock};
use portcullis_vtd::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::faults::FaultReason;

const BOTH: Access = Access::DeviceReadsAndWrites;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("teardown-with-live-mappings", live::<Magazine>),
    Check::driven("teardown-with-live-mappings-under-stock", live::<Stock>),
    Check::driven("teardown-in-a-deferred-window", deferred),
    Check::driven("teardown-flushes-contexts-before-pages", order),
    Check::driven("teardown-gives-its-pages-back", gives_back),
    Check::driven("teardown-spares-other-domains", spares_others),
    Check::driven("teardown-unanswered-keeps-the-tables", unanswered),
    Check::driven("teardown-pages-serve-the-next-domain", next_domain),
];

fn live<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<D>(Protection::Strict)?;
    for device in [A, B] {
        space.domain.attach(device)?;
    }
    let iova = space.map(page(0), 4 * PAGE_SIZE, BOTH)?;
    for device in [A, B] {
        agree!(driven.write(device, iova, page(0))?, Seen::Landed, "device {:#x}", device.requester());
    }
    drop(space);
    for device in [A, B] {
        let expected = write_refused(device, iova.as_u64(), FaultReason::ContextNotPresent);
        agree!(driven.write(device, iova, page(0))?, expected, "device {:#x}, afterwards", device.requester());
    }
    Ok(())
}

/// Unmaps are still waiting for their flush when the domain is dropped.
fn deferred(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let before = driven.rig().lent();
    let space = driven.open::<Stock>(Protection::Deferred)?;
    space.domain.attach(A)?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "mapped");
    space.domain.unmap_raw(iova, PAGE_SIZE)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "in the window");
    drop(space);
    let seen = driven.write(A, iova, page(0))?;
    agree!(seen, write_refused(A, iova.as_u64(), FaultReason::ContextNotPresent), "afterwards");
    // The context table stays with the unit.
    agree!(driven.rig().lent(), before + 1, "pages");
    Ok(())
}

fn order(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<Magazine>(Protection::Strict)?;
    space.domain.attach(A)?;
    let domain = space.domain.id();
    driven.commands();
    drop(space);
    let commands = driven.commands();
    let contexts = InvalidationDescriptor::ContextCache(ContextScope::Domain(domain));
    agree!(commands.first(), Some(&contexts), "the first command of {commands:?}");
    let flushed = matches!(commands.get(1), Some(InvalidationDescriptor::Iotlb { scope: IotlbScope::Domain(id), .. }) if *id == domain);
    agree!((flushed, commands.len()), (true, 2), "then the domain's pages, and no more: {commands:?}");
    Ok(())
}

fn gives_back(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    // The first device makes the unit allocate a context table, which stays.
    let first = driven.open::<Magazine>(Protection::Strict)?;
    first.domain.attach(C)?;
    drop(first);
    let before = driven.rig().lent();
    let space = driven.open::<Magazine>(Protection::Strict)?;
    space.domain.attach(A)?;
    for index in 0..10 {
        space.map(page(600 * index), PAGE_SIZE, BOTH)?;
    }
    agree!(driven.rig().lent() > before, true, "pages while it lives");
    drop(space);
    agree!(driven.rig().lent(), before, "pages afterwards");
    Ok(())
}

fn spares_others(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let [going, staying] = [driven.open::<Magazine>(Protection::Strict)?, driven.open::<Magazine>(Protection::Strict)?];
    going.domain.attach(A)?;
    staying.domain.attach(C)?;
    let [iova, here] = [going.map(page(0), PAGE_SIZE, BOTH)?, staying.map(page(1), PAGE_SIZE, BOTH)?];
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "the domain that goes");
    agree!(driven.write(C, here, page(1))?, Seen::Landed, "the one that stays");
    drop(going);
    agree!(driven.write(C, here, page(1))?, Seen::Landed, "the one that stays, afterwards");
    staying.domain.unmap_raw(here, PAGE_SIZE)?;
    let seen = driven.write(C, here, page(1))?;
    agree!(seen, write_refused(C, here.as_u64(), FaultReason::NoWrite), "and it still revokes");
    Ok(())
}

/// If the unit does not answer, it is not known what it still walks, so the tables stay out of use for good.
fn unanswered(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = driven.open::<Magazine>(Protection::Strict)?;
    space.domain.attach(A)?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "mapped");
    let before = driven.rig().lent();
    driven.stall(true);
    drop(space);
    agree!(driven.rig().lent(), before, "pages");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "what is cached is cached");
    driven.stall(false);
    Ok(())
}

/// The tables of one domain are reused for the next, and the device of the first domain does not reach it.
fn next_domain(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let mut id = None;
    for round in 0..5 {
        let space = driven.open::<Magazine>(Protection::Strict)?;
        agree!(id == Some(space.domain.id()), false, "the id of the domain before");
        id = Some(space.domain.id());
        let device = if round % 2 == 0 { A } else { C };
        let other = if round % 2 == 0 { C } else { A };
        space.domain.attach(device)?;
        let iova = space.map(page(round), PAGE_SIZE, BOTH)?;
        agree!(driven.write(device, iova, page(round))?, Seen::Landed, "round {round}");
        let seen = driven.write(other, iova, page(round))?;
        let expected = write_refused(other, iova.as_u64(), FaultReason::ContextNotPresent);
        agree!(seen, expected, "the device of the domain before, in round {round}");
    }
    Ok(())
}
