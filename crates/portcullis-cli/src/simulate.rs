//! `portcullis simulate`.

use crate::arguments::{Costs, SimulateArguments};
use crate::html::Origin;
use crate::plan::{Variant, progress_bar};
use crate::registry::{Registry, in_the_lab};
use crate::show::show;
use crate::table::{Column, Layout, number, side_by_side};
use crate::{Failure, machine_file};
use portcullis::Protection;
use portcullis::mapper::Options;
use portcullis_sim::prefetch::NO_SUCH_HARDWARE;
use portcullis_sim::simulate::{Simulate, Simulation};
use portcullis_sim::{Choice, Machine, ServerWork};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Document<'d> {
    schema: &'static str,
    #[serde(flatten)]
    origin: Origin,
    machine: &'d str,
    assumed: &'d Machine,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    set: &'d [String],
    workload: &'d str,
    cores: u32,
    flows: u32,
    ring: [u32; 2],
    costs: Costs,
    no_hint: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    merge: Option<u8>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    linux_wait: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    halves: bool,
    seed: u64,
    results: [Row<'d>; 1],
}

#[derive(Serialize)]
struct Row<'d> {
    design: &'static str,
    options: Options,
    no_such_hardware: bool,
    protection: Protection,
    batch: usize,
    #[serde(flatten)]
    simulation: &'d Simulation,
}

pub(crate) fn simulate<W: Write>(
    arguments: &SimulateArguments,
    registry: &Registry,
    out: &mut W,
) -> Result<(), Failure> {
    let machine = machine(arguments)?;
    let choice = in_the_lab(registry.design(&arguments.design)?);
    let work = ServerWork::new(&machine, &arguments.workload, arguments.cores, arguments.flows, arguments.ring);
    let mut work = work.map_err(Failure::input)?;
    work.halves = arguments.halves;
    let batch = arguments.batch.map_or(choice.design.info().batch_default, usize::from);
    if work.halves && (batch == 1 || work.workload.loses_packets()) {
        let reason = "--halves: only with batches, and not under mlx5e; --batch N makes batches";
        return Err(Failure::Input(reason.to_owned()));
    }
    let mut run = Simulate::new(&machine, work.clone(), choice, arguments.protection).map_err(Failure::input)?;
    run.batch = arguments.batch.map(usize::from);
    run.seed = arguments.seed;
    run.leaf_only_hint = !arguments.no_hint;
    run.merge_min = arguments.merge;
    run.linux_wait = arguments.linux_wait;
    let bar = progress_bar();
    bar.set_length(2);
    let simulation = run.run(|design| {
        bar.set_message(design.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let simulation = simulation.map_err(|error| Failure::Check(vec![format!("{choice}: {error}")]))?;
    let info = choice.design.info();
    let document = Document {
        schema: "portcullis.simulate/1",
        origin: Origin::of_this_run(),
        machine: &machine.id,
        assumed: &machine,
        set: &arguments.settings,
        workload: &arguments.workload,
        cores: work.cores,
        flows: work.flows,
        ring: [work.transmit_entries, work.receive_entries],
        costs: arguments.costs,
        no_hint: arguments.no_hint,
        merge: arguments.merge,
        linux_wait: arguments.linux_wait,
        halves: arguments.halves,
        seed: arguments.seed,
        results: [Row {
            design: info.id,
            options: choice.options,
            no_such_hardware: info.is_hypothetical(),
            protection: arguments.protection,
            batch: run.batch(),
            simulation: &simulation,
        }],
    };
    let failed = violations(&choice, arguments.protection, &simulation);
    show(out, &document, None, arguments.json, |out: &mut W| print(out, &document, choice), &failed)
}

/// The machine with the settings of the command line.
fn machine(arguments: &SimulateArguments) -> Result<Machine, Failure> {
    let (machine, _) = machine_file::find(&arguments.machine)?;
    if let Some(setting) = arguments.settings.iter().find(|setting| is_of_estimates(setting)) {
        return Err(Failure::Input(format!(
            "--set {setting}: only estimates use this value, and `simulate` makes none"
        )));
    }
    let mut machine = Variant::with(machine, &arguments.settings)?.machine;
    machine.check().map_err(Failure::input)?;
    if arguments.costs == Costs::Zero {
        machine = machine.with_free_software();
    }
    Ok(machine)
}

/// Whether a setting is of a value that `compare` uses for its estimates, and a simulated run does not.
fn is_of_estimates(setting: &str) -> bool {
    let key = setting.split_once('=').map_or(setting, |(key, _)| key);
    let own = ["link_gbps", "disk_iops", "disk_bytes_per_second"];
    own.contains(&key) || key.starts_with("unprotected_cycles_per")
}

/// Violations of the design in this run, beyond what it declares.
fn violations(choice: &Choice, protection: Protection, simulation: &Simulation) -> Vec<String> {
    let outcome = &simulation.outcome;
    let faults =
        (outcome.faults > 0).then(|| format!("{choice}: {} accesses of the card were refused", outcome.faults));
    let stale = (protection == Protection::Strict && outcome.stale_accesses > 0)
        .then(|| format!("{choice} strict: {} stale accesses (S2)", outcome.stale_accesses));
    faults.into_iter().chain(stale).collect()
}

fn print(out: &mut impl Write, document: &Document<'_>, choice: Choice) -> io::Result<()> {
    let Document {
        machine, workload, cores, flows, seed, results: [Row { protection, batch, simulation, .. }], ..
    } = document;
    let hypothetical =
        if choice.design.info().is_hypothetical() { format!(" ({NO_SUCH_HARDWARE})") } else { String::new() };
    let unpriced = if simulation.outcome.unpriced { " (reports no steps, so its cost is not known)" } else { "" };
    let head = [
        format!("{workload} on {machine} (assumed)"),
        format!("{choice} {protection}{hypothetical}{unpriced}, batches of {batch}"),
        format!("cores: {cores}, flows: {flows}, seed {seed}"),
    ];
    writeln!(out, "{}\n", side_by_side(&head, "   "))?;
    let outcome = &simulation.outcome;
    let rows = [
        ("throughput, Gb/s", simulation.throughput_gbps),
        ("requests per second", simulation.transactions_per_second),
        ("share of none, %", Some(100.0 * simulation.throughput_vs_none)),
        ("latency mean, us", simulation.latency_us_mean),
        ("latency of 50 %, us", simulation.latency_us_p50),
        ("latency of 99 %, us", simulation.latency_us_p99),
        ("latency of 99.9 %, us", simulation.latency_us_p999),
        ("CPU time, %", Some(simulation.cpu_percent)),
        ("dropped frames, %", simulation.drop_percent),
        ("cycles per packet", simulation.cycles_per_packet),
        ("protection, cycles per page", Some(outcome.cycles_per_page)),
        ("search steps per allocation", outcome.search_steps_mean),
        ("IOTLB misses per page", Some(outcome.iotlb_misses_per_page)),
        ("dropped of mapped pages, per page", document.merge.map(|_| outcome.iotlb_dropped_live_per_page)),
        ("waiting for locks, %", Some(outcome.lock_wait_percent)),
    ];
    let rows: Vec<Vec<String>> =
        rows.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), number(value?)])).collect();
    writeln!(out, "{}", Layout::of(&[Column::words("what"), Column::numbers("value")], &rows).table(&rows))
}
