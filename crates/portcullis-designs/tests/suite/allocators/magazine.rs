//! Magazines and their depots (ATC'15, §4.3; Bonwick and Adams, USENIX ATC'01, §3).

use super::{Bench, on};
use portcullis::designs::Magazine;
use portcullis::iova::{DEPOT_MAGAZINES_MAX, MAGAZINE_CAPACITY};
use portcullis::platform::fake::{CPUS, run_on};
use portcullis::{Invalidation, IovaRange, Protection, RawUnmapError, UnmapError};

const M: usize = MAGAZINE_CAPACITY;
/// How long a depot keeps a surplus magazine, in microseconds.
const TRIM_US: u64 = 100_000;

fn on_magazine(test: impl FnOnce(&Bench<'_, Magazine>)) {
    on("", Protection::Strict, 48, test);
}

fn map_many(bench: &Bench<'_, Magazine>, count: usize) -> Vec<IovaRange> {
    (0..count).map(|_| bench.map_pages(1)).collect()
}

fn unmap_all(bench: &Bench<'_, Magazine>, ranges: Vec<IovaRange>) {
    ranges.into_iter().for_each(|range| bench.unmap(range));
}

#[test]
fn what_a_cpu_frees_it_gets_again_without_the_tree() {
    on_magazine(|bench| {
        let mapped = map_many(bench, 2 * M);
        assert_eq!(bench.host.take().inserts, 2 * M);
        unmap_all(bench, mapped.clone());
        let steps = bench.host.take();
        assert_eq!((steps.pushes, steps.erases, steps.exchanges), (2 * M, 0, 0), "two magazines hold them");
        let again = map_many(bench, 2 * M);
        let steps = bench.host.take();
        assert_eq!((steps.pops, steps.inserts, steps.exchanges), (2 * M, 0, 0));
        assert_eq!(again[0], *mapped.last().unwrap(), "the latest first");
    });
}

/// After an exchange, 127 allocations and 127 frees need no other, in any order.
#[test]
fn after_an_exchange_a_whole_magazine_is_there_and_a_whole_one_is_free() {
    for frees_first in [true, false] {
        on_magazine(|bench| {
            // The free that finds both magazines full makes the first exchange.
            let mut mapped = map_many(bench, 4 * M);
            let spare = mapped.split_off(2 * M + 1);
            unmap_all(bench, mapped);
            assert_eq!(bench.host.take().exchanges, 1);
            let mut spare = spare.into_iter();
            for _ in 0..M - 1 {
                if frees_first {
                    bench.unmap(spare.next().unwrap());
                } else {
                    bench.map_pages(1);
                }
            }
            let steps = bench.host.take();
            assert_eq!((steps.exchanges, steps.inserts, steps.erases), (0, 0, 0), "frees first: {frees_first}");
        });
    }
}

/// One CPU only allocates and another only frees: only one operation in 127 uses the tree (ATC'15, §4.3).
#[test]
fn a_producer_and_a_consumer_meet_at_the_depot() {
    on_magazine(|bench| {
        let mut in_flight: std::collections::VecDeque<IovaRange> = map_many(bench, 4 * M).into();
        let turns = 100 * M;
        bench.host.take();
        for _ in 0..turns {
            run_on(0);
            in_flight.push_back(bench.map_pages(1));
            run_on(1);
            bench.unmap(in_flight.pop_front().unwrap());
        }
        let steps = bench.host.take();
        // Until the depot has its first magazine, the producer takes from the tree.
        assert!(steps.inserts <= 4 * M, "{steps:?}");
        assert_eq!(steps.erases, 0);
        let exchanges = 2 * turns / M;
        assert!((exchanges - 8..=exchanges).contains(&steps.exchanges), "{steps:?}, about {exchanges} expected");
        run_on(0);
    });
}

#[test]
fn a_depot_keeps_32_magazines_and_the_tree_gets_the_rest() {
    on_magazine(|bench| {
        let kept = (DEPOT_MAGAZINES_MAX + 2) * M;
        let mapped = map_many(bench, kept + 2 * M);
        bench.host.take();
        unmap_all(bench, mapped);
        let usage = bench.domain.usage();
        assert_eq!((bench.host.take().erases, usage.kept_ranges, usage.live_ranges), (2 * M, kept, 0));
        let most = 6 * (2 * CPUS as usize + DEPOT_MAGAZINES_MAX) * M;
        assert_eq!(usage.kept_ranges_max, Some(most));
    });
}

/// Every 100 ms one magazine is given back, until there are no more than CPUs.
#[test]
fn a_depot_is_trimmed_to_one_magazine_per_cpu() {
    on_magazine(|bench| {
        let cpus = CPUS as usize;
        unmap_all(bench, map_many(bench, (2 + cpus) * M));
        assert_eq!(bench.domain.due_us(), None, "as many as CPUs may stay");
        let mapped = map_many(bench, (2 + cpus + 3) * M);
        unmap_all(bench, mapped);
        let kept = |magazines: usize| assert_eq!(bench.domain.usage().kept_ranges, (2 + cpus + magazines) * M);
        kept(3);
        bench.host.host().advance_us(TRIM_US - 1);
        bench.domain.tick().unwrap();
        kept(3);
        bench.host.host().advance_us(1);
        for left in [2, 1, 0] {
            bench.host.take();
            bench.domain.tick().unwrap();
            kept(left);
            assert_eq!(bench.host.take().erases, M);
            // Only one at a time.
            bench.domain.tick().unwrap();
            kept(left);
            bench.host.host().advance_us(TRIM_US);
        }
        assert_eq!(bench.domain.due_us(), None);
    });
}

#[test]
fn larger_than_32_pages_goes_to_the_tree() {
    on_magazine(|bench| {
        for (pages, from_tree) in [(32, false), (33, true), (64, true), (600, true)] {
            let range = bench.map_pages(pages);
            bench.host.take();
            bench.unmap(range);
            assert_eq!(bench.map_pages(pages), range, "free again, and the highest that fits");
            let steps = bench.host.take();
            assert_eq!((steps.erases, steps.pushes), if from_tree { (1, 0) } else { (0, 1) }, "{pages} pages");
            bench.unmap(range);
        }
    });
}

#[test]
fn sizes_share_a_magazine_with_those_that_round_up_alike() {
    on_magazine(|bench| {
        let three = bench.map_pages(3);
        bench.unmap(three);
        assert_eq!(bench.map_pages(4).first_pfn(), three.first_pfn());
    });
}

/// Ranges that other CPUs and depots keep are given back before a request is refused (S13).
#[test]
fn a_full_space_takes_back_what_every_cpu_keeps() {
    on::<Magazine>("", Protection::Strict, 22, |bench| {
        // 1023 pages, mapped and freed on all CPUs.
        let map = |number: u32| {
            run_on(number % CPUS);
            bench.map_pages(1)
        };
        let mapped: Vec<_> = (0..1023).map(map).collect();
        for (number, range) in mapped.into_iter().enumerate() {
            run_on(number as u32 % CPUS);
            bench.unmap(range);
        }
        assert_eq!(bench.domain.usage().kept_ranges, 1023);
        run_on(0);
        assert_eq!(bench.map_pages(512).first_pfn(), 512);
        assert_eq!((bench.domain.usage().kept_ranges, bench.domain.usage().live_ranges), (0, 1));
    });
}

#[test]
fn only_a_whole_mapping_is_unmapped_and_only_once() {
    on_magazine(|bench| {
        let (first, second) = (bench.map_pages(4), bench.map_pages(4));
        let refused = |first_pfn: u64, pages: u64| {
            let range = IovaRange::new(first_pfn, pages).unwrap();
            match bench.domain.unmap_raw(range.start(), range.pages() << 12) {
                Err(RawUnmapError::Refused(error)) => error,
                other => panic!("{range}: {other:?}"),
            }
        };
        let (low, high) = (second.first_pfn(), first.first_pfn());
        assert_eq!(low + 4, high, "neighbours");
        let partial = |pages| {
            let asked = IovaRange::new(low, pages).unwrap();
            UnmapError::Partial { asked, mapped: second }
        };
        assert_eq!([refused(low, 3), refused(low, 8), refused(low, 40)], [partial(3), partial(8), partial(40)]);
        let not_mapped = |pfn: u64| UnmapError::NotMapped(IovaRange::new(pfn, 1).unwrap().start());
        assert_eq!([refused(low + 1, 3), refused(1, 1)], [not_mapped(low + 1), not_mapped(1)]);
        bench.unmap(second);
        assert_eq!(refused(low, 4), not_mapped(low));
        bench.unmap(first);
        // A mapping from the tree: its parts are no mappings either.
        let large = bench.map_pages(600);
        let asked = IovaRange::new(large.first_pfn(), 1).unwrap();
        assert_eq!(refused(large.first_pfn(), 1), UnmapError::Partial { asked, mapped: large });
        bench.unmap(large);
    });
}

#[test]
fn deferred_flushes_the_domain_once_per_256_unmaps_of_a_cpu() {
    on::<Magazine>("", Protection::Deferred, 48, |bench| {
        let flush = vec![Invalidation::Domain(bench.domain.id())];
        for unmaps in 1..=2100 {
            // The unmaps alternate between two CPUs, whose queues fill at the same rate.
            run_on(unmaps % 2);
            let range = bench.map_pages(1);
            bench.unmap(range);
            let commands = bench.iommu.take_commands();
            // The unmap that finds its queue full flushes, and serves the other CPU's queue as well.
            let full = unmaps > 512 && unmaps % 512 == 1;
            assert_eq!(commands, if full { flush.clone() } else { vec![] }, "unmap {unmaps}");
        }
        run_on(0);
    });
}

#[test]
fn the_timer_empties_the_queues_of_all_cpus() {
    on::<Magazine>("", Protection::Deferred, 48, |bench| {
        for cpu in 0..CPUS {
            run_on(cpu);
            let range = bench.map_pages(1);
            bench.unmap(range);
        }
        run_on(0);
        assert_eq!((bench.domain.usage().queued_unmaps, bench.domain.due_us()), (CPUS as usize, Some(10_000)));
        bench.host.host().advance_us(10_000);
        bench.domain.tick().unwrap();
        let usage = bench.domain.usage();
        assert_eq!((usage.queued_unmaps, usage.live_ranges, bench.domain.due_us()), (0, 0, None));
        assert_eq!(bench.iommu.take_commands(), [Invalidation::Domain(bench.domain.id())]);
    });
}
