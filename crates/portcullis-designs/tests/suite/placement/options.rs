//! The options of a request, one by one, through each interface that takes them.

use super::{ANYWHERE, BELOW_4_GIB, Bench, DEVICE, Page, at, each, each_that_chooses};
use crate::raw_face::RawFace;
use portcullis::domain::Mapping;
use portcullis::table::Rights;
use portcullis::{
    Access, Iova, Lifetime, MapError, MapOptions, PAGE_SIZE, PhysAddr, Protection, RawMapError, Segment, Stream,
};
use portcullis_designs::DesignId;

fn page(pfn: u64) -> Page {
    Page(Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE })
}

/// Maps through the typed interface.
fn typed(bench: &Bench, buffer: Page, options: &MapOptions) -> Mapping<Page> {
    let mapped = bench.domain.map_with(buffer, Access::DeviceReads, options);
    mapped.unwrap_or_else(|failure| panic!("{}: {options:?}: {}", bench.name(), failure.error()))
}

/// Designs that cannot choose addresses accept it as well.
#[test]
fn a_boundary_beyond_all_addresses_is_no_demand() {
    each(|mut bench| {
        for (pages, boundary) in [(1, 1 << 48), (3, 1 << 48), (3, 1 << 63)] {
            let options = MapOptions { boundary: Some(boundary), ..MapOptions::default() };
            bench.map(PhysAddr::new(0x2_0000_0000), pages * PAGE_SIZE, &options).expect("any address will do");
        }
        bench.end();
    });
}

#[test]
fn an_address_on_the_wrong_side_of_a_boundary_is_told_so() {
    each_that_chooses(|mut bench| {
        let name = bench.name();
        let options = MapOptions { boundary: Some(1 << 14), ..at(0x2_3000) };
        let crosses = MapError::CrossesBoundary { len: 2 * PAGE_SIZE, boundary: 1 << 14 };
        let refused = bench.map(PhysAddr::new(0), 2 * PAGE_SIZE, &options).map(|placed| placed.iova);
        assert_eq!(refused, Err(crosses), "{name}");
        bench
            .map(PhysAddr::new(0), 2 * PAGE_SIZE, &MapOptions { at: Some(Iova::new(0x2_2000)), ..options })
            .expect(&name);
        bench.end();
    });
}

/// Under `portcullis`, any address may be requested, except those of the tables that hold its chunks.
#[test]
fn what_chunks_hold_cannot_be_placed() {
    for protection in [Protection::Strict, Protection::Deferred] {
        let mut bench = Bench::new(DesignId::Portcullis, protection, 48);
        let half = 1 << 47;
        let table = 512 * PAGE_SIZE;
        let across = bench.map(PhysAddr::new(0), 2 * PAGE_SIZE, &at(half - PAGE_SIZE)).expect("across both halves");
        let streamed = bench.map(PhysAddr::new(0), PAGE_SIZE, &MapOptions::default()).expect("room");
        assert_eq!(streamed.iova.as_u64(), half + table, "the first table has a page that was placed");
        let refused = bench.map(PhysAddr::new(0), PAGE_SIZE, &at(half + table + 9 * PAGE_SIZE));
        assert_eq!(refused.err(), Some(MapError::Overlap(Iova::new(half + table + 9 * PAGE_SIZE))));
        bench.map(PhysAddr::new(0), PAGE_SIZE, &at(half + PAGE_SIZE)).expect("beside the first");
        assert_eq!(bench.mapped.iter().position(|mapped| mapped.iova == across.iova), Some(0));
        bench.end();
    }
}

/// Once nothing is mapped in a table of chunks, its addresses can be requested, and chunks go on elsewhere.
#[test]
fn what_chunks_do_not_need_can_be_placed() {
    for protection in [Protection::Strict, Protection::Deferred] {
        let mut bench = Bench::new(DesignId::Portcullis, protection, 48);
        let iova = bench.map(PhysAddr::new(0), PAGE_SIZE, &MapOptions::default()).expect("room").iova;
        bench.unmap(0);
        bench.map(PhysAddr::new(0), PAGE_SIZE, &at(iova.as_u64())).expect("it is free");
        bench.map(PhysAddr::new(0), PAGE_SIZE, &MapOptions::default()).expect("another table");
        bench.end();
    }
}

/// Registers of another device, mapped at their physical address. Firmware does not reserve them.
#[test]
fn doorbells_are_mapped_at_their_own_address() {
    each_that_chooses(|mut bench| {
        let doorbells = [0xe000_1000, 0xfed0_0000, 0x3f_c000_2000];
        for doorbell in doorbells {
            bench.map(PhysAddr::new(doorbell), PAGE_SIZE, &at(doorbell)).expect("it is free");
        }
        // Other maps and unmaps do not change them.
        for number in 0..100 {
            bench.map(PhysAddr::from_pfn(0x40_0000 + number), PAGE_SIZE, &MapOptions::default()).expect("room");
        }
        while bench.mapped.len() > doorbells.len() {
            bench.unmap(bench.mapped.len() - 1);
        }
        bench.mapped.iter().for_each(|doorbell| bench.look(*doorbell));
        // An unmapped doorbell is unreachable under any protection, and may be mapped again.
        bench.unmap(0);
        bench.map(PhysAddr::new(doorbells[0]), PAGE_SIZE, &at(doorbells[0])).expect("it is free again");
        bench.end();
    });
}

