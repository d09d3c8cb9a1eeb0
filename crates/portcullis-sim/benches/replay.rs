//! How many mappings per second of host time the lab replays, under every design and protection, and how many packets
//! of a stream it simulates.
//!
//! An operation is a mapping with everything that belongs to it: its map, the device's accesses, and its unmap. A
//! packet comes from the client through the network card to the application, and is acknowledged.

use criterion::{
    BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use portcullis::mapper::Options;
use portcullis::{Protection, SubPage};
use portcullis_designs::DesignId;
use portcullis_sim::prefetch::Hints;
use portcullis_sim::simulate::Simulate;
use portcullis_sim::{Job, LabDesign, Machine, PayloadRule, Replay, ServerWork, Work, machine_pace, run};
use portcullis_trace::Trace;
use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

const SEED: u64 = 1;
const TRACE_NAME: &str = "q-e1000e-rx.strict.2cpu.trace.xz";
const TRACE: &[u8] = include_bytes!("../../../traces/q-e1000e-rx.strict.2cpu.trace.xz");

/// What a run over some work must result in.
struct Expected {
    operations: u64,
    pages: u64,
}

fn trace(criterion: &mut Criterion) {
    let trace = Trace::read_from(TRACE_NAME, Cursor::new(TRACE), |_| {}).expect("a bundled trace is sound");
    let operations = trace.mappings.len() as u64;
    let pages = trace.mappings.iter().map(|mapping| u64::from(mapping.pages)).sum();
    let work = Work::Trace(Replay::of(Arc::new(trace)));
    every_design(criterion, "q-e1000e-rx.strict.2cpu", &work, &Expected { operations, pages });
}

/// Filling the rings and going round them once also takes time here, but does not count as operations.
fn rings(criterion: &mut Criterion) {
    for parameters in ["count=1,operations=20000", "count=16,ring=64,operations=16384"] {
        let work = Work::parse(&format!("rings:{parameters}")).expect("the parameters are right");
        let Work::Rings(rings) = &work else { panic!("rings are what was asked for") };
        // Every core serves whole bursts.
        let per_core = rings.operations.div_ceil(u64::from(rings.count)).next_multiple_of(u64::from(rings.burst));
        let operations = per_core * u64::from(rings.count);
        let expected = Expected { operations, pages: operations * u64::from(rings.pages) };
        every_design(criterion, &format!("rings:{parameters}"), &work, &expected);
    }
}

/// The packets of a stream on one core, on every machine whose network card is known.
fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packets of netperf-stream, portcullis strict");
    for machine in Machine::all().into_iter().filter(|machine| machine.server.is_some()) {
        let work = ServerWork::new(&machine, "netperf-stream", Some(1), None, None).expect("a known card");
        let packets = work.packets();
        let choice = LabDesign::from(DesignId::Portcullis).into();
        let simulate = Simulate::new(&machine, work, choice, Protection::Strict).expect("a protection of the design");
        group.throughput(Throughput::Elements(packets)).sampling_mode(SamplingMode::Flat);
        group.bench_function(&machine.id, |bencher| {
            bencher.iter(|| {
                let received = black_box(&simulate).received().expect("the run succeeds");
                // The others are control messages.
                assert!((packets..packets + packets / 100).contains(&received), "{received} frames are not the work");
            });
        });
    }
    group.finish();
}

/// One benchmark for each design and protection.
fn every_design(criterion: &mut Criterion, name: &str, work: &Work, expected: &Expected) {
    let machine = Machine::by_id("cascadelake-cx5").expect("the default machine");
    let pace = machine_pace(&machine, work, PayloadRule::Shown, SEED);
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(expected.operations)).sampling_mode(SamplingMode::Flat);
    for &design in DesignId::ALL {
        for &protection in design.info().protections {
            let job = Job {
                machine: &machine,
                work: work.clone(),
                design: design.into(),
                options: Options::NONE,
                protection,
                sub_page: SubPage::Expose,
                batch: 1,
                pace,
                seed: SEED,
                leaf_only_hint: true,
                merge_min: None,
                discipline: Default::default(),
                hints: Hints::NONE,
                payload: PayloadRule::Shown,
            };
            bench(&mut group, &job, expected);
        }
    }
    group.finish();
}

fn bench(group: &mut BenchmarkGroup<'_, WallTime>, job: &Job<'_>, expected: &Expected) {
    let design = job.design.info().id;
    let name = match job.protection {
        Protection::None => design.to_owned(),
        protection => format!("{design} {protection}"),
    };
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let outcome = run(black_box(job)).expect("the run succeeds");
            // Work that was not done was not timed either.
            assert_eq!((outcome.operations, outcome.pages, outcome.faults), (expected.operations, expected.pages, 0));
            outcome
        });
    });
}

criterion_group! {
    name = replay;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .without_plots();
    targets = trace, rings, packets
}
criterion_main!(replay);
