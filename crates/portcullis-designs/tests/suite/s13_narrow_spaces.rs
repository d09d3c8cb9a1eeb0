//! Narrow and partly reserved spaces (S13): `portcullis` maps as much there as `magazine`, of each kind of request and
//! after each other kind, and says how wide the space was.

use crate::raw_face::RawFace;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::{
    Access, DomainConfig, DynDomain, Iova, IovaRange, Lifetime, MapError, MapOptions, PAGE_SIZE, PhysAddr, Protection,
};
use portcullis_designs::DesignId;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const WRITES: Access = Access::DeviceWrites;
/// The pages of a leaf table.
const TABLE: u64 = 512;

/// A space: its width, and the parts of it that are reserved, as first byte and length.
#[derive(Clone, Debug)]
struct Space {
    bits: u8,
    reserved: Vec<(u64, u64)>,
}

impl Space {
    fn new(bits: u8, reserved: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self { bits, reserved: reserved.into_iter().collect() }
    }

    /// All that is not in `free` is reserved.
    fn only(bits: u8, free: &[(u64, u64)]) -> Self {
        let ends = free.iter().map(|(first, len)| first + len);
        let next = free.iter().map(|(first, _)| *first).chain([1 << bits]);
        Self::new(bits, core::iter::once(0).chain(ends).zip(next).map(|(end, next)| (end, next - end)))
    }

    /// Whether requests of so many pages fill it in a short time. The search for a place far below the top of a wide
    /// space passes all that is mapped.
    fn is_soon_full(&self, pages: u64) -> bool {
        let free = (1 << self.bits) - self.reserved.iter().map(|(_, len)| len).sum::<u64>();
        self.bits <= 29 || pages >= 200 || free <= if pages >= 3 { 160 * MIB } else { 32 * MIB }
    }

    fn open(&self, design: DesignId) -> Box<DynDomain> {
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        let pages = |(first, len): &(u64, u64)| IovaRange::new(first / PAGE_SIZE, len / PAGE_SIZE);
        let reserved: Vec<_> = self.reserved.iter().filter_map(pages).collect();
        let config =
            DomainConfig { address_bits: self.bits, reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
        DynDomain::open(design, iommu, host, &config).expect("a domain")
    }
}

fn spaces() -> Vec<Space> {
    let each = |step: u64, end: u64| (0..end / step).map(move |number| number * step);
    vec![
        Space::new(28, []),
        Space::new(30, []),
        // An aperture, as some bridges have it.
        Space::new(31, [(0, GIB)]),
        // One half.
        Space::new(30, [(0, GIB / 2)]),
        Space::new(30, [(GIB / 2, GIB / 2)]),
        // A page in each table, and holes that begin and end anywhere.
        Space::new(28, each(2 * MIB, 256 * MIB).map(|first| (first + MIB, PAGE_SIZE))),
        Space::new(29, each(11 * MIB, 512 * MIB).map(|first| (first, 3 * MIB + 5 * PAGE_SIZE))),
        // A little in wide spaces: around the middle, and at each end.
        Space::only(32, &[(2 * GIB - 64 * MIB, 128 * MIB)]),
        Space::only(39, &[(8 * GIB, 64 * MIB), (300 * GIB, 96 * MIB)]),
        Space::only(48, &[((1 << 47) + 700 * GIB, 128 * MIB)]),
        Space::only(39, &[(511 * GIB, GIB / 8)]),
        // Less of it, in which small requests are tried too.
        Space::only(32, &[(2 * GIB - 12 * MIB, 24 * MIB)]),
        Space::only(39, &[(8 * GIB, 8 * MIB), (300 * GIB, 20 * MIB)]),
        Space::only(48, &[((1 << 47) + 700 * GIB, 32 * MIB)]),
        Space::only(39, &[(511 * GIB, GIB / 32)]),
    ]
}

/// A kind of request: its pages and its options.
#[derive(Clone, Copy, Debug)]
struct Kind {
    pages: u64,
    options: MapOptions,
}

const ANY: MapOptions = MapOptions {
    stream: portcullis::Stream(None),
    lifetime: Lifetime::Transient,
    limit: u64::MAX,
    alignment: 1,
    boundary: None,
    apart: false,
    at: None,
};
const PERSISTENT: MapOptions = MapOptions { lifetime: Lifetime::Persistent, ..ANY };

impl Kind {
    const fn of(pages: u64, options: MapOptions) -> Self {
        Self { pages, options }
    }

    fn map(&self, domain: &DynDomain, number: u64) -> Result<Iova, MapError> {
        // At a multiple of 2 MiB, so that it may have large leaves.
        let phys = PhysAddr::from_pfn((1 << 20) + number % 1000 * 4 * TABLE);
        domain.raw_map_with(phys, self.pages * PAGE_SIZE, WRITES, &self.options)
    }

