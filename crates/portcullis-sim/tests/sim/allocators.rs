//! Reproduces what the papers found about allocators and flush queues: FAST'15 §6, ATC'15 §3 and §5.

use super::capture::{Buffer, Capture, WRITES};
use super::{bundled_case, every_trace, job, machine, measured, replay, rings};
use portcullis::Protection::{self, Deferred, Strict};
use portcullis::invalidation::QUEUE_TIMEOUT_US;
use portcullis_designs::{Choice, DesignId};
use portcullis_sim::{Job, Pace, PayloadRule, RunOutcome, Work, machine_pace};

fn run_on(machine_id: &str, work: Work, choice: &str, protection: Protection) -> RunOutcome {
    let machine = machine(machine_id);
    let Choice { design, options } = Choice::parse(choice).expect("a design");
    let pace = machine_pace(&machine, &work, PayloadRule::Shown, 1);
    measured(&Job { options, pace, ..job(&machine, work, design, protection) })
}

fn run(work: Work, choice: &str, protection: Protection) -> RunOutcome {
    run_on("cascadelake-cx5", work, choice, protection)
}

fn steps(outcome: &RunOutcome) -> f64 {
    outcome.search_steps_mean.expect("a design with a tree")
}

#[test]
fn lists_and_magazines_do_not_search_on_any_trace() {
    for (name, trace) in every_trace() {
        let [stock, eiovar, magazine] =
            ["stock", "eiovar", "magazine"].map(|choice| steps(&run(replay(&trace), choice, Strict)));
        assert_eq!(eiovar, 0.0, "{name}");
        assert!(magazine < 0.1 && magazine < stock, "{name}: magazine {magazine}, stock {stock}");
    }
}

#[test]
fn two_rings_cost_the_tree_tens_to_hundreds_of_steps_and_the_others_none() {
    for (parameters, expected) in [
        ("count=2,ring=1024,operations=20000", 20.0..200.0),
        ("count=2,ring=1024,burst=1,operations=20000", 100.0..600.0),
    ] {
        let [stock, eiovar, magazine] =
            ["stock", "eiovar", "magazine"].map(|choice| steps(&run(rings(parameters), choice, Strict)));
        assert_eq!(eiovar, 0.0, "{parameters}");
        assert!(magazine < 0.1, "{parameters}: {magazine}");
        assert!(expected.contains(&stock), "{parameters}: {stock}");
    }
}

/// Buffers of 1 MiB that are all mapped and all unmapped, and then rings of small buffers, on 16 CPUs.
fn large_then_small(large: u64) -> Work {
    // More than find room below the large ones.
    const LIVE: u64 = 1024;
    let mut capture = Capture::default();
    let who = |number: u64| ("<idle>-0", (number % 16) as u16, "..s..");
    let big = |number: u64| Buffer { page: 0x10_0000 + 256 * number, phys: (1 << 32) + (number << 20), len: 1 << 20 };
    let small = |number: u64| Buffer { page: 0x1000 + number, phys: (1 << 36) + (number << 12), len: 1 << 12 };
    (0..large).for_each(|number| _ = capture.map(who(number), big(number), WRITES));
    (0..large).for_each(|number| _ = capture.unmap(who(number), big(number)));
    (0..LIVE).for_each(|number| _ = capture.map(who(number), small(number), WRITES));
    for number in 0..1000 {
        capture.unmap(who(number), small(number)).map(who(number), small(number + LIVE), WRITES);
    }
    replay(&capture.read())
}

/// A card whose MTU falls after its large buffers have filled the space below 4 GiB. `eiovar` keeps their runs in its
/// tree, and passes them in each search for a small one. The report behind this had 65,500 buffers of 64 KiB: 2,988
/// steps for each allocation, and 87 % of the CPUs' time at the lock. This has a sixteenth as many.
#[test]
fn runs_of_large_buffers_hold_up_the_search_for_small_ones() {
    let machine = machine("cascadelake-cx5");
    let steps_of_all = |work: Work| {
        ["eiovar", "magazine", "portcullis"].map(|choice| {
            let design = Choice::parse(choice).expect("a design").design;
            let outcome = measured(&Job { pace: Pace::Gaps(0.0), ..job(&machine, work.clone(), design, Strict) });
            outcome.search_steps_mean.unwrap_or(0.0)
        })
    };
    let [eiovar, magazine, portcullis] = steps_of_all(large_then_small(65_500 / 16));
    assert!(eiovar > 100.0 && magazine < 0.1 && portcullis < 0.1, "{eiovar} {magazine} {portcullis}");
    // Without the large buffers nothing searches, as in the report's control.
    for work in [large_then_small(0), replay(&bundled_case("w02-small-buffers-only"))] {
        assert_eq!(steps_of_all(work), [0.0; 3]);
    }
}

