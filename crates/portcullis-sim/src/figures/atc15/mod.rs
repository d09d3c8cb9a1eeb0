//! "Utilizing the IOMMU scalably" (ATC'15): what locks cost 16 cores, and what designs without them save.
//!
//! The text of the paper gives ratios, and only its plots give absolute rates, so ratios are scored. Shares of cycles
//! that locks take are of class C2: two constants on which they hang, the cost per waiter and that of a register, have
//! no source, and move them by a factor of two between them.

mod latency;
mod locks;
mod memcached;
mod tables;
mod throughput;

use super::class::Class;
use super::lab::{Bar, DEFER_PLUS, Lab, NONE, RR, bar};
use super::served::{Length, Numbers, ServedRun};
use super::shape::{greatest, least};
use super::{Figure, Grid, Made, Point, Tolerance};
use portcullis::Protection::{Deferred, Strict};

/// The figures, in the order of the paper.
pub(super) const FIGURES: [Figure; 7] = [
    throughput::FIGURE_1,
    locks::FIGURE_2,
    throughput::FIGURE_3,
    latency::FIGURE_4,
    memcached::FIGURE_5,
    tables::FIGURE_6,
    throughput::FIGURE_7,
];

/// What each of them has in common.
const ATC15: Figure = Figure {
    id: "",
    title: "",
    source: "Utilizing the IOMMU scalably (ATC'15)",
    group: Some("atc15"),
    ..Figure::OF_LABORATORY
};

pub(super) const R430: &str = "r430-bcm57810";
/// Connections of the parallel benchmark.
const FLOWS: u32 = 270;
/// The most cores.
pub(super) const CORES: u32 = 16;
pub(super) const CORES_SHOWN: [u32; 6] = [1, 2, 4, 8, 12, 16];

const STOCK: Bar = bar("stock", "stock", Deferred);
const EIOVAR: Bar = Bar { name: "EiovaR", ..DEFER_PLUS };
const MAGAZINE: Bar = bar("magazine", "magazine", Deferred);
const IDENTITY: Bar = bar("identity", "identity", Deferred);
const KMALLOC: Bar = bar("kmalloc", "kmalloc", Deferred);
/// The designs of the paper.
const DESIGNS: [Bar; 3] = [MAGAZINE, IDENTITY, KMALLOC];
/// The same under strict protection, where the unmap of Linux 3.17 requests an invalidation whatever it cleared.
const STRICT_DESIGNS: [Bar; 3] =
    [strict(MAGAZINE), Bar { design: "identity:flush=each", ..strict(IDENTITY) }, strict(KMALLOC)];

/// The same design under strict protection.
const fn strict(one: Bar) -> Bar {
    bar(one.name, one.design, Strict)
}

/// The parallel benchmark on so many cores.
pub(super) fn parallel(lab: &Lab<'_>, bar: Bar, cores: u32) -> ServedRun {
    ServedRun { cores, ..lab.run(R430, RR, FLOWS, bar) }
}

/// The same work without protection, on the same machine.
pub(super) fn unprotected(lab: &Lab<'_>, run: &ServedRun) -> ServedRun {
    let ServedRun { machine, workload, coherent, cores, flows, ring, .. } = run;
    let none = lab.run(machine, workload, *flows, NONE);
    ServedRun { coherent: *coherent, cores: *cores, ring: *ring, set: run.set.clone(), ..none }
}

/// A number of each design, by cores or by something else.
pub(super) fn table<const N: usize>(
    quantity: &str,
    across: &str,
    columns: [u32; N],
    bars: &[Bar],
    number: impl Fn(Bar, u32) -> f64,
) -> Grid {
    let names = columns.map(|column| column.to_string());
    let row = |bar: &Bar| (bar.name, columns.map(|column| number(*bar, column)).to_vec());
    let rows: Vec<(&str, Vec<f64>)> = bars.iter().map(row).collect();
    Grid::of(quantity, quantity, across, &names.each_ref().map(String::as_str), &rows)
}

/// A number, made with each seed.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    /// The one in the middle.
    pub(super) ours: f64,
    /// The greatest over the least.
    spread: f64,
}

/// The seeds of a number: three in long runs.
fn seeds(lab: &Lab<'_>) -> std::ops::RangeInclusive<u64> {
    match lab.length {
        Length::Short => 1..=1,
        Length::Full => 1..=3,
    }
}

/// A number of some runs, each of which is made with the seed.
pub(super) fn sample<const N: usize>(
    lab: &Lab<'_>,
    runs: [&ServedRun; N],
    number: impl Fn([Numbers; N]) -> f64,
) -> Sample {
    let of_seed = |seed| number(runs.map(|run| lab.of(&ServedRun { seed, ..run.clone() })));
    let mut all: Vec<f64> = seeds(lab).map(of_seed).collect();
    // A difference whose sign is not certain is not known at all.
    let spread = if least(&all) <= 0.0 { f64::INFINITY } else { greatest(&all) / least(&all) };
    all.sort_by(f64::total_cmp);
    Sample { ours: all[all.len() / 2], spread }
}

/// The rate of a run, as a share of that without protection on as many cores.
pub(super) fn share(lab: &Lab<'_>, run: &ServedRun) -> Sample {
    sample(lab, [run, &unprotected(lab, run)], |[ours, none]| ours.rate / none.rate)
}

/// A number, and how far its seeds are apart.
struct Seeded {
    point: Point,
    spread: f64,
}

impl From<Point> for Seeded {
    /// One that has no spread, such as a shape.
    fn from(point: Point) -> Self {
        Self { point, spread: f64::NAN }
    }
}

/// A number beside the published one. If seeds make a greater difference than its class allows, it is only shown.
fn point(class: Class, name: impl Into<String>, published: f64, sample: Sample) -> Seeded {
    let is_apart = match class.tolerance(1.0) {
        Some(Tolerance::Between(_, most)) => sample.spread > most,
        _ => false,
    };
    let point = match is_apart {
        true => Point::new(name, sample.ours).beside(published),
        false => Point::of(class, name, published, sample.ours),
    };
    Seeded { point, spread: sample.spread }
}

/// A number that follows from others which are scored. So it is only shown.
fn shown(name: impl Into<String>, published: f64, sample: Sample) -> Seeded {
    Seeded { point: Point::new(name, sample.ours).beside(published), spread: sample.spread }
}

/// A figure. In long runs it also shows what the seeds do.
fn made(lab: &Lab<'_>, numbers: Vec<Seeded>, mut tables: Vec<Grid>) -> Made {
    if lab.length == Length::Full {
        let known = numbers.iter().filter(|one| !one.spread.is_nan());
        let rows: Vec<(&str, Vec<f64>)> = known.map(|one| (one.point.point.as_str(), vec![one.spread])).collect();
        tables.push(Grid::of("Three seeds", "the greatest over the least", "number", &["spread"], &rows));
    }
    Made { tables, points: numbers.into_iter().map(|one| one.point).collect(), ..Made::default() }
}
