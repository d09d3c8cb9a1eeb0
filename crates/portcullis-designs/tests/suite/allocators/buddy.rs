//! The buddy allocator of XNU, and the red-black tree for larger ranges (ATC'15, §3.4). Protection is strict, so that
//! addresses are freed at once.

use super::{Bench, on};
use crate::raw_face::RawFace;
use portcullis::invalidation::Deferral;
use portcullis::iommu::fake::FakeIommu;
use portcullis::iova::INTERRUPT_RANGE;
use portcullis::mapper::{AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::platform::fake::FakeHost;
use portcullis::{
    Access, DomainConfig, Iommu, Iova, IovaRange, MapError, NewDomainError, Open, PAGE_SHIFT, PAGE_SIZE, PhysAddr,
    Platform, Protection, RawUnmapError, UnmapError,
};
use portcullis_designs::macos::{BUDDY_PAGES_MAX, BuddyAllocator};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::mem::MaybeUninit;

/// A design with the allocator and nothing else.
struct Buddy;

impl DesignInfo for Buddy {
    const INFO: Info = Info {
        id: "buddy",
        source: "the allocator of `macos`",
        allocator: "as `macos`",
        invalidation: "strict",
        tables: "kept unless one unmap covers them",
        protections: &[Protection::Strict],
        breaches: &[],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: a mapper assembled from sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Buddy {
    type Mapper = AssembledMapper<BuddyAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let allocator = BuddyAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        Ok(to.write(AssembledMapper::new(allocator, Deferral::Global, setup)?))
    }
}

fn on_buddy(address_bits: u8, test: impl FnOnce(&Bench<'_, Buddy>)) {
    on("", Protection::Strict, address_bits, test);
}

/// Maps `pages` pages. Returns the first, and how many blocks were split.
fn map(bench: &Bench<'_, Buddy>, pages: u64) -> (u64, usize) {
    bench.host.take();
    let first = bench.map_pages(pages).first_pfn();
    let steps = bench.host.take();
    assert_eq!((steps.pops, steps.pushes), (1, 0));
    (first, steps.searched)
}

/// Unmaps `pages` pages. Returns how many blocks were joined.
fn unmap(bench: &Bench<'_, Buddy>, first: u64, pages: u64) -> usize {
    bench.host.take();
    bench.unmap(IovaRange::new(first, pages).expect("mapped"));
    let steps = bench.host.take();
    assert_eq!((steps.pops, steps.pushes), (0, 1));
    steps.searched
}

#[test]
fn blocks_are_split_and_joined() {
    // 256 pages. Without page 0, the blocks begin at 1, 2, 4, … and 128.
    on_buddy(20, |bench| {
        assert_eq!(map(bench, 1), (1, 0), "the block of that size");
        assert_eq!(map(bench, 1), (2, 1), "half of the next larger block");
        assert_eq!(map(bench, 1), (3, 0), "the other half");
        assert_eq!(map(bench, 5), (8, 0), "rounded up to eight");
        assert_eq!(map(bench, 5), (16, 1));
        assert_eq!(map(bench, 2), (4, 1));
        assert_eq!(map(bench, 64), (64, 0));
        assert_eq!(map(bench, 1), (6, 1));
        assert_eq!(unmap(bench, 3, 1), 0, "its buddy is in use");
        assert_eq!(unmap(bench, 6, 1), 1, "joined with 7, but 4 is in use");
        assert_eq!(unmap(bench, 2, 1), 1, "joined with 3; 0 is reserved");
        assert_eq!(unmap(bench, 16, 5), 1, "with 24, to 16 of 32");
        assert_eq!(unmap(bench, 4, 2), 1, "joined with 6, but 1 to 3 are no whole block");
        // The block that was freed last comes first.
        assert_eq!(unmap(bench, 1, 1), 0);
        assert_eq!(map(bench, 1), (1, 0));
    });
}

/// A page is split from the largest block and joined again: as many steps as there are sizes in between.
#[test]
fn steps_are_as_many_as_sizes() {
    on_buddy(32, |bench| {
        // Takes all smaller blocks, on both sides of page 0 and of the interrupt range.
        for order in 0..17 {
            loop {
                let (first, splits) = map(bench, 1 << order);
                if splits > 0 {
                    assert_eq!(unmap(bench, first, 1 << order), splits);
                    break;
                }
            }
        }
        let (first, splits) = map(bench, 1);
        assert_eq!((first, splits), (0xc_0000, 17));
        assert_eq!(unmap(bench, first, 1), 17);
    });
}

#[test]
fn large_ranges_lie_above_4_gib_unless_there_is_no_room() {
    const TOP: u64 = 1 << 20;
    on_buddy(34, |bench| {
        assert!(map(bench, BUDDY_PAGES_MAX).0 < TOP);
        let large = bench.map_pages(BUDDY_PAGES_MAX + 1);
        assert_eq!((large.first_pfn(), large.pages()), (4 * TOP - 2 * BUDDY_PAGES_MAX, BUDDY_PAGES_MAX + 1));
        // Five blocks are left between page 0 and the interrupt range. Others lie above.
        let firsts: Vec<u64> = (0..6).map(|_| bench.map_pages(BUDDY_PAGES_MAX).first_pfn()).collect();
        assert!(firsts[..5].iter().all(|first| *first < TOP) && firsts[5] >= TOP, "{firsts:x?}");
        assert_eq!(bench.domain.usage().live_ranges, 8);
        bench.unmap(large);
        bench.unmap(IovaRange::new(firsts[5], BUDDY_PAGES_MAX).unwrap());
        assert_eq!(bench.domain.usage().live_ranges, 6);
    });
    on_buddy(32, |bench| {
        // These do not need the tree. Two aligned gigabytes are free, apart from page 0 and the interrupt range.
        let firsts = [(); 2].map(|()| bench.map_pages(2 * BUDDY_PAGES_MAX).first_pfn());
        assert_eq!(firsts, [4 * BUDDY_PAGES_MAX, 2 * BUDDY_PAGES_MAX]);
        let full = MapError::Exhausted { pages: 2 * BUDDY_PAGES_MAX, limit_bits: 32 };
        let refused = bench.domain.raw_map(PhysAddr::new(0), 2 * BUDDY_PAGES_MAX * PAGE_SIZE, Access::DeviceReads);
        assert_eq!(refused, Err(full));
    });
}

#[test]
fn claims_are_for_whole_mappings() {
    on_buddy(34, |bench| {
        let refused = |first: u64, pages: u64| {
            let range = IovaRange::new(first, pages).unwrap();
            match bench.domain.unmap_raw(range.start(), pages << PAGE_SHIFT) {
                Err(RawUnmapError::Refused(error)) => error,
                other => panic!("{range}: {other:?}"),
            }
        };
        let not_mapped = |first: u64| UnmapError::NotMapped(Iova::from_pfn(first));
        let mapped = bench.map_pages(5);
        let first = mapped.first_pfn();
        let partial =
            |first: u64, pages: u64| UnmapError::Partial { asked: IovaRange::new(first, pages).unwrap(), mapped };
        // The pages added by rounding belong to the mapping.
        for (first, pages) in [(first, 1), (first, 4), (first, 6), (first, 8), (first + 1, 4), (first + 7, 700)] {
            assert_eq!(refused(first, pages), partial(first, pages));
        }
        // Before and behind the mapping; reserved; in the tree; and beyond the width.
        for pfn in [first - 1, first + 8, 0, 0xf_ee80, 1 << 21, 1 << 30] {
            assert_eq!(refused(pfn, 5), not_mapped(pfn));
        }
        let mut batch = bench.domain.raw_batch();
        batch.unmap(mapped).unwrap();
        assert_eq!(batch.unmap(mapped), Err(not_mapped(first)), "claimed already");
        batch.commit().unwrap();
        assert_eq!(refused(first, 5), not_mapped(first));
    });
}

/// The ranges in use, kept as plainly as possible.
struct Reference {
    live: Vec<IovaRange>,
    reserved: Vec<IovaRange>,
    limit: u64,
}

/// The aligned power of two of pages that `range` takes.
fn block(range: IovaRange) -> IovaRange {
    IovaRange::new(range.first_pfn(), range.pages().next_power_of_two()).expect("below the width")
}

impl Reference {
    fn is_free(&self, range: IovaRange) -> bool {
        let taken = self.live.iter().map(|live| block(*live)).chain(self.reserved.iter().copied());
        !{ taken }.any(|taken| taken.overlaps(range))
    }

    /// Whether an aligned block for `pages` pages is free.
    fn has_room(&self, pages: u64) -> bool {
        let size = pages.next_power_of_two();
        (0..self.limit / size).any(|number| self.is_free(IovaRange::new(number * size, size).expect("a block")))
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Map(u64),
    Unmap(usize),
    /// Unmaps a live range whose start and end are off by these numbers of pages.
    UnmapOff(usize, i64, i64),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let pages = (0..=21u32, any::<u64>()).prop_map(|(order, any)| 1 + any % (1u64 << order));
    let off = || -3..=3i64;
    prop::collection::vec(
        prop_oneof![
            5 => pages.prop_map(Operation::Map),
            3 => any::<usize>().prop_map(Operation::Unmap),
            1 => (any::<usize>(), off(), off()).prop_map(|(which, start, end)| Operation::UnmapOff(which, start, end)),
        ],
        1..200,
    )
}

/// Every request succeeds if an aligned block is free, with free addresses. When everything is freed, no block is left
/// split.
fn follows_the_reference(address_bits: u8, reserved: &[IovaRange], script: &[Operation]) -> Result<(), TestCaseError> {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let config = DomainConfig { address_bits, reserved, ..DomainConfig::new(Protection::Strict) };
    let domain = Buddy::open_with(&iommu, &host, &config).expect("a domain");
    let never = [IovaRange::new(0, 1), IovaRange::new(INTERRUPT_RANGE.0, INTERRUPT_RANGE.1)];
    let reserved = reserved.iter().copied().chain(never.into_iter().flatten()).collect();
    let mut reference = Reference { live: Vec::new(), reserved, limit: 1 << (u32::from(address_bits) - PAGE_SHIFT) };
    // On narrow machines, most requests are small.
    let narrow = |pages: u64| if pages.is_multiple_of(8) { pages } else { 1 + pages % reference.limit.div_ceil(4) };
    let script: Vec<Operation> = { script.iter() }
        .map(|operation| match operation {
            Operation::Map(pages) => Operation::Map(narrow(*pages)),
            other => other.clone(),
        })
        .collect();
    let unmap = |range: IovaRange| domain.unmap_raw(range.start(), range.pages() << PAGE_SHIFT);
    for operation in script {
        match operation {
            Operation::Map(pages) => match domain.raw_map(PhysAddr::new(0), pages * PAGE_SIZE, Access::DeviceReads) {
                Ok(iova) => {
                    let range = IovaRange::new(iova.pfn(), pages).expect("mapped");
                    prop_assert!(reference.is_free(block(range)), "{range} is in use or reserved");
                    prop_assert_eq!(iova.pfn() % pages.next_power_of_two(), 0, "not aligned");
                    prop_assert!(block(range).end_pfn() <= reference.limit, "{} is too high", range);
                    reference.live.push(range);
                }
                Err(error) => {
                    prop_assert_eq!(error, MapError::Exhausted { pages, limit_bits: address_bits });
                    prop_assert!(!reference.has_room(pages), "there is room for {} pages", pages);
                }
            },
            Operation::Unmap(which) if !reference.live.is_empty() => {
                let range = reference.live.swap_remove(which % reference.live.len());
                prop_assert_eq!(unmap(range), Ok(()));
                prop_assert_eq!(unmap(range), Err(RawUnmapError::Refused(UnmapError::NotMapped(range.start()))));
            }
            Operation::UnmapOff(which, start, end) if !reference.live.is_empty() => {
                let near = reference.live[which % reference.live.len()];
                let first = near.first_pfn().saturating_add_signed(start);
                let end = near.end_pfn().saturating_add_signed(end);
                let Some(asked) = IovaRange::new(first, end.saturating_sub(first)) else { continue };
                let expected = match reference.live.iter().position(|live| block(*live).contains(first)) {
                    Some(at) if reference.live[at] == asked => {
                        reference.live.swap_remove(at);
                        Ok(())
                    }
                    Some(at) => Err(RawUnmapError::Refused(UnmapError::Partial { asked, mapped: reference.live[at] })),
                    None => Err(RawUnmapError::Refused(UnmapError::NotMapped(asked.start()))),
                };
                prop_assert_eq!(unmap(asked), expected);
            }
            Operation::Unmap(_) | Operation::UnmapOff(..) => {}
        }
        prop_assert_eq!(domain.usage().live_ranges, reference.live.len());
    }
    for range in reference.live.drain(..) {
        prop_assert_eq!(unmap(range), Ok(()));
    }
    // All of the largest blocks are whole again.
    let size = 1 << (reference.limit / 2).min(BUDDY_PAGES_MAX).ilog2();
    while reference.has_room(size) {
        let iova = domain.raw_map(PhysAddr::new(0), size * PAGE_SIZE, Access::DeviceReads);
        let range = IovaRange::new(iova.map_err(|error| TestCaseError::fail(error.to_string()))?.pfn(), size);
        reference.live.extend(range);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, rng_seed: RngSeed::Fixed(0), ..ProptestConfig::default() })]

    #[test]
    fn allocates_as_the_reference(
        address_bits in prop_oneof![13..=20u8, 30..=34u8],
        reserved in prop::collection::vec((0..1u64 << 22, 1..2000u64), 0..4),
        script in operations(),
    ) {
        // Modulo the width, so that narrow machines have reserved pages too, sometimes beyond the end.
        let limit = 1u64 << (u32::from(address_bits) - PAGE_SHIFT);
        let reserved: Vec<IovaRange> = { reserved.into_iter() }
            .filter_map(|(first, pages)| IovaRange::new(first % (limit + 1), 1 + pages % limit.div_ceil(8)))
            .collect();
        follows_the_reference(address_bits, &reserved, &script)?;
    }
}
