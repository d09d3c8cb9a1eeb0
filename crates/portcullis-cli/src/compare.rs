//! `portcullis compare`.

use crate::Failure;
use crate::arguments::CompareArguments;
use crate::html::Target;
use crate::plan::{Head, Planned, progress_bar};
use crate::show::show;
use crate::table::{NO_SUCH_HARDWARE, NO_SUCH_HARDWARE_NOTE, count, gbps, number, percent, plain, textwrap};
use portcullis::Protection;
use portcullis_sim::advice::{Advice, Best, Sensitivity, advise};
use portcullis_sim::compare::{CompareRow, Comparison, Measurement};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Document<'d> {
    schema: &'static str,
    #[serde(flatten)]
    head: Head<'d>,
    #[serde(flatten)]
    comparison: &'d Comparison,
    violations: &'d [String],
    best: Vec<&'d Best>,
    advice: Vec<&'d str>,
    sensitivity: Vec<Option<&'d Sensitivity>>,
}

pub(crate) fn compare(arguments: &CompareArguments, out: &mut impl Write) -> Result<(), Failure> {
    let page = arguments.html.as_deref().map(|path| Target::new(path, arguments.plan.inputs())).transpose()?;
    let bar = progress_bar();
    let planned = Planned::new(&arguments.plan, &bar)?;
    let plan = &planned.plan;
    bar.set_length(plan.runs() as u64);
    bar.set_position(0);
    let comparison = plan.execute(|run| {
        bar.set_message(run.to_owned());
        bar.inc(1);
    });
    let constants = plan.items.iter().map(|item| item.machine.assumed.len()).sum::<usize>();
    bar.set_length((plan.runs() + constants) as u64);
    let advice = advise(plan, &comparison, |constant| {
        bar.set_message(format!("trying {constant}"));
        bar.inc(1);
    });
    bar.finish_and_clear();
    let mut violations: Vec<String> =
        comparison.results.iter().chain(&comparison.equal_batch).filter_map(CompareRow::violation).collect();
    let tested = |item| comparison.results.iter().any(|row| row.item == item && row.outcome().is_some());
    violations.extend(planned.untested(tested));
    let document = Document {
        schema: "portcullis.compare/1",
        head: planned.head(arguments.plan.workload.is_some().then_some(plan.seed)),
        comparison: &comparison,
        violations: &violations,
        best: advice.iter().map(|advice| &advice.best).collect(),
        advice: advice.iter().map(|advice| advice.text.as_str()).collect(),
        sensitivity: advice.iter().map(|advice| advice.sensitivity.as_ref()).collect(),
    };
    let table = |out: &mut _| print(out, &planned, &comparison, &advice);
    show(out, &document, page.as_ref(), arguments.json, table, &violations)
}

fn print(out: &mut impl Write, planned: &Planned<'_>, comparison: &Comparison, advice: &[Advice]) -> io::Result<()> {
    let cores = planned.plan.items.first().map_or(0, |item| item.machine.cores);
    for (index, advice) in advice.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        planned.print_head(out, index)?;
        let of_item = |rows: &[CompareRow]| rows.iter().filter(|row| row.item == index).cloned().collect::<Vec<_>>();
        let own = of_item(&comparison.results);
        // Where designs batch by themselves, and others do not, the reader must see it.
        let batches = own.iter().any(|row| row.batch != own[0].batch);
        print_rows(out, &own, batches)?;
        let equal = of_item(&comparison.equal_batch);
        if !equal.is_empty() {
            writeln!(out, "\nAll designs at equal batches of unmaps, each batch with one wait:")?;
            print_rows(out, &equal, true)?;
        }
        writeln!(out, "\n{}", textwrap(&advice.text))?;
    }
    let footnote = format!(
        "Gb/s are estimates: the lower of what the bus and the machine's cores ({}), if the work spreads evenly over \
         them, could carry.",
        cores
    );
    writeln!(out, "\n{}", textwrap(&footnote))
}

fn print_rows(out: &mut impl Write, rows: &[CompareRow], with_batch: bool) -> io::Result<()> {
    let mut header =
        vec!["design", "protection", "cycles/\npage", "IOTLB\nmisses/p", "L3\nmisses/p", "inval/\npage", "tables\nmax"];
    header.extend(["window us\nmax", "stale\npages", "Gb/s\n(est.)", "limit", "of none"]);
    if with_batch {
        header.insert(2, "batch");
    }
    let mut table = plain(&header, 2);
    let mut refused = Vec::new();
    for row in rows {
        let mark = if row.no_such_hardware { NO_SUCH_HARDWARE } else { "" };
        let mut cells = vec![row.label(), format!("{}{mark}", row.protection)];
        if with_batch {
            cells.push(row.batch.to_string());
        }
        match &row.outcome {
            Measurement::Done(outcome) => {
                let unprotected = row.protection == Protection::None;
                let or_dash = |value: f64| if unprotected && value == 0.0 { "-".to_owned() } else { number(value) };
                cells.extend([
                    or_dash(outcome.cycles_per_page),
                    or_dash(outcome.iotlb_misses_per_page),
                    or_dash(outcome.ptcache_l3_misses_per_page),
                    or_dash(outcome.invalidations_per_page),
                    count(outcome.table_pages_max),
                    outcome.stale_window_us_max.map_or("∞".to_owned(), number),
                    count(outcome.stale_accesses),
                    gbps(outcome.estimate_gbps),
                    outcome.limit.name().to_owned(),
                    percent(outcome.estimate_vs_none),
                ]);
            }
            Measurement::Failed(error) => refused.push(format!("{} {}: {error}", row.label(), row.protection)),
        }
        table.add_row(cells);
    }
    writeln!(out, "{}", table.trim_fmt())?;
    if rows.iter().any(|row| row.no_such_hardware) {
        writeln!(out, "{NO_SUCH_HARDWARE_NOTE}")?;
    }
    for refusal in refused {
        writeln!(out, "no result for {refusal}")?;
    }
    Ok(())
}
