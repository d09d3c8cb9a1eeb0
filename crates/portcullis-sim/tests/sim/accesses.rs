//! The device's own accesses: each bundled trace is replayed with the log of its device.

use super::{every_protection, job, machine, measured};
use portcullis::{Access, Protection};
use portcullis_designs::DesignId;
use portcullis_sim::{Job, Pace, PayloadRule, Replay, Work, machine_pace};
use portcullis_trace::{AccessLog, Joined, Target, Trace, join};
use std::path::Path;
use std::sync::Arc;

fn pair(name: &str) -> (Arc<Trace>, Arc<Joined>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../traces");
    let trace = Trace::read(&folder.join(format!("{name}.trace.xz")), |_| ()).unwrap();
    let log = AccessLog::read(&folder.join(format!("{name}.qemu.xz")), |_| ()).unwrap();
    let joined = join(&trace, &log).unwrap();
    (Arc::new(trace), Arc::new(joined))
}

/// Every design has each logged access mapped, and almost every access has a mapping that explains it.
fn replays_without_fault(name: &str) {
    let (trace, joined) = pair(name);
    let machine = machine("cascadelake-cx5");
    let explained = joined.accesses.len() as f64;
    let work = Work::Trace(Replay { trace: trace.clone(), joined: Some(joined.clone()) });
    let model = machine_pace(&machine, &work, PayloadRule::Shown, 1);
    let mut without = Vec::new();
    for (design, protection) in every_protection() {
        for pace in [model, Pace::Timestamps] {
            let outcome = measured(&Job { pace, ..job(&machine, work.clone(), design, protection) });
            let run = format!("{name}, {} {protection}", design.info().id);
            assert_eq!(outcome.faults, 0, "{run}");
            assert_eq!(outcome.unexplained_accesses, joined.unexplained, "{run}");
            assert!((outcome.unexplained_accesses as f64) < 0.01 * explained, "{run}: of {explained} accesses");
            without.push((outcome.operations, outcome.pages));
        }
    }
    without.dedup();
    assert_eq!(without.len(), 1, "{name}: the same work under every design");
    // Rings and buffers mapped before the capture exist, but are not operations of it.
    assert!(!joined.persistent.is_empty());
    assert_eq!(without[0].0, trace.mappings.len() as u64, "{name}");
}

#[test]
fn receiving() {
    replays_without_fault("q-e1000e-rx.strict.2cpu");
}

#[test]
fn sending() {
    replays_without_fault("q-e1000e-tx.lazy.2cpu");
}

#[test]
fn disk() {
    replays_without_fault("q-nvme-randread4k.strict.2cpu");
}

/// The faults that each design sees if one access of the log goes to a page that is not mapped.
fn faults_with_a_wild(access: impl Fn(&Joined) -> usize) -> Vec<u64> {
    let (trace, joined) = pair("q-nvme-randread4k.strict.2cpu");
    let mut wild = (*joined).clone();
    let at = access(&wild);
    wild.accesses[at].target = Target::Persistent { index: wild.persistent.len() as u32, offset: 0 };
    let work = Work::Trace(Replay { trace, joined: Some(Arc::new(wild)) });
    let machine = machine("cascadelake-cx5");
    every_protection()
        .map(|(design, protection)| measured(&job(&machine, work.clone(), design, protection)).faults)
        .collect()
}

#[test]
fn an_access_to_what_is_not_mapped_is_a_fault() {
    let faults = faults_with_a_wild(|joined| joined.accesses.len() / 2);
    assert!(faults.iter().all(|faults| *faults == 1), "{faults:?}");
}

#[test]
fn so_is_one_that_comes_after_the_last_operation() {
    let faults = faults_with_a_wild(|joined| joined.accesses.len() - 1);
    assert!(faults.iter().all(|faults| *faults == 1), "{faults:?}");
}

#[test]
fn the_furthest_access_is_the_least_that_a_buffer_held() {
    let machine = machine("cascadelake-cx5");
    let (trace, joined) = pair("q-e1000e-rx.strict.2cpu");
    let payload = |joined: Joined| {
        let work = Work::Trace(Replay { trace: trace.clone(), joined: Some(Arc::new(joined)) });
        let outcome = measured(&job(&machine, work, DesignId::Unprotected, Protection::None));
        (outcome.payload_bytes_min, outcome.payload_bytes_max)
    };
    // The log shows which buffers were written, but not how far: it only has the first byte of each access.
    let (least, most) = payload((*joined).clone());
    let capacity: u64 = trace.segments.iter().map(|segment| segment.len).sum();
    assert!(least > 0 && least < most && most < capacity, "{least} to {most} of {capacity}");
    // Adds an access to the last byte of a written buffer.
    let mut further = (*joined).clone();
    let is_received = |mapping: u32| trace.mappings[mapping as usize].access == Access::DeviceWrites;
    let last = further.accesses.iter_mut().rev().find_map(|access| match &mut access.target {
        Target::Mapping { mapping, page: 0, offset } if is_received(*mapping) => Some((*mapping, offset)),
        _ => None,
    });
    let (mapping, offset) = last.expect("a buffer was written");
    let buffer = trace.segments_of(&trace.mappings[mapping as usize])[0];
    let end = (buffer.phys.page_offset() + buffer.len - 1).min(4095);
    let gained = end - u64::from(*offset);
    *offset = end as u16;
    assert_eq!(payload(further), (least + gained, most));
}
