//! Designs that do less than they should are found.

pub(super) mod planted;

use super::case::{Case, Setting, singles};
use super::group::ThreadGroup;
use super::host::{Native, cpus};
use super::iommu::{Empty, Queued};
use super::verify::verify;
use super::{BenchError, Effort, Workload};
use planted::{Flaw, Planted};
use portcullis::Protection;
use portcullis::mapper::Options;

/// The least effort that shows that it works.
const LITTLE: Effort = Effort { samples: 2, sample_us: 1 };

/// The result of a close look at a flawed design.
fn seen<const FLAW: u8>(workload: Workload) -> Result<(), BenchError> {
    let iommu = Queued::new(&Native::coherent());
    verify::<Planted<FLAW>>(&iommu, Options::NONE, Protection::Strict, workload)
}

/// The result of the checks of a timed run of a flawed design.
fn timed<const FLAW: u8>() -> Result<(), BenchError> {
    let case = Case { options: Options::NONE, protection: Protection::Strict, threads: 1, workload: Workload::Page1 };
    let cpus = &cpus::available()[..1];
    let group = ThreadGroup { cpus, effort: LITTLE, period: case.workload.period() };
    let setting = Setting { case, group, platform: Native::coherent(), iommu: &Empty::new(true) };
    setting.in_domain::<Planted<FLAW>>(singles).map(drop)
}

fn complaint(result: Result<(), BenchError>) -> String {
    match result {
        Err(BenchError::Check(complaint)) => complaint,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_flaw_nothing_is_found() {
    for workload in [Workload::Page1, Workload::Page1Batch64, Workload::Descriptor64] {
        seen::<{ Flaw::NONE }>(workload).expect("a sound design");
    }
    timed::<{ Flaw::NONE }>().expect("a sound design");
}

#[test]
fn a_design_that_forgets_to_submit_is_found() {
    for workload in [Workload::Page1, Workload::Page1Batch64, Workload::Descriptor64] {
        let complaint = complaint(seen::<{ Flaw::SUBMITS_NOTHING }>(workload));
        assert!(complaint.starts_with("no wait for the unmap"), "{complaint}");
    }
    let complaint = complaint(timed::<{ Flaw::SUBMITS_NOTHING }>());
    assert!(complaint.ends_with("commits made 0 submissions"), "{complaint}");
}

#[test]
fn a_design_that_leaves_the_entry_is_found() {
    for workload in [Workload::Page1, Workload::Page1Batch64, Workload::Descriptor64] {
        let complaint = complaint(seen::<{ Flaw::LEAVES_ENTRIES }>(workload));
        assert!(complaint.ends_with("was unmapped and still translates"), "{complaint}");
    }
    let complaint = complaint(timed::<{ Flaw::LEAVES_ENTRIES }>());
    assert!(complaint.contains("was unmapped and still translates"), "{complaint}");
}

#[test]
fn a_design_that_invalidates_other_pages_is_found() {
    let complaint = complaint(seen::<{ Flaw::INVALIDATES_OTHERS }>(Workload::Descriptor64));
    assert!(complaint.starts_with("no invalidation of every page"), "{complaint}");
}

#[test]
fn a_design_that_submits_twice_is_found() {
    let complaint = complaint(seen::<{ Flaw::SUBMITS_TWICE }>(Workload::Page1));
    assert!(complaint.starts_with("more than one submission"), "{complaint}");
    self::complaint(timed::<{ Flaw::SUBMITS_TWICE }>());
}

#[test]
fn a_design_that_maps_something_else_is_found() {
    let complaint = complaint(timed::<{ Flaw::MAPS_ONE_PAGE_FOR_ALL }>());
    assert!(complaint.contains(", not to 0x"), "{complaint}");
}
