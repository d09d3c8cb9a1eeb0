//! The DMAR table: what is read from literal bytes, which devices each unit serves, and which tables are refused.

mod errors;
mod properties;
mod tables;

use portcullis::iommu::SourceId;
use portcullis::{IovaRange, PhysAddr};
use portcullis_vtd::dmar::{Dmar, Drhd, ScopeKind, Structure};
use tables::{QEMU, SERVER, buses, patched, pci, table};

fn server() -> Dmar<'static> {
    Dmar::parse(&SERVER).unwrap()
}

#[test]
fn the_server_is_read() {
    let dmar = server();
    assert_eq!(dmar.host_address_bits(), 46);
    assert!(dmar.interrupt_remapping() && dmar.dma_opt_in() && !dmar.x2apic_opt_out());
    let structures: Vec<_> = dmar.structures().collect();
    let [
        Structure::Drhd(first),
        Structure::Drhd(others),
        Structure::Rmrr(usb),
        Structure::Rmrr(graphics),
        Structure::Atsr(ports),
        Structure::Rhsa(near),
        Structure::Andd(named),
        Structure::Satc(caching),
        Structure::Sidp(properties),
    ] = structures[..]
    else {
        panic!("{structures:?}")
    };
    assert_eq!((first.include_all, first.segment), (false, 0));
    assert_eq!((first.register_base, first.register_bytes), (PhysAddr::new(0xd_137f_c000), 4096));
    let scopes: Vec<_> = first.scopes.iter().collect();
    assert_eq!(
        scopes.iter().map(|scope| (scope.kind, scope.enumeration_id, scope.start_bus, scope.path)).collect::<Vec<_>>(),
        [
            (ScopeKind::Endpoint, 0, 0, &[[0x14, 0]][..]),
            (ScopeKind::Bridge, 0, 0, &[[0x1c, 0]]),
            (ScopeKind::Endpoint, 0, 0, &[[1, 0], [0, 2]]),
            (ScopeKind::Namespace, 2, 0, &[[0x1e, 0]]),
        ]
    );
    assert_eq!((others.include_all, others.register_base.as_u64(), others.register_bytes), (true, 0xfed9_1000, 8192));
    let scopes: Vec<_> =
        others.scopes.iter().map(|scope| (scope.kind, scope.enumeration_id, scope.source(buses))).collect();
    assert_eq!(
        scopes,
        [(ScopeKind::IoApic, 8, Some(pci(0xf0, 0x1f, 0))), (ScopeKind::Hpet, 0, Some(pci(0xf0, 0x0f, 0))),]
    );
    assert_eq!((usb.segment, usb.range), (0, IovaRange::new(0x7b800, 32).unwrap()));
    assert_eq!((graphics.base(), graphics.bytes()), (PhysAddr::new(0x7c00_0000), 64 << 20));
    assert_eq!((ports.all_ports, ports.segment, ports.scopes.iter().count()), (false, 0, 1));
    assert_eq!((near.register_base, near.proximity_domain), (first.register_base, 1));
    assert_eq!((named.number, named.name), (2, c"\\_SB.UA0"));
    assert_eq!((caching.required, caching.segment, caching.scopes.iter().count()), (true, 0, 1));
    assert_eq!(properties.segment, 0);
    assert_eq!(properties.scopes.iter().map(|scope| scope.flags).collect::<Vec<_>>(), [3]);
}

#[test]
fn qemu_is_read() {
    let dmar = Dmar::parse(&QEMU).unwrap();
    assert_eq!(dmar.host_address_bits(), 48);
    assert!(dmar.interrupt_remapping() && !dmar.dma_opt_in() && !dmar.x2apic_opt_out());
    let units: Vec<_> = dmar.units().collect();
    let [unit] = units[..] else { panic!("{units:?}") };
    assert_eq!((unit.include_all, unit.segment, unit.register_base.as_u64()), (false, 0, 0xfed9_0000));
    let scopes: Vec<_> = unit.scopes.iter().map(|scope| (scope.kind, scope.source(|_| None).unwrap())).collect();
    assert_eq!(
        scopes,
        [
            (ScopeKind::IoApic, pci(0xff, 0, 0)),
            (ScopeKind::Endpoint, pci(0, 0, 0)),
            (ScopeKind::Endpoint, pci(0, 3, 0)),
            (ScopeKind::Endpoint, pci(0, 0x1f, 0)),
            (ScopeKind::Endpoint, pci(0, 0x1f, 2)),
            (ScopeKind::Endpoint, pci(0, 0x1f, 3)),
        ]
    );
    assert_eq!(dmar.unit_for(0, pci(0, 3, 0), |_| None), Some(unit));
    assert_eq!(dmar.unit_for(0, pci(0, 4, 0), |_| None), None, "no unit serves a device that is not listed");
    assert_eq!(dmar.unit_for(0, pci(0xff, 0, 0), |_| None), None, "an I/O APIC does no DMA");
    assert_eq!(dmar.reserved_regions().count(), 0);
}

