//! `portcullis compare`.

use crate::arguments::CompareArguments;
use crate::html::Target;
use crate::plan::{Head, Planned, print_input, progress_bar};
use crate::registry::Registry;
use crate::show::show;
use crate::table::{
    Column, Layout, NO_SUCH_HARDWARE, NO_SUCH_HARDWARE_NOTE, UNPRICED, UNPRICED_NOTE, count, number, wrap, wrap_behind,
};
use crate::works::Split;
use crate::{Failure, devices, flat, stop};
use portcullis::Protection;
use portcullis_sim::advice::{Advice, Answer, Best, Host, Line, Sensitivity, advise, hosts};
use portcullis_sim::compare::{CompareRow, Comparison, Item, LINUX, Measurement};
use portcullis_sim::number::{gbps_range, percent_range, thousands};
use portcullis_sim::totals::{Total, totals};
use portcullis_sim::{PrefetchCounts, Recorded, RiotlbCounts, RunOutcome, Traffic};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{self, Write};

#[derive(Serialize)]
struct Document<'d> {
    schema: &'static str,
    #[serde(flatten)]
    head: Head<'d>,
    #[serde(flatten)]
    comparison: &'d Comparison,
    /// The totals of several pieces of work.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    all: &'d [Total],
    violations: &'d [String],
    answers: Vec<Option<&'d Answer>>,
    /// The captures of several devices.
    hosts: &'d [Host],
    best: Vec<&'d Best>,
    advice: Vec<&'d str>,
    sensitivity: Vec<Option<&'d Sensitivity>>,
}

pub(crate) fn compare(arguments: &CompareArguments, registry: &Registry, out: &mut impl Write) -> Result<(), Failure> {
    let page = arguments.html.as_deref().map(|path| Target::new(path, arguments.plan.inputs())).transpose()?;
    let bar = progress_bar();
    let planned = Planned::new(&arguments.plan, registry, Split::Devices, &bar)?;
    let plan = &planned.plan;
    bar.set_length(plan.runs() as u64);
    bar.set_position(0);
    stop::listen()?;
    let comparison = plan.execute(|run| {
        bar.set_message(run.to_owned());
        bar.inc(1);
    });
    let constants = plan.items.iter().map(|item| item.machine.assumed.len()).sum::<usize>();
    bar.set_length((plan.runs() + constants) as u64);
    let advice = advise(plan, &comparison, arguments.today, |constant| {
        bar.set_message(format!("trying {constant}"));
        bar.inc(1);
    });
    bar.finish_and_clear();
    let mut violations: Vec<String> =
        comparison.results.iter().chain(&comparison.equal_batch).filter_map(CompareRow::violation).collect();
    let tested = |item| comparison.results.iter().any(|row| row.item == item && row.outcome().is_some());
    if !stop::is_asked_for() {
        violations.extend(planned.untested(tested));
    }
    let split = planned.split_inputs();
    // Devices of one host work at the same time, and have no time that all of them take.
    let all = if split.is_empty() { totals(&comparison) } else { Vec::new() };
    let of_split = advice.iter().enumerate().filter_map(|(item, advice)| {
        let input = planned.input_of(item).filter(|input| split.contains(input))?;
        // Devices that ran together wait for each other, so theirs is no sum.
        let is_whole = |item: usize| planned.input_of(item) == Some(input) && !plan.items[item].is_one_of_several();
        let has_whole = (0..plan.items.len()).any(is_whole);
        let advice = (is_whole(item) == has_whole).then_some(advice)?;
        Some((input, advice.answer.as_ref()?))
    });
    let hosts = hosts(of_split);
    let document = Document {
        schema: "portcullis.compare/1",
        head: planned.head(arguments.plan.workload.is_some().then_some(plan.seed)),
        comparison: &comparison,
        all: &all,
        violations: &violations,
        answers: advice.iter().map(|advice| advice.answer.as_ref()).collect(),
        hosts: &hosts,
        best: advice.iter().map(|advice| &advice.best).collect(),
        advice: advice.iter().map(|advice| advice.text.as_str()).collect(),
        sensitivity: advice.iter().map(|advice| advice.sensitivity.as_ref()).collect(),
    };
    let table = |out: &mut _| match arguments.csv {
        true => print_rows(out, &comparison),
        false => print(out, &planned, &comparison, &advice, &hosts, &all),
    };
    let shown = show(out, &document, page.as_ref(), arguments.json, table, &violations);
    Failure::of([stop::verdict(), shown])
}

