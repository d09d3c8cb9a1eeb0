//! Addresses that are never handed out (S9), and what happens when no other address is left (S13).

use crate::conformance::driven::{Driven, MEMORY, Space, page};
use crate::conformance::rig::{A, Hardware};
use crate::conformance::wiring::{Wired, WiredUnit};
use crate::conformance::{Check, Checked, Seen, Stage, Trouble, agree, write_refused};
use portcullis::domain::DomainConfig;
use portcullis::mapper::Design;
use portcullis::{Access, Iova, IovaRange, MapError, PAGE_SIZE, PhysAddr, Protection, RawMapError};
use portcullis_designs::{Magazine, Static, Stock};
use portcullis_vtd::spec::faults::FaultReason;
use std::collections::BTreeSet;

const BOTH: Access = Access::DeviceReadsAndWrites;

pub(super) const CHECKS: &[Check] = &[
    Check::driven("reserved-page-zero", page_zero::<Stock>),
    Check::driven("reserved-page-zero-under-magazines", page_zero::<Magazine>),
    Check::driven("reserved-interrupt-range", interrupt_range),
    Check::driven("reserved-region-of-the-firmware", firmware),
    Check::driven("reserved-region-under-an-identity-map", identity),
    Check::driven("exhausted-space-is-an-error", exhausted),
    Check::driven("exhausted-space-recovers", recovers),
    Check::driven("narrow-device-gets-narrow-addresses", narrow_device),
    Check::driven("narrow-unit-gets-narrow-addresses", narrow_unit).on(Hardware::Narrow),
];

/// A domain with 20-bit addresses: 256 pages, including page 0.
fn small<'d, D: Design<Wired, WiredUnit>>(driven: &'d Driven, reserved: &[IovaRange]) -> Result<Space<'d, D>, Trouble> {
    let config = DomainConfig { address_bits: 20, reserved, ..DomainConfig::new(Protection::Strict) };
    let space = driven.open_with::<D>(&config)?;
    space.domain.attach(A)?;
    Ok(space)
}

/// Maps pages until no address is left, and returns the addresses. The window uses one more.
fn fill<D: Design<Wired, WiredUnit>>(space: &Space<'_, D>) -> Result<BTreeSet<u64>, Trouble> {
    let mut taken = BTreeSet::new();
    loop {
        match space.try_map(page(0), PAGE_SIZE, BOTH) {
            Ok(iova) => agree!(taken.insert(iova.pfn()), true, "{iova} is handed out twice"),
            Err(RawMapError::Refused(MapError::Exhausted { .. })) => return Ok(taken),
            Err(error) => return Err(error.into()),
        }
    }
}

fn page_zero<D: Design<Wired, WiredUnit>>(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = small::<D>(&driven, &[])?;
    let taken = fill(&space)?;
    agree!((taken.contains(&0), taken.len()), (false, 254), "page 0, and how many pages beside the window");
    let seen = driven.write(A, Iova::new(0), page(0))?;
    agree!(seen, write_refused(A, 0, FaultReason::NoWrite), "a device that writes to page 0");
    Ok(())
}

