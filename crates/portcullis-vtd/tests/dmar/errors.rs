//! Tables that are refused, and the place that each error names.

use super::tables::{SERVER, patched, table};
use portcullis::IovaRange;
use portcullis_vtd::dmar::{Dmar, DmarError};

fn refused(bytes: &[u8]) -> DmarError {
    Dmar::parse(bytes).expect_err("a bad table")
}

/// The error for the server's table with other bytes at `offset`.
fn with(offset: usize, bytes: &[u8]) -> DmarError {
    refused(&patched(&SERVER, &[(offset, bytes)]))
}

fn truncated(offset: usize, part: &'static str, expected: usize, found: usize) -> DmarError {
    DmarError::Truncated { offset, part, expected, found }
}

fn short(offset: usize, part: &'static str, least: usize, found: usize) -> DmarError {
    DmarError::Length { offset, part, least, found }
}

#[test]
fn the_header_must_be_whole_and_right() {
    assert_eq!(refused(&[]), truncated(0, "the table", 4, 0));
    assert_eq!(refused(&SERVER[..7]), truncated(4, "the table", 4, 3));
    assert_eq!(refused(&SERVER[..284]), truncated(0, "the table", 285, 284));
    assert_eq!(with(0, b"APIC"), DmarError::Signature(*b"APIC"));
    assert_eq!(with(4, &47u32.to_le_bytes()), short(4, "the table", 48, 47));
    assert_eq!(with(4, &0u32.to_le_bytes()), short(4, "the table", 48, 0));
    assert_eq!(with(4, &u32::MAX.to_le_bytes()), truncated(0, "the table", 0xffff_ffff, 285));
    let mut bytes = SERVER;
    bytes[200] = bytes[200].wrapping_add(3);
    assert_eq!(refused(&bytes), DmarError::Checksum(3));
    assert_eq!(with(36, &[52]), DmarError::AddressWidth(53));
    assert_eq!(with(36, &[255]), DmarError::AddressWidth(256));
    assert_eq!(Dmar::parse(&patched(&SERVER, &[(36, &[51])])).map(|dmar| dmar.host_address_bits()), Ok(52));
}

#[test]
fn structures_must_be_as_long_as_their_fields() {
    // Offset of the length, name of the structure, and bytes of its fields.
    for (offset, part, least) in [
        (50, "a DRHD", 16),
        (132, "an RMRR", 24),
        (196, "an ATSR", 8),
        (212, "an RHSA", 20),
        (232, "a remapping structure", 4),
        (238, "an ANDD", 9),
        (255, "a SATC", 8),
        (271, "a SIDP", 8),
    ] {
        // Without its own first fields no structure can be skipped.
        for found in [0, 1, 3] {
            assert_eq!(with(offset, &(found as u16).to_le_bytes()), short(offset - 2, part, least, found));
        }
        if offset <= 132 {
            let found = least - 1;
            assert_eq!(with(offset, &(found as u16).to_le_bytes()), short(offset - 2, part, least, found));
        }
        let left = 285 - (offset - 2);
        assert_eq!(with(offset, &[0xff, 0xff]), truncated(offset - 2, part, 0xffff, left), "{part}");
    }
    // Another structure begins after the last one.
    let cut = table(&[SERVER[98..130].to_vec(), vec![0, 0]]);
    assert_eq!(refused(&cut), truncated(82, "a remapping structure", 2, 0));
}

#[test]
fn scopes_must_stay_in_their_structure() {
    const PART: &str = "a device scope";
    assert_eq!(with(65, &[0]), short(64, PART, 8, 0));
    assert_eq!(with(65, &[6]), short(64, PART, 8, 6), "no path");
    // The last scope of the first unit extends into the second unit.
    assert_eq!(with(91, &[9]), truncated(90, PART, 9, 8));
    assert_eq!(with(91, &[0xfe]), truncated(90, PART, 254, 8));
    assert_eq!(with(81, &[9]), DmarError::OddPath { offset: 80, found: 9 });
    let one_byte = [&SERVER[98..100], &[17, 0], &SERVER[102..115]].concat();
    assert_eq!(refused(&table(&[one_byte])), truncated(64, PART, 2, 1));
}

