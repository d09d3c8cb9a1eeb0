//! `portcullis compare`.

use crate::Failure;
use crate::arguments::CompareArguments;
use crate::html::{self, Origin};
use crate::table::{count, gbps, number, percent, plain};
use indicatif::{ProgressBar, ProgressStyle};
use portcullis::Protection;
use portcullis::designs::{Choice, DesignId};
use portcullis_lab::advice::{Best, advise};
use portcullis_lab::compare::{ClockMode, Comparison, Input, Item, Measurement, Plan, Row};
use portcullis_lab::trace::{self, AccessLog, Events, Trace};
use portcullis_lab::{Machine, Work};
use serde::Serialize;
use std::io::{self, Cursor, Write};
use std::path::Path;
use std::rc::Rc;

/// The trace that the program carries.
const BUNDLED_NAME: &str = "q-e1000e-rx.strict.2cpu.trace.xz";
const BUNDLED: &[u8] = include_bytes!("../../../traces/q-e1000e-rx.strict.2cpu.trace.xz");

#[derive(Serialize)]
struct Document<'d> {
    schema: &'static str,
    #[serde(flatten)]
    origin: Origin,
    input: &'d [Input],
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<&'d str>,
    machine: &'static str,
    assumed: &'d Machine,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    set: &'d [String],
    clock: ClockMode,
    no_hint: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(flatten)]
    comparison: &'d Comparison,
    violations: &'d [String],
    best: Vec<Best>,
    advice: &'d [String],
}

pub(crate) fn compare(arguments: &CompareArguments, out: &mut impl Write) -> Result<(), Failure> {
    let machine = machine(arguments)?;
    let designs = designs(&arguments.designs)?;
    let bar = progress_bar();
    let (items, inputs) = work(arguments, &bar)?;
    if let Some(path) = &arguments.html {
        html::check(path)?;
    }
    let plan = Plan {
        machine,
        items,
        designs,
        protections: arguments.protection.clone(),
        batch: arguments.batch.map(usize::from),
        clock: arguments.clock,
        seed: arguments.seed,
        leaf_only_hint: !arguments.no_hint,
    };
    bar.set_length(plan.runs() as u64);
    bar.set_position(0);
    let comparison = plan.execute(|run| {
        bar.set_message(run.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let advice = advise(&comparison, plan.items.len(), &plan.machine);
    let violations: Vec<String> =
        comparison.results.iter().chain(&comparison.equal_batch).filter_map(Row::violation).collect();
    let document = Document {
        schema: "portcullis.compare/1",
        origin: Origin::of_this_run(),
        input: &inputs,
        workload: arguments.workload.as_deref(),
        machine: plan.machine.id,
        assumed: &plan.machine,
        set: &arguments.settings,
        clock: plan.clock,
        no_hint: arguments.no_hint,
        seed: arguments.workload.is_some().then_some(arguments.seed),
        comparison: &comparison,
        violations: &violations,
        best: Best::of_each(&comparison, plan.items.len()),
        advice: &advice,
    };
    if let Some(path) = &arguments.html {
        html::write(path, &document)?;
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document).map_err(Failure::input)?)?;
    } else {
        print(out, &plan, &arguments.settings, &inputs, &comparison, &advice)?;
    }
    if violations.is_empty() { Ok(()) } else { Err(Failure::Check(violations)) }
}

fn machine(arguments: &CompareArguments) -> Result<Machine, Failure> {
    let mut machine = Machine::by_id(&arguments.machine).ok_or_else(|| {
        let known: Vec<&str> = Machine::all().iter().map(|machine| machine.id).collect();
        Failure::Input(format!("no machine `{}`; there are: {}", arguments.machine, known.join(", ")))
    })?;
    for setting in &arguments.settings {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| Failure::Input(format!("--set {setting}: expected KEY=VALUE")))?;
        machine.iommu.set(key, value).map_err(Failure::input)?;
    }
    Ok(machine)
}

fn designs(texts: &[String]) -> Result<Vec<Choice>, Failure> {
    if texts.is_empty() {
        return Ok(DesignId::ALL.iter().map(|design| Choice::from(*design)).collect());
    }
    texts.iter().map(|text| Choice::parse(text).map_err(|error| Failure::Input(error.to_string()))).collect()
}

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template");
    // Hidden by itself where standard error is no terminal.
    ProgressBar::new(0).with_style(style)
}

