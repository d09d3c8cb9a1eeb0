//! Recorded and synthetic work on virtual cores, over the modelled VT-d and its real driver. Nothing is refused, the
//! device reaches every live mapping, and it loses an unmapped buffer when the design says.

pub use portcullis_sim::LabDesign;

use portcullis::{Protection, Rule};
use portcullis_sim::{Job, Machine, Pace, Replay, Work, run};
use portcullis_trace::Trace;
use std::sync::Arc;

/// A recording of a transmitting e1000e under Linux. Its buffers are smaller than a page, and several mappings share
/// one.
const TRACE: (&str, &[u8]) =
    ("q-e1000e-tx.lazy.2cpu.trace.xz", include_bytes!("../traces/q-e1000e-tx.lazy.2cpu.trace.xz"));
const RINGS: &str = "rings:count=2,tx=0.3,operations=8000";

/// Runs a recorded trace, and synthetic rings, under each protection of the design.
///
/// # Panics
/// Under the conditions of [`check_on`].
pub fn check(design: LabDesign) {
    let machine = Machine::by_id("cascadelake-cx5").expect("the lab has it");
    let (name, bytes) = TRACE;
    let trace = Trace::read_from(name, bytes, |_| ()).unwrap_or_else(|error| panic!("{error}"));
    check_on(design, &machine, &Work::Trace(Replay::of(Arc::new(trace))));
    check_on(design, &machine, &Work::parse(RINGS).unwrap_or_else(|error| panic!("{RINGS}: {error}")));
}

/// Runs `work` on `machine` under each protection of the design, with the cores as close together in time as possible.
///
/// # Panics
/// - If a map, an unmap or a commit is refused.
/// - If the device does not reach a live mapping (S1).
/// - If the device reaches an unmapped buffer, under strict protection or for longer than the design declares (S2).
pub fn check_on(design: LabDesign, machine: &Machine, work: &Work) {
    let info = design.info();
    for &protection in info.protections {
        let who = format!("{} {protection}", info.id);
        let job = Job { batch: 1, pace: Pace::Gaps(0.0), ..Job::new(machine, work.clone(), design, protection) };
        let outcome = run(&job).unwrap_or_else(|error| panic!("{who}: {error}"));
        assert!(outcome.operations > 0, "{who}: nothing was done");
        if info.physical_addresses() {
            continue;
        }
        assert_eq!(outcome.faults, 0, "{who}: {} is broken: accesses to live mappings were refused", Rule::Reach);
        let window_us = outcome.stale_window_us_max.unwrap_or(0.0);
        match (protection, outcome.bound_us, outcome.grace_us) {
            (Protection::Strict, ..) => assert_eq!(
                (outcome.stale_accesses, window_us),
                (0, 0.0),
                "{who}: {} is broken: number of pages reached after their hand-back, and for how many µs",
                Rule::Strict
            ),
            (_, Some(bound_us), Some(grace_us)) => assert!(
                window_us <= bound_us as f64 + grace_us,
                "{who}: {} is broken: a buffer was reached for {window_us} µs after its hand-back, but {bound_us} µs are declared",
                Rule::Strict
            ),
            _ => {}
        }
    }
}
