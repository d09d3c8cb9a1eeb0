//! `portcullis bench`.

use crate::Failure;
use crate::arguments::BenchArguments;
use crate::html::Origin;
use crate::plan::progress_bar;
use crate::registry::{Known, Registry};
use crate::show::show;
use crate::table::{Column, fitted, number, wrap};
use portcullis_bench::{self as bench, BenchError, BenchPlan, BenchRow, CyclesFrom, Effort, Workload};
use portcullis_designs::Choice;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Document<'r> {
    schema: &'static str,
    #[serde(flatten)]
    origin: Origin,
    /// The profile that this program is built with.
    profile: &'static str,
    /// Where cycles come from; `null` if there are none.
    cycles_from: Option<CyclesFrom>,
    /// Whether no other task ran on the CPUs during samples.
    undisturbed: bool,
    results: &'r [BenchRow],
}

pub(crate) fn bench(arguments: &BenchArguments, registry: &Registry, out: &mut impl Write) -> Result<(), Failure> {
    let workloads: Result<Vec<Workload>, _> = arguments.workload.iter().map(|id| Workload::by_id(id)).collect();
    let plan = BenchPlan {
        designs: registry.designs(&arguments.designs)?.into_iter().map(timed).collect(),
        threads: arguments.threads.iter().map(|threads| usize::from(*threads)).collect(),
        workloads: match workloads.map_err(Failure::input)? {
            all if all.is_empty() => Workload::ALL.to_vec(),
            chosen => chosen,
        },
        effort: Effort { samples: usize::from(arguments.samples), ..Effort::default() },
    };
    let bar = progress_bar();
    bar.set_length(bench::turns(&plan) as u64);
    let rows = bench::execute(&plan, |row| {
        bar.set_message(row.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let rows = rows.map_err(Failure::input)?;
    let timed = || rows.iter().filter_map(|row| row.outcome.as_ref().ok());
    let document = Document {
        schema: "portcullis.bench/1",
        origin: Origin::of_this_run(),
        profile: PROFILE,
        cycles_from: timed().find_map(|timed| timed.cycles_from),
        undisturbed: timed().all(|timed| timed.undisturbed),
        results: &rows,
    };
    show(out, &document, None, arguments.json, |out| print(out, &rows), &failed(&rows))
}

/// The choice, as the benchmarks take it.
fn timed(Choice { design, options }: Choice<Known>) -> bench::Choice {
    Choice { design: design.bench, options }
}

/// The messages of failed checks. A row that the design or this machine cannot run says so and does not fail, unless
/// no row was timed.
fn failed(rows: &[BenchRow]) -> Vec<String> {
    let broken = |row: &BenchRow| match &row.outcome {
        Err(error @ BenchError::Check(_)) => Some(format!("{} {}: {error}", name(row), row.workload.id())),
        _ => None,
    };
    let mut failed: Vec<String> = rows.iter().filter_map(broken).collect();
    if rows.is_empty() {
        failed.push("nothing was timed: none of these workloads takes these numbers of threads".to_owned());
    } else if rows.iter().all(|row| row.outcome.is_err()) {
        failed.push("nothing was timed because every run failed".to_owned());
    }
    failed
}

fn name(row: &BenchRow) -> String {
    format!("{} {}", row.design(), row.protection)
}

/// The profile with which this program is built. Only `benchmark` optimizes all crates as one.
pub(crate) const PROFILE: &str = env!("PORTCULLIS_PROFILE");

/// The text below the table.
const LEGEND: &str = "Medians over samples. A pair is the map and the unmap of one buffer, by each thread; for cross-cpu, by two threads \
    together, including the queue between them but not their waits. Invalidation takes no time: see `portcullis bench \
    --help`.";

fn print(out: &mut impl Write, rows: &[BenchRow]) -> io::Result<()> {
    let columns = [
        Column::words("workload"),
        Column::words("design"),
        Column::words("protection"),
        Column::numbers("threads"),
        Column::numbers("ns/\npair"),
        Column::numbers("cycles/\npair"),
        Column::numbers("min").worth(2),
        Column::numbers("p90").worth(1),
        Column::numbers("instr./\npair").worth(3),
        Column::words("remark"),
    ];
    let mut table = Vec::new();
    let dash = || "-".to_owned();
    let number = |value: Option<f64>| value.map_or_else(dash, number);
    for row in rows {
        let timed = row.outcome.as_ref().ok();
        let cycles = timed.and_then(|timed| timed.cycles);
        let queue = timed.and_then(|timed| timed.queue);
        let remark = match (&row.outcome, queue) {
            (Err(error), _) => error.to_string(),
            (Ok(_), Some((ns, cycles))) => match cycles {
                Some(cycles) => format!("queue alone {}", self::number(cycles)),
                None => format!("queue alone {} ns", self::number(ns)),
            },
            (Ok(_), None) => String::new(),
        };
        table.push(vec![
            row.workload.id().to_owned(),
            row.design(),
            row.protection.to_string(),
            row.threads.to_string(),
            number(timed.map(|timed| timed.ns.median)),
            number(cycles.map(|cycles| cycles.median)),
            number(cycles.map(|cycles| cycles.min)),
            number(cycles.map(|cycles| cycles.p90)),
            number(timed.and_then(|timed| timed.instructions)),
            remark,
        ]);
    }
    let legend = format!("{LEGEND} This program is built with the profile `{PROFILE}`; `benchmark` is the fastest.");
    writeln!(out, "{}\n\n{}", fitted(&columns, &table, "`--json` has all columns"), wrap(&legend))
}