/// The index of the unit that serves a device of the server.
fn place(source: SourceId, buses: impl Fn(SourceId) -> Option<std::ops::RangeInclusive<u8>>) -> Option<usize> {
    let dmar = server();
    let unit = dmar.unit_for(0, source, buses)?;
    dmar.units().position(|other| other == unit)
}

#[test]
fn a_device_has_the_unit_that_names_it_or_the_one_for_all() {
    for (source, expected) in [
        (pci(0, 0x14, 0), 0),
        (pci(0, 0x14, 1), 1), // another function
        (pci(0, 0x1c, 0), 0), // the bridge itself
        (pci(2, 0, 0), 0),
        (pci(4, 3, 1), 0), // two bridges further
        (pci(5, 0x1f, 7), 0),
        (pci(6, 0, 0), 1), // behind none of them
        (pci(1, 0, 2), 0), // named by a path
        (pci(1, 0, 0), 1),
        (pci(0, 1, 0), 1),    // the bridge on that path
        (pci(0, 0x1e, 0), 0), // the ACPI device
        (pci(0xf0, 0x1f, 0), 1),
    ] {
        assert_eq!(place(source, buses), Some(expected), "{source:x?}");
    }
    assert_eq!(server().unit_for(1, pci(0, 0x14, 0), buses), None, "no unit is on segment 1");
}

