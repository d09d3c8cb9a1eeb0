//! For all bytes: parsing does not panic, and what is read from a valid table is what was written.

use super::tables::{SERVER, add_up, buses, pci, table};
use portcullis::{IovaRange, PAGE_SIZE};
use portcullis_vtd::dmar::{DeviceScope, Dmar, DmarError, ScopeKind, Structure};
use proptest::collection::vec;
use proptest::prelude::*;

/// Calls every method on the bytes, and checks what holds for every table.
fn exercise(bytes: &[u8]) -> Result<(), DmarError> {
    let dmar = Dmar::parse(bytes).inspect_err(|error| assert!(!error.to_string().is_empty()))?;
    assert!((1..=52).contains(&dmar.host_address_bits()));
    assert!(dmar.warnings().all(|warning| !warning.to_string().is_empty()));
    let structures = dmar.structures().count();
    assert!(structures <= bytes.len() / 4);
    assert_eq!(dmar.units().count() + dmar.reserved_regions().count() + others(&dmar), structures);
    for unit in dmar.units() {
        assert!(unit.register_base.as_u64() != 0 && unit.register_base.page_offset() == 0);
        for scope in unit.scopes.iter() {
            assert!(!scope.path.is_empty());
            let named = scope.source(buses);
            // Two units may name the same device; then the first unit serves it.
            if matches!(scope.kind, ScopeKind::Endpoint | ScopeKind::Bridge | ScopeKind::Namespace)
                && let Some(source) = named
            {
                assert!(scope.covers(source, buses));
                let serving = dmar.unit_for(unit.segment, source, buses).expect("a unit names it");
                assert!(serving == unit || serving.scopes.cover(source, buses));
            }
        }
    }
    for region in dmar.reserved_regions() {
        assert!(region.bytes() >= PAGE_SIZE && region.base().as_u64() + region.bytes() <= 1 << 52);
        for source in region.scopes.iter().filter_map(|scope| scope.source(buses)) {
            let covered = region.scopes.cover(source, buses);
            let ranges: Vec<_> = dmar.reserved_for(region.segment, source, buses).collect();
            assert!(ranges.is_sorted_by(|one, next| one.end_pfn() < next.first_pfn()), "{ranges:?}");
            let is_in = |range: &IovaRange| {
                range.first_pfn() <= region.range.first_pfn() && region.range.end_pfn() <= range.end_pfn()
            };
            assert!(!covered || ranges.iter().any(is_in));
        }
    }
    Ok(())
}

fn others(dmar: &Dmar<'_>) -> usize {
    dmar.structures().filter(|structure| !matches!(structure, Structure::Drhd(_) | Structure::Rmrr(_))).count()
}

