//! What a cost book says of a pair that can also be timed: so that the two can be held against each other.

use crate::machine::Machine;
use crate::prefetch::Hints;
use crate::run::{self, Job, Pace, RunError, Work};
use crate::traffic::PayloadRule;
use portcullis::design::Options;
use portcullis::designs::DesignId;
use portcullis::platform::Phase;
use portcullis::{Protection, SubPage};

/// Cycles of a map and an unmap of one page, 1024 live, first in first out, on one core: what the benchmark `page-1` times.
///
/// As there, entries need no flush, and an invalidation takes nothing: neither the hardware, nor the driver that writes its commands. What
/// is charged while a submission is under way is left out for that, for no step of the layer itself is taken then under strict protection.
///
/// # Errors
/// A [`RunError`].
pub fn page_1(machine: &Machine, design: DesignId) -> Result<f64, RunError> {
    let mut machine = machine.clone();
    machine.iommu.coherent = true;
    let rings = run::Rings { count: 1, ring: 1024, burst: 1, operations: 16_384, ..run::Rings::default() };
    let measured = run::measure(&Job {
        machine: &machine,
        work: Work::Rings(rings),
        design: design.into(),
        options: Options::NONE,
        protection: Protection::Strict,
        sub_page: SubPage::Expose,
        batch: 1,
        pace: Pace::Gaps(1.0),
        seed: 1,
        leaf_only_hint: true,
        hints: Hints::NONE,
        payload: PayloadRule::default(),
    })?;
    let account = &measured.account;
    Ok((account.cycles() - account.phase_cycles(Phase::Invalidate)) as f64 / measured.pages.max(1) as f64)
}
