//! A malicious device beside the driver: it finds what the design declares to give up, and nothing else.

pub use portcullis_sim::LabDesign;

use portcullis::{Protection, Rule};
use portcullis_sim::attack::{Attacked, PROBES_CACHED_MIN, SEEN_BY_DEVICES, attack};
use portcullis_sim::{Job, Machine, Work};

/// What [`check`] has the driver do, with the largest batch where that is not the design's own.
const WORKS: [(&str, Option<usize>); 3] = [
    ("rings:operations=10000", None),
    ("rings:count=4,ring=128,tx=0.5,operations=12000", Some(16)),
    ("churn:live=2048,operations=8000", None),
];

/// What timer and hardware take in the lab beside the bound that a design names, in microseconds: more than it ever is.
const SLACK_US: f64 = 500.0;

/// Attacks the design, under each of its protections, on rings and on mappings of random lifetimes.
///
/// # Panics
/// As [`check_on`].
pub fn check(design: LabDesign) {
    let machine = Machine::by_id("cascadelake-cx5").expect("the lab has it");
    for (work, batch) in WORKS {
        let work = Work::parse(work).unwrap_or_else(|error| panic!("{work}: {error}"));
        check_on(design, &machine, &work, batch);
    }
}

/// Attacks the design, under each of its protections, on `machine` while `work` is done, with batches of at most `batch` unmaps where that is
/// not the design's own.
///
/// # Panics
/// If the device gets through where the design does not declare it, with the rule; or does not where it does; or reaches a buffer for longer
/// than the design says. If the run ends early, or fewer than [`PROBES_CACHED_MIN`] translations were cached when their unmap began.
pub fn check_on(design: LabDesign, machine: &Machine, work: &Work, batch: Option<usize>) {
    let info = design.info();
    for &protection in info.protections {
        let own = Job::new(machine, work.clone(), design, protection);
        let attacked = attack(&Job { batch: batch.unwrap_or(own.batch), ..own });
        let run = format!("{} {protection}", info.id);
        passes(&attacked, &run);
        for rule in SEEN_BY_DEVICES {
            let found = attacked.found.iter().any(|found| found.rule == rule);
            assert_eq!(found, info.breaks(protection, rule), "{run}: {rule} found, and declared: {attacked:?}");
        }
        check_window(&attacked, protection, &run);
    }
}

/// Asserts that the run went to its end, that enough was cached to show something, and that nothing got through but what is declared.
///
/// # Panics
/// If not; `run` says what it was.
pub fn passes(attacked: &Attacked, run: &str) {
    let undeclared: Vec<_> = attacked.found.iter().filter(|found| !found.declared).collect();
    let rules: Vec<String> = undeclared.iter().map(|found| format!("{} ({:?})", found.rule, found.rule)).collect();
    assert!(rules.is_empty(), "{run}: {} is broken, which it does not declare: {undeclared:?}", rules.join(", "));
    assert!(attacked.error.is_none(), "{run}: {:?}", attacked.error);
    assert!(
        !attacked.proves_nothing(),
        "{run}: {:?} translations were cached before their unmap, and {PROBES_CACHED_MIN} are needed",
        attacked.probes_cached
    );
}

/// What is reached after its hand-back is reached for as long as the design says.
fn check_window(attacked: &Attacked, protection: Protection, run: &str) {
    let Some(stale) = attacked.found.iter().find(|found| found.rule == Rule::Strict) else { return };
    assert_eq!(protection, Protection::Deferred, "{run}");
    let window_us = stale.window_us_max.expect("buffers were reached");
    assert!(stale.bytes_us.is_some_and(|bytes_us| bytes_us > 0.0), "{run}: {stale:?}");
    match attacked.bound_us {
        // Until the address is used again, which takes as long as the work has it.
        None => assert!(window_us > 0.0, "{run}: {stale:?}"),
        Some(bound_us) => assert!(window_us < bound_us as f64 + SLACK_US, "{run}: {stale:?}"),
    }
}
