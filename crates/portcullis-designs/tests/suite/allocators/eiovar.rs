//! EiovaR keeps freed ranges for the next request of their size (FAST'15, §5 and §6).

use super::{Bench, TOP, on};
use portcullis::Protection::{self, Deferred, Strict};
use portcullis::invalidation::QUEUE_CAPACITY;
use portcullis::platform::fake::FakeHost;
use portcullis_designs::Eiovar;
use std::collections::VecDeque;

/// The high-water mark of the global queue, W.
const W: usize = QUEUE_CAPACITY;

fn on_eiovar(options: &str, protection: Protection, test: impl FnOnce(&Bench<'_, Eiovar>)) {
    on(options, protection, 48, test);
}

/// Lets two rings interfere, which makes the red-black tree search, and measures the second half of the run: how many
/// requests in a window of W the list served, and how many nodes each search passed.
fn two_rings(options: &str, protection: Protection) -> (f64, f64) {
    let mut served = (0.0, 0.0);
    on_eiovar(options, protection, |bench| {
        let mut rings: [VecDeque<u64>; 2] = [(); 2].map(|()| (0..1024).map(|_| bench.map().0).collect());
        let mut turn = |bench: &Bench<'_, Eiovar>| {
            for ring in &mut rings {
                bench.unmap_page(ring.pop_front().expect("a full ring"));
                ring.push_back(bench.map_pages(1).first_pfn());
            }
        };
        let turns = 16 * W;
        (0..turns / 2).for_each(|_| turn(bench));
        bench.host.take();
        (0..turns / 2).for_each(|_| turn(bench));
        let steps = bench.host.take();
        assert_eq!(steps.pops + steps.inserts, turns, "the list or the tree serves every request");
        served = (steps.pops as f64 * W as f64 / turns as f64, steps.searched as f64 / turns as f64);
    });
    served
}

/// Figure 7: a list of k < W ranges serves k of the W requests between two flushes, and the others still search. From k
/// = W on, the list serves all of them.
#[test]
fn a_list_as_long_as_the_queue_ends_the_searches() {
    for k in [64, 128, W - 1] {
        let (served, searched) = two_rings(&format!("k={k}"), Deferred);
        // One of the W is the unmap that found the queue full.
        assert!((served - k as f64).abs() <= 1.0, "k = {k}: {served} of {W} requests");
        let each = searched * W as f64 / (W - k) as f64;
        assert!(each > 2.0, "k = {k}: {each} nodes per request that the list does not serve");
    }
    for options in [format!("k={W}"), "k=512".to_owned(), String::new()] {
        assert_eq!(two_rings(&options, Deferred), (W as f64, 0.0), "{options}");
    }
    let (served, searched) = two_rings("k=0", Deferred);
    assert!(served == 0.0 && searched > 1.0, "without a list: {served} served, {searched} nodes");
}

/// Figures 3 and 4: under strict protection, one freed range is enough.
#[test]
fn one_kept_range_serves_strict_protection() {
    assert_eq!(two_rings("k=1", Strict), (W as f64, 0.0));
    let (served, searched) = two_rings("k=0", Strict);
    assert!(served == 0.0 && searched > 100.0, "without a list: {served} served, {searched} nodes");
}

/// Figure 8: with k below W, the list fills and drains once per flush, so it holds k/2 on average.
#[test]
fn the_list_is_half_full_on_average() {
    on_eiovar("k=64", Deferred, |bench| {
        let mut ring: VecDeque<u64> = (0..1024).map(|_| bench.map().0).collect();
        let (mut kept, mut most) = (0, 0);
        let turns = 64 * W;
        for _ in 0..turns {
            bench.unmap_page(ring.pop_front().expect("a full ring"));
            let usage = bench.domain.usage();
            (kept, most) = (kept + usage.kept_ranges, most.max(usage.kept_ranges));
            assert_eq!(usage.kept_ranges_max, Some(64));
            ring.push_back(bench.map_pages(1).first_pfn());
        }
        assert_eq!(most, 64);
        // The list is not empty for k of W turns, and holds k/2 on average in these.
        let while_any = kept as f64 / turns as f64 * W as f64 / 64.0;
        assert!((while_any - 32.0).abs() < 2.0, "{while_any}");
    });
}

#[test]
fn every_size_has_its_list_and_the_latest_comes_first() {
    on_eiovar("", Strict, |bench| {
        let ranges = [1, 2, 3, 4, 1].map(|pages| bench.map_pages(pages));
        ranges.iter().for_each(|range| bench.unmap(*range));
        bench.host.take();
        // Requests of three and of four pages have the same size.
        let again = [1, 1, 4, 3, 2].map(|pages| bench.map_pages(pages).first_pfn());
        assert_eq!(again, [4, 0, 3, 2, 1].map(|which: usize| ranges[which].first_pfn()));
        let steps = bench.host.take();
        assert_eq!((steps.pops, steps.inserts, steps.searched), (5, 0, 0));
        let usage = bench.domain.usage();
        assert_eq!((usage.live_ranges, usage.kept_ranges, usage.kept_ranges_max), (5, 0, None));
    });
}

/// Ranges that are kept for one size are given back before a request of another size is refused (S13).
#[test]
fn a_full_space_takes_back_what_is_kept() {
    // Sixteen pages, the first of them reserved.
    on::<Eiovar>("", Strict, 16, |bench| {
        let pages: Vec<u64> = (0..15).map(|_| bench.map().0).collect();
        pages.iter().for_each(|pfn| bench.unmap_page(*pfn));
        assert_eq!(bench.domain.usage().kept_ranges, 15);
        let eight = bench.map_pages(8);
        assert_eq!((eight.first_pfn(), bench.domain.usage().kept_ranges), (8, 0));
        bench.unmap(eight);
        assert_eq!(bench.domain.usage().live_ranges, 0);
    });
}

#[test]
fn what_is_freed_beyond_k_goes_back_to_the_tree() {
    on_eiovar("k=2", Strict, |bench| {
        let host: &FakeHost = bench.host.host();
        let pages: Vec<u64> = (0..5).map(|_| bench.map().0).collect();
        bench.host.take();
        pages.iter().for_each(|pfn| bench.unmap_page(*pfn));
        let steps = bench.host.take();
        assert_eq!((steps.pushes, steps.erases, bench.domain.usage().kept_ranges), (2, 3, 2));
        // The lists take no memory from the host, and hand out the kept ranges before free ones.
        assert_eq!([(); 3].map(|()| bench.map().0), [TOP - 2, TOP - 1, TOP - 3]);
        assert!(host.frames_lent() > 0);
    });
}
