//! Figure 2: where the cycles of 16 cores go.

use super::super::class::Class::C2;
use super::super::lab::{Lab, bar};
use super::super::served::{Numbers, ServedRun};
use super::super::{Figure, Grid, Made, Make, Reason};
use super::{ATC15, CORES, DESIGNS, EIOVAR, STOCK, made, parallel, point, sample, shown};
use portcullis::Protection::Deferred;

pub(super) const FIGURE_2: Figure = Figure {
    id: "atc15-fig2",
    title: "Where the cycles of 16 cores go",
    reasons: &[
        Reason::new(
            &["EiovaR: waiting for the IOVA lock, %", "EiovaR: waiting for the invalidation lock, %"],
            "A core that flushes holds the queue of unmaps while it frees 250 addresses, and waits for the IOVA lock \
             meanwhile, so ours wait in front of the inner lock. Both locks together are within their class.",
        ),
        Reason::new(
            &["EiovaR: page tables, %"],
            "Cores of ours wait for locks for longer, so they do less work a second, and less of it in the tables.",
        ),
    ],
    make: Make::FromRuns(figure_2),
    ..ATC15
};

fn figure_2(lab: &Lab<'_>) -> Made {
    let per_core = bar("EiovaR, queues per core", "eiovar:queue=per-core", Deferred);
    let run = |bar| parallel(lab, bar, CORES);
    let of = |run: &ServedRun, number: fn(&Numbers) -> f64| sample(lab, [run], |[one]| number(&one));
    let iova: fn(&Numbers) -> f64 = |numbers| numbers.shared.iova_lock_percent;
    let [stock, eiovar, per_core_run] = [STOCK, EIOVAR, per_core].map(run);
    let grows = sample(lab, [&per_core_run, &eiovar], |[per_core, global]| {
        per_core.shared.iova_lock_percent / global.shared.iova_lock_percent
    });
    let both = |numbers: &Numbers| numbers.shared.iova_lock_percent + numbers.shared.invalidation_lock_percent;
    let points = vec![
        point(C2, "stock: waiting for the IOVA lock, %", 60.0, of(&stock, iova)),
        point(C2, "EiovaR: waiting for the IOVA lock, %", 31.9, of(&eiovar, iova)),
        point(
            C2,
            "EiovaR: waiting for the invalidation lock, %",
            21.7,
            of(&eiovar, |numbers| numbers.shared.invalidation_lock_percent),
        ),
        point(C2, "EiovaR: waiting for both, %", 53.6, of(&eiovar, both)),
        point(C2, "EiovaR: page tables, %", 2.8, of(&eiovar, |numbers| numbers.shared.table_percent)),
        point(C2, "EiovaR with queues per core: waiting for the IOVA lock, %", 70.0, of(&per_core_run, iova)),
        shown("the same over that of EiovaR", 2.1, grows),
    ];
    let columns = ["IOVA lock", "invalidation lock", "hardware", "page tables", "all of protection"];
    let row = |numbers: Numbers| {
        let shared = numbers.shared;
        vec![
            shared.iova_lock_percent,
            shared.invalidation_lock_percent,
            shared.hardware_percent,
            shared.table_percent,
            shared.protection_percent,
        ]
    };
    let bars = [STOCK, EIOVAR, per_core, DESIGNS[0], DESIGNS[1], DESIGNS[2]];
    let rows: Vec<(&str, Vec<f64>)> = bars.iter().map(|bar| (bar.name, row(lab.of(&run(*bar))))).collect();
    let grid = Grid::of("percent of the cycles of 16 cores", "percent", "design", &columns, &rows);
    made(lab, points, vec![grid])
}