/// FAST'15, Figure 7: the searches return if the list is shorter than the queue that is emptied into it.
#[test]
fn a_list_shorter_than_the_flush_queue_searches() {
    let with = |choice| steps(&run(rings("count=2,ring=1024,burst=1"), choice, Deferred));
    let (stock, short, long, unbounded) = (with("stock"), with("eiovar:k=64"), with("eiovar:k=250"), with("eiovar"));
    assert!(short > 0.5 * stock && stock > 2.0, "k=64: {short}, stock: {stock}");
    assert_eq!((long, unbounded), (0.0, 0.0), "k=250 is as good as no bound");
}

/// ATC'15, §3.2 and Figure 2: the global flush queue hides the contention of the allocator. With queues per core, the
/// wait for the invalidation lock disappears and that for the allocator's lock grows. With magazines both disappear.
#[test]
fn queues_per_core_lay_the_allocators_lock_bare() {
    let rings = || rings("count=16,operations=20000");
    for (global, per_core) in [("eiovar", "eiovar:queue=per-core"), ("stock", "stock:queue=per-core")] {
        let [global, per_core] = [global, per_core].map(|choice| run(rings(), choice, Deferred));
        let invalidation = |outcome: &RunOutcome| outcome.lock_wait_invalidation_percent;
        let iova = |outcome: &RunOutcome| outcome.lock_wait_iova_percent;
        assert!(invalidation(&global) > 1.0, "{} %", invalidation(&global));
        assert!(invalidation(&per_core) < 0.2 * invalidation(&global), "{} %", invalidation(&per_core));
        assert!(iova(&per_core) > 1.5 * iova(&global), "{} % and {} %", iova(&global), iova(&per_core));
    }
    let magazine = run(rings(), "magazine", Deferred);
    let (iova, invalidation) = (magazine.lock_wait_iova_percent, magazine.lock_wait_invalidation_percent);
    assert!(iova < 0.5 && invalidation < 0.5, "{iova} % and {invalidation} %");
    // Both halves are needed.
    let half = run(rings(), "magazine:queue=global", Deferred);
    assert!(half.lock_wait_invalidation_percent > 2.0 * invalidation, "{} %", half.lock_wait_invalidation_percent);
}

/// No unmap stays longer than the timeout of its queue, on either clock.
#[test]
fn the_window_of_queues_per_core_is_bounded() {
    // The flush itself takes a few microseconds, and the timer has a resolution of one.
    const FLUSH_US: f64 = 10.0;
    let machine = machine("cascadelake-cx5");
    for (name, trace) in every_trace() {
        let work = replay(&trace);
        for pace in [machine_pace(&machine, &work, PayloadRule::Shown, 1), Pace::Timestamps] {
            let outcome = measured(&Job { pace, ..job(&machine, work.clone(), DesignId::Magazine, Deferred) });
            let window_us = outcome.stale_window_us_max.expect("it translates");
            let bound_us = QUEUE_TIMEOUT_US as f64 + FLUSH_US;
            assert!((1.0..bound_us).contains(&window_us), "{name}, {pace:?}: {window_us} us");
            assert!(outcome.stale_accesses > 0, "{name}: the window was used");
        }
    }
}

/// Linux before October 2025: without the hint every unmap costs the cached table pointers, and nothing else changes.
#[test]
fn without_the_hint_walks_start_at_the_root() {
    let machine = machine("cascadelake-cx5");
    let with = |leaf_only_hint| {
        measured(&Job { leaf_only_hint, ..job(&machine, rings("count=4"), DesignId::Magazine, Strict) })
    };
    let (hint, none) = (with(true), with(false));
    assert!(hint.ptcache_l3_misses_per_page < 0.01, "{}", hint.ptcache_l3_misses_per_page);
    for misses in [none.ptcache_l3_misses_per_page, none.ptcache_l2_misses_per_page, none.ptcache_l1_misses_per_page] {
        assert!(misses > 0.5, "{misses} misses per page");
    }
    assert_eq!((hint.invalidations_per_page, hint.stale_accesses), (none.invalidations_per_page, 0));
}

/// ATC'15, §3.4: under XNU cores wait for the lock around the allocator and the table, and for that of the
/// invalidation queue, which every unmap takes.
#[test]
fn sixteen_cores_wait_for_both_locks_of_macos() {
    let [one, many] = ["count=1", "count=16"].map(|parameters| run(rings(parameters), "macos", Deferred));
    assert_eq!((one.lock_wait_percent, one.lock_wait_iova_percent), (0.0, 0.0));
    let (iova, invalidation) = (many.lock_wait_iova_percent, many.lock_wait_invalidation_percent);
    assert!(iova > 1.0 && invalidation > 10.0, "{iova} % and {invalidation} %");
}
