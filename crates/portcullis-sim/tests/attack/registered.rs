//! Every registered design under attack: the device finds what the design declares, and nothing else.

use super::{machine, replay, rings};
use portcullis::Protection;
use portcullis_designs::DesignId;
use portcullis_sim::attack::attack;
use portcullis_sim::prefetch::{Hints, Prefetching};
use portcullis_sim::{Job, Pace, Work};
use portcullis_testkit::attack::{check_on, passes};

fn every_protection() -> impl Iterator<Item = (DesignId, Protection)> {
    let designs = DesignId::ALL.iter().copied();
    designs.flat_map(|design| design.info().protections.iter().map(move |protection| (design, *protection)))
}

/// Attacks every design, and asserts the result.
fn check(work: &Work, batch: Option<usize>) {
    let machine = machine();
    for &design in DesignId::ALL {
        check_on(design.into(), &machine, work, batch);
    }
}

/// Attacks every design with work that has no receive buffer of one page. The pool of `page-pool` takes no other, so
/// the device finds nothing there.
fn check_without_receive_pages(work: &Work) {
    let machine = machine();
    for &design in DesignId::ALL {
        if design == DesignId::PagePool {
            let attacked = attack(&Job::new(&machine, work.clone(), design, Protection::Deferred));
            passes(&attacked, "page-pool without receive pages");
            assert!(attacked.found.is_empty(), "{attacked:?}");
        } else {
            check_on(design.into(), &machine, work, None);
        }
    }
}

#[test]
fn on_the_bundled_traces() {
    // On `q-e1000e-rx.strict.2cpu`, which the program carries, its own tests check the same: `attack::a_bundled_trace`.
    check(&replay("q-e1000e-tx.lazy.2cpu"), None);
    check_without_receive_pages(&replay("nvme-seqread128k.strict.4cpu"));
}

/// There are more cores than the walkers could serve if the device tried everything that it can.
#[test]
fn on_more_rings_than_the_walkers_serve() {
    check(&rings("count=16,operations=4000"), Some(1));
}

#[test]
fn on_rings() {
    check(&rings("operations=5000"), None);
}

#[test]
fn on_rings_that_share_addresses_in_batches() {
    check(&rings("count=4,ring=128,tx=0.5,operations=5000"), Some(16));
}

#[test]
fn on_mappings_of_random_lifetimes() {
    check(&Work::parse("churn:live=2048,operations=6000").expect("a workload"), None);
}

/// Buffers of 2 MiB. A large leaf translates each of them if the design allows it.
#[test]
fn on_large_leaves() {
    check_without_receive_pages(&rings("ring=8,burst=2,pages=512,operations=300"));
}

/// A walker that does not snoop sees only those cleared entries that were flushed.
#[test]
fn where_walks_do_not_snoop() {
    let mut machine = machine();
    machine.iommu.set("coherent", "false").expect("a parameter");
    for (design, protection) in every_protection() {
        let attacked = attack(&Job::new(&machine, rings("count=2,ring=64,operations=4000"), design, protection));
        passes(&attacked, &format!("{} {protection}", design.info().id));
    }
}

/// A map that invalidates what it has written: the device reaches the page for a while before the map returns.
#[test]
fn a_map_under_way_is_no_breach() {
    let mut machine = machine();
    machine.iommu.set("caching_mode", "true").expect("a parameter");
    for (design, protection) in every_protection() {
        let attacked = attack(&Job::new(&machine, rings("count=8,ring=32,operations=4000"), design, protection));
        passes(&attacked, &format!("{} {protection}", design.info().id));
    }
}

/// A few hundred unmaps wait for the timer of the queue, while the caches see many other pages. The device keeps using
/// what it has.
#[test]
fn the_longest_window_is_found() {
    let mut machine = machine();
    machine.iommu.set("iotlb_entries", "64").expect("a parameter");
    let own = Job::new(&machine, rings("ring=1024,operations=3000"), DesignId::Stock, Protection::Deferred);
    let attacked = attack(&Job { pace: Pace::Gaps(200.0), ..own });
    let window_us = attacked.found.iter().find_map(|found| found.window_us_max);
    let bound_us = attacked.bound_us.expect("a bound") as f64;
    assert!(window_us.is_some_and(|window_us| window_us > 0.99 * bound_us), "{attacked:?}");
    // 32 pages for about 10 ms, 16 times: at least half of that.
    let bytes_us = attacked.found.iter().find_map(|found| found.bytes_us);
    assert!(bytes_us.is_some_and(|bytes_us| bytes_us > 0.5 * 32.0 * 4096.0 * 10_000.0 * 16.0), "{attacked:?}");
}

#[test]
fn the_rest_of_shared_pages_is_reported_and_no_breach() {
    let machine = machine();
    let of = |work| attack(&Job::new(&machine, work, DesignId::Stock, Protection::Strict));
    let (whole, halves) = (of(rings("operations=5000")), of(replay("q-e1000e-rx.strict.2cpu")));
    assert_eq!((whole.residual_accesses, whole.residual_bytes_us), (0, Some(0.0)));
    assert!(halves.residual_accesses > 1000 && halves.residual_bytes_us > Some(0.0), "{halves:?}");
    passes(&halves, "halves of pages");
}

#[test]
fn too_few_cached_translations_prove_nothing() {
    let machine = machine();
    let of = |work| attack(&Job::new(&machine, work, DesignId::Stock, Protection::Strict));
    assert!(of(rings("ring=16,operations=64")).proves_nothing());
    assert!(!of(rings("operations=2000")).proves_nothing());
    let mut uncached = machine.clone();
    uncached.iommu.set("iotlb_entries", "0").expect("a parameter");
    let attacked = attack(&Job::new(&uncached, rings("operations=2000"), DesignId::Stock, Protection::Strict));
    assert!(attacked.proves_nothing(), "{attacked:?}");
}

#[test]
fn a_seed_repeats_a_run() {
    let machine = machine();
    let of = |seed| {
        let job = Job::new(&machine, rings("count=2,operations=3000"), DesignId::Magazine, Protection::Deferred);
        format!("{:?}", attack(&Job { seed, ..job }))
    };
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

/// Translations that were prefetched are invalidated like all others.
#[test]
fn under_every_prefetcher() {
    let all = [
        "adjacent",
        "next:depth=4",
        "markov",
        "recency",
        "distance",
        "none+map-hint=all",
        "markov:form=baseline+map-hint=reads",
    ];
    for text in all {
        let Prefetching { prefetcher, hints } = Prefetching::parse(text).expect(text);
        let mut machine = machine();
        machine.iommu.prefetcher = prefetcher;
        // Rings have only their own prefetcher.
        let strict = every_protection().filter(|(_, protection)| *protection == Protection::Strict);
        for (design, protection) in strict.filter(|(design, _)| !design.info().is_hypothetical()) {
            let job = Job::new(&machine, rings("count=2,ring=64,tx=0.2,operations=1000"), design, protection);
            let job = Job { batch: 1, hints, ..job };
            let (attacked, run) = (attack(&job), format!("{} under {text}", design.info().id));
            passes(&attacked, &run);
            assert!(attacked.found.is_empty(), "{run}: {:?}", attacked.found);
            // Under other designs the predicted pages may never be mapped, for instance beside guard pages.
            let must_find = hints != Hints::NONE || design == DesignId::Magazine;
            assert!(attacked.prefetches > 0 || !must_find, "{run} has prefetched nothing that is mapped");
        }
    }
}
