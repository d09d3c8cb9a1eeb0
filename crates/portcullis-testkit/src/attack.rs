//! A malicious device runs beside the driver. It must find the breaches that the design declares, and no others.

pub use portcullis_sim::LabDesign;

use portcullis::{Protection, Rule};
use portcullis_sim::attack::{Attacked, PROBES_CACHED_MIN, SEEN_BY_DEVICES, attack};
use portcullis_sim::{Job, Machine, Work};

/// The work that the driver does in [`check`], each with the largest batch. `None` leaves the batch size to the design.
const WORKS: [(&str, Option<usize>); 3] = [
    ("rings:operations=10000", None),
    ("rings:count=4,ring=128,tx=0.5,operations=12000", Some(16)),
    ("churn:live=2048,operations=8000", None),
];

/// Time that the lab's timer and hardware may add to the bound that a design declares, in microseconds: an upper bound.
const SLACK_US: f64 = 500.0;

/// Attacks the design, under each of its protections, on rings and on mappings with random lifetimes.
///
/// # Panics
/// Under the conditions of [`check_on`].
pub fn check(design: LabDesign) {
    let machine = Machine::by_id("cascadelake-cx5").expect("the lab has it");
    for (work, batch) in WORKS {
        let work = Work::parse(work).unwrap_or_else(|error| panic!("{work}: {error}"));
        check_on(design, &machine, &work, batch);
    }
}

/// Attacks the design on `machine`, under each of its protections, while the driver does `work`. Batches have at most
/// `batch` unmaps; `None` leaves that to the design.
///
/// # Panics
/// - If the device gets through where the design declares no breach, with the rule.
/// - If the device does not get through where the design declares a breach.
/// - If the device reaches a buffer for longer than the design declares.
/// - If the run ends early, or fewer than [`PROBES_CACHED_MIN`] translations were cached when their unmap began.
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

/// Asserts that the run completed, that enough translations were cached to be conclusive, and that every breach that
/// was found is declared.
///
/// # Panics
/// If one of these does not hold. `run` names the run in the message.
pub fn passes(attacked: &Attacked, run: &str) {
    let undeclared: Vec<_> = attacked.found.iter().filter(|found| !found.declared).collect();
    let rules: Vec<String> = undeclared.iter().map(|found| format!("{} ({:?})", found.rule, found.rule)).collect();
    assert!(rules.is_empty(), "{run}: {} is broken, which it does not declare: {undeclared:?}", rules.join(", "));
    assert!(attacked.error.is_none(), "{run}: {:?}", attacked.error);
    assert!(
        !attacked.proves_nothing(),
        "{run}: {:?} translations were cached before their unmap; {PROBES_CACHED_MIN} are needed",
        attacked.probes_cached
    );
}

/// The stale window is no longer than the design declares.
fn check_window(attacked: &Attacked, protection: Protection, run: &str) {
    let Some(stale) = attacked.found.iter().find(|found| found.rule == Rule::Strict) else { return };
    assert_eq!(protection, Protection::Deferred, "{run}");
    let window_us = stale.window_us_max.expect("buffers were reached");
    assert!(stale.bytes_us.is_some_and(|bytes_us| bytes_us > 0.0), "{run}: {stale:?}");
    match attacked.bound_us {
        // The buffer is reachable until its address is used again, and the work decides when that is.
        None => assert!(window_us > 0.0, "{run}: {stale:?}"),
        Some(bound_us) => assert!(window_us < bound_us as f64 + SLACK_US, "{run}: {stale:?}"),
    }
}