/// Prints both lists of rows. Each row says to which list it belongs.
fn print_rows(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    let lists = [("own", &comparison.results), ("equal", &comparison.equal_batch)];
    let rows = lists.into_iter().flat_map(|(table, rows)| rows.iter().map(move |row| TableRow { table, row }));
    let rows = rows.map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let with_all_parts = RunOutcome {
        riotlb: Some(RiotlbCounts::default()),
        prefetch: Some(PrefetchCounts::default()),
        recorded: Some(Recorded::default()),
        ..RunOutcome::default()
    };
    let mut template = serde_json::to_value(with_all_parts)?;
    template["error"] = Value::Null;
    flat::write(out, &template, &rows)
}

#[derive(Serialize)]
struct TableRow<'r> {
    table: &'static str,
    #[serde(flatten)]
    row: &'r CompareRow,
}

fn print(
    out: &mut impl Write,
    planned: &Planned<'_>,
    comparison: &Comparison,
    advice: &[Advice],
    hosts: &[Host],
    all: &[Total],
) -> io::Result<()> {
    let items = &planned.plan.items;
    for (index, item) in items.iter().enumerate() {
        if planned.is_split(planned.input_of(index)) {
            print_capture(out, planned, index, advice, hosts)?;
        }
        planned.print_head(out, index)?;
        match &advice[index].answer {
            Some(answer) => print_answer(out, answer)?,
            None if is_linux_there(comparison, index) && !stop::is_asked_for() => {
                writeln!(out, "{}\n", wrap(NO_ANSWER))?;
            }
            None => {}
        }
        if let Some(why) = why_a_disk(item) {
            writeln!(out, "{}\n", wrap(why))?;
        }
        let tables = comparison.at_equal_batches(index);
        print_tables(out, &tables)?;
        if planned.plan.merge_min.is_some() {
            print_dropped(out, &tables)?;
        }
        writeln!(out, "{}\n", wrap(&advice[index].text))?;
    }
    let names: BTreeSet<&str> = items.iter().map(|item| item.name.as_str()).collect();
    crate::totals::print(out, all, &Vec::from_iter(names))?;
    writeln!(out, "{}", wrap(&footnote(items, comparison)))
}

/// Prints a capture and its devices before the first of them.
fn print_capture(
    out: &mut impl Write,
    planned: &Planned<'_>,
    item: usize,
    advice: &[Advice],
    hosts: &[Host],
) -> io::Result<()> {
    let at = planned.input_of(item);
    let is_first = (0..item).all(|before| planned.input_of(before) != at);
    let (Some(input), true) = (planned.input(item), is_first) else { return Ok(()) };
    print_input(out, input)?;
    let Some(host) = hosts.iter().find(|host| Some(host.input) == at) else { return writeln!(out) };
    let of_capture = advice.iter().enumerate().filter(|(item, _)| planned.input_of(*item) == at);
    let answers: Vec<&Answer> = of_capture.filter_map(|(_, one)| one.answer.as_ref()).collect();
    devices::print(out, input, host, &answers)
}

/// Whether Linux was run on an item.
fn is_linux_there(comparison: &Comparison, item: usize) -> bool {
    comparison.results.iter().any(|row| row.item == item && row.label() == LINUX)
}

