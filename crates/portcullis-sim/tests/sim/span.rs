//! How long a replay may last.

use super::capture::{Capture, TASK, WRITES, buffer};
use super::{job, machine, replay};
use portcullis::Protection;
use portcullis_designs::DesignId;
use portcullis_sim::{RunError, run};

/// Fuzzing found a trace with a wrong time. It must not overflow virtual time.
#[test]
fn a_trace_that_spans_months_is_refused() {
    const DAY_US: u64 = 24 * 3600 * 1_000_000;
    let after = |days: u64| {
        let mut capture = Capture::default();
        capture.map(TASK, buffer(0), WRITES).at(days * DAY_US).unmap(TASK, buffer(0));
        run(&job(&machine("cascadelake-cx5"), replay(&capture.read()), DesignId::Stock, Protection::Strict))
    };
    assert!(after(1).is_ok());
    let refused = after(60);
    assert!(matches!(refused, Err(RunError::Span(span_us)) if span_us >= 60 * DAY_US), "{refused:?}");
}
