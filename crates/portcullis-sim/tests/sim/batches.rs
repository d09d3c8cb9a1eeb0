//! What ends a batch. A batch is a run of unmaps of one device on one CPU. It ends at a map of the same direction, at
//! the end of the interrupt or task, or when it is full.

use super::capture::{Capture, INTERRUPT, OTHER_CPU, READS, TASK, WRITES, Who, buffer};
use super::{job, machine, measured, replay};
use portcullis::Protection;
use portcullis_designs::DesignId;
use portcullis_sim::{Job, Machine, RunOutcome};

/// Only the wait behind the commands of a commit takes time, so the wait time counts commits.
fn counting_waits() -> Machine {
    let mut machine = machine("cascadelake-cx5");
    machine.iommu.set("invalidation_ps", "0").unwrap();
    machine.iommu.set("wait_ps", "1000000").unwrap();
    machine
}

fn strict(capture: &Capture, batch: usize) -> RunOutcome {
    let machine = counting_waits();
    let job = job(&machine, replay(&capture.read()), DesignId::Stock, Protection::Strict);
    measured(&Job { batch, ..job })
}

fn commits(capture: &Capture, batch: usize) -> u64 {
    let outcome = strict(capture, batch);
    let waited = outcome.wait_cycles_per_page * outcome.pages as f64;
    let commit = counting_waits().core_hz * 1e-6;
    let commits = (waited / commit).round();
    assert!((waited / commit - commits).abs() < 0.1 * commits.max(1.0), "{waited} cycles waited, {commit} a commit");
    commits as u64
}

/// A capture in which one CPU maps `count` buffers of this direction.
fn mapped(direction: &str, count: u64) -> Capture {
    let mut capture = Capture::default();
    for number in 0..count {
        capture.at(10 * number).map(TASK, buffer(number), direction);
    }
    capture
}

fn unmaps(capture: &mut Capture, who: Who, numbers: std::ops::Range<u64>) -> &mut Capture {
    for number in numbers {
        capture.unmap(who, buffer(number));
    }
    capture
}

#[test]
fn one_commit_ends_a_run_of_unmaps() {
    let mut capture = mapped(WRITES, 5);
    unmaps(&mut capture, TASK, 0..5);
    assert_eq!((commits(&capture, 64), commits(&capture, 1)), (1, 5));
    // Each unmap keeps a separate command.
    let (batched, single) = (strict(&capture, 64), strict(&capture, 1));
    assert_eq!((batched.invalidations_per_page, single.invalidations_per_page), (1.0, 1.0));
    assert_eq!((batched.stale_accesses, batched.pages, batched.operations), (0, 5, 5));
    assert!(batched.cycles_per_page < single.cycles_per_page);
}

#[test]
fn no_more_than_fit() {
    let mut capture = mapped(WRITES, 7);
    unmaps(&mut capture, TASK, 0..7);
    assert_eq!([2, 3, 7].map(|batch| commits(&capture, batch)), [4, 3, 1]);
}

#[test]
fn a_map_of_the_same_direction_ends_it() {
    for (direction, expected) in [(WRITES, 2), (READS, 1)] {
        let mut capture = mapped(WRITES, 4);
        unmaps(&mut capture, TASK, 0..2).map(TASK, buffer(9), direction);
        unmaps(&mut capture, TASK, 2..4);
        assert_eq!(commits(&capture, 64), expected, "a map {direction}");
    }
}

#[test]
fn the_end_of_the_interrupt_ends_it() {
    let mut capture = mapped(WRITES, 6);
    unmaps(&mut capture, TASK, 0..2);
    unmaps(&mut capture, INTERRUPT, 2..4);
    unmaps(&mut capture, TASK, 4..6);
    assert_eq!(commits(&capture, 64), 3);
}

#[test]
fn each_cpu_has_its_own() {
    let mut capture = mapped(WRITES, 6);
    for number in [0, 2, 4] {
        capture.unmap(TASK, buffer(number)).unmap(OTHER_CPU, buffer(number + 1));
    }
    // The maps come one after the other, so that neither commit waits for the other.
    capture.at(1_000).map(TASK, buffer(8), WRITES).at(2_000).map(OTHER_CPU, buffer(9), WRITES);
    assert_eq!(commits(&capture, 64), 2);
}

/// Until the commit the device still has the buffers. No buffer is handed back while the device can reach it.
#[test]
fn buffers_go_back_when_it_commits() {
    let mut capture = mapped(WRITES, 3);
    unmaps(&mut capture, TASK, 0..3).at(900).map(TASK, buffer(9), WRITES);
    for batch in [1, 64] {
        let outcome = strict(&capture, batch);
        assert_eq!((outcome.stale_accesses, outcome.stale_window_us_max), (0, Some(0.0)), "batches of {batch}");
    }
}
