//! Figures 1, 3 and 7: transactions of 270 connections on 1 to 16 cores.

use super::super::class::Class::{Cal, R25};
use super::super::lab::{Bar, Lab, NONE};
use super::super::served::{Length, ServedRun};
use super::super::shape::is_flat;
use super::super::{Figure, Grid, Made, Make, Point};
use super::{
    ATC15, CORES, CORES_SHOWN, DESIGNS, EIOVAR, STOCK, STRICT_DESIGNS, Sample, Seeded, made, parallel, point, sample,
    share, shown, strict, table,
};

pub(super) const FIGURE_1: Figure = Figure {
    id: "atc15-fig1",
    title: "270 connections of netperf, on 1 to 16 cores: what the locks of Linux cost",
    make: Make::FromRuns(figure_1),
    ..ATC15
};

pub(super) const FIGURE_3: Figure = Figure {
    id: "atc15-fig3",
    title: "The same under the three designs of the paper",
    make: Make::FromRuns(figure_3),
    ..ATC15
};

pub(super) const FIGURE_7: Figure = Figure {
    id: "atc15-fig7",
    title: "The same under strict protection, with Linux's wait and with that of our driver",
    make: Make::FromRuns(figure_7),
    ..ATC15
};

/// Cycles of a transaction that the rates of the paper's designs at one core ask for, beside those that EiovaR's does.
const DEARER: (&str, &str) = ("cycles_per_transaction", "24000");
/// Constants without a source, each with its other values.
const UNSOURCED: [(&str, [&str; 2]); 2] = [("handoff_per_waiter", ["0", "100"]), ("register_read", ["300", "1000"])];

fn with(run: &ServedRun, (key, value): (&str, &str)) -> ServedRun {
    ServedRun { set: vec![(key.to_owned(), value.to_owned())], ..run.clone() }
}

/// What the runs reach on 16 cores with other values of what is not known, in percent of none.
fn sensitivity(lab: &Lab<'_>, runs: &[(&'static str, ServedRun)]) -> Grid {
    let mut columns = vec!["as it is".to_owned(), "24,000 cycles a transaction".to_owned()];
    if lab.length == Length::Full {
        let of = |(key, values): &(&str, [&str; 2])| values.map(|value| format!("{key} {value}"));
        columns.extend(UNSOURCED.iter().flat_map(of));
    }
    let row = |(name, run): &(&'static str, ServedRun)| {
        let mut all = vec![run.clone(), with(run, DEARER)];
        if lab.length == Length::Full {
            let of = |(key, values): &(&'static str, [&'static str; 2])| values.map(|value| with(run, (*key, value)));
            all.extend(UNSOURCED.iter().flat_map(of));
        }
        (*name, all.iter().map(|run| 100.0 * share(lab, run).ours).collect::<Vec<f64>>())
    };
    let rows: Vec<(&str, Vec<f64>)> = runs.iter().map(row).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    Grid::of("16 cores, with other values of what is not known", "percent of none", "design", &columns, &rows)
}

/// Thousands of transactions per second, by cores.
fn rates(lab: &Lab<'_>, bars: &[Bar], run: impl Fn(Bar, u32) -> ServedRun) -> Grid {
    let rate = |bar, cores| lab.of(&run(bar, cores)).rate;
    table("thousands of transactions per second", "cores", CORES_SHOWN, bars, rate)
}

fn figure_1(lab: &Lab<'_>) -> Made {
    let run = |bar, cores| parallel(lab, bar, cores);
    let speedup = |bar| sample(lab, [&run(bar, CORES), &run(bar, 1)], |[all, one]| all.rate / one.rate);
    let [stock, eiovar] = [STOCK, EIOVAR].map(|bar| lab.of(&run(bar, CORES)).rate);
    let points = vec![
        point(R25, "none: 16 cores over one", 14.4, speedup(NONE)),
        shown("EiovaR: 16 cores over one", 3.8, speedup(EIOVAR)),
        Point::shape("stock is slower than EiovaR on 16 cores", stock < eiovar).into(),
    ];
    made(lab, points, vec![rates(lab, &[NONE, STOCK, EIOVAR], run)])
}

fn figure_3(lab: &Lab<'_>) -> Made {
    let run = |bar, cores| parallel(lab, bar, cores);
    let share = |bar, cores| share(lab, &run(bar, cores));
    let mut points = vec![
        // The constant is calibrated with this.
        point(Cal, "EiovaR over none, 1 core", 0.86, share(EIOVAR, 1)),
        point(R25, "EiovaR over none, 16 cores", 0.23, share(EIOVAR, CORES)),
    ];
    // At one core, from .93 to .95 is published of the three.
    for (bar, published) in DESIGNS.into_iter().zip([0.93, 0.93, 0.94]) {
        points.push(point(R25, format!("{} over none, 1 core", bar.name), 0.94, share(bar, 1)));
        points.push(point(R25, format!("{} over none, 16 cores", bar.name), published, share(bar, CORES)));
    }
    let bars = [NONE, EIOVAR, DESIGNS[0], DESIGNS[1], DESIGNS[2]];
    let known: Vec<_> = bars[1..].iter().map(|bar| (bar.name, run(*bar, CORES))).collect();
    made(lab, points, vec![rates(lab, &bars, run), sensitivity(lab, &known)])
}

fn figure_7(lab: &Lab<'_>) -> Made {
    let ours = |bar: Bar, cores| parallel(lab, bar, cores);
    let linux = |bar: Bar, cores| ServedRun { linux_wait: true, ..ours(bar, cores) };
    let shares: [Sample; 3] = STRICT_DESIGNS.map(|bar| share(lab, &linux(bar, CORES)));
    let mut points: Vec<Seeded> = STRICT_DESIGNS
        .iter()
        .zip(shares)
        .map(|(bar, share)| point(R25, format!("{} over none, 16 cores", bar.name), 1.0 / 6.0, share))
        .collect();
    let many = CORES_SHOWN.iter().filter(|cores| **cores > 6);
    let is_flat = many.clone().all(|cores| is_flat(&STRICT_DESIGNS.map(|bar| lab.of(&linux(bar, *cores)).rate), 0.1));
    points.push(Point::shape("on more than 6 cores, the designs are within a tenth of each other", is_flat).into());
    let bars = [strict(EIOVAR), STRICT_DESIGNS[0], STRICT_DESIGNS[1], STRICT_DESIGNS[2]];
    let titled = |title: &str, grid: Grid| Grid { title: title.to_owned(), ..grid };
    let known: Vec<_> = bars.iter().map(|bar| (bar.name, linux(*bar, CORES))).collect();
    let tables = vec![
        titled("strict, with Linux's wait", rates(lab, &bars, linux)),
        titled("strict, with the wait of our driver", rates(lab, &bars, ours)),
        sensitivity(lab, &known),
    ];
    made(lab, points, tables)
}