/// Why there is no answer, though Linux was run.
const NO_ANSWER: &str = "There is no answer to what strict costs here: it needs Linux both strict and as the host runs today, each unmap by itself.";

/// The answer, which stands before the tables.
fn print_answer(out: &mut impl Write, answer: &Answer) -> io::Result<()> {
    for Line { about, text } in &answer.lines {
        writeln!(out, "{}", wrap_behind(&format!("{about:<8} "), &" ".repeat(9), text))?;
    }
    writeln!(out)
}

/// Says why the work counts as a disk's, so that a user whose network driver maps whole sectors can notice and correct
/// it.
fn why_a_disk(item: &Item) -> Option<&'static str> {
    match (item.work.traffic(&item.machine), item.machine.link_gbps) {
        (Traffic::Network, _) => None,
        _ if item.machine.only_traffic.is_some() => None,
        // The advice says why.
        (Traffic::Disk, Some(_)) if item.work.is_of_pages_alone() => None,
        (Traffic::Disk, None) => Some("This is taken for a disk's traffic, because the machine has no link."),
        (Traffic::Disk, Some(_)) => Some(
            "This is taken for a disk's traffic, because all buffers are whole sectors, and few are mapped in interrupts. For a network card's: \
             `--traffic network`.",
        ),
    }
}

/// The text that explains the rates.
fn footnote(items: &[Item], comparison: &Comparison) -> String {
    let mut of_cores: Vec<String> = Vec::new();
    for item in items {
        let (used, all) = (item.work.cores(), item.machine.cores);
        let of = format!("{} of {} cores", used.min(all as usize), count(all.into()));
        if !of_cores.contains(&of) {
            of_cores.push(of);
        }
    }
    let traffic = |wanted| items.iter().any(|item| item.work.traffic(&item.machine) == wanted);
    let (rates, device) = match (traffic(Traffic::Network), traffic(Traffic::Disk)) {
        (true, true) => ("Gb/s and kIO/s", "link or disks"),
        (false, true) => ("kIO/s", "disks"),
        _ => ("Gb/s", "link"),
    };
    let recorded = comparison.results.iter().filter_map(CompareRow::outcome).any(|outcome| outcome.recorded.is_some());
    let recorded = if recorded { " `CPU %` is what protection takes of one core at the recorded load." } else { "" };
    format!(
        "{rates} are estimates at full speed: the smallest of what the CPUs that do the work ({}), the bus, the {device}, the \
         unit's invalidation queue and each lock can carry. `of none` is the share of the rate without protection.{recorded}",
        of_cores.join(" or ")
    )
}

/// The title of a table whose batches have up to `batch` unmaps.
fn title(batch: usize) -> String {
    match batch {
        1 => "Each unmap by itself:".to_owned(),
        _ => format!("In batches of up to {batch}, each with one wait:"),
    }
}

/// A table for each batch, all with the same columns.
fn print_tables(out: &mut impl Write, tables: &[(usize, Vec<&CompareRow>)]) -> io::Result<()> {
    let rows = || tables.iter().flat_map(|(_, rows)| rows.iter().copied());
    let outcomes = || rows().filter_map(CompareRow::outcome);
    let traffic = outcomes().next().map(|outcome| outcome.traffic).unwrap_or_default();
    let recorded = outcomes().any(|outcome| outcome.recorded.is_some());
    let columns = columns(traffic, recorded);
    let cells: Vec<Vec<Vec<String>>> =
        tables.iter().map(|(_, rows)| rows.iter().map(|row| cells(row, recorded)).collect()).collect();
    let layout = Layout::of(&columns, cells.iter().flatten());
    for ((batch, rows), cells) in tables.iter().zip(&cells) {
        writeln!(out, "{}\n{}", title(*batch), layout.table(cells))?;
        if rows.iter().any(|row| row.no_such_hardware) {
            writeln!(out, "{NO_SUCH_HARDWARE_NOTE}")?;
        }
        if rows.iter().any(|row| row.outcome().is_some_and(|outcome| outcome.unpriced)) {
            writeln!(out, "{UNPRICED_NOTE}")?;
        }
        let stopped = rows.iter().filter(|row| row.is_stopped()).count();
        if stopped > 0 {
            writeln!(out, "{}", wrap(&format!("It was stopped: {stopped} of these runs were not made.")))?;
        }
        for row in rows.iter().filter(|row| !row.is_stopped()) {
            if let Measurement::Failed(error) = &row.outcome {
                writeln!(out, "{}", wrap(&format!("no result for {} {}: {error}", row.label(), row.protection)))?;
            }
        }
        writeln!(out)?;
    }
    if tables.is_empty() {
        writeln!(out, "{}\n", layout.table(&[]))?;
    }
    match layout.left_out("`--json` and `--csv` have all columns") {
        Some(note) => writeln!(out, "{note}\n"),
        None => Ok(()),
    }
}