fn work(arguments: &CompareArguments, bar: &ProgressBar) -> Result<(Vec<Item>, Vec<Input>), Failure> {
    if let Some(workload) = &arguments.workload {
        let work = Work::parse(workload).map_err(|error| Failure::Input(format!("--workload {workload}: {error}")))?;
        return Ok((vec![Item { name: workload.clone(), work }], Vec::new()));
    }
    let mut traces = Vec::new();
    if arguments.traces.is_empty() {
        let trace = Trace::read_from(BUNDLED_NAME, Cursor::new(BUNDLED), |_| {}).map_err(Failure::input)?;
        traces.push((BUNDLED_NAME.to_owned(), trace));
    }
    for path in &arguments.traces {
        bar.set_message(format!("reading {}", path.display()));
        bar.set_length(std::fs::metadata(path).map_or(0, |file| file.len()));
        let trace = Trace::read(path, |bytes| bar.set_position(bytes)).map_err(Failure::input)?;
        traces.push((path.display().to_string(), trace));
    }
    if arguments.accesses.is_some() && traces.len() != 1 {
        return Err(Failure::Input("--accesses belongs to one trace; give exactly one".to_owned()));
    }
    let mut items = Vec::new();
    let mut inputs = Vec::new();
    for (file, trace) in traces {
        if trace.operations.is_empty() {
            let unmaps = count(trace.statistics.unmaps);
            return Err(Failure::Input(format!(
                "{file}: expected at least one map to replay, found none and {unmaps} unmaps"
            )));
        }
        let joined = arguments.accesses.as_deref().map(|path| join(&trace, path)).transpose()?;
        let (format, events, statistics) = (trace.format, trace.events, trace.statistics);
        inputs.push(Input { file: file.clone(), format, events, statistics });
        items.push(Item { name: file, work: Work::Trace(Rc::new(trace), joined.map(Rc::new)) });
    }
    Ok((items, inputs))
}

fn join(trace: &Trace, path: &Path) -> Result<trace::Joined, Failure> {
    let log = AccessLog::read(path, |_| {}).map_err(Failure::input)?;
    trace::join(trace, &log).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

fn print(
    out: &mut impl Write,
    plan: &Plan,
    settings: &[String],
    inputs: &[Input],
    comparison: &Comparison,
    advice: &[String],
) -> io::Result<()> {
    let machine = &plan.machine;
    for (index, (item, sentences)) in plan.items.iter().zip(advice).enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        match inputs.get(index) {
            Some(input) => print_input(out, input)?,
            None => writeln!(out, "{}   synthetic, seed {}", item.name, plan.seed)?,
        }
        let clock = match plan.clock {
            ClockMode::Model => "model clock".to_owned(),
            ClockMode::Trace => "the trace's clock".to_owned(),
            ClockMode::Scale(factor) => format!("pauses × {factor}"),
        };
        let changed: String = settings.iter().map(|setting| format!("   {setting}")).collect();
        let batch = plan.batch.map(|batch| format!("   batches of {batch}")).unwrap_or_default();
        let book = "costs from its cost book, not your CPU";
        let hint = if plan.leaf_only_hint { "" } else { "   no invalidation hint" };
        writeln!(out, "machine {} (assumed)   {book}   {clock}{changed}{batch}{hint}\n", machine.id)?;
        let of_item = |rows: &[Row]| rows.iter().filter(|row| row.item == index).cloned().collect::<Vec<_>>();
        print_rows(out, &of_item(&comparison.results), false)?;
        let equal = of_item(&comparison.equal_batch);
        if !equal.is_empty() {
            writeln!(out, "\nWith larger batches of unmaps, each batch with one wait:")?;
            print_rows(out, &equal, true)?;
        }
        writeln!(out, "\n{}", textwrap(sentences))?;
    }
    let footnote = format!(
        "Gb/s are estimates: the lower of what the bus and the machine's cores ({}), if the work spreads evenly over \
         them, could carry.",
        machine.cores
    );
    writeln!(out, "\n{}", textwrap(&footnote))
}

fn print_input(out: &mut impl Write, input: &Input) -> io::Result<()> {
    let s = &input.statistics;
    writeln!(
        out,
        "{}  {} maps  {} pages  {} CPUs  {} unmaps precede the capture",
        input.file,
        count(s.maps),
        count(s.pages),
        s.cpus,
        count(s.unmatched_unmaps)
    )?;
    if s.lost_events > 0 {
        writeln!(out, "warning: the tracer lost {} events; what they did is missing here", count(s.lost_events))?;
    }
    if s.out_of_order > 0 {
        writeln!(out, "warning: {} events are older than the one before them on their CPU", count(s.out_of_order))?;
    }
    match input.events {
        Events::Both => {}
        Events::Iommu => writeln!(
            out,
            "warning: without dma: events whole pages count as data, read and written; rates are too high where buffers are smaller"
        )?,
        Events::Dma => writeln!(out, "read from dma: events alone; coherent buffers are not in it")?,
    }
    Ok(())
}

fn print_rows(out: &mut impl Write, rows: &[Row], with_batch: bool) -> io::Result<()> {
    let mut header =
        vec!["design", "protection", "cycles/\npage", "IOTLB\nmisses/p", "L3\nmisses/p", "inval/\npage", "tables\nmax"];
    header.extend(["window us\nmax", "stale\npages", "Gb/s\n(est.)", "limit", "of none"]);
    if with_batch {
        header.insert(2, "batch");
    }
    let mut table = plain(&header, 2);
    let mut refused = Vec::new();
    for row in rows {
        let mut cells = vec![row.label(), row.protection.to_string()];
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
    for refusal in refused {
        writeln!(out, "no result for {refusal}")?;
    }
    Ok(())
}

/// Breaks a paragraph into lines of at most 110 characters.
fn textwrap(text: &str) -> String {
    const WIDTH: usize = 110;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}
