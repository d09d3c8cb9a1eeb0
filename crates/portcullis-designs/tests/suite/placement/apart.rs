//! Mappings whose pages are unmapped one by one, in every order, while a device tries all of them.

use super::{ANYWHERE, Bench, CANNOT_CHOOSE, DEVICE, HIGH_REGION, REGION, each};
use portcullis::iommu::fake::Behaviour;
use portcullis::table::Rights;
use portcullis::{
    Access, Iova, MapError, MapOptions, PAGE_SIZE, PhysAddr, Protection, RawMapError, RawUnmapError, Segment,
    UnmapError,
};

const APART: MapOptions = MapOptions { apart: true, lifetime: portcullis::Lifetime::Transient, ..ANYWHERE };
/// Where every design that places can place.
const PLACE: u64 = 0x4_0000_0000;
/// The parts of a buffer that begins and ends inside pages, as bytes from its first.
const PARTS: [(u64, u64); 4] = [(0, 0xe00), (0xe00, 0x1000), (0x1e00, 0x1000), (0x2e00, 0x10)];
const PHYS: u64 = 0x9_1234_5200;
const LEN: u64 = 0x2e10;

/// All orders of four numbers.
fn orders() -> Vec<[usize; 4]> {
    let all = (0..256).map(|code: usize| [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6]);
    all.filter(|order| (0..4).all(|number| order.contains(&number))).collect()
}

/// Maps the buffer apart, if the design can.
fn map(bench: &Bench, options: &MapOptions) -> Result<Iova, RawMapError> {
    // SAFETY: the fake devices do no DMA.
    unsafe { bench.domain.map_raw_with(PhysAddr::new(PHYS), LEN, Access::DeviceWrites, options) }
}

/// Whether the device reaches each part, at its address.
fn reached(bench: &Bench, iova: Iova) -> [bool; 4] {
    PARTS.map(|(offset, len)| {
        let at = |more: u64| Iova::new(iova.as_u64() + offset + more);
        let ends = [0, len - 1].map(|more| bench.iommu.access(DEVICE, at(more), Rights::WRITE));
        let right = [0, len - 1].map(|more| Some(PhysAddr::new(PHYS + offset + more)));
        assert!(ends == right || ends == [None; 2], "{}: {ends:?}", bench.name());
        ends == right
    })
}

/// Unmaps the parts in every order. The device tries all of them after every step.
fn in_every_order(bench: &Bench, options: &MapOptions) {
    // An unmap that is deferred may leave its page within reach; a placed one never does.
    let is_strict = bench.domain.protection() == Protection::Strict || options.at.is_some();
    for order in orders() {
        let iova = map(bench, options).unwrap_or_else(|error| panic!("{}: {error}", bench.name()));
        assert_eq!(iova.page_offset(), PHYS % PAGE_SIZE);
        let mut left = [true; 4];
        assert_eq!(reached(bench, iova), left, "{} {order:?}", bench.name());
        // Together they are no mapping, at any time.
        assert!(matches!(bench.domain.unmap_raw(iova, LEN), Err(RawUnmapError::Refused(_))), "{}", bench.name());
        for part in order {
            let (offset, len) = PARTS[part];
            let at = Iova::new(iova.as_u64() + offset);
            bench.domain.unmap_raw(at, len).unwrap_or_else(|error| panic!("{} {order:?}: {error}", bench.name()));
            left[part] = false;
            if is_strict {
                assert_eq!(reached(bench, iova), left, "{} {order:?}: S2", bench.name());
            }
            let again = bench.domain.unmap_raw(at, len);
            let refused = RawUnmapError::Refused(UnmapError::NotMapped(Iova::from_pfn(at.pfn())));
            assert_eq!(again, Err(refused), "{} {order:?}", bench.name());
        }
    }
}

#[test]
fn apart_pages_unmap_in_every_order_where_the_design_chooses_the_address() {
    each(|bench| match map(&bench, &APART) {
        Ok(iova) => {
            assert_eq!(bench.domain.info().id, "portcullis", "say so in the documents");
            PARTS.iter().for_each(|(offset, len)| {
                bench.domain.unmap_raw(Iova::new(iova.as_u64() + offset), *len).expect("mapped");
            });
            in_every_order(&bench, &APART);
            // Its own error for more pages than it can find side by side.
            let much = Segment { phys: PhysAddr::new(PHYS & !0xfff), len: 4096 * PAGE_SIZE };
            // SAFETY: as above.
            let refused = unsafe { bench.domain.map_raw_with(much.phys, much.len, Access::DeviceWrites, &APART) };
            assert_eq!(refused, Err(RawMapError::Refused(MapError::NotApart)));
            bench.end();
        }
        Err(error) => {
            assert_eq!(error, RawMapError::Refused(MapError::NotApart), "{}", bench.name());
            assert_ne!(bench.domain.info().id, "portcullis");
            bench.end();
        }
    });
}