#[test]
fn the_typed_face_takes_all_of_them() {
    each_that_chooses(|bench| {
        if bench.domain.protection() != Protection::Strict {
            let failure = bench.domain.map_with(page(1), Access::DeviceReads, &BELOW_4_GIB).expect_err("not strict");
            assert_eq!(failure.error(), MapError::NotStrict.into());
            return bench.end();
        }
        let long = |pfn| Page(Segment { phys: PhysAddr::from_pfn(pfn), len: 3 * PAGE_SIZE });
        let limited = typed(&bench, page(0x20_0000), &BELOW_4_GIB);
        assert!(limited.iova().as_u64() <= BELOW_4_GIB.limit);
        let aligned = typed(&bench, page(0x20_0010), &MapOptions { alignment: 1 << 16, ..ANYWHERE });
        assert_eq!(aligned.iova().as_u64() % (1 << 16), 0);
        let mut mappings = vec![limited, aligned];
        for number in 0..8 {
            let within =
                typed(&bench, long(0x20_0100 + number * 16), &MapOptions { boundary: Some(1 << 14), ..ANYWHERE });
            let pages = (within.range().first_pfn(), within.range().end_pfn() - 1);
            assert_eq!(pages.0 / 4, pages.1 / 4, "{}: {within:?}", bench.name());
            mappings.push(within);
        }
        let fixed = typed(&bench, long(0x20_0200), &at(0x12_3000));
        assert_eq!(fixed.iova(), Iova::new(0x12_3000));
        let taken = bench.domain.map_with(page(0x20_0300), Access::DeviceReads, &at(0x12_4000)).expect_err("in use");
        assert_eq!(taken.error(), RawMapError::Refused(MapError::Overlap(Iova::new(0x12_4000))), "{}", bench.name());
        mappings.push(fixed);
        for mapping in mappings {
            let iova = mapping.iova();
            assert!(bench.iommu.access(DEVICE, iova, Rights::READ).is_some(), "{}: {mapping:?}", bench.name());
            assert_eq!(bench.iommu.access(DEVICE, iova, Rights::WRITE), None, "{}: {mapping:?}", bench.name());
            bench.domain.unmap(mapping).expect("mapped");
            assert_eq!(bench.iommu.access(DEVICE, iova, Rights::READ), None, "{}", bench.name());
        }
        bench.end();
    });
}

/// `portcullis` places transient mappings in the upper half and persistent ones in the lower half.
#[test]
fn a_lifetime_has_its_half() {
    let bench = Bench::new(DesignId::Portcullis, Protection::Strict, 48);
    for (lifetime, is_above) in [(Lifetime::Transient, true), (Lifetime::Persistent, false)] {
        let options = MapOptions { lifetime, ..MapOptions::default() };
        let mapping = typed(&bench, page(0x20_0000), &options);
        assert_eq!(mapping.iova().as_u64() >> 47 == 1, is_above, "{lifetime:?}");
        let raw = bench.domain.raw_map_with(PhysAddr::new(0x5000), PAGE_SIZE, Access::DeviceReads, &options).unwrap();
        assert_eq!(raw.as_u64() >> 47 == 1, is_above, "{lifetime:?}");
        bench.domain.unmap(mapping).unwrap();
        bench.domain.unmap_raw(raw, PAGE_SIZE).unwrap();
    }
    bench.end();
}

/// `fast-and-safe` gives each ring adjacent pages, through the raw and the typed interface.
#[test]
fn a_stream_has_its_window() {
    let bench = Bench::new(DesignId::FastAndSafe, Protection::Strict, 48);
    let stream = |ring| MapOptions { stream: Stream(Some(ring)), ..MapOptions::default() };
    let mut mappings = Vec::new();
    let mut next = [None::<u64>; 3];
    for round in 0..4 {
        for ring in 0..3 {
            let (options, pfn) = (stream(ring), 0x20_0000 + round * 16 + u64::from(ring));
            let got = match ring {
                0 => {
                    let mapping = typed(&bench, page(pfn), &options);
                    let pfn = mapping.range().first_pfn();
                    mappings.push(mapping);
                    pfn
                }
                1 => {
                    let phys = PhysAddr::from_pfn(pfn);
                    bench.domain.raw_map_with(phys, PAGE_SIZE, Access::DeviceReads, &options).unwrap().pfn()
                }
                _ => {
                    // SAFETY: no memory is behind the IOMMU.
                    let list = unsafe { bench.domain.map_list([page(pfn).0], Access::DeviceReads, &options) };
                    list.unwrap().first_pfn()
                }
            };
            let expected = next[ring as usize].replace(got + 1).unwrap_or(got);
            assert_eq!(got, expected, "ring {ring} continues in its window");
        }
    }
    for mapping in mappings {
        bench.domain.unmap(mapping).unwrap();
    }
    for end in next[1..].iter().flatten() {
        for pfn in end - 4..*end {
            bench.domain.unmap_raw(Iova::from_pfn(pfn), PAGE_SIZE).unwrap();
        }
    }
    bench.end();
}
