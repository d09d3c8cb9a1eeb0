//! Commits of several cores that share one submission, with one wait.

use super::{job, machine, measured, rings};
use portcullis::Protection::Strict;
use portcullis_designs::DesignId;
use portcullis_sim::{Job, Pace, RunOutcome};

/// A run on `count` cores, each with a separate ring, on the costs of `r210-cx3`. The rate of that machine is what one
/// of its cores can reach. Here each of the cores reaches it.
fn cores(count: usize, design: DesignId, parameters: &str, batch: usize) -> RunOutcome {
    let machine = machine("r210-cx3");
    let work = rings(&format!("count={count},operations=8000{parameters}"));
    measured(&Job { batch, pace: Pace::Gaps(1.0 / 16.0), ..job(&machine, work, design, Strict) })
}

/// In batches it takes bursts with few buffers to keep the hardware busy. No core waits for a lock in the meantime.
#[test]
fn where_the_hardware_is_busy_a_wait_serves_several_commits() {
    for (parameters, batch, least) in [("", 1, 2.5), (",burst=1", 64, 2.5), (",burst=2", 64, 1.5)] {
        let shared = cores(16, DesignId::Portcullis, parameters, batch);
        let commits = shared.commits_per_wait.expect("it waited");
        assert!(commits >= least, "{commits} commits per wait{parameters}, batches of {batch}");
        assert!(shared.lock_wait_percent < 2.0, "{} %{parameters}, batches of {batch}", shared.lock_wait_percent);
        // Without sharing, each commit waits by itself, and in total they wait longer.
        let alone = cores(16, DesignId::Magazine, parameters, batch);
        assert_eq!(alone.commits_per_wait, Some(1.0));
        assert!(shared.wait_cycles_per_page < alone.wait_cycles_per_page, "{parameters}, batches of {batch}");
    }
}

/// With more cores, waits get longer and more commits share one. Cores do not queue for the lock only to find that
/// their submission has been sent already, which would leave the next submission without commits.
#[test]
fn however_many_wait_they_go_together() {
    let [few, many] = [32, 96].map(|count| cores(count, DesignId::Portcullis, "", 1));
    let [fewer, more] = [&few, &many].map(|outcome| outcome.commits_per_wait.expect("it waited"));
    assert!(fewer > 5.0 && more > 1.5 * fewer, "{fewer} commits per wait, then {more}");
    for outcome in [few, many] {
        assert!(outcome.lock_wait_percent < 2.0, "{} %", outcome.lock_wait_percent);
    }
}

/// Who waits for the hardware sees what others post meanwhile: when one submission has landed, the next one is there.
#[test]
fn hardware_is_busy_while_commits_wait() {
    let machine = machine("cascadelake-cx5");
    let work = rings("count=32,operations=8000");
    let outcome = measured(&Job { batch: 1, ..job(&machine, work, DesignId::Portcullis, Strict) });
    let iommu = &machine.iommu;
    let per_page_ps = iommu.invalidation_ps as f64 + iommu.wait_ps as f64 * outcome.waits_per_page;
    let share = per_page_ps * outcome.pages as f64 / (outcome.span_us * 1e6);
    assert!((0.8..=1.0).contains(&share), "it works for {share} of the time");
}