#[test]
fn apart_pages_unmap_in_every_order_at_an_address() {
    let options = MapOptions { at: Some(Iova::new(PLACE + PHYS % PAGE_SIZE)), ..APART };
    each(|bench| {
        let can = !CANNOT_CHOOSE.contains(&bench.domain.info().id) && bench.domain.info().id != "identity";
        match map(&bench, &options) {
            Ok(iova) => {
                PARTS.iter().for_each(|(offset, len)| {
                    bench.domain.unmap_raw(Iova::new(iova.as_u64() + offset), *len).expect("mapped");
                });
                in_every_order(&bench, &options);
            }
            Err(error) => {
                assert!(!can, "{}: {error}", bench.name());
                assert!(matches!(error, RawMapError::Refused(_)), "{}: {error}", bench.name());
            }
        }
        bench.end();
    });
}

/// VFIO maps a range and unmaps it in pieces; firmware's regions are at their own addresses.
#[test]
fn apart_works_in_reserved_regions_under_every_design() {
    for region in [REGION, HIGH_REGION] {
        each(|bench| {
            if bench.domain.info().physical_addresses() {
                return bench.end();
            }
            let at = Iova::new(region.phys.as_u64());
            let options = MapOptions { apart: true, ..MapOptions::fixed(at) };
            // SAFETY: as above.
            let mapped = unsafe { bench.domain.map_raw_with(region.phys, region.len, Access::DeviceWrites, &options) };
            assert_eq!(mapped, Ok(at), "{}", bench.name());
            let pages: Vec<u64> = (0..region.len / PAGE_SIZE).collect();
            for number in pages.iter().step_by(2).chain(pages.iter().skip(1).step_by(2)) {
                let at = Iova::new(at.as_u64() + number * PAGE_SIZE);
                assert!(bench.iommu.access(DEVICE, at, Rights::WRITE).is_some());
                bench.domain.unmap_raw(at, PAGE_SIZE).expect("mapped");
                assert_eq!(bench.iommu.access(DEVICE, at, Rights::WRITE), None, "{}: S2", bench.name());
            }
            bench.end();
        });
    }
}

#[test]
fn apart_maps_all_pages_or_none() {
    let options = MapOptions { at: Some(Iova::new(PLACE + PHYS % PAGE_SIZE)), ..APART };
    each(|bench| {
        // The third page is taken.
        let taken = MapOptions { at: Some(Iova::new(PLACE + 2 * PAGE_SIZE)), ..ANYWHERE };
        let other = PhysAddr::new(0x7_0000_0000);
        // SAFETY: as above.
        let Ok(iova) = (unsafe { bench.domain.map_raw_with(other, PAGE_SIZE, Access::DeviceReads, &taken) }) else {
            return bench.end();
        };
        let before = bench.domain.usage().live_ranges;
        let refused = map(&bench, &options).expect_err("a page is taken");
        assert!(matches!(refused, RawMapError::Refused(MapError::Overlap(_))), "{}: {refused}", bench.name());
        assert_eq!(bench.domain.usage().live_ranges, before, "{}: S6", bench.name());
        let reached = || {
            let at = [0, 1, 3].map(|page| Iova::new(PLACE + page * PAGE_SIZE));
            at.map(|at| bench.iommu.access(DEVICE, at, Rights::WRITE))
        };
        assert_eq!(reached(), [None; 3], "{}: S6", bench.name());
        // The hardware does not confirm that the first pages are gone: the memory is lost (S11).
        bench.iommu.behave(Behaviour::Failing);
        let lost = map(&bench, &options).expect_err("a page is taken, and the hardware fails");
        assert!(matches!(lost, RawMapError::Lost(_)), "{}: {lost}", bench.name());
        // No page is left mapped because one before it is lost.
        assert_eq!(reached(), [None; 3], "{}", bench.name());
        bench.iommu.behave(Behaviour::Prompt);
        let _ = bench.domain.unmap_raw(iova, PAGE_SIZE);
    });
}

#[test]
fn apart_is_refused_for_what_has_no_pages_of_its_own() {
    each(|bench| {
        // SAFETY: as above.
        let empty = unsafe { bench.domain.map_list([], Access::DeviceWrites, &APART) };
        assert_eq!(empty, Err(RawMapError::Refused(MapError::Empty)), "{}", bench.name());
        let segments = [PHYS, PHYS + (1 << 20)].map(|phys| Segment { phys: PhysAddr::new(phys), len: PAGE_SIZE });
        // SAFETY: as above.
        let list = unsafe { bench.domain.map_list(segments, Access::DeviceWrites, &APART) };
        assert_eq!(list, Err(RawMapError::Refused(MapError::NotContiguous)), "{}", bench.name());
        let aligned = MapOptions { alignment: 1 << 16, ..APART };
        // SAFETY: as above.
        let placed =
            unsafe { bench.domain.map_raw_with(PhysAddr::new(0x9_0000), 0x2000, Access::DeviceWrites, &aligned) };
        assert!(matches!(placed, Err(RawMapError::Refused(_))), "{}", bench.name());
        bench.end();
    });
}
