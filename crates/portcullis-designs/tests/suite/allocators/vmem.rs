//! Vmem hands out free ranges, takes back those that it handed out, and does both in constant time (Bonwick and Adams,
//! ATC'01, §4).

use super::{Bench, on};
use crate::raw_face::RawFace;
use portcullis::Protection::Deferred;
use portcullis::iommu::fake::FakeIommu;
use portcullis::iova::INTERRUPT_RANGE;
use portcullis::platform::fake::FakeHost;
use portcullis::{
    Access, DomainConfig, DomainOf, Iova, IovaRange, MapError, Open, PAGE_SIZE, PhysAddr, RawUnmapError, UnmapError,
};
use portcullis_designs::Solaris;
use portcullis_designs::solaris::{QUANTUM_CACHE_PAGES_MAX, SLAB_PAGES};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeSet, VecDeque};

fn on_vmem(address_bits: u8, test: impl FnOnce(&Bench<'_, Solaris>)) {
    on("", Deferred, address_bits, test);
}

fn range(first_pfn: u64, pages: u64) -> IovaRange {
    IovaRange::new(first_pfn, pages).expect("never empty")
}

/// A space, with a plain reference.
struct Space<'h> {
    domain: DomainOf<Solaris, &'h FakeHost, &'h FakeIommu<'h>>,
    /// One past the last page.
    limit: u64,
    live: Vec<IovaRange>,
    reserved: Vec<IovaRange>,
}

#[derive(Clone, Debug)]
enum Operation {
    Map(u64),
    Unmap(usize),
    /// Unmaps a range whose first page and length differ from those of a live range by these numbers of pages.
    UnmapWrong {
        which: usize,
        offset: u64,
        longer: i64,
    },
    UnmapAll,
}

