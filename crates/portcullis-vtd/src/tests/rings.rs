//! Units whose devices may use rings. No VT-d unit supports rings.

use super::domains::{TABLES, drained};
use super::fake_unit::*;
use super::host::Host;
use super::units::join;
use super::{bring_up, finish, open, without_waits};
use crate::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use crate::spec::registers::{Capability, ExtendedCapability};
use crate::spec::tables::{ContextEntry, TranslationType};
use portcullis::iommu::{AttachError, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis::{Iova, PhysAddr};

/// The extended capabilities of a unit with rings.
const WITH_RINGS: ExtendedCapability = ExtendedCapability(EXTENDED.0 | 1 << 63);
const RINGS: Translation = Translation::Rings { device: PhysAddr::new(0x7000) };
const DEVICE: SourceId = SourceId::new(1, 3, 0);
/// The first address of ring 3.
const RING: Iova = Iova::new(3 << 48);
/// All pages of a ring.
const MASK: u8 = 36;

#[test]
fn a_unit_has_rings_if_its_register_says_so() {
    let host = Host::new(true);
    let fakes = [EXTENDED, WITH_RINGS, WITH_RINGS].map(|it| FakeUnit::with_capabilities(&host, CAPABILITY, it));
    let units = fakes.each_ref().map(|fake| bring_up(fake, &host));
    let (without, with) = (&units[0], &units[1]);
    assert!(with.capabilities().rings && !without.capabilities().rings);
    assert_eq!(open(with, RINGS), Ok(DomainId(1)));
    assert_eq!(open(without, RINGS), Err(AttachError::Unsupported));
    assert_eq!(open(without, TABLES), Ok(DomainId(1)), "a refused domain takes no id");

    let (mixed, alike) = (join(&units[..2], &host), join(&units[1..], &host));
    assert!(alike.capabilities().rings && !mixed.capabilities().rings, "joined units have rings if each has them");
    assert!(open(&alike, RINGS).is_ok());
    assert_eq!(open(&mixed, RINGS), Err(AttachError::Unsupported));
}

#[test]
fn a_table_of_rings_begins_with_a_page() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY, WITH_RINGS);
    let unit = bring_up(&fake, &host);
    for inside in [8, 16, 0xff0] {
        let device = PhysAddr::new(0x7000 + inside);
        assert_eq!(open(&unit, Translation::Rings { device }), Err(AttachError::Unsupported));
    }
}

#[test]
fn a_device_reaches_its_rings_and_then_nothing() {
    for (sagaw, levels, width) in [(0b00010, 3, 1), (0b00110, 4, 2), (0b01110, 5, 3)] {
        let host = Host::new(false);
        let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_sagaw(sagaw), WITH_RINGS);
        let unit = bring_up(&fake, &host);
        let domain = open(&unit, RINGS).expect("an id");
        unit.attach(domain, DEVICE).expect("a free device");
        let entry = ContextEntry {
            faults_disabled: false,
            translation_type: TranslationType::Rings,
            table: PhysAddr::new(0x7000),
            levels,
            domain,
        };
        assert_eq!(fake.context(DEVICE), Some(entry));
        // Type 3 in bits 3:2, and the entry is present.
        assert_eq!(entry.encode(), [0x700d, u64::from(domain.0) << 8 | width]);
        assert_eq!(fake.take_executed(), [], "nothing absent is cached, so an attach flushes nothing");

        unit.detach(domain, DEVICE).expect("an attached device");
        assert_eq!(fake.context(DEVICE), None);
        assert!(
            fake.take_executed().contains(&drained(IotlbScope::Domain(domain))),
            "cached entries of rings are dropped too"
        );
    }
}

/// The descriptors that are executed for a page-selective command of this mask from `first` on.
fn executed(
    capability: Capability,
    extended: ExtendedCapability,
    (first, mask): (Iova, u8),
) -> Vec<InvalidationDescriptor> {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, capability, extended);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, TABLES).expect("an id");
    let command = Invalidation::Pages { domain, first, mask, leaf_only: true };
    let ticket = unit.submit(&[command]).expect("an aligned command");
    finish(&unit, &host, ticket).expect("it is prompt");
    let alone = without_waits(fake.take_executed());
    let ticket = unit.submit_shared(&[command]).expect("an aligned command");
    finish(&unit, &host, ticket).expect("it is prompt");
    assert_eq!(without_waits(fake.take_executed()), alone, "shared or not");
    alone
}

#[test]
fn a_ring_is_invalidated_whole_and_alone() {
    let domain = DomainId(1);
    let ring = |first| drained(IotlbScope::Pages { domain, first, mask: MASK, leaf_only: true });
    let all = drained(IotlbScope::Domain(domain));
    assert!(CAPABILITY.mamv() < MASK, "as pages these are too many");
    let last = Iova::new(0xffff << 48);
    for first in [Iova::new(1 << 48), RING, last] {
        assert_eq!(executed(CAPABILITY, WITH_RINGS, (first, MASK)), [ring(first)]);
        assert_eq!(executed(CAPABILITY.with_mamv(0), WITH_RINGS, (first, MASK)), [ring(first)]);
    }
    // There is no ring 0, so these addresses are pages.
    assert_eq!(executed(CAPABILITY, WITH_RINGS, (Iova::new(0), MASK)), [all]);
    // A run that is larger or smaller than a ring also counts as pages, and these are too many.
    assert_eq!(executed(CAPABILITY, WITH_RINGS, (RING, MASK - 1)), [all]);
    assert_eq!(executed(CAPABILITY, WITH_RINGS, (Iova::new(2 << 48), MASK + 1)), [all]);
    assert_eq!(executed(CAPABILITY.with_psi(false), WITH_RINGS, (RING, MASK)), [all]);
    assert_eq!(executed(CAPABILITY, EXTENDED, (RING, MASK)), [all], "there are no rings");
}

/// For an address in the middle of a ring, hardware would invalidate a different ring.
#[test]
fn a_command_from_the_middle_of_a_ring_is_refused() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY, WITH_RINGS);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, RINGS).expect("an id");
    let first = Iova::new(RING.as_u64() + (1 << 30));
    let command = Invalidation::Pages { domain, first, mask: MASK, leaf_only: true };
    assert_eq!(unit.submit(&[command]).err(), Some(QueueError::Unsupported));
    assert_eq!(fake.take_executed(), []);
}
