//! Whole runs of the lab, compared with published numbers, with definitions worked out by hand, and with each other.
//! Each subject has a file, so there are more files than in other folders.

mod accesses;
mod actors;
mod advice;
mod allocators;
mod applications;
mod batches;
mod capture;
mod churn;
mod engine;
mod fast_and_safe;
mod freebsd;
mod idle;
mod interference;
mod iperf;
mod iperf_both;
mod joining;
mod linux;
mod measures;
mod merging;
mod oracle;
mod pages;
mod placement;
mod prefetching;
mod rates;
mod riommu;
mod scaling;
mod server;
mod shared_commits;
mod shared_resources;
mod sixteen_cpus;
mod span;
mod unit_costs;
mod unpriced;
mod windows;

use portcullis::mapper::Options;
use portcullis::{Protection, SubPage};
use portcullis_designs::DesignId;
use portcullis_sim::prefetch::Hints;
use portcullis_sim::simulate::{Simulate, Simulation};
use portcullis_sim::{Job, LabDesign, Machine, Pace, PayloadRule, Replay, RunOutcome, ServerWork, Work, run};
use portcullis_trace::Trace;
use portcullis_vtd::Discipline;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

fn machine(id: &str) -> Machine {
    Machine::by_id(id).expect("a machine")
}

/// A run of a server at 100 Gb/s, strict unless there is no protection. Single unmaps also mean Linux 6.0: its hint is
/// lost, and it waits under the lock of the queue.
fn at_100_gbps(machine: &Machine, work: ServerWork, design: &str, batch: usize) -> Simulation {
    let (name, workload) = (design, work.workload);
    let design = LabDesign::choice(design).expect("a design");
    let protection = if name == "none" { Protection::None } else { Protection::Strict };
    let mut run = Simulate::new(machine, work, design, protection).expect("it is offered");
    (run.batch, run.leaf_only_hint, run.linux_wait) = (Some(batch), batch > 1, batch == 1);
    let made = run.run(|_| ()).unwrap_or_else(|error| panic!("{name} {workload:?}: {error}"));
    let is_safe = protection == Protection::None || made.outcome.stale_accesses == 0;
    assert!(made.outcome.faults == 0 && is_safe, "{name} {workload:?}");
    made
}

/// A run of single unmaps at the times of the work itself.
fn job<'m>(machine: &'m Machine, work: Work, design: DesignId, protection: Protection) -> Job<'m> {
    let (pace, options) = (Pace::Timestamps, Options::NONE);
    Job {
        machine,
        work,
        design: design.into(),
        options,
        protection,
        sub_page: SubPage::Expose,
        batch: 1,
        pace,
        seed: 1,
        leaf_only_hint: true,
        merge_min: None,
        discipline: Discipline::Combining,
        hints: Hints::NONE,
        payload: PayloadRule::Shown,
    }
}

fn measured(job: &Job<'_>) -> RunOutcome {
    run(job).unwrap_or_else(|error| panic!("{} {}: {error}", job.design.info().id, job.protection))
}

/// The traces in the folder `traces`: strict ones, and a deferred one.
const STRICT_TRACES: [&str; 3] =
    ["q-e1000e-rx.strict.2cpu", "q-nvme-randread4k.strict.2cpu", "nvme-seqread128k.strict.4cpu"];
const LAZY_TRACE: &str = "q-e1000e-tx.lazy.2cpu";

/// The traces that have been read. One reading serves all tests.
static TRACES: Mutex<BTreeMap<String, Arc<OnceLock<Arc<Trace>>>>> = Mutex::new(BTreeMap::new());

fn bundled(name: &str) -> Arc<Trace> {
    at("traces", name)
}

/// A capture with the shape of a public report.
fn bundled_case(name: &str) -> Arc<Trace> {
    at("crates/portcullis-trace/tests/cases", name)
}

fn at(folder: &str, name: &str) -> Arc<Trace> {
    let trace = TRACES.lock().expect("no panic").entry(name.to_owned()).or_default().clone();
    let read = || {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../{folder}/{name}.trace.xz"));
        Arc::new(Trace::read(&file, |_| ()).unwrap_or_else(|error| panic!("{error}")))
    };
    trace.get_or_init(read).clone()
}

fn every_trace() -> impl Iterator<Item = (&'static str, Arc<Trace>)> {
    STRICT_TRACES.into_iter().chain([LAZY_TRACE]).map(|name| (name, bundled(name)))
}

fn replay(trace: &Arc<Trace>) -> Work {
    Work::Trace(Replay::of(trace.clone()))
}

fn rings(parameters: &str) -> Work {
    Work::parse(&format!("rings:{parameters}")).unwrap_or_else(|error| panic!("{parameters}: {error}"))
}

/// Every design with each of its protections.
fn every_protection() -> impl Iterator<Item = (DesignId, Protection)> {
    let designs = DesignId::ALL.iter().copied();
    designs.flat_map(|design| design.info().protections.iter().map(move |protection| (design, *protection)))
}

/// Designs and protections that translate: they allocate addresses and invalidate them.
fn every_translating() -> impl Iterator<Item = (DesignId, Protection)> {
    every_protection().filter(|(design, _)| !design.info().physical_addresses())
}
