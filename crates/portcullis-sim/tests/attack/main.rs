//! The malicious device: what it finds out about every design, and that it finds each planted flaw by the name of its
//! rule.

mod allocators;
mod hardware;
mod mappers;
mod planted;
mod registered;
mod rings;
mod shared_commits;

use portcullis::design::Options;
use portcullis::designs::DesignId;
use portcullis::{Protection, SubPage};
use portcullis_sim::attack::{Attacked, PROBES_CACHED_MIN};
use portcullis_sim::prefetch::Hints;
use portcullis_sim::{Job, Machine, Pace, PayloadRule, Work};
use portcullis_trace::Trace;
use std::path::Path;
use std::sync::Arc;

fn machine() -> Machine {
    Machine::by_id("cascadelake-cx5").expect("the default machine")
}

/// A run at the pace of the work itself, with the design's own batch. For a design that is in no list, the id is
/// ignored.
fn job<'m>(machine: &'m Machine, work: Work, design: DesignId, protection: Protection) -> Job<'m> {
    let (pace, options, batch) = (Pace::Gaps(1.0), Options::NONE, design.info().batch_default);
    Job {
        machine,
        work,
        design,
        options,
        protection,
        sub_page: SubPage::Expose,
        batch,
        pace,
        seed: 1,
        leaf_only_hint: true,
        hints: Hints::NONE,
        payload: PayloadRule::Shown,
    }
}

fn rings(parameters: &str) -> Work {
    Work::parse(&format!("rings:{parameters}")).unwrap_or_else(|error| panic!("{parameters}: {error}"))
}

fn replay(name: &str) -> Work {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../traces/{name}.trace.xz"));
    Work::Trace(Arc::new(Trace::read(&file, |_| ()).unwrap_or_else(|error| panic!("{error}"))), None)
}

/// Asserts that the run completed, that enough was cached to show something, and that nothing got through except what
/// is declared.
fn passes(attacked: &Attacked, run: &str) {
    assert!(attacked.error.is_none(), "{run}: {:?}", attacked.error);
    assert!(attacked.found.iter().all(|found| found.declared), "{run}: {:?}", attacked.found);
    assert!(attacked.probes_cached.is_none_or(|cached| cached >= PROBES_CACHED_MIN), "{run}: {attacked:?}");
}