/// Everything below 4 GiB is reserved, except the interrupt range and 16 pages on each side.
fn interrupt_range(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let (first, end) = (0xfee00, 0xfef00);
    let reserved = [
        IovaRange::new(1, first - 16 - 1).expect("a range"),
        IovaRange::new(end + 16, (1 << 20) - end - 16).expect("a range"),
    ];
    let config = DomainConfig { address_bits: 32, reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
    let space = driven.open_with::<Stock>(&config)?;
    space.domain.attach(A)?;
    let taken = fill(&space)?;
    agree!(taken.len(), 31, "pages beside the range, without the window");
    agree!(taken.iter().all(|pfn| !(first..end).contains(pfn)), true, "none is in the range: {taken:x?}");
    for pfn in &taken {
        agree!(driven.write(A, Iova::from_pfn(*pfn), page(0))?, Seen::Landed, "page {pfn:#x}");
    }
    Ok(())
}

fn firmware(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let reserved = [IovaRange::new(0x10, 0x20).expect("a range"), IovaRange::new(0xf8, 8).expect("a range")];
    let space = small::<Stock>(&driven, &reserved)?;
    let taken = fill(&space)?;
    agree!(taken.len(), 256 - 1 - 0x20 - 8 - 1, "pages but for page 0, the regions and the window");
    let inside = taken.iter().filter(|pfn| reserved.iter().any(|range| range.contains(**pfn))).count();
    agree!(inside, 0, "pages in a region");
    let seen = driven.write(A, Iova::from_pfn(0x10), page(0))?;
    agree!(seen, write_refused(A, 0x10 << 12, FaultReason::NoWrite), "a device that writes to a region");
    Ok(())
}

/// Reserved pages are left out of the identity map, and devices do not reach them.
fn identity(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let region = IovaRange::new(page(5).pfn(), 3).expect("a range");
    let config = DomainConfig { reserved: &[region], memory: &[MEMORY], ..DomainConfig::new(Protection::None) };
    let space = driven.open_with::<Static>(&config)?;
    space.domain.attach(A)?;
    for index in 3..10 {
        let iova = Iova::new(page(index).as_u64());
        let refused = write_refused(A, iova.as_u64(), FaultReason::NoWrite);
        let expected = if (5..8).contains(&index) { refused } else { Seen::Landed };
        agree!(driven.write(A, iova, page(index))?, expected, "page {index}");
    }
    let refused = space.try_map(page(6), PAGE_SIZE, BOTH);
    agree!(refused, Err(MapError::Reserved(Iova::new(page(6).as_u64())).into()), "mapping a reserved page");
    Ok(())
}

fn exhausted(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = small::<Stock>(&driven, &[])?;
    let taken = fill(&space)?;
    let before = space.domain.usage();
    let refused = space.try_map(page(1), PAGE_SIZE, BOTH);
    agree!(refused, Err(MapError::Exhausted { pages: 1, limit_bits: 20 }.into()), "one more");
    agree!(space.domain.usage(), before, "what is in use");
    for pfn in taken.iter().step_by(50) {
        agree!(driven.write(A, Iova::from_pfn(*pfn), page(0))?, Seen::Landed, "page {pfn:#x}");
    }
    Ok(())
}

fn recovers(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let space = small::<Stock>(&driven, &[])?;
    let taken = fill(&space)?;
    let given = Iova::from_pfn(*taken.iter().nth(100).expect("more than 100 pages"));
    agree!(driven.write(A, given, page(0))?, Seen::Landed, "a page");
    space.domain.unmap_raw(given, PAGE_SIZE)?;
    let again = space.map(page(3), PAGE_SIZE, BOTH)?;
    agree!(again, given, "the one address that is free");
    agree!(driven.write(A, again, page(3))?, Seen::Landed, "where it leads now");
    Ok(())
}

fn narrow_device(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    let config = DomainConfig { address_bits: 24, ..DomainConfig::new(Protection::Strict) };
    let space = driven.open_with::<Magazine>(&config)?;
    space.domain.attach(A)?;
    for index in 0..10 {
        let iova = space.map(page(index), 3 * PAGE_SIZE, BOTH)?;
        agree!(iova.as_u64() + 3 * PAGE_SIZE <= 1 << 24, true, "{iova} is within 24 bits");
        agree!(driven.write(A, iova, page(index))?, Seen::Landed, "page {index}");
    }
    Ok(())
}

/// A domain that could use 48 bits, over a unit with 39 bits.
fn narrow_unit(stage: &Stage) -> Checked {
    let driven = stage.driven()?;
    // No address below 4 GiB is left.
    let reserved = [IovaRange::new(1, (1 << 20) - 1).expect("a range")];
    let config = DomainConfig { reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
    let space = driven.open_with::<Stock>(&config)?;
    space.domain.attach(A)?;
    let iova = space.map(page(0), PAGE_SIZE, BOTH)?;
    agree!((1 << 32..1 << 39).contains(&iova.as_u64()), true, "{iova} is within 39 bits");
    agree!(driven.write(A, iova, page(0))?, Seen::Landed, "a write");
    let beyond = space.try_map(PhysAddr::new(1 << 60), PAGE_SIZE, BOTH);
    agree!(beyond, Err(MapError::PhysicalRange(PhysAddr::new(1 << 60)).into()), "memory that no entry can name");
    Ok(())
}