#[test]
fn every_byte_may_have_every_value() {
    let (mut sound, mut refused) = (0, 0);
    for offset in 0..SERVER.len() {
        for value in 0..=u8::MAX {
            let mut bytes = SERVER;
            bytes[offset] = value;
            add_up(&mut bytes);
            match exercise(&bytes) {
                Ok(()) => sound += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(sound > 10_000 && refused > 10_000, "{sound} sound and {refused} refused: too few to show anything");
}

#[test]
fn a_table_may_end_anywhere() {
    for length in 0..SERVER.len() {
        assert!(exercise(&SERVER[..length]).is_err());
        let mut bytes = SERVER[..length].to_vec();
        if length >= 8 {
            bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        }
        add_up(&mut bytes);
        // Only a cut between two structures leaves a complete table.
        let whole = [48, 98, 130, 162, 194, 210, 230, 236, 253, 269].contains(&length);
        assert_eq!(exercise(&bytes).is_ok(), whole, "{length}");
    }
}

/// A scope as a test writes it.
type Written = (u8, u8, u8, Vec<(u8, u8)>);

fn scopes() -> impl Strategy<Value = Vec<Written>> {
    let path = vec((0..0x20u8, 0..8u8), 1..5);
    vec((1..=5u8, any::<u8>(), 0..6u8, path), 0..4)
}

fn encode(scopes: &[Written]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, id, bus, path) in scopes {
        bytes.extend([*kind, 6 + 2 * path.len() as u8, 0, 0, *id, *bus]);
        path.iter().for_each(|(device, function)| bytes.extend([*device, *function]));
    }
    bytes
}

fn decode(scope: DeviceScope<'_>) -> Written {
    let kind = match scope.kind {
        ScopeKind::Endpoint => 1,
        ScopeKind::Bridge => 2,
        ScopeKind::IoApic => 3,
        ScopeKind::Hpet => 4,
        ScopeKind::Namespace => 5,
        _ => 0,
    };
    (kind, scope.enumeration_id, scope.start_bus, scope.path.iter().map(|hop| (hop[0], hop[1])).collect())
}

fn structure(kind: u16, fields: &[u8], scopes: &[Written]) -> Vec<u8> {
    let scopes = encode(scopes);
    let length = (4 + fields.len() + scopes.len()) as u16;
    [&kind.to_le_bytes()[..], &length.to_le_bytes(), fields, &scopes].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..200)) {
        let _ = exercise(&bytes);
    }

    /// After a valid header.
    #[test]
    fn any_structures(bytes in vec(prop_oneof![0..10u8, any::<u8>()], 0..200)) {
        let _ = exercise(&table(&[bytes]));
    }

    #[test]
    fn any_changes(changes in vec((4..SERVER.len(), prop_oneof![0..40u8, any::<u8>()]), 1..12), cut in 0..SERVER.len()) {
        let mut bytes = SERVER.to_vec();
        changes.iter().for_each(|(offset, value)| bytes[*offset] = *value);
        add_up(&mut bytes);
        let _ = exercise(&bytes);
        bytes.truncate(cut);
        let _ = exercise(&bytes);
    }

    #[test]
    fn what_was_written_is_read(
        units in vec((any::<bool>(), 0..16u8, any::<u16>(), 1..1u64 << 40, scopes()), 0..4),
        regions in vec((any::<u16>(), 0..1u64 << 39, 1..1u64 << 39, scopes()), 0..4),
        unknown in vec(any::<u8>(), 0..9),
    ) {
        let mut structures = Vec::new();
        for (include_all, size, segment, page, scopes) in &units {
            let base = (page * PAGE_SIZE).to_le_bytes();
            let fields = [&[u8::from(*include_all), *size], &segment.to_le_bytes()[..], &base].concat();
            structures.push(structure(0, &fields, scopes));
            structures.push(structure(7, &unknown, &[]));
        }
        for (segment, first, pages, scopes) in &regions {
            let (base, limit) = ((first * PAGE_SIZE).to_le_bytes(), ((first + pages) * PAGE_SIZE - 1).to_le_bytes());
            structures.push(structure(1, &[&[0, 0], &segment.to_le_bytes()[..], &base, &limit].concat(), scopes));
        }
        let bytes = table(&structures);
        prop_assert_eq!(exercise(&bytes), Ok(()));
        let dmar = Dmar::parse(&bytes).unwrap();
        let read: Vec<_> = dmar.units().map(|unit| (
            unit.include_all,
            (unit.register_bytes / PAGE_SIZE).ilog2() as u8,
            unit.segment,
            unit.register_base.as_u64() / PAGE_SIZE,
            unit.scopes.iter().map(decode).collect::<Vec<_>>(),
        )).collect();
        prop_assert_eq!(read, units);
        let read: Vec<_> = dmar.reserved_regions().map(|region| (
            region.segment,
            region.range.first_pfn(),
            region.range.pages(),
            region.scopes.iter().map(decode).collect::<Vec<_>>(),
        )).collect();
        prop_assert_eq!(read, regions);
    }
}

/// The longest path that fits into a scope leads through that many bridges, and no further.
#[test]
fn a_path_is_followed_to_its_end() {
    let path: Vec<_> = (0..124).map(|_| (0, 0)).collect();
    let unit = structure(0, &[0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0], &[(1, 0, 0, path)]);
    let bytes = table(&[unit]);
    let dmar = Dmar::parse(&bytes).unwrap();
    let asked = std::cell::Cell::new(0);
    let one_further = |bridge: portcullis::iommu::SourceId| {
        asked.set(asked.get() + 1);
        let bus = (bridge.requester() >> 8) as u8 + 1;
        Some(bus..=u8::MAX)
    };
    assert_eq!(dmar.units().next().unwrap().scopes.iter().next().unwrap().source(one_further), Some(pci(123, 0, 0)));
    assert_eq!(asked.get(), 123);
}
