//! Windows of adjacent pages (Fast & Safe, SOSP'24, §3).

use super::{Bench, TOP, on};
use crate::raw_face::RawFace;
use portcullis::platform::fake::{CPUS, run_on};
use portcullis::{
    Access, Invalidation, IovaRange, MapError, NoMemory, PhysAddr, Protection, RawUnmapError, Request, Segment, Stream,
    UnmapError,
};
use portcullis_designs::FastAndSafe;

const W: u64 = 64;

fn on_windows(test: impl FnOnce(&Bench<'_, FastAndSafe>)) {
    on("", Protection::Strict, 48, test);
}

fn range(first_pfn: u64, pages: u64) -> IovaRange {
    IovaRange::new(first_pfn, pages).expect("a range")
}

/// Maps `pages` pages for a ring, or for this CPU and the access.
fn map_for(
    bench: &Bench<'_, FastAndSafe>,
    pages: u64,
    access: Access,
    ring: Option<u32>,
) -> Result<IovaRange, MapError> {
    let segments = [Segment { phys: PhysAddr::new(0), len: pages << 12 }];
    let mut request = Request::new(&segments, access).expect("a buffer");
    request.stream = Stream(ring);
    bench.domain.raw_map_request(&request)
}

fn first(range: IovaRange) -> u64 {
    range.first_pfn()
}

fn refused(bench: &Bench<'_, FastAndSafe>, range: IovaRange) -> UnmapError {
    match bench.domain.unmap_raw(range.start(), range.pages() << 12) {
        Err(RawUnmapError::Refused(error)) => error,
        other => panic!("{range}: {other:?}"),
    }
}

#[test]
fn consecutive_requests_get_consecutive_pages() {
    on_windows(|bench| {
        let mut next = TOP - W;
        for pages in [1, 3, 1, 32, 2, 1, 24] {
            assert_eq!(bench.map_pages(pages), range(next, pages));
            next += pages;
        }
        assert_eq!(next, TOP);
        assert_eq!(bench.map_pages(1), range(TOP - 2 * W, 1), "the next window");
    });
}

/// Each ring has its own window. Requests without a ring have one for each CPU and direction.
#[test]
fn streams_do_not_share_windows() {
    on_windows(|bench| {
        let accesses = [Access::DeviceReads, Access::DeviceWrites, Access::DeviceReadsAndWrites];
        let cpus = (0..CPUS).flat_map(|cpu| accesses.map(|access| (cpu, access, None)));
        let rings = (0..4).map(|ring| (ring, accesses[ring as usize % 3], Some(ring)));
        let streams: Vec<_> = cpus.chain(rings).collect();
        for turn in 0..W {
            for (number, &(cpu, access, ring)) in streams.iter().enumerate() {
                run_on(cpu);
                let expected = TOP - W * (number as u64 + 1) + turn;
                assert_eq!(map_for(bench, 1, access, ring), Ok(range(expected, 1)), "{cpu} {access:?} {ring:?}");
            }
        }
        // A ring has one window on all CPUs and for all accesses.
        let windows = [0, 1, 2, 3].map(|cpu| {
            run_on(cpu);
            map_for(bench, 1, accesses[cpu as usize % 3], Some(0)).unwrap().first_pfn()
        });
        assert!(windows.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{windows:x?}");
        run_on(0);
    });
}

/// Of the current window and a new one, the stream keeps the one with more pages left.
#[test]
fn a_large_request_among_small_ones_does_not_cost_them_their_window() {
    on_windows(|bench| {
        let small = first(bench.map_pages(1));
        assert_eq!(bench.map_pages(W), range(small - W, W), "a window of its own");
        assert_eq!(bench.map_pages(1), range(small + 1, 1), "the small requests continue in their window");
        assert_eq!(bench.map_pages(50), range(small + 2, 50));
        assert_eq!(bench.map_pages(20), range(small - 2 * W, 20), "12 are left");
        assert_eq!(bench.map_pages(1), range(small - 2 * W + 20, 1), "44 are left here");
    });
}

/// A window is freed with its last page, in any order and from any CPU, and not earlier.
#[test]
fn a_window_comes_back_with_its_last_page() {
    for seed in 0..20u64 {
        on_windows(|bench| {
            let mut mapped: Vec<u64> = (0..W).map(|_| first(bench.map_pages(1))).collect();
            let window = mapped[0];
            // A plain shuffle.
            for index in (1..mapped.len()).rev() {
                mapped.swap(index, (seed.wrapping_mul(0x9e37_79b9) as usize + 31 * index) % (index + 1));
            }
            let last = mapped.pop().unwrap();
            bench.host.take();
            for (number, pfn) in mapped.into_iter().enumerate() {
                run_on(number as u32 % CPUS);
                bench.unmap_page(pfn);
            }
            assert_eq!(bench.host.take().pushes, 0);
            assert_ne!(bench.map_pages(W).first_pfn(), window, "a page is in use");
            run_on(0);
            bench.host.take();
            bench.unmap_page(last);
            assert_eq!(bench.host.take().pushes, 1);
            assert_eq!(bench.map_pages(W).first_pfn(), window);
        });
    }
}

/// A window that a stream has left, with pages that were never handed out, is freed when the pages that were are freed.
#[test]
fn a_window_left_half_used_comes_back() {
    on_windows(|bench| {
        let (left, next) = (bench.map_pages(40), bench.map_pages(30));
        assert_eq!(first(next) + W, first(left));
        bench.unmap(left);
        assert_eq!(bench.map_pages(W).first_pfn(), first(left), "no page of it is out");
        // The current window is not freed, although none of its pages is in use.
        bench.unmap(next);
        let usage = bench.domain.usage();
        assert_eq!((usage.live_ranges, usage.kept_ranges), (1, 1));
        let more = bench.map_pages(20);
        assert_eq!(first(more), first(next) + 30);
        // A window that is left with no page in use is freed at once.
        bench.unmap(more);
        bench.host.take();
        bench.map_pages(34);
        assert_eq!(bench.host.take().pushes, 1);
    });
}

#[test]
fn what_is_kept_is_counted_and_bounded() {
    on_windows(|bench| {
        let most = bench.domain.usage().kept_ranges_max.expect("a bound");
        let mapped: Vec<IovaRange> = (0..5 * W).map(|_| bench.map_pages(1)).collect();
        assert_eq!((bench.domain.usage().live_ranges, bench.domain.usage().kept_ranges), (5 * W as usize, 0));
        let one = bench.map_pages(1);
        assert_eq!(bench.domain.usage().kept_ranges, 1, "the current window");
        mapped.into_iter().chain([one]).for_each(|range| bench.unmap(range));
        let usage = bench.domain.usage();
        assert_eq!((usage.live_ranges, usage.kept_ranges, usage.kept_ranges_max), (0, 6, Some(most)));
        // A leaf of 64 records of 64 bytes, and the branch to it.
        assert_eq!(usage.record_bytes, 4096 + 4096);
        assert_eq!(bench.host.take().erases, 0);
    });
}

#[test]
fn larger_than_a_window_comes_from_the_tree_and_frees_its_table() {
    on_windows(|bench| {
        let small = bench.map_pages(1);
        let tables = bench.domain.table_pages();
        for (pages, leaf_only) in [(W + 1, true), (512, false), (1000, false)] {
            let large = bench.map_pages(pages);
            bench.host.take();
            bench.iommu.take_commands();
            bench.unmap(large);
            assert_eq!(bench.host.take().erases, 1, "{pages} pages");
            let commands = bench.iommu.take_commands();
            let levels = matches!(commands[..], [Invalidation::Pages { leaf_only: given, .. }] if given == leaf_only);
            assert!(levels, "{pages} pages: {commands:?}");
        }
        assert_eq!(bench.domain.table_pages(), tables + 1, "the rest of 1000 pages");
        bench.unmap(small);
    });
}

/// The table of claims: a range that begins at a mapping's first page and has its length is unmapped, once; any other
/// is refused with a specific error.
#[test]
fn only_a_whole_mapping_is_unmapped_and_only_once() {
    on_windows(|bench| {
        let at = first(bench.map_pages(4));
        let (four, three) = (range(at, 4), bench.map_pages(3));
        bench.map_pages(1);
        let large = bench.map_pages(600);
        let partial = |first_pfn, pages, mapped| UnmapError::Partial { asked: range(first_pfn, pages), mapped };
        let not_mapped = |pfn| UnmapError::NotMapped(range(pfn, 1).start());
        let table = [
            (at, 1, partial(at, 1, four)),
            (at, 3, partial(at, 3, four)),
            (at, 5, partial(at, 5, four)),
            (at, 7, partial(at, 7, four)),
            (at, 64, partial(at, 64, four)),
            (at, 65, partial(at, 65, four)),
            (at + 1, 3, not_mapped(at + 1)),
            (at + 3, 1, not_mapped(at + 3)),
            (at + 4, 4, partial(at + 4, 4, three)),
            (at + 8, 1, not_mapped(at + 8)),
            (at + 8, 56, not_mapped(at + 8)),
            (at + 8, 100, not_mapped(at + 8)),
            (at - 1, 5, not_mapped(at - 1)),
            (at - 1, 100, not_mapped(at - 1)),
            (first(large), 1, partial(first(large), 1, large)),
            (first(large), 599, partial(first(large), 599, large)),
            (first(large) + 100, 500, partial(first(large) + 100, 500, large)),
            (1, 1, not_mapped(1)),
            (1, 100, not_mapped(1)),
            (1 << 40, 1, not_mapped(1 << 40)),
        ];
        for (first_pfn, pages, expected) in table {
            let before = bench.domain.usage();
            assert_eq!(refused(bench, range(first_pfn, pages)), expected, "{first_pfn:#x} + {pages}");
            assert_eq!(bench.domain.usage(), before);
        }
        // Each of them is still whole, and is unmapped once.
        for mapped in [four, three, range(at + 7, 1), large] {
            bench.unmap(mapped);
            assert_eq!(refused(bench, mapped), not_mapped(first(mapped)));
        }
        // A page of the window that a CPU keeps is no mapping, and neither is the window itself.
        let window = bench.map_pages(W);
        bench.unmap(window);
        assert_eq!(refused(bench, window), not_mapped(first(window)));
        assert_eq!(bench.domain.usage().live_ranges, 0);
    });
}

/// An unmapped range stays unmapped while others get pages of the same window, also when the window is reused.
#[test]
fn marks_do_not_outlive_their_mapping() {
    on_windows(|bench| {
        let old = bench.map_pages(W);
        bench.unmap(old);
        let pages: Vec<IovaRange> = (0..W).map(|_| bench.map_pages(1)).collect();
        assert_eq!(first(pages[0]), first(old));
        let partial = UnmapError::Partial { asked: old, mapped: pages[0] };
        assert_eq!(refused(bench, old), partial);
        pages.iter().for_each(|page| bench.unmap(*page));
        let again = bench.map_pages(2);
        assert_eq!(
            (first(again), refused(bench, pages[0])),
            (first(old), UnmapError::Partial { asked: pages[0], mapped: again })
        );
        assert_eq!(refused(bench, pages[1]), UnmapError::NotMapped(pages[1].start()));
    });
}

/// A map for which the table had no page leaves nothing that could be unmapped, and its page is freed with the window.
#[test]
fn a_map_that_failed_is_no_mapping() {
    on_windows(|bench| {
        let host = bench.host.host();
        host.limit_frames(0);
        let segments = [Segment { phys: PhysAddr::new(0), len: 4096 }];
        let request = Request::new(&segments, Access::DeviceWrites).expect("a page");
        assert_eq!(bench.domain.raw_map_request(&request), Err(MapError::NoMemory(NoMemory)));
        host.limit_frames(usize::MAX);
        let failed = range(TOP - W, 1);
        assert_eq!(refused(bench, failed), UnmapError::NotMapped(failed.start()));
        let rest: Vec<IovaRange> = (1..W).map(|_| bench.map_pages(1)).collect();
        assert_eq!(rest[0], range(TOP - W + 1, 1));
        rest.into_iter().for_each(|page| bench.unmap(page));
        assert_eq!((bench.map_pages(W), bench.domain.usage().live_ranges), (range(TOP - W, W), 1));
    });
}

#[test]
fn windows_are_as_large_as_they_are_asked_to_be() {
    for (options, window) in [("window=8", 8), ("window=16", 16), ("window=32", 32), ("window=64", 64)] {
        on::<FastAndSafe>(options, Protection::Strict, 48, |bench| {
            let pages: Vec<u64> = (0..2 * window).map(|_| first(bench.map_pages(1))).collect();
            assert_eq!((pages[0], pages[window as usize]), (TOP - window, TOP - 2 * window));
            bench.host.take();
            let (whole, larger) = (bench.map_pages(window), bench.map_pages(window + 1));
            [whole, larger].into_iter().for_each(|range| bench.unmap(range));
            let steps = bench.host.take();
            assert_eq!((steps.pushes, steps.erases), (1, 1), "{options}");
        });
    }
}

/// When no window is free, requests share the pages that other streams have left; then idle windows are given up; then
/// gaps that are too small for a window are used. Only then is a request refused (S13).
#[test]
fn a_full_space_is_used_to_the_last_page() {
    // 256 pages: three windows, and 63 pages beside page 0.
    on::<FastAndSafe>("", Protection::Strict, 20, |bench| {
        let on_cpu = |cpu, pages| {
            run_on(cpu);
            let mapped = map_for(bench, pages, Access::DeviceWrites, None);
            run_on(0);
            mapped
        };
        for cpu in 0..3 {
            assert_eq!(on_cpu(cpu, 40), Ok(range(256 - W * (u64::from(cpu) + 1), 40)));
        }
        assert_eq!(on_cpu(3, 20), Ok(range(192 + 40, 20)), "in the first CPU's window");
        assert_eq!(on_cpu(0, 20), Ok(range(128 + 40, 20)), "in the second CPU's window");
        let exhausted = |pages| Err(MapError::Exhausted { pages, limit_bits: 20 });
        assert_eq!([on_cpu(0, 64), on_cpu(0, 33), on_cpu(0, 100)], [exhausted(64), exhausted(33), exhausted(100)]);
        assert_eq!(on_cpu(0, 30), Ok(range(32, 30)), "no window has that many pages left");
        // 4 + 4 + 24 in the windows, 31 below.
        let mut singles: Vec<IovaRange> =
            (0..4 + 4 + 24 + 31).map(|number| on_cpu(number % 4, 1).expect("room")).collect();
        assert_eq!((on_cpu(1, 1), bench.domain.usage().live_ranges), (exhausted(1), 6 + 63));
        singles.sort_unstable_by_key(|range| first(*range));
        assert!(singles.windows(2).all(|pair| !pair[0].overlaps(pair[1])));
        // Claims of ranges in no window are checked as exactly.
        assert_eq!(refused(bench, range(32, 29)), UnmapError::Partial { asked: range(32, 29), mapped: range(32, 30) });
        bench.unmap(range(32, 30));
        assert_eq!(refused(bench, range(32, 30)), UnmapError::NotMapped(range(32, 1).start()));
        singles.into_iter().for_each(|range| bench.unmap(range));
        for (window, second) in [(192, 20), (128, 20)] {
            bench.unmap(range(window, 40));
            bench.unmap(range(window + 40, second));
        }
        bench.unmap(range(64, 40));
        assert_eq!(bench.domain.usage().live_ranges, 0);
        assert_eq!(on_cpu(0, 128), Ok(range(128, 128)), "kept windows are given up for it");
        assert_eq!(on_cpu(0, 64), Ok(range(64, 64)));
        assert_eq!(on_cpu(0, 32), Ok(range(32, 32)));
    });
}

/// Idle windows of other streams count as free, for a window and for larger ranges.
#[test]
fn a_full_space_gives_up_idle_windows() {
    for pages in [64, 128] {
        on::<FastAndSafe>("", Protection::Strict, 20, |bench| {
            for cpu in 0..3 {
                run_on(cpu);
                let page = bench.map_pages(1);
                bench.unmap(page);
            }
            run_on(0);
            let usage = bench.domain.usage();
            assert_eq!((usage.live_ranges, usage.kept_ranges), (0, 3));
            assert_eq!(bench.map_pages(pages).end_pfn() % pages, 0, "{pages} pages");
        });
    }
}