    /// Maps as many as there is room for. The error says how wide the space is.
    fn fill(&self, domain: &DynDomain, bits: u8) -> Vec<Iova> {
        let mut mapped = Vec::new();
        loop {
            match self.map(domain, mapped.len() as u64) {
                Ok(iova) => mapped.push(iova),
                Err(error) => {
                    assert_eq!(error, MapError::Exhausted { pages: self.pages, limit_bits: bits }, "{self:?}");
                    return mapped;
                }
            }
        }
    }

    fn unmap(&self, domain: &DynDomain, mapped: &[Iova]) {
        mapped.iter().for_each(|iova| domain.unmap_raw(*iova, self.pages * PAGE_SIZE).expect("mapped"));
    }
}

/// Those that take any address.
fn kinds() -> Vec<Kind> {
    let transient = [1, 3, 17, 40, 300, TABLE, 700].map(|pages| Kind::of(pages, ANY));
    let persistent = [1, 2, 5, 32, 200, TABLE, 4 * TABLE].map(|pages| Kind::of(pages, PERSISTENT));
    let aligned = [(1, 1 << 16), (16, 1 << 16), (TABLE, 2 * MIB)]
        .map(|(pages, alignment)| Kind::of(pages, MapOptions { alignment, ..PERSISTENT }));
    transient.into_iter().chain(persistent).chain(aligned).collect()
}

/// Whether it is no less than 98 % of what it is compared with.
fn is_as_much(is: usize, compared_with: usize) -> bool {
    100 * is >= 98 * compared_with
}

fn compare(space: &Space, what: &str, mapped: impl Fn(DesignId) -> usize) {
    let [portcullis, magazine] = [DesignId::Portcullis, DesignId::Magazine].map(mapped);
    assert!(is_as_much(portcullis, magazine), "{space:?}, {what}: {portcullis}, {magazine} under magazine");
}

#[test]
fn as_much_of_a_narrow_space_is_mapped_as_under_magazine() {
    for space in spaces() {
        for kind in kinds() {
            // Many small requests are no other in a large space.
            if space.is_soon_full(kind.pages) {
                compare(&space, &format!("{kind:?}"), |design| kind.fill(&space.open(design), space.bits).len());
            }
        }
    }
}

/// Of a device that drives fewer bits than the space has. The error names its limit.
#[test]
fn as_much_below_a_limit_is_mapped_as_under_magazine() {
    for (space, limit_bits) in [(Space::new(30, []), 28), (Space::new(28, []), 27), (Space::new(31, [(0, GIB)]), 31)] {
        for limit in [1 << limit_bits, (1 << limit_bits) - (3 << (limit_bits - 3))] {
            for (pages, lifetime) in [(16, Lifetime::Transient), (TABLE, Lifetime::Persistent)] {
                let kind = Kind::of(pages, MapOptions { limit: limit - 1, lifetime, ..ANY });
                compare(&space, &format!("{kind:?}"), |design| {
                    let mapped = kind.fill(&space.open(design), limit_bits);
                    assert!(mapped.iter().all(|iova| iova.as_u64() + pages * PAGE_SIZE <= limit), "{kind:?}");
                    mapped.len()
                });
            }
        }
    }
}

/// All free addresses can be requested, one by one.
#[test]
fn as_many_fixed_addresses_are_mapped_as_under_magazine() {
    for space in spaces().into_iter().filter(|space| space.bits <= 31) {
        for step in [PAGE_SIZE * 37, 2 * MIB] {
            compare(&space, &format!("fixed, {step:#x}"), |design| {
                let domain = space.open(design);
                let at = (1..(1 << space.bits) / step).map(|number| MapOptions::fixed(Iova::new(number * step)));
                at.filter(|options| Kind::of(1, *options).map(&domain, 1).is_ok()).count()
            });
        }
    }
}

/// What one kind has left when it is unmapped, the other can use, at once.
#[test]
fn as_much_is_mapped_after_another_kind_as_under_magazine() {
    let kinds = [(1, ANY), (300, ANY), (1, PERSISTENT), (TABLE, PERSISTENT)];
    let kinds = kinds.map(|(pages, options)| Kind::of(pages, options));
    let small = [
        Space::only(28, &[(112 * MIB, 32 * MIB)]),
        Space::only(28, &[(128 * MIB, 24 * MIB)]),
        Space::only(39, &[(300 * GIB + MIB, 24 * MIB)]),
    ];
    for space in small {
        for (first, second) in kinds.iter().flat_map(|first| kinds.iter().map(move |second| (first, second))) {
            compare(&space, &format!("{second:?} after {first:?}"), |design| {
                let domain = space.open(design);
                first.unmap(&domain, &first.fill(&domain, space.bits));
                second.fill(&domain, space.bits).len()
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Reserved ranges anywhere.
    #[test]
    fn as_much_is_mapped_between_any_reserved_ranges(
        reserved in prop::collection::vec((0..1u64 << 16, 1..9000u64), 0..8),
        kind in 0..17usize,
    ) {
        let space = Space::new(28, reserved.into_iter().map(|(first, len)| (first * PAGE_SIZE, len * PAGE_SIZE)));
        let kind = kinds()[kind];
        compare(&space, &format!("{kind:?}"), |design| kind.fill(&space.open(design), space.bits).len());
    }
}
