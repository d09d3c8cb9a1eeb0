//! EiovaR's interference (FAST'15 §4): the cached node of the tree serves one ring in constant time. Two rings that
//! share the tree keep moving it away from each other.

use super::{job, machine, measured, rings};
use portcullis::Protection;
use portcullis_designs::DesignId;
use portcullis_sim::RunOutcome;

fn stock_strict(parameters: &str) -> RunOutcome {
    let machine = machine("cascadelake-cx5");
    measured(&job(&machine, rings(parameters), DesignId::Stock, Protection::Strict))
}

fn steps(outcome: &RunOutcome) -> f64 {
    outcome.search_steps_mean.expect("a tree is searched")
}

#[test]
fn one_ring_needs_no_search() {
    for parameters in ["count=1,ring=1024", "count=1,ring=1024,burst=1", "count=1,ring=256,pages=3"] {
        let steps = steps(&stock_strict(parameters));
        assert!(steps < 0.5, "{parameters}: {steps} steps per allocation");
    }
}

#[test]
fn two_rings_search_and_the_more_the_finer_they_interleave() {
    let bursts = stock_strict("count=2,ring=1024");
    let single = stock_strict("count=2,ring=1024,burst=1");
    // A simple simulation gives 73 and 275.
    assert!(steps(&bursts) > 20.0, "bursts of 16: {} steps", steps(&bursts));
    assert!(steps(&single) > 2.0 * steps(&bursts), "{} and {} steps", steps(&single), steps(&bursts));
    // The search walks past the live buffers of the other ring, up to a whole ring of them.
    assert!(bursts.search_steps_max.is_some_and(|most| most > 1000), "{:?}", bursts.search_steps_max);
}

#[test]
fn what_is_searched_is_paid_for() {
    let (one, two) = (stock_strict("count=1,ring=1024"), stock_strict("count=2,ring=1024"));
    let searched = two.iova_alloc_cycles_mean.unwrap() - one.iova_alloc_cycles_mean.unwrap();
    let step = machine("cascadelake-cx5").costs.tree_search as f64;
    assert!(searched >= 0.99 * step * steps(&two), "{searched} cycles for {} steps of {step}", steps(&two));
    assert!(two.cycles_per_page - one.cycles_per_page >= 0.99 * searched, "allocation is part of the whole");
}

#[test]
fn deferred_unmaps_leave_fewer_searches() {
    let machine = machine("cascadelake-cx5");
    let deferred = measured(&job(&machine, rings("count=2,ring=1024"), DesignId::Stock, Protection::Deferred));
    assert!(steps(&deferred) < steps(&stock_strict("count=2,ring=1024")) / 2.0, "{} steps", steps(&deferred));
}

#[test]
fn sixteen_cores_wait_for_the_one_lock_and_one_core_never_does() {
    let (one, many) = (stock_strict("count=1"), stock_strict("count=16"));
    assert_eq!(
        (one.lock_wait_percent, one.lock_wait_iova_percent, one.lock_wait_invalidation_percent),
        (0.0, 0.0, 0.0)
    );
    assert!(many.lock_wait_iova_percent > 10.0, "{} %", many.lock_wait_iova_percent);
    assert!(many.lock_wait_percent >= many.lock_wait_iova_percent + many.lock_wait_invalidation_percent);
    assert!(many.cpu_gbps < 8.0 * one.cpu_gbps, "waiting costs what sixteen CPUs could have carried");
}
