//! Figure 6: the pages of tables after runs.

use super::super::class::Class::{C2, Input};
use super::super::lab::{Bar, Lab};
use super::super::served::{Length, ServedRun};
use super::super::shape::is_flat;
use super::super::{Figure, GridRow, Made, Make, Point, Reason};
use super::{ATC15, CORES, DESIGNS, EIOVAR, STOCK, made, parallel, point, sample, table};

pub(super) const FIGURE_6: Figure = Figure {
    id: "atc15-fig6",
    title: "Pages of tables after so many runs on 16 cores",
    reasons: &[Reason::only_in(
        Length::Short,
        &["identity does not"],
        "Each core cuts receive buffers from runs of 32 KiB, and which runs are in use changes in the first runs: the \
         tables grow by two fifths up to the fifth run, and no more up to the ninth. Published are 100 runs.",
    )],
    make: Make::FromRuns(figure_6),
    ..ATC15
};

const RUNS: [u32; 3] = [1, 5, 9];
/// Small objects that other programs take for each transaction. Assumed.
const BACKGROUND: &str = "netperf-rr:background=1";

fn figure_6(lab: &Lab<'_>) -> Made {
    let run = |bar: Bar, runs: u32| ServedRun {
        workload: BACKGROUND.to_owned(),
        earlier_runs: Some(runs - 1),
        ..parallel(lab, bar, CORES)
    };
    let last = RUNS[RUNS.len() - 1];
    let pages_after = |bar, runs| lab.of(&run(bar, runs)).shared.table_pages;
    let pages = |bar| RUNS.map(|runs| pages_after(bar, runs));
    let over_stock = |bar| {
        sample(lab, [&run(bar, last), &run(STOCK, last)], |[one, stock]| {
            one.shared.table_pages / stock.shared.table_pages
        })
    };
    let [magazine, identity, kmalloc] = DESIGNS;
    let grows = pages(kmalloc).windows(2).all(|pair| pair[1] > pair[0]);
    let alone = [RUNS[0], last]
        .map(|runs| lab.of(&ServedRun { workload: "netperf-rr".to_owned(), ..run(kmalloc, runs) }).shared.table_pages);
    let points = vec![
        point(C2, "magazine over stock", 1.2, over_stock(magazine)),
        point(C2, "identity over stock", 3.4, over_stock(identity)),
        // It grows only if other programs allocate, which is an input.
        Point::of(Input, "kmalloc grows", 1.0, f64::from(u8::from(grows))).into(),
        Point::shape("magazine does not", is_flat(&pages(magazine), 0.1)).into(),
        Point::shape("identity does not", is_flat(&pages(identity), 0.1)).into(),
    ];
    let mut grid = table("pages of tables", "runs", RUNS, &[STOCK, EIOVAR, magazine, identity, kmalloc], pages_after);
    let values = vec![Some(alone[0]), None, Some(alone[1])];
    grid.rows.push(GridRow { name: "kmalloc alone".to_owned(), values });
    made(lab, points, vec![grid])
}