#[test]
fn a_unit_for_all_comes_last_wherever_it_stands() {
    let [named, all] = [SERVER[48..98].to_vec(), SERVER[98..130].to_vec()];
    let table = table(&[all, named]);
    let dmar = Dmar::parse(&table).unwrap();
    let base = |source| dmar.unit_for(0, source, buses).map(|unit: Drhd<'_>| unit.register_base.as_u64());
    assert_eq!(base(pci(0, 0x14, 0)), Some(0xd_137f_c000));
    assert_eq!(base(pci(0, 0x15, 0)), Some(0xfed9_1000));
}

#[test]
fn a_bridge_without_buses_has_nothing_behind_it() {
    // The bridge has no bus numbers yet: it shows bus 0, which is the bus that it is on.
    for buses in [None, Some(0..=0), Some(0..=255)] {
        let place = |source| place(source, |_| buses.clone());
        assert_eq!(place(pci(0, 0x1c, 0)), Some(0), "the bridge itself");
        assert_eq!([pci(0, 2, 0), pci(0, 0, 2), pci(2, 0, 0), pci(1, 0, 2)].map(place), [Some(1); 4]);
    }
}

#[test]
fn regions_are_those_of_the_device() {
    let dmar = server();
    let starts =
        |source| -> Vec<u64> { dmar.reserved_for(0, source, buses).map(|range| range.start().as_u64()).collect() };
    assert_eq!(starts(pci(0, 0x14, 0)), [0x7b80_0000]);
    assert_eq!(starts(pci(0, 2, 0)), [0x7c00_0000]);
    assert_eq!(starts(pci(0, 3, 0)), [0; 0]);
    assert_eq!(dmar.reserved_for(1, pci(0, 2, 0), buses).count(), 0, "another segment");
    assert_eq!(dmar.reserved_regions().count(), 2);
}

/// Regions of one device that are listed twice, that overlap, that touch and that do not.
#[test]
fn duplicates_of_a_region_are_one() {
    let region = |first: u64, pages: u64, device: u8| {
        let ends = [(first << 12).to_le_bytes(), (((first + pages) << 12) - 1).to_le_bytes()].concat();
        [&[1, 0, 32, 0, 0, 0, 0, 0], &ends[..], &[1, 8, 0, 0, 0, 0, device, 0]].concat()
    };
    let listed = [(50, 2), (10, 4), (10, 4), (12, 6), (18, 1), (30, 2), (20, 1)];
    let mut structures: Vec<_> = listed.iter().map(|&(first, pages)| region(first, pages, 0x14)).collect();
    structures.push(region(0, 1000, 0x15));
    let bytes = table(&structures);
    let dmar = Dmar::parse(&bytes).unwrap();
    let ranges: Vec<_> = dmar.reserved_for(0, pci(0, 0x14, 0), buses).collect();
    assert_eq!(
        ranges,
        [(10, 9), (20, 1), (30, 2), (50, 2)].map(|(first, pages)| IovaRange::new(first, pages).unwrap())
    );
    assert_eq!(dmar.reserved_regions().count(), 8, "each as firmware lists it");
}

/// A unit for 00:14.0, a bridge and others; with its scopes replaced, one for displays alone.
#[test]
fn a_unit_of_displays_alone_is_told_from_others() {
    let unit = |include_all: u8, scopes: &[(u8, u8)]| {
        let length = (16 + 8 * scopes.len()) as u8;
        let fields = [0, 0, length, 0, include_all, 0, 0, 0, 0, 0, 0xd9, 0xfe, 0, 0, 0, 0].to_vec();
        table(&[scopes
            .iter()
            .fold(fields, |fields, (kind, device)| [fields, vec![*kind, 8, 0, 0, 0, 0, *device, 0]].concat())])
    };
    let serves_only = |bytes: &[u8]| {
        let is_display = |source| match source {
            _ if source == pci(0, 2, 0) || source == pci(0, 3, 0) => Some(true),
            _ if source == pci(0, 9, 0) => None,
            _ => Some(false),
        };
        Dmar::parse(bytes).unwrap().units().next().unwrap().serves_only(buses, is_display)
    };
    assert!(serves_only(&unit(0, &[(1, 2)])));
    assert!(serves_only(&unit(0, &[(1, 2), (1, 3), (1, 9), (3, 0x1f)])), "what is absent, and an I/O APIC");
    assert!(!serves_only(&unit(0, &[(1, 2), (1, 0x14)])));
    assert!(!serves_only(&unit(0, &[(1, 2), (2, 0x1c)])), "a bridge");
    assert!(!serves_only(&unit(0, &[(1, 9)])), "nothing that is there");
    assert!(!serves_only(&unit(0, &[])));
    assert!(!serves_only(&unit(1, &[(1, 2)])), "all others too");
}

#[test]
fn a_limit_inside_a_page_takes_all_of_it() {
    // One byte; to the middle of the second page; up to the last possible address.
    for (base, limit, first, pages) in [
        (0x5000u64, 0x5000u64, 5, 1),
        (0x5000, 0x67ff, 5, 2),
        (0x5000, 0x6fff, 5, 2),
        ((1 << 52) - 4096, (1 << 52) - 1, (1 << 40) - 1, 1),
        (0, (1 << 52) - 1, 0, 1 << 40),
    ] {
        let table = patched(&SERVER, &[(138, &base.to_le_bytes()), (146, &limit.to_le_bytes())]);
        let region = Dmar::parse(&table).unwrap().reserved_regions().next().unwrap();
        assert_eq!((region.range.first_pfn(), region.range.pages()), (first, pages));
        assert_eq!((region.base().as_u64(), region.bytes()), (base, pages * 4096));
    }
}

#[test]
fn what_follows_the_table_is_left_alone() {
    let mut bytes = SERVER.to_vec();
    bytes.extend([0xff; 100]);
    assert_eq!(Dmar::parse(&bytes).unwrap().structures().count(), 9);
    let empty = table(&[]);
    let empty = Dmar::parse(&empty).unwrap();
    assert_eq!((empty.structures().count(), empty.unit_for(0, pci(0, 0, 0), buses)), (0, None));
}

#[test]
fn registers_have_a_power_of_two_of_pages() {
    for (size, bytes) in [(0x00, 4 << 10), (0x03, 32 << 10), (0x0f, 128 << 20), (0xf1, 8 << 10)] {
        let table = patched(&SERVER, &[(53, &[size])]);
        assert_eq!(Dmar::parse(&table).unwrap().units().next().unwrap().register_bytes, bytes);
    }
}
