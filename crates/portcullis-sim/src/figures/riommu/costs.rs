//! Table 1: what each step of a map and an unmap costs in a stream.
//!
//! The cost book of the machine is made from this table, so much of it is an input. The rest is compared: what the
//! book has for one column and the paper for another, and what follows from searches and from the hardware.

use super::super::class::Class::{self, Input, R25};
use super::super::lab::{BARS, CX3, Lab, STREAM};
use super::super::served::Numbers;
use super::super::{Figure, Grid, Made, Make, Point, Reason};
use super::{COHERENT, RIOMMU, run};

pub(super) const TABLE_1: Figure = Figure {
    id: "riommu-table1",
    title: "The steps of a map and an unmap in a stream",
    reasons: &[
        Reason::new(
            &["map, allocation, defer"],
            "The papers differ: EiovaR (FAST'15) has 2,202 cycles for the same allocation in its Table 2, and ours is \
             within 10 % of that. Both were measured on one machine, and searches depend on what ran before.",
        ),
        Reason::new(
            &["a map, or an unmap, in rings"],
            "An invalidation ends a burst, which has 64 buffers at most here and about 200 in the paper, so its share of \
             an unmap is larger. Without that share, the steps take as long as published.",
        ),
    ],
    make: Make::FromRuns(table_1),
    ..RIOMMU
};

/// A row of the table: its name, ours, the published values in the order of `BARS`, and their classes.
struct Row(&'static str, fn(&Numbers) -> f64, [f64; 4], [Class; 4]);

/// The book has one of the values, and the others are of the same quantity, or are made of it.
const BOOK: [Class; 4] = [Input; 4];

const ROWS: [Row; 8] = [
    Row("map, allocation", |one| one.map.allocate, [3986.0, 92.0, 1674.0, 108.0], [R25, Input, R25, Input]),
    Row("map, table", |one| one.map.table, [588.0, 590.0, 533.0, 577.0], BOOK),
    Row("map, other", |one| one.map.other, [44.0, 45.0, 44.0, 42.0], BOOK),
    Row("unmap, find", |one| one.unmap.find, [249.0, 418.0, 263.0, 454.0], BOOK),
    Row("unmap, free", |one| one.unmap.free, [159.0, 62.0, 189.0, 57.0], BOOK),
    Row("unmap, table", |one| one.unmap.table, [438.0, 427.0, 471.0, 504.0], BOOK),
    Row("unmap, invalidation", |one| one.unmap.invalidate, [2127.0, 2135.0, 9.0, 9.0], BOOK),
    // The book has the 205 of queueing a deferred unmap, too.
    Row("unmap, other", |one| one.unmap.other, [26.0, 25.0, 205.0, 216.0], BOOK),
];

/// Cycles of a map, or an unmap, in rings.
const PUBLISHED_STEP: f64 = 131.0;

fn table_1(lab: &Lab<'_>) -> Made {
    let all = BARS.map(|bar| lab.of(&run(lab, CX3, STREAM, 1, bar)));
    let (mut points, mut rows) = (Vec::new(), Vec::new());
    for Row(name, of, published, classes) in ROWS {
        let ours = all.each_ref().map(of);
        for (at, bar) in BARS.iter().enumerate() {
            points.push(Point::of(classes[at], format!("{name}, {}", bar.name), published[at], ours[at]));
        }
        rows.push((name, ours.to_vec()));
    }
    let rings = lab.of(&run(lab, CX3, STREAM, 1, COHERENT));
    let step = (rings.map.sum() + rings.unmap.sum()) / 2.0;
    points.push(Point::of(R25, "a map, or an unmap, in rings", PUBLISHED_STEP, step));
    let tables = vec![Grid::of("cycles", "cycles", "", &BARS.map(|bar| bar.name), &rows)];
    Made { tables, points, ..Made::default() }
}