impl Space<'_> {
    fn map(&mut self, pages: u64) -> Result<(), TestCaseError> {
        match self.domain.raw_map(PhysAddr::new(0), pages * PAGE_SIZE, Access::DeviceWrites) {
            Ok(iova) => {
                let new = range(iova.pfn(), pages);
                prop_assert!(new.end_pfn() <= self.limit, "{} is beyond the width", new);
                let taken = { self.live.iter().chain(&self.reserved) }.find(|taken| taken.overlaps(new));
                prop_assert_eq!(taken, None, "{} was handed out", new);
                self.live.push(new);
            }
            Err(MapError::Exhausted { .. }) => {
                let size = pages.next_power_of_two().max(SLAB_PAGES);
                let mut blocks = (0..self.limit / size).map(|number| range(number * size, size));
                let free = blocks.find(|block| !self.touches(*block));
                prop_assert_eq!(free, None, "{} pages were refused", pages);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
        Ok(())
    }

    /// Whether anything in the slabs of `block` is in use or reserved.
    fn touches(&self, block: IovaRange) -> bool {
        let first = block.first_pfn() / SLAB_PAGES * SLAB_PAGES;
        let slabs = range(first, (block.end_pfn() - first).next_multiple_of(SLAB_PAGES));
        self.live.iter().any(|live| live.overlaps(slabs)) || self.reserved.iter().any(|one| one.overlaps(block))
    }

    fn unmap(&mut self, which: usize) -> Result<(), TestCaseError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let gone = self.live.swap_remove(which % self.live.len());
        let mut batch = self.domain.raw_batch();
        prop_assert_eq!(batch.unmap(gone), Ok(()));
        prop_assert_eq!(batch.unmap(gone), Err(UnmapError::NotMapped(gone.start())), "claimed");
        prop_assert_eq!(batch.commit(), Ok(()));
        prop_assert_eq!(self.unmap_raw(gone), Err(RawUnmapError::Refused(UnmapError::NotMapped(gone.start()))));
        Ok(())
    }

    fn unmap_raw(&self, range: IovaRange) -> Result<(), RawUnmapError> {
        self.domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE)
    }

    /// Unmaps a range that is no mapping: the error names the reason, and nothing has changed.
    fn unmap_wrong(&self, asked: IovaRange) -> Result<(), TestCaseError> {
        let begins = self.live.iter().find(|live| live.first_pfn() == asked.first_pfn());
        let expected = match begins {
            Some(mapped) if *mapped == asked => return Ok(()),
            Some(&mapped) => UnmapError::Partial { asked, mapped },
            None => UnmapError::NotMapped(Iova::from_pfn(asked.first_pfn())),
        };
        let before = self.domain.usage();
        prop_assert_eq!(self.unmap_raw(asked), Err(RawUnmapError::Refused(expected)));
        prop_assert_eq!(self.domain.usage(), before);
        Ok(())
    }

    /// When everything is freed, the longest run of pages that are not reserved can be mapped in one piece.
    fn unmap_all(&mut self) -> Result<(), TestCaseError> {
        while !self.live.is_empty() {
            self.unmap(7)?;
        }
        let edges = |reserved: &IovaRange| [reserved.first_pfn().min(self.limit), reserved.end_pfn().min(self.limit)];
        let edges: BTreeSet<u64> = self.reserved.iter().flat_map(edges).chain([0, self.limit]).collect();
        let gaps = edges.iter().zip(edges.iter().skip(1)).map(|(first, end)| range(*first, end - first));
        let longest =
            { gaps }.filter(|gap| !self.reserved.iter().any(|one| one.overlaps(*gap))).max_by_key(|gap| gap.pages());
        if let Some(longest) = longest {
            self.map(longest.pages())?;
            prop_assert_eq!(self.live.len(), 1, "{} is one piece", longest);
            self.unmap(0)?;
        }
        prop_assert_eq!(self.domain.usage().live_ranges, 0);
        Ok(())
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    let pages = prop_oneof![6 => 1..=QUANTUM_CACHE_PAGES_MAX, 3 => 17..130u64, 1 => 1..3000u64];
    let wrong = (any::<usize>(), prop_oneof![Just(0), 0..70u64], -2..3i64);
    prop_oneof![
        12 => pages.prop_map(Operation::Map),
        8 => any::<usize>().prop_map(Operation::Unmap),
        4 => wrong.prop_map(|(which, offset, longer)| Operation::UnmapWrong { which, offset, longer }),
        1 => Just(Operation::UnmapAll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, rng_seed: RngSeed::Fixed(0), ..ProptestConfig::default() })]

    #[test]
    fn what_is_handed_out_is_free(
        address_bits in 13..=24u8,
        reserved in vec((0..4200u64, 1..300u64), 0..4),
        script in vec(operation(), 1..120),
    ) {
        let reserved: Vec<IovaRange> = reserved.iter().map(|(first, pages)| range(*first, *pages)).collect();
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let config = DomainConfig { address_bits, reserved: &reserved, ..DomainConfig::new(Deferred) };
        let domain = Solaris::open_with(&iommu, &host, &config).expect("a domain");
        let always = [range(0, 1), range(INTERRUPT_RANGE.0, INTERRUPT_RANGE.1)];
        let reserved = reserved.iter().copied().chain(always).collect();
        let mut space = Space { domain, limit: 1 << (address_bits - 12), live: Vec::new(), reserved };
        for operation in script {
            match operation {
                Operation::Map(pages) => space.map(pages)?,
                Operation::Unmap(which) => space.unmap(which)?,
                Operation::UnmapWrong { which, offset, longer } => {
                    let live = space.live.get(which % space.live.len().max(1)).copied().unwrap_or(range(5, 3));
                    let wrong = live.pages().checked_add_signed(longer);
                    if let Some(wrong) = wrong.and_then(|pages| IovaRange::new(live.first_pfn() + offset, pages)) {
                        space.unmap_wrong(wrong)?;
                    }
                }
                Operation::UnmapAll => space.unmap_all()?,
            }
            prop_assert_eq!(space.domain.usage().live_ranges, space.live.len());
        }
        space.unmap_all()?;
    }
}

/// No number and no mix of sizes of ranges leads to a search.
#[test]
fn every_request_takes_a_bounded_number_of_steps() {
    on_vmem(48, |bench| {
        let mut live = VecDeque::new();
        let mut most = crate::counting::Steps::default();
        let sizes = [1, 17, 2, 100, 16, 3, 65, 600, 33, 1];
        for turn in 0..6000 {
            bench.host.take();
            live.push_back(bench.map_pages(sizes[turn % sizes.len()]));
            let map = bench.host.take();
            assert_eq!((map.searched, map.finds, map.joins), (0, 0, 0), "map {turn}");
            assert!(map.pops <= 2 && map.splits <= 2 && map.pushes == 0, "map {turn}: {map:?}");
            if turn % 3 == 0 {
                // From the front, the back and in between, so that segments have neighbours of each kind.
                let gone = live.remove([0, live.len() / 2, live.len() - 1][turn / 3 % 3]).expect("there is one");
                bench.unmap(gone);
                let unmap = bench.host.take();
                assert_eq!((unmap.searched, unmap.finds, unmap.splits), (0, 2, 0), "unmap {turn}");
                assert!(unmap.joins <= 2 && unmap.pushes <= 2, "unmap {turn}: {unmap:?}");
                (most.splits, most.joins) = (most.splits.max(map.splits), most.joins.max(unmap.joins));
            }
        }
        assert_eq!((most.splits, most.joins), (2, 2), "the worst case occurred");
        assert_eq!(bench.domain.usage().live_ranges, live.len());
        live.drain(..).for_each(|range| bench.unmap(range));
        assert_eq!(bench.domain.usage().live_ranges, 0);
    });
}

