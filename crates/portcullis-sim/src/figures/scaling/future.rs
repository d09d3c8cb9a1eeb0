//! 128 cores and 800 Gb/s: a server that does not exist.
//!
//! With several units, each serves a card of its own for an equal share of the cores. Such shares have nothing in
//! common: no queue, no domain, no ring. So one share is run.

use super::super::served::ServedRun;
use super::{Bar, CHUNKS, DESIGNS, Grid, Lab, POLL, percent_of_none, table, unprotected, with_ceiling};

const MACHINE: &str = "future-800g";
const CORES: u32 = 128;
const CORES_SHOWN: [u32; 5] = [1, 8, 32, 64, CORES];
/// Connections of `netperf-rr`.
const CONNECTIONS: u32 = 1000;
const UNITS: [u32; 3] = [1, 2, 4];
/// So many commits that share a submission may be replaced by one command.
const MERGE_MIN: u8 = 4;

pub(super) fn tables(lab: &Lab<'_>) -> Vec<Grid> {
    let mut tables = of_cores(lab);
    tables.extend([
        of_one_unit(lab),
        of_units(lab, "percent of the unprotected rate", &|run| percent_of_none(lab, run)),
        of_units(lab, "percent of the time in which a unit is busy", &|run| lab.of(run).shared.unit_percent),
    ]);
    tables
}

/// Every strict design on 1 to 128 cores, and one unit.
fn of_cores(lab: &Lab<'_>) -> Vec<Grid> {
    let rr = |bar, cores| ServedRun { cores, ..lab.run(MACHINE, "netperf-rr", CONNECTIONS, bar) };
    let iperf = |bar, cores| ServedRun { cores, ..lab.run(MACHINE, "iperf", cores, bar) };
    let of = |title: &str, work: &dyn Fn(Bar, u32) -> ServedRun| {
        let quantity = "percent of the unprotected rate on as many cores";
        let percents = |bar, cores| percent_of_none(lab, &work(bar, cores));
        Grid { title: title.to_owned(), ..table(quantity, "cores", CORES_SHOWN, &DESIGNS, percents) }
    };
    let single = |run: ServedRun| ServedRun { batch: Some(1), ..run };
    let poll = |run: ServedRun| ServedRun { batch: Some(POLL), ..run };
    let singles = of("future-800g, netperf-rr, single unmaps", &|bar, cores| single(rr(bar, cores)));
    let none = CORES_SHOWN.map(|cores| lab.of(&unprotected(lab, &rr(CHUNKS, cores))).rate);
    vec![
        with_ceiling(singles, MACHINE, &none),
        of("future-800g, netperf-rr, the poll's own batches", &|bar, cores| poll(rr(bar, cores))),
        of("future-800g, netperf-rr, the same in two halves", &|bar, cores| ServedRun {
            halves: true,
            ..poll(rr(bar, cores))
        }),
        of("future-800g, iperf, single unmaps", &|bar, cores| single(iperf(bar, cores))),
        of("future-800g, iperf, batches of 64", &|bar, cores| poll(iperf(bar, cores))),
    ]
}

/// The control makes the same translations with software that costs nothing.
fn of_one_unit(lab: &Lab<'_>) -> Grid {
    let percents = |bar: Bar, workload: &str, flows| {
        let run = ServedRun { cores: CORES, batch: Some(POLL), ..lab.run(MACHINE, workload, flows, bar) };
        let control = ServedRun { zero_costs: true, ..run.clone() };
        [percent_of_none(lab, &run), 100.0 * lab.of(&run).rate / lab.of(&control).rate]
    };
    let row = |bar: &Bar| {
        let all = [percents(*bar, "iperf", CORES), percents(*bar, "netperf-rr", CONNECTIONS)];
        (bar.name, all.concat())
    };
    let rows: Vec<(&str, Vec<f64>)> = [DESIGNS[4], DESIGNS[5], CHUNKS].iter().map(row).collect();
    let columns = ["iperf, of none", "iperf, of free software", "netperf-rr, of none", "netperf-rr, of free software"];
    Grid::of("128 cores and 800 Gb/s, one unit, batches of 64", "percent", "design", &columns, &rows)
}

/// `netperf-rr` on so many units, and what of them is used.
fn of_units(lab: &Lab<'_>, quantity: &str, number: &dyn Fn(&ServedRun) -> f64) -> Grid {
    let share = |units: u32| {
        let rings = (CORES / units).to_string();
        let set = ["transmit_rings", "receive_rings"].map(|key| (key.to_owned(), rings.clone())).to_vec();
        ServedRun { cores: CORES / units, set, ..lab.run(MACHINE, "netperf-rr", CONNECTIONS / units, CHUNKS) }
    };
    let single = |units| ServedRun { batch: Some(1), ..share(units) };
    let poll = |units| ServedRun { batch: Some(POLL), ..share(units) };
    let halves = |units| ServedRun { halves: true, ..poll(units) };
    let ways: [(&str, &dyn Fn(u32) -> ServedRun); 6] = [
        ("single unmaps", &single),
        ("the same, merging", &|units| ServedRun { merge_min: Some(MERGE_MIN), ..single(units) }),
        ("the poll's batches", &poll),
        ("the poll's batches, merging", &|units| ServedRun { merge_min: Some(MERGE_MIN), ..poll(units) }),
        ("the poll's batches in two halves", &halves),
        ("free software, in two halves", &|units| ServedRun { zero_costs: true, ..halves(units) }),
    ];
    let of_way = |run: &dyn Fn(u32) -> ServedRun| UNITS.map(|units| number(&run(units))).to_vec();
    let rows: Vec<(&str, Vec<f64>)> = ways.iter().map(|(name, run)| (*name, of_way(*run))).collect();
    let columns = ["1 unit", "2 units", "4 units"];
    Grid::of("netperf-rr on 128 cores, strict portcullis", quantity, "unmaps", &columns, &rows)
}
