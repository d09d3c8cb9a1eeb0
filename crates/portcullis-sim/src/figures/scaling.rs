//! Does strict protection scale? Ours beside every strict design, on 1 to 16 cores.

use super::atc15::{CORES, CORES_SHOWN, R430, parallel, share};
use super::lab::{Bar, Lab, NONE, bar};
use super::served::{Length, ServedRun};
use super::{Figure, Grid, Made, Make, Point};
use crate::machine::Machine;
use portcullis::Protection::Strict;

pub(super) const FIGURE: Figure = Figure {
    id: "scaling",
    title: "Strict protection on 1 to 16 cores, 270 connections of netperf",
    source: "our own, on the machine of ATC'15",
    make: Make::FromRuns(scaling),
    ..Figure::OF_LABORATORY
};

const CHUNKS: Bar = bar("portcullis", "portcullis", Strict);
const DESIGNS: [Bar; 7] = [
    bar("stock", "stock", Strict),
    bar("eiovar", "eiovar", Strict),
    bar("identity", "identity", Strict),
    bar("kmalloc", "kmalloc", Strict),
    bar("magazine", "magazine", Strict),
    bar("fast-and-safe", "fast-and-safe", Strict),
    CHUNKS,
];
/// A poll of the driver unmaps what it finds, and so many at most.
const POLL: usize = 64;

fn scaling(lab: &Lab<'_>) -> Made {
    let single = |bar: Bar, cores| ServedRun { batch: Some(1), ..parallel(lab, bar, cores) };
    let poll = |bar: Bar, cores| ServedRun { batch: Some(POLL), ..parallel(lab, bar, cores) };
    let halves = |bar: Bar, cores| ServedRun { halves: true, ..poll(bar, cores) };
    let names = CORES_SHOWN.map(|cores| cores.to_string());
    let columns = names.each_ref().map(String::as_str);
    let percents =
        |run: &dyn Fn(u32) -> ServedRun| CORES_SHOWN.map(|cores| 100.0 * share(lab, &run(cores)).ours).to_vec();
    let table = |title: &str, run: &dyn Fn(Bar, u32) -> ServedRun, ceiling: Option<[f64; CORES_SHOWN.len()]>| {
        let row = |bar: &Bar| (bar.name, percents(&|cores| run(*bar, cores)));
        let mut rows: Vec<(&str, Vec<f64>)> = DESIGNS.iter().map(row).collect();
        rows.extend(ceiling.map(|ceiling| ("ceiling of the hardware (estimate)", ceiling.to_vec())));
        Grid::of(title, "percent of the unprotected rate on as many cores", "cores", &columns, &rows)
    };
    let none = |cores| ServedRun {
        design: "none".to_owned(),
        protection: "none".to_owned(),
        earlier_runs: Some(0),
        ..single(CHUNKS, cores)
    };
    let ceiling = CORES_SHOWN.map(|cores| 100.0 * (single_commits_ktps() / lab.of(&none(cores)).rate).min(1.0));
    let parts = |run: ServedRun| {
        let shared = lab.of(&run).shared;
        let waits = shared.hardware_percent;
        vec![waits, shared.protection_percent - waits]
    };
    let rows = [
        ("single unmaps", parts(single(CHUNKS, CORES))),
        ("the poll's batches", parts(poll(CHUNKS, CORES))),
        ("the same in two halves", parts(halves(CHUNKS, CORES))),
    ];
    let mut tables = vec![
        table("single unmaps", &single, Some(ceiling)),
        table("the poll's own batches", &poll, None),
        table("the same, in two halves", &halves, None),
        Grid::of(
            "portcullis on 16 cores",
            "percent of all cycles",
            "unmaps",
            &["waiting for the hardware", "software and locks"],
            &rows,
        ),
    ];
    if lab.length == Length::Full {
        tables.push(of_128_cores(lab));
    }
    let of = |name: &str, run: ServedRun| Point::new(name, 100.0 * share(lab, &run).ours);
    let points = vec![
        of("portcullis in two halves, 16 cores, % of none", halves(CHUNKS, CORES)),
        of("portcullis, the poll's own batches, 16 cores, % of none", poll(CHUNKS, CORES)),
        of("portcullis, single unmaps, 16 cores, % of none", single(CHUNKS, CORES)),
    ];
    Made { tables, points, ..Made::default() }
}

/// A server that does not exist. The control makes the same translations with software that costs nothing.
fn of_128_cores(lab: &Lab<'_>) -> Grid {
    const MACHINE: &str = "future-800g";
    const CORES: u32 = 128;
    const CONNECTIONS: u32 = 1000;
    let run = |workload: &str, flows, bar: Bar| ServedRun {
        cores: CORES,
        batch: Some(POLL),
        ..lab.run(MACHINE, workload, flows, bar)
    };
    let of = |workload: &str, flows, bar: Bar, other: &dyn Fn(&ServedRun) -> ServedRun| {
        let run = run(workload, flows, bar);
        100.0 * lab.of(&run).rate / lab.of(&other(&run)).rate
    };
    let none = |run: &ServedRun| ServedRun { cores: CORES, ..lab.run(MACHINE, &run.workload, run.flows, NONE) };
    let control = |run: &ServedRun| ServedRun { zero_costs: true, ..run.clone() };
    let row = |bar: &Bar| {
        let iperf = |other: &dyn Fn(&ServedRun) -> ServedRun| of("iperf", CORES, *bar, other);
        let rr = |other: &dyn Fn(&ServedRun) -> ServedRun| of("netperf-rr", CONNECTIONS, *bar, other);
        (bar.name, vec![iperf(&none), iperf(&control), rr(&none), rr(&control)])
    };
    let rows: Vec<(&str, Vec<f64>)> = [DESIGNS[4], DESIGNS[5], CHUNKS].iter().map(row).collect();
    let columns = ["iperf, of none", "iperf, of free software", "netperf-rr, of none", "netperf-rr, of free software"];
    Grid::of("128 cores and 800 Gb/s, one unit, batches of 64", "percent", "design", &columns, &rows)
}

/// An estimate: thousands of transactions per second if each of their two unmaps has a command and a wait of its own,
/// and the hardware of the one unit never rests.
fn single_commits_ktps() -> f64 {
    let iommu = Machine::by_id(R430).expect("a machine").iommu;
    1e9 / (2.0 * (iommu.invalidation_ps + iommu.wait_ps) as f64)
}
