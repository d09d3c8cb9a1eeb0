//! Commits of several cores that ride in one submission, with one wait.

use super::{job, machine, measured, rings};
use portcullis::Protection::Strict;
use portcullis::designs::DesignId;
use portcullis_lab::{Job, Outcome, Pace};

/// Sixteen cores, each with a ring of its own, on the costs of `r210-cx3`. The rate of that machine is what one of its cores can
/// do: here each of them keeps it up.
fn sixteen(design: DesignId, parameters: &str, batch: usize) -> Outcome {
    let machine = machine("r210-cx3");
    let work = rings(&format!("count=16,operations=8000{parameters}"));
    measured(&Job { batch, pace: Pace::Gaps(1.0 / 16.0), ..job(&machine, work, design, Strict) })
}

/// In batches it takes polls that bring little to keep the hardware busy. Nobody waits for a lock meanwhile.
#[test]
fn where_the_hardware_is_busy_a_wait_serves_several_commits() {
    for (parameters, batch, least) in [("", 1, 2.5), (",burst=1", 64, 2.5), (",burst=2", 64, 1.5)] {
        let shared = sixteen(DesignId::Portcullis, parameters, batch);
        let commits = shared.commits_per_wait.expect("it waited");
        assert!(commits >= least, "{commits} commits per wait{parameters}, batches of {batch}");
        assert!(shared.lock_wait_percent < 2.0, "{} %{parameters}, batches of {batch}", shared.lock_wait_percent);
        // Each for itself, and with more waiting for it.
        let alone = sixteen(DesignId::Magazine, parameters, batch);
        assert_eq!(alone.commits_per_wait, Some(1.0));
        assert!(shared.wait_cycles_per_page < alone.wait_cycles_per_page, "{parameters}, batches of {batch}");
    }
}
