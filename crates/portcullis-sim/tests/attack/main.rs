//! The malicious device: what it finds out about every design, and that it finds each planted flaw by the name of its
//! rule.

mod allocators;
mod hardware;
mod mappers;
mod planted;
mod registered;
mod rings;
mod shared_commits;

use portcullis::mapper::Design;
use portcullis_sim::attack::{Attacked, attack};
use portcullis_sim::{Job, LabDesign, LabPlatform, LabUnit, Machine, Replay, Work};
use portcullis_trace::Trace;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

fn machine() -> Machine {
    Machine::by_id("cascadelake-cx5").expect("the default machine")
}

/// The run of `job` under the design `D`.
fn attack_design<D: Design<LabPlatform, LabUnit>>(job: &Job<'_>) -> Attacked {
    attack(&Job { design: LabDesign::of::<D>(), ..job.clone() })
}

fn rings(parameters: &str) -> Work {
    Work::parse(&format!("rings:{parameters}")).unwrap_or_else(|error| panic!("{parameters}: {error}"))
}

/// The traces that have been read. One reading serves all tests.
static TRACES: Mutex<BTreeMap<String, Arc<OnceLock<Arc<Trace>>>>> = Mutex::new(BTreeMap::new());

fn replay(name: &str) -> Work {
    let trace = TRACES.lock().expect("no panic").entry(name.to_owned()).or_default().clone();
    let read = || {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../traces/{name}.trace.xz"));
        Arc::new(Trace::read(&file, |_| ()).unwrap_or_else(|error| panic!("{error}")))
    };
    Work::Trace(Replay::of(trace.get_or_init(read).clone()))
}
