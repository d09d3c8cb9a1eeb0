//! Reproduces what the thesis behind rIOMMU (ASPLOS'15, §5.4) says about IOTLB prefetchers, and tests what a
//! contiguous order of addresses changes.

use super::{bundled, job, machine, measured, replay, rings};
use portcullis::Protection::Strict;
use portcullis_designs::DesignId::{self, Magazine, Portcullis};
use portcullis_sim::prefetch::Prefetching;
use portcullis_sim::{Job, Pace, RunOutcome, Work};

fn run(work: &Work, design: DesignId, batch: usize, pace: Pace, prefetch: &str) -> RunOutcome {
    let mut machine = machine("cascadelake-cx5");
    let Prefetching { prefetcher, hints } = Prefetching::parse(prefetch).expect(prefetch);
    machine.iommu.prefetcher = prefetcher;
    measured(&Job { batch, pace, hints, ..job(&machine, work.clone(), design, Strict) })
}

/// The share of the misses without prefetching that the prefetcher avoids.
fn covered(work: &Work, design: DesignId, prefetch: &str) -> f64 {
    let misses = |prefetch| run(work, design, 1, Pace::Gaps(1.0), prefetch).iotlb_misses_per_page;
    1.0 - misses(prefetch) / misses("none")
}

const LIVE: usize = 256;

/// Histories of half and of one and a half times the number of buffers that are mapped at once.
fn histories(form: &str) -> [(f64, [String; 2]); 2] {
    [0.5, 1.5].map(|times| {
        let size = (LIVE as f64 * times) as usize;
        (times, [format!("markov:rows={size}:form={form}"), format!("recency:length={size}:form={form}")])
    })
}

/// Addresses return in an order that history knows, if history survives their invalidation and is longer than the
/// ring.
#[test]
fn history_covers_a_ring_that_is_shorter_than_it() {
    let ring = rings(&format!("ring={LIVE},operations=10000"));
    for (times, history) in histories("modified") {
        for prefetcher in history {
            let covered = covered(&ring, Magazine, &prefetcher);
            assert!(if times < 1.0 { covered <= 0.05 } else { covered >= 0.9 }, "{covered}: {prefetcher}");
        }
    }
    for prefetcher in histories("baseline").into_iter().flat_map(|(_, history)| history) {
        let covered = covered(&ring, Magazine, &prefetcher);
        assert!(covered <= 0.02, "{covered}: {prefetcher}");
    }
}

/// `portcullis` fills tables like a log: an address is reused only after all others of its table, so no such history
/// is long enough. But the next page is simply the next one.
#[test]
fn a_contiguous_order_needs_no_history() {
    let ring = rings(&format!("ring={LIVE},operations=10000"));
    let receive = replay(&bundled("q-e1000e-rx.strict.2cpu"));
    let (_, [markov, recency]) = &histories("modified")[1];
    for work in [&ring, &receive] {
        for prefetcher in [markov, recency] {
            let covered = covered(work, Portcullis, prefetcher);
            assert!(covered <= 0.01, "{covered}: {prefetcher}");
        }
        let next = covered(work, Portcullis, "next");
        assert!(next >= 0.8, "{next}");
    }
    let scattered = covered(&receive, Magazine, "next");
    assert!(scattered <= 0.5, "{scattered}");
}

/// Distance prefetching is poor because of the order of addresses: on a ring that is served alone it covers nearly all
/// misses.
#[test]
fn distance_lives_on_the_order_of_addresses() {
    let ring = rings(&format!("ring={LIVE},operations=10000"));
    let receive = replay(&bundled("q-e1000e-rx.strict.2cpu"));
    let alone = covered(&ring, Magazine, "distance");
    assert!(alone >= 0.97, "{alone}");
    let mixed = covered(&receive, Magazine, "distance");
    assert!(mixed <= 0.5, "{mixed}");
}

/// With a buffer of one entry per ring, translations no longer delay a fast device. With fewer entries, all prefetches
/// are wasted.
#[test]
fn a_buffer_of_an_entry_for_each_ring_is_enough() {
    let work = rings("count=16,ring=256,burst=16,operations=20000");
    let gbps = |prefetch| run(&work, Portcullis, 64, Pace::Gaps(0.0), prefetch).achieved_gbps.expect("a span");
    let [none, enough, few] = ["none", "next:depth=1:buffer=16", "next:depth=1:buffer=12"].map(gbps);
    assert!((120.0..=126.0).contains(&none) && enough >= 430.0 && few <= 160.0, "{none} {enough} {few}");
    // A leaf of 2 MiB needs no prefetching. The buffers of every ring are aligned to it.
    let large = rings("count=16,ring=16,burst=1,pages=512,operations=1600");
    let large = run(&large, Portcullis, 64, Pace::Gaps(0.0), "none");
    let (gbps, misses) = (large.achieved_gbps.expect("a span"), large.iotlb_misses_per_page);
    assert!(gbps >= 490.0 && misses <= 0.0021, "{gbps} {misses}");
}