#[test]
fn hops_must_be_functions() {
    assert_eq!(with(70, &[0x20, 0]), DmarError::Hop { offset: 70, device: 0x20, function: 0 });
    assert_eq!(with(88, &[0, 8]), DmarError::Hop { offset: 88, device: 0, function: 8 });
    // In a scope of unknown kind, the meaning of these bytes is unknown too.
    assert!(Dmar::parse(&patched(&SERVER, &[(64, &[9]), (70, &[0xff, 0xff])])).is_ok());
}

#[test]
fn addresses_must_be_addresses() {
    assert_eq!(with(56, &[0; 8]), DmarError::RegisterBase { offset: 56, base: 0 });
    assert_eq!(with(56, &[0x10]), DmarError::RegisterBase { offset: 56, base: 0xd_137f_c010 });
}

/// The table with these bytes at these offsets, its one warning, and how many structures are left of nine.
fn warned(patches: &[(usize, &[u8])], warning: DmarError, left: usize) -> Vec<u8> {
    let bytes = patched(&SERVER, patches);
    let dmar = Dmar::parse(&bytes).expect("a table with a mistake that does not matter");
    assert_eq!(dmar.warnings().collect::<Vec<_>>(), [warning]);
    assert_eq!((dmar.structures().count(), dmar.units().count()), (left, 2), "{warning}");
    bytes
}

#[test]
fn a_hint_that_is_wrong_is_skipped_with_a_warning() {
    assert_eq!(Dmar::parse(&SERVER).unwrap().warnings().count(), 0);
    for base in [0, 0xd_137f_c001u64] {
        warned(&[(218, &base.to_le_bytes())], DmarError::RegisterBase { offset: 218, base }, 8);
    }
    warned(&[(252, b"1")], DmarError::Name { offset: 244 }, 8);
    // An ATSR, a SATC and a SIDP of wrong devices.
    for scope in [202, 261, 277] {
        warned(&[(scope + 6, &[0x20])], DmarError::Hop { offset: scope + 6, device: 0x20, function: 0 }, 8);
    }
    // An RHSA of 16 bytes. The four behind it are a structure of an unknown type.
    let cut: [(usize, &[u8]); 2] = [(212, &[16]), (226, &[0x20, 0, 4, 0])];
    warned(&cut, short(210, "an RHSA", 20, 16), 8);
}

#[test]
fn a_reserved_region_of_odd_ends_is_taken_as_its_pages() {
    let range_of = |bytes: &[u8]| Dmar::parse(bytes).unwrap().reserved_regions().next().unwrap().range;
    let inside = warned(&[(138, &[0x01])], DmarError::RegionBase { offset: 138, base: 0x7b80_0001 }, 9);
    assert_eq!(range_of(&inside), IovaRange::new(0x7b800, 32).unwrap());
    let base = 0x7b80_0000;
    for limit in [0, base - 1] {
        let error = DmarError::RegionLimit { offset: 146, base, limit };
        let gone = warned(&[(146, &limit.to_le_bytes())], error, 8);
        assert_eq!(range_of(&gone).first_pfn(), 0x7c000, "the other region");
    }
    for limit in [1 << 52, u64::MAX] {
        let error = DmarError::RegionLimit { offset: 146, base, limit };
        let clipped = warned(&[(146, &limit.to_le_bytes())], error, 9);
        assert_eq!((range_of(&clipped).first_pfn(), range_of(&clipped).end_pfn()), (0x7b800, 1 << 40));
    }
    let (base, limit) = (1 << 52, u64::MAX);
    let beyond: [(usize, &[u8]); 2] = [(138, &1u64.wrapping_shl(52).to_le_bytes()), (146, &[0xff; 8])];
    warned(&beyond, DmarError::RegionLimit { offset: 146, base, limit }, 8);
}

#[test]
fn errors_say_where_and_what_was_expected() {
    for (error, message) in [
        (with(65, &[6]), "DMAR byte 64: a device scope of 6 bytes, expected at least 8"),
        (with(91, &[9]), "DMAR byte 90: expected 9 bytes of a device scope, found 8"),
        (with(0, b"\xff\0\"R"), "DMAR byte 0: signature \"\\xff\\x00\\\"R\", expected \"DMAR\""),
        (with(36, &[63]), "DMAR byte 36: physical addresses of 64 bits, expected at most 52"),
        (with(70, &[0x20]), "DMAR byte 70: device 0x20 function 0x0, expected at most 0x1f and 7"),
    ] {
        assert_eq!(error.to_string(), message);
    }
}
