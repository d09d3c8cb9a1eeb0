//! Reproduces what Fast & Safe found about windows: SOSP'24, §3 and Figure 7.

use super::{every_trace, job, machine, measured, replay, rings};
use portcullis::Protection::Strict;
use portcullis_designs::DesignId::{self, FastAndSafe, Magazine};
use portcullis_sim::{Job, RunOutcome, Work};

fn run(work: Work, design: DesignId, batch: usize, leaf_only_hint: bool) -> RunOutcome {
    let machine = machine("cascadelake-cx5");
    measured(&Job { batch, leaf_only_hint, ..job(&machine, work, design, Strict) })
}

/// Figure 7d and Table 4.4 of the facts: with 40 flows no walk begins above the pointers to leaf tables. At most a
/// tenth as many walks miss these as under Linux, which dropped them with every unmap.
#[test]
fn cached_table_pointers_survive_forty_rings() {
    let work = || rings("count=40,ring=256,operations=10000");
    let (ours, linux) = (run(work(), FastAndSafe, 1, true), run(work(), Magazine, 1, false));
    assert_eq!((ours.ptcache_l1_misses_per_page, ours.ptcache_l2_misses_per_page), (0.0, 0.0));
    let (ours, linux) = (ours.ptcache_l3_misses_per_page, linux.ptcache_l3_misses_per_page);
    assert!(linux > 0.5 && ours < 0.1 * linux, "{ours} and {linux} misses per page");
}

/// Figure 6: one command for a descriptor of 64 pages, mapped as one buffer or page by page, where Linux sends one
/// command for each page.
#[test]
fn a_descriptor_takes_one_invalidation() {
    for (parameters, batch) in
        [("count=40,ring=16,pages=64,operations=2000", 1), ("count=40,ring=256,burst=64,operations=10000", 64)]
    {
        let (ours, linux) =
            (run(rings(parameters), FastAndSafe, batch, true), run(rings(parameters), Magazine, batch, true));
        assert_eq!((ours.invalidations_per_page, ours.over_invalidated_pages), (1.0 / 64.0, 0), "{parameters}");
        assert_eq!((ours.stale_accesses, ours.faults), (0, 0), "{parameters}");
        let of_linux = if batch == 1 { 1.0 / 64.0 } else { 1.0 };
        assert_eq!(linux.invalidations_per_page, of_linux, "{parameters}");
    }
}

/// Windows form from the stream of requests alone, and cost no trace an invalidation.
#[test]
fn no_trace_is_invalidated_more() {
    for (name, trace) in every_trace() {
        for batch in [1, 64] {
            let [ours, linux] = [FastAndSafe, Magazine].map(|design| run(replay(&trace), design, batch, true));
            assert!(
                ours.invalidations_per_page <= linux.invalidations_per_page,
                "{name}, batches of {batch}: {} and {}",
                ours.invalidations_per_page,
                linux.invalidations_per_page
            );
            assert_eq!((ours.stale_accesses, ours.faults), (0, 0), "{name}, batches of {batch}");
            assert_eq!(ours.ptcache_l2_misses_per_page, linux.ptcache_l2_misses_per_page, "{name}");
        }
    }
}
