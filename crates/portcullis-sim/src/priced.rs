//! What a map and its unmap cost according to a cost book. The benchmark times the same pair, so that the two can be
//! compared.

use crate::machine::Machine;
use crate::prefetch::Hints;
use crate::run::{self, Job, Pace, RunError, Work};
use crate::traffic::PayloadRule;
use portcullis::mapper::Options;
use portcullis::platform::Phase;
use portcullis::{Protection, SubPage};
use portcullis_designs::DesignId;

/// Cycles of a map and an unmap of one page, with 1024 live mappings, first in first out, on one core. The benchmark
/// `page-1` times the same work.
///
/// As in the benchmark, entries need no flush, and an invalidation takes no time, neither in the hardware nor in the
/// driver that writes its commands. Cycles charged during a submission are therefore left out. Under strict
/// protection, the layer itself takes no step during a submission.
///
/// # Errors
/// Returns a [`RunError`] if the run fails.
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
        merge_min: None,
        discipline: portcullis_vtd::Discipline::Combining,
        hints: Hints::NONE,
        payload: PayloadRule::default(),
    })?;
    let account = &measured.account;
    Ok((account.cycles() - account.phase_cycles(Phase::Invalidate)) as f64 / measured.pages.max(1) as f64)
}
