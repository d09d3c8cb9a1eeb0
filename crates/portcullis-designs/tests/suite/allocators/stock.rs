//! The stock design behaves like Linux before 4.7, with the same pathology (EiovaR, FAST'15, §4 and §5).

use super::{Bench, Counting, TOP, on};
use crate::raw_face::RawFace;
use portcullis::invalidation::{CPU_QUEUE_CAPACITY, QUEUE_TIMEOUT_US};
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{Access, DomainConfig, Invalidation, IovaRange, MapError, Open, PAGE_SIZE, PhysAddr, Protection};
use portcullis_designs::Stock;
use std::collections::VecDeque;

fn on_stock(protection: Protection, address_bits: u8, test: impl FnOnce(&Bench<'_, Stock>)) {
    on("", protection, address_bits, test);
}

/// Table 1 of the paper: the address of each allocation, with and without a transmit in between. The number of nodes
/// that the search passes shows where the cached node is.
#[test]
fn table_1_one_interleaved_free_makes_the_search_linear() {
    for with_tx in [false, true] {
        on_stock(Protection::Strict, 48, |bench| {
            // All of the paper's addresses 1 to 400 are allocated, top down.
            let base = TOP - 401;
            for address in (1..=400).rev() {
                assert_eq!(bench.map(), (base + address, 0));
            }
            let free = |address: u64| bench.unmap_page(base + address);
            let allocate = || {
                let (pfn, searched) = bench.map();
                (pfn - base, searched)
            };
            // The cached node moves to 152.
            free(152);
            assert_eq!(allocate(), (152, 0));

            free(151); // (1)
            if with_tx {
                free(300); // (3): the cached node moves to 301 (4)
                assert_eq!(allocate(), (300, 0)); // (5)
                free(150);
                // (6) to (7): the search passes 299 down to 152.
                assert_eq!(allocate(), (151, 148));
                // Whenever 300 is freed, this happens again: the effect lasts.
                free(300);
                assert_eq!(allocate(), (300, 0));
                assert_eq!(allocate(), (150, 149));
            } else {
                assert_eq!(allocate(), (151, 0)); // (2)
                free(150);
                assert_eq!(allocate(), (150, 0));
            }
        });
    }
}

/// A range above 4 GiB never becomes the cached node: a search that it misled would be repeated without success.
#[test]
fn the_cached_node_stays_below_4_gib() {
    run_on(0);
    let host = FakeHost::default();
    let (counting, iommu) = (Counting::new(&host), FakeIommu::new(&host));
    let reserved = [IovaRange::new(TOP, 1).expect("a page")];
    let config = DomainConfig { address_bits: 33, reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
    let domain = Stock::open_with(&iommu, &counting, &config).expect("a domain");
    let bench = Bench::<Stock> { host: &counting, iommu: &iommu, domain };
    assert_eq!([bench.map(), bench.map()], [(TOP - 1, 0), (TOP - 2, 0)]);
    // The next node is that of the reserved page at 4 GiB.
    bench.unmap_page(TOP - 1);
    counting.take();
    let refused = bench.domain.raw_map(PhysAddr::new(0), TOP * PAGE_SIZE, Access::DeviceWrites);
    assert_eq!(refused, Err(MapError::Exhausted { pages: TOP, limit_bits: 33 }));
    assert_eq!(counting.take().searched, 2, "the page at TOP - 2, first below 4 GiB and then in the whole space");
    assert_eq!(bench.map(), (TOP - 1, 0));
}

/// The mean search per allocation while rings of these sizes are served in turn: each frees its oldest `burst` pages
/// and then maps the same number.
fn mean_search(sizes: &[usize], burst: usize, protection: Protection) -> f64 {
    let mut mean = 0.0;
    on_stock(protection, 48, |bench| {
        let fill = |size: &usize| (0..*size).map(|_| bench.map().0).collect();
        let mut rings: Vec<VecDeque<u64>> = sizes.iter().map(fill).collect();
        let (mut searched, mut maps) = (0, 0);
        for _ in 0..8 * 1024 / burst {
            for ring in &mut rings {
                ring.drain(..burst).for_each(|pfn| bench.unmap_page(pfn));
            }
            for ring in &mut rings {
                for _ in 0..burst {
                    let (pfn, steps) = bench.map();
                    ring.push_back(pfn);
                    (searched, maps) = (searched + steps, maps + 1);
                }
            }
        }
        mean = searched as f64 / f64::from(maps);
    });
    mean
}

#[test]
fn one_ring_is_served_in_constant_time() {
    for burst in [1, 16, 64] {
        assert_eq!(mean_search(&[1024], burst, Protection::Strict), 0.0, "burst {burst}");
    }
}

#[test]
fn two_rings_make_each_other_search() {
    // The more often they alternate, the worse: the search passes the nodes between the rings.
    let [often, seldom] = [1, 16].map(|burst| mean_search(&[1024, 1024], burst, Protection::Strict));
    assert!((100.0..1000.0).contains(&often), "{often}");
    assert!((10.0..100.0).contains(&seldom), "{seldom}");
    // A flush frees many ranges at once, so most searches under deferred protection end at the next free one.
    let deferred = mean_search(&[1024, 1024], 1, Protection::Deferred);
    assert!(deferred > 1.0 && deferred < often / 10.0, "{deferred}");
}

#[test]
fn sizes_are_rounded_up_and_ranges_aligned_to_them() {
    on_stock(Protection::Strict, 48, |bench| {
        let mut below = TOP;
        for pages in [1u64, 3, 1, 2, 5, 8, 9, 100, 512, 600] {
            let size = pages.next_power_of_two();
            let expected = (below - size) & !(size - 1);
            let range = bench.map_pages(pages);
            assert_eq!((range.first_pfn(), range.pages()), (expected, pages));
            below = expected;
        }
        assert_eq!(bench.map().0, below - 1, "the pages added by rounding belong to the mapping");
    });
}

/// A gap that was too small for a larger request lies above the cached node, and the search begins below it.
#[test]
fn a_gap_above_the_cached_node_is_found_in_the_end() {
    // Sixteen pages.
    on_stock(Protection::Strict, 16, |bench| {
        assert_eq!(bench.map().0, 15);
        assert_eq!(bench.map_pages(4).first_pfn(), 8, "aligned, so pages 12 to 14 stay free");
        let rest: Vec<u64> = (0..10).map(|_| bench.map().0).collect();
        assert_eq!(rest, [7, 6, 5, 4, 3, 2, 1, 14, 13, 12]);
    });
}

#[test]
fn the_space_below_4_gib_goes_first() {
    const GIB: u64 = 1 << 18;
    on_stock(Protection::Strict, 39, |bench| {
        // Page 0 lies in the first gigabyte, the interrupt range in the last.
        let firsts: Vec<u64> = (0..4).map(|_| bench.map_pages(GIB).first_pfn() / GIB).collect();
        assert_eq!(firsts, [2, 1, 511, 510]);
        assert!(bench.map().0 < TOP, "there is still room for a page");
    });
}

#[test]
fn strict_sends_one_exact_leaf_command_per_unmap() {
    on_stock(Protection::Strict, 48, |bench| {
        for (pages, mask) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (32, 5), (33, 6), (511, 9)] {
            let range = bench.map_pages(pages);
            bench.unmap(range);
            let expected =
                Invalidation::Pages { domain: bench.domain.id(), first: range.start(), mask, leaf_only: true };
            assert_eq!(bench.iommu.take_commands(), [expected], "{pages} pages");
        }
        // In a batch they share the submission, but not the command.
        let ranges: Vec<IovaRange> = (0..20).map(|_| bench.map_pages(1)).collect();
        let mut batch = bench.domain.raw_batch();
        for range in &ranges {
            batch.unmap(*range).unwrap();
        }
        assert_eq!(bench.iommu.take_commands(), []);
        batch.commit().unwrap();
        let commands = bench.iommu.take_commands();
        let expected = ranges.iter().map(|range| Invalidation::Pages {
            domain: bench.domain.id(),
            first: range.start(),
            mask: 0,
            leaf_only: true,
        });
        assert_eq!(commands, Vec::from_iter(expected));
    });
}

#[test]
fn a_table_page_goes_only_with_an_unmap_that_covers_it() {
    on_stock(Protection::Strict, 48, |bench| {
        let lent = || bench.host.host().frames_lent();
        let whole = bench.map_pages(512);
        let tables = lent();
        let mut batch = bench.domain.raw_batch();
        batch.unmap(whole).unwrap();
        assert_eq!(lent(), tables, "not before the commit");
        assert_eq!(bench.domain.usage().table_pages, tables - 1);
        batch.commit().unwrap();
        assert_eq!(lent(), tables - 1);
        let all_levels =
            Invalidation::Pages { domain: bench.domain.id(), first: whole.start(), mask: 9, leaf_only: false };
        assert_eq!(bench.iommu.take_commands(), [all_levels]);

        // The same number of pages in two mappings: the table stays, empty.
        let halves = [bench.map_pages(256), bench.map_pages(256)];
        halves.iter().for_each(|half| bench.unmap(*half));
        assert_eq!(lent(), tables);
        let commands = bench.iommu.take_commands();
        assert!(commands.iter().all(|command| matches!(command, Invalidation::Pages { leaf_only: true, .. })));
    });
}

#[test]
fn deferred_flushes_once_per_250_unmaps() {
    on_stock(Protection::Deferred, 48, |bench| {
        for unmaps in 1..=1000 {
            bench.unmap_page(bench.map().0);
            // The unmap that finds the queue full flushes.
            let flushes = if unmaps > 1 && unmaps % 250 == 1 { vec![Invalidation::Global] } else { vec![] };
            assert_eq!(bench.iommu.take_commands(), flushes, "unmap {unmaps}");
        }
    });
}

#[test]
fn deferred_flushes_what_is_10_ms_old() {
    on_stock(Protection::Deferred, 48, |bench| {
        let host = bench.host.host();
        assert_eq!(bench.domain.due_us(), None);
        host.advance_us(123_456);
        bench.unmap_page(bench.map().0);
        host.advance_us(9_999);
        bench.unmap_page(bench.map().0);
        bench.domain.tick().unwrap();
        assert_eq!((bench.iommu.take_commands(), bench.domain.usage().queued_unmaps), (vec![], 2));
        // The oldest unmap counts.
        assert_eq!(bench.domain.due_us(), Some(133_456));
        host.advance_us(1);
        bench.domain.tick().unwrap();
        assert_eq!((bench.iommu.take_commands(), bench.domain.usage().queued_unmaps), (vec![Invalidation::Global], 0));
        assert_eq!((bench.domain.due_us(), bench.domain.usage().live_ranges), (None, 0));
    });
}

/// With queues per CPU, table pages wait for a flush that began after their unmap, even if many others have ended
/// before.
#[test]
fn a_table_page_waits_for_a_flush_after_its_unmap() {
    on("queue=per-core", Protection::Deferred, 48, |bench: &Bench<'_, Stock>| {
        let lent = || bench.host.host().frames_lent();
        let fill = |cpu: u32, unmaps: usize| {
            run_on(cpu);
            (0..unmaps).for_each(|_| bench.unmap_page(bench.map().0));
        };
        let whole = bench.map_pages(512);
        fill(0, CPU_QUEUE_CAPACITY);
        fill(1, CPU_QUEUE_CAPACITY + 1);
        let flush = [Invalidation::Domain(bench.domain.id())];
        assert_eq!(bench.iommu.take_commands(), flush, "it serves the queue of the first CPU too");
        run_on(0);
        let before = lent();
        bench.unmap(whole);
        assert_eq!(bench.domain.usage().queued_unmaps, 2, "the flush made room in the full queue");
        assert_eq!((lent(), bench.iommu.take_commands()), (before, vec![]), "S4: a page was freed without a flush");
        bench.host.host().advance_us(QUEUE_TIMEOUT_US);
        bench.domain.tick().unwrap();
        assert_eq!((lent(), bench.iommu.take_commands()), (before - 1, flush.to_vec()));
    });
}