/// Prints the price of merging, which no column shows: what commands for several pages have dropped of mapped pages.
fn print_dropped(out: &mut impl Write, tables: &[(usize, Vec<&CompareRow>)]) -> io::Result<()> {
    let rows = tables.iter().flat_map(|(batch, rows)| rows.iter().map(move |row| (batch, row)));
    let dropped: Vec<String> = rows
        .filter_map(|(batch, row)| {
            let per_page = row.outcome()?.iotlb_dropped_live_per_page;
            let run = format!("{} {} in batches of {batch}: {}", row.label(), row.protection, number(per_page));
            (per_page > 0.0).then_some(run)
        })
        .collect();
    let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join("; ") };
    let text = format!("IOTLB entries of mapped pages that commands for several pages dropped, per page: {dropped}.");
    writeln!(out, "{}\n", wrap(&text))
}

fn columns(traffic: Traffic, recorded: bool) -> Vec<Column> {
    let rate = match traffic {
        Traffic::Network => "Gb/s\n(est.)",
        Traffic::Disk => "kIO/s\n(est.)",
    };
    let mut columns = vec![
        Column::words("design"),
        Column::words("protection"),
        Column::numbers("cycles/\npage"),
        Column::numbers("IOTLB\nmisses/p").worth(4),
        Column::numbers("L3\nmisses/p").worth(3),
        Column::numbers("inval/\npage").worth(1),
        Column::numbers("tables\nmax").worth(2),
        Column::numbers("window us\nmax"),
        Column::numbers("stale\npages").worth(5),
    ];
    if recorded {
        columns.push(Column::numbers("CPU % as\nrecorded").worth(7));
    }
    columns.extend([Column::numbers(rate), Column::numbers("limit").worth(6), Column::numbers("of none")]);
    columns
}

fn cells(row: &CompareRow, recorded: bool) -> Vec<String> {
    let mark = if row.no_such_hardware { NO_SUCH_HARDWARE } else { "" };
    // Linux as it is: users look for this row first.
    let label = if row.is_linux() { format!("{LINUX} (Linux)") } else { row.label() };
    let unpriced = if row.outcome().is_some_and(|outcome| outcome.unpriced) { UNPRICED } else { "" };
    let mut cells = vec![label, format!("{}{mark}{unpriced}", row.protection)];
    let Some(outcome) = row.outcome() else { return cells };
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
    ]);
    if recorded {
        cells.push(outcome.recorded.map_or("-".to_owned(), |recorded| or_dash(recorded.cpu_percent)));
    }
    cells.extend([rate(outcome), outcome.limit.name().to_owned()]);
    let [low, high] = outcome.estimate_vs_none_range;
    cells.push(percent_range(Some(low), high));
    cells
}

fn rate(outcome: &RunOutcome) -> String {
    match outcome.traffic {
        Traffic::Network => gbps_range(outcome.estimate_gbps_min, outcome.estimate_gbps),
        Traffic::Disk => thousands(outcome.estimate_operations_per_second),
    }
}