#[test]
fn a_ring_of_small_buffers_neither_splits_nor_joins() {
    for (pages, burst) in [(1, 1), (1, 16), (1, 64), (2, 64), (3, 16), (16, 7)] {
        on_vmem(48, |bench| {
            let mut ring: VecDeque<IovaRange> = (0..1024).map(|_| bench.map_pages(pages)).collect();
            let turns = 4096 / burst;
            for turn in 0..turns {
                if turn == turns / 2 {
                    bench.host.take();
                }
                ring.drain(..burst).for_each(|range| bench.unmap(range));
                ring.extend((0..burst).map(|_| bench.map_pages(pages)));
            }
            let steps = bench.host.take();
            assert_eq!((steps.splits, steps.joins, steps.searched), (0, 0, 0), "{pages} pages, {burst} at once");
            assert_eq!(steps.pops, steps.pushes);
        });
    }
}

#[test]
fn a_slab_has_ranges_of_one_size() {
    on_vmem(48, |bench| {
        for pages in 1..=QUANTUM_CACHE_PAGES_MAX {
            let each = SLAB_PAGES / pages;
            let mut slab: Vec<u64> = (0..each).map(|_| bench.map_pages(pages).first_pfn()).collect();
            let next = bench.map_pages(pages).first_pfn();
            slab.sort_unstable();
            let first = slab[0];
            assert_eq!(first % SLAB_PAGES, 0);
            assert!(slab.iter().enumerate().all(|(number, pfn)| *pfn == first + number as u64 * pages), "{slab:x?}");
            assert!(!range(first, SLAB_PAGES).contains(next), "the next page is in another slab");
        }
    });
}

/// Four empty slabs of each size are kept, and no more.
#[test]
fn slabs_of_which_nothing_is_in_use_are_given_back() {
    on_vmem(48, |bench| {
        let pages: Vec<IovaRange> = (0..20 * SLAB_PAGES).map(|_| bench.map_pages(1)).collect();
        assert_eq!(bench.domain.usage().kept_ranges, 0);
        pages.iter().for_each(|page| bench.unmap(*page));
        let usage = bench.domain.usage();
        assert_eq!((usage.live_ranges, usage.kept_ranges, usage.kept_ranges_max), (0, 4 * 64, None));
        let steps = bench.host.take();
        assert_eq!(
            steps.pushes as u64,
            20 * SLAB_PAGES + 16,
            "each page goes to its slab, and 16 slabs to the segments"
        );
    });
}

/// The addresses of sixteen slabs can all be mapped as single pages, including those that fit in no slab, and then in
/// one piece (S13).
#[test]
fn every_page_is_to_be_had() {
    on_vmem(22, |bench| {
        let all: Vec<IovaRange> = (1..1024).map(|_| bench.map_pages(1)).collect();
        assert_eq!(all.iter().map(|page| page.first_pfn()).collect::<BTreeSet<_>>(), (1..1024).collect());
        let refused = bench.domain.raw_map(PhysAddr::new(0), 1, Access::DeviceWrites);
        assert_eq!(refused, Err(MapError::Exhausted { pages: 1, limit_bits: 22 }));
        all.iter().for_each(|page| bench.unmap(*page));
        assert_eq!(bench.domain.usage().kept_ranges, 4 * 64);
        let whole = bench.map_pages(1023);
        assert_eq!((whole, bench.domain.usage().kept_ranges), (range(1, 1023), 0));
    });
}

/// The list whose segments may be too small is searched only if the lists whose segments all fit are empty.
#[test]
fn instant_fit_comes_before_first_fit() {
    on_vmem(21, |bench| {
        // 511 pages: 70, 20, 100, 20 and the rest.
        let [small, _, large, _] = [70, 20, 100, 20].map(|pages| bench.map_pages(pages));
        let rest = bench.map_pages(511 - 210);
        assert_eq!(rest.end_pfn(), 512, "they lie side by side");
        bench.unmap(large);
        bench.unmap(small);
        bench.host.take();
        // Two free segments are on the list for 64 pages and more. The one that was freed last comes first and is
        // skipped.
        let first_fit = bench.map_pages(90);
        assert_eq!((first_fit.first_pfn(), bench.host.take().searched), (large.first_pfn(), 1));
        bench.unmap(first_fit);
        bench.unmap(rest);
        bench.host.take();
        let instant_fit = bench.map_pages(90);
        assert_eq!((instant_fit.first_pfn(), bench.host.take().searched), (rest.first_pfn(), 0));
    });
}
