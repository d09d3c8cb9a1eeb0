//! Does strict protection scale? Ours beside every strict design, on 1 to 16 cores.

mod applications;
mod future;

use super::atc15::{CORES, CORES_SHOWN, R430, parallel, share, table, unprotected};
use super::lab::{Bar, Lab, NONE, bar};
use super::served::{Length, ServedRun};
use super::{Figure, Grid, GridRow, Made, Make, Point};
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

/// All runs are short, because so many cores take the laboratory long.
fn scaling(all: &Lab<'_>) -> Made {
    let lab = &all.short();
    let single = |bar: Bar, cores| ServedRun { batch: Some(1), ..parallel(lab, bar, cores) };
    let poll = |bar: Bar, cores| ServedRun { batch: Some(POLL), ..parallel(lab, bar, cores) };
    let halves = |bar: Bar, cores| ServedRun { halves: true, ..poll(bar, cores) };
    let percent = |run: &ServedRun| 100.0 * share(lab, run).ours;
    let table = |title: &str, run: &dyn Fn(Bar, u32) -> ServedRun| {
        let percents = |bar, cores| percent(&run(bar, cores));
        let quantity = "percent of the unprotected rate on as many cores";
        Grid { title: title.to_owned(), ..table(quantity, "cores", CORES_SHOWN, &DESIGNS, percents) }
    };
    let none = |cores| lab.of(&parallel(lab, NONE, cores)).rate;
    let singles = with_ceiling(table("single unmaps", &single), R430, &CORES_SHOWN.map(none));
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
        singles,
        table("the poll's own batches", &poll),
        table("the same, in two halves", &halves),
        Grid::of(
            "portcullis on 16 cores",
            "percent of all cycles",
            "unmaps",
            &["waiting for the hardware", "software and locks"],
            &rows,
        ),
    ];
    tables.extend(applications::tables(lab));
    if all.length == Length::Full {
        tables.extend(future::tables(lab));
    }
    let of = |name: &str, run: ServedRun| Point::new(name, percent(&run));
    let points = vec![
        of("portcullis in two halves, 16 cores, % of none", halves(CHUNKS, CORES)),
        of("portcullis, the poll's own batches, 16 cores, % of none", poll(CHUNKS, CORES)),
        of("portcullis, single unmaps, 16 cores, % of none", single(CHUNKS, CORES)),
    ];
    Made { tables, points, ..Made::default() }
}

/// The rate of a run, in percent of that without protection on as many cores.
fn percent_of_none(lab: &Lab<'_>, run: &ServedRun) -> f64 {
    100.0 * lab.of(run).rate / lab.of(&unprotected(lab, run)).rate
}

/// Adds what the hardware of the one unit allows, if it never rests and each of the two unmaps of a transaction has a
/// command and a wait of its own. It is an estimate, from rates without protection in thousands of transactions per
/// second, by column.
fn with_ceiling(mut singles: Grid, machine: &str, none: &[f64]) -> Grid {
    let iommu = Machine::by_id(machine).expect("a machine").iommu;
    let ktps = 1e9 / (2.0 * (iommu.invalidation_ps + iommu.wait_ps) as f64);
    let values = none.iter().map(|none| Some(100.0 * (ktps / none).min(1.0))).collect();
    singles.rows.push(GridRow { name: "ceiling of the hardware (estimate)".to_owned(), values });
    singles
}
