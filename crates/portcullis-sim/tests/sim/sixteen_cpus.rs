//! The machine with 16 CPUs, held against what was measured on one (docs/performance.md, "Sixteen CPUs").

use super::{job, machine, measured, rings};
use portcullis::Protection::Strict;
use portcullis_designs::DesignId;
use portcullis_sim::{Job, Pace, RunOutcome};

/// Each core unmaps a page and maps another, as `page-1-driven` does.
fn pairs(cpus: u32, design: DesignId) -> RunOutcome {
    let machine = machine("xeon-16");
    let work = rings(&format!("count={cpus},ring=256,burst=1,operations=8000"));
    measured(&Job { batch: 1, pace: Pace::Gaps(0.001), ..job(&machine, work, design, Strict) })
}

/// When it was measured, each commit of `portcullis` took the lock of the queue. In the lab, those of `magazine` still
/// do. On two CPUs, the time of a pair is mostly that of its software, which differs.
#[test]
fn a_lock_for_each_commit_costs_what_was_measured() {
    const MEASURED: [(u32, f64); 3] = [(4, 2_314.0), (8, 7_258.0), (16, 20_883.0)];
    let alone = pairs(1, DesignId::Magazine).cycles_per_page;
    for (cpus, measured) in MEASURED {
        let shared = pairs(cpus, DesignId::Magazine).cycles_per_page - alone;
        let ratio = shared / measured;
        assert!((0.5..=1.5).contains(&ratio), "{cpus} CPUs: {shared} cycles, {measured} measured");
    }
}

/// Commits that post do not queue for the lock.
#[test]
fn posts_cost_a_fraction_of_a_lock_for_each() {
    let [posts, locks] = [DesignId::Portcullis, DesignId::Magazine].map(|design| pairs(16, design).cycles_per_page);
    assert!(posts * 5.0 < locks, "{posts} cycles and {locks}");
}
