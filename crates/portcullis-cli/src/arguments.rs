//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use portcullis::{Protection, SubPage};
#[cfg(target_os = "linux")]
use portcullis_bench::Workload;
use portcullis_sim::compare::ClockMode;
use portcullis_sim::prefetch::Prefetching;
use portcullis_sim::{PayloadRule, SERVER_WORKLOADS};
use serde::Serialize;
use std::path::PathBuf;

/// Compares I/O memory protection designs on real DMA traces: what each costs, and what it leaves exposed.
///
/// Without a command, compares every design on a trace that the program carries.
#[derive(Parser)]
#[command(name = "portcullis", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// The same work under every design: cost, misses, memory, stale window, estimated rate
    // After an error clap would show the options that were given as a usage, also those that exclude each other.
    #[command(override_usage = "portcullis compare [OPTIONS] [TRACES]...")]
    Compare(Box<CompareArguments>),
    /// A malicious device against every design: what got through after hand-back, for how long, by rule
    #[command(override_usage = "portcullis attack [OPTIONS] [TRACES]...")]
    Attack(Box<AttackArguments>),
    /// One run of a server with its network card, link and clients: throughput, latency, CPU time, drops
    ///
    /// Nothing of that is evaluated from a formula: it comes of events. The same run with no protection is made before it. docs/laboratory.md
    /// says what is simulated, and which numbers are put in.
    #[command(after_long_help = server_workloads())]
    Simulate(SimulateArguments),
    /// Published tables and figures made again, what was published beside what comes of it; and some of our own
    ///
    /// The traces that they need are in the program. All of them take about half a minute on two cores.
    #[command(override_usage = "portcullis figures [OPTIONS] [IDS]...")]
    Figures(FiguresArguments),
    /// The protection layer on the CPUs of this machine: nanoseconds, cycles and instructions of a map and its unmap
    ///
    /// Every workload is maps and unmaps, in pairs, in one domain. Each thread has a CPU and live mappings of its own. There is no
    /// device and no IOMMU: what is timed is the code that a kernel or a driver would run. An invalidation is an empty function
    /// that counts; under page-1-queued it writes descriptors and a wait to a ring in memory, under a lock, and under page-1-driven it
    /// goes through the queue of the VT-d driver. There is no hardware, and so no wait for it.
    ///
    /// What is timed is checked: under strict protection one commit makes one submission, live pages translate as they should,
    /// and what was unmapped reads back clear.
    ///
    /// Cycles come from the machine's counters where it has them. Elsewhere they are ticks of the time stamp counter, scaled by
    /// how fast additions that wait for each other run before and after each sample; then there are no instructions.
    #[cfg(target_os = "linux")]
    #[command(after_long_help = bench_workloads())]
    Bench(BenchArguments),
    /// This host as a machine, in JSON: what Linux says of it, and what each step of the layer takes here
    ///
    /// `portcullis machine > mine.json`, then `--machine mine.json`, and costs are those of your CPU. It takes a few seconds, and
    /// no root. Each step is timed in many short samples, on one CPU; of these the one counts that a quarter do not exceed, so that
    /// what disturbs some of them does not show. Keep the machine quiet, and use the profile `benchmark`: `cargo run --profile benchmark
    /// -- machine`.
    ///
    /// What cannot be measured from a program, such as the sizes of the IOMMU's caches, is in `assumed`, each value with a range. How
    /// long invalidations take is read from the kernel where root may, and Linux counts it (CONFIG_DMAR_PERF).
    #[cfg(target_os = "linux")]
    Machine,
    /// What there is
    List(ListArguments),
    /// How to record a trace on a Linux host, and what it costs
    CaptureHelp,
}

#[derive(Parser)]
#[command(no_binary_name = false)]
pub(crate) struct CompareArguments {
    #[command(flatten)]
    pub(crate) plan: PlanArguments,
    /// One JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// The rows of that document on standard output, as comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Writes a page with pictures to this file as well; it needs no network. Replaces an earlier page or an empty file, and no
    /// other
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct AttackArguments {
    #[command(flatten)]
    pub(crate) plan: PlanArguments,
    /// One JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// The rows of that document on standard output, as comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Writes a page with pictures to this file as well; it needs no network. Replaces an earlier page or an empty file, and no
    /// other
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct FiguresArguments {
    /// Only these, by id
    pub(crate) ids: Vec<String>,
    /// What there is, and makes none
    #[arg(long)]
    pub(crate) list: bool,
    /// Fails where a number is out of its tolerance
    #[arg(long, conflicts_with = "list")]
    pub(crate) check: bool,
    /// One JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Writes a page with pictures to this file as well; it needs no network. Replaces an earlier page or an empty file, and no
    /// other
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct SimulateArguments {
    /// The machine, by id; or a file in the form that `list machines --json` shows
    #[arg(long)]
    pub(crate) machine: String,
    /// What it does: netperf-stream or netperf-rr
    #[arg(long)]
    pub(crate) workload: String,
    /// The design, by id; parameters as in eiovar:k=512; `list designs` shows them
    #[arg(long)]
    pub(crate) design: String,
    /// One of the protections that the design offers: strict, deferred or none
    #[arg(long, value_parser = any_protection)]
    pub(crate) protection: Protection,
    /// CPUs that serve; 1 unless given
    #[arg(long, value_name = "N")]
    pub(crate) cores: Option<u32>,
    /// Flows, spread over the CPUs; one for each unless given
    #[arg(long, value_name = "N")]
    pub(crate) flows: Option<u32>,
    /// Entries of each ring of the card; those of its driver unless given
    #[arg(long, value_name = "N")]
    pub(crate) ring: Option<u32>,
    /// Largest batch of unmaps under one commit; the design's own unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) batch: Option<u8>,
    /// What software of the protection layer takes: as the machine's cost book says, or nothing, so that the hardware's part is left
    #[arg(long, value_enum, default_value = "book")]
    pub(crate) costs: Costs,
    /// No invalidation says that only leaves have changed, as in Linux before October 2025
    #[arg(long)]
    pub(crate) no_hint: bool,
    /// Sets a value of the machine, such as iotlb_entries=64; `list machines --json` shows all
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Seed of what clients draw
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// One JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// What software of the protection layer takes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Costs {
    /// What the cost book says.
    Book,
    /// Nothing.
    Zero,
}

/// What stands below the help of `simulate`.
fn server_workloads() -> String {
    let lines = SERVER_WORKLOADS.iter().map(|(id, _, what)| format!("\n  {id:<15} {what}"));
    lines.fold("Workloads:".to_owned(), |all, line| all + &line)
}

/// Which designs on which work and machine.
#[derive(Args)]
pub(crate) struct PlanArguments {
    /// Traces: text of ftrace, trace-cmd report or perf script, plain, xz, gz or zst; replayed one by one; `-` is standard input.
    /// Without any, the bundled one
    pub(crate) traces: Vec<PathBuf>,
    /// A synthetic workload instead, such as rings:count=40,ring=256,burst=16,tx=0.05,pages=1,idle=4096; `list workloads` explains
    /// the parameters
    #[arg(long, conflicts_with_all = ["traces", "accesses"])]
    pub(crate) workload: Option<String>,
    /// Only these designs, by id; parameters as in eiovar:k=512:queue=per-core,magazine; `list designs` shows them
    #[arg(long, value_delimiter = ',')]
    pub(crate) designs: Vec<String>,
    /// Only these protections of designs that protect
    #[arg(long, value_delimiter = ',', value_parser = protection, default_value = "strict,deferred")]
    pub(crate) protection: Vec<Protection>,
    /// The machine, by id; or a file that `portcullis machine` wrote
    #[arg(long, default_value = "cascadelake-cx5")]
    pub(crate) machine: String,
    /// The device's own accesses: the `.qemu` log of the one trace given; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) accesses: Option<PathBuf>,
    /// Largest batch of unmaps under one commit, for all designs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) batch: Option<u8>,
    /// No invalidation says that only leaves have changed, as in Linux before October 2025
    #[arg(long)]
    pub(crate) no_hint: bool,
    /// What becomes of pages of which a buffer has a part: expose, as most systems do; refuse; or bounce, which copies the part to and
    /// from a page of the domain's own
    #[arg(long, default_value = "expose", value_parser = sub_page)]
    pub(crate) sub_page: SubPage,
    /// How much of each buffer a network card writes: bytes, as 128, or a share, as 0.5. Without it, what the capture shows, or a range
    /// from one byte to all
    #[arg(long, value_name = "BYTES|FRACTION", value_parser = payload)]
    pub(crate) payload: Option<PayloadRule>,
    /// Virtual time: model, trace, or scale=K
    #[arg(long, default_value = "model", value_parser = clock)]
    pub(crate) clock: ClockMode,
    /// Sets a value of the machine, such as cores=8, core_hz=2.5e9, link_gbps=25 or iotlb_entries=64; `list machines --json` shows all
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Runs with each of these values of one of those, and with each combination where there are several sweeps
    #[arg(long = "sweep", value_name = "KEY=A,B,C")]
    pub(crate) sweeps: Vec<String>,
    /// A prefetcher of the IOTLB, which no hardware has, in place of the machine's: none, adjacent:direction=both|up, next:depth=N,
    /// markov:rows=N:slots=N, recency:length=N, distance:rows=N:slots=N; the last three with :form=baseline|modified, all with
    /// :buffer=N. Behind it +map-hint=reads or +map-hint=all: the driver says what it has mapped; +unmap-hint: it says what the device is
    /// done with
    #[arg(long, value_name = "PREFETCHER", value_parser = prefetching)]
    pub(crate) prefetch: Option<Prefetching>,
    /// Seed of what synthetic workloads draw, and malicious devices
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl PlanArguments {
    /// The files that are read.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        self.traces.iter().chain(&self.accesses)
    }
}

#[cfg(target_os = "linux")]
#[derive(Args)]
pub(crate) struct BenchArguments {
    /// Only these designs, by id; parameters as in eiovar:k=512:queue=per-core,magazine; `list designs` shows them
    #[arg(long, value_delimiter = ',')]
    pub(crate) designs: Vec<String>,
    /// Numbers of threads, each at most the CPUs that there are
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Vec<u16>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',')]
    pub(crate) workload: Vec<String>,
    /// Samples of each row. Rows take them by turns, a few at a time, so that all see the same phases of the machine
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) samples: u16,
    /// One JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// What stands below the help of `bench`.
#[cfg(target_os = "linux")]
fn bench_workloads() -> String {
    let line = |workload: Workload| format!("\n  {:<28} {}", workload.id(), workload.description());
    Workload::ALL.map(line).into_iter().fold("Workloads:".to_owned(), |all, line| all + &line)
}

#[derive(Args)]
pub(crate) struct ListArguments {
    /// Only this
    #[arg(value_enum)]
    pub(crate) what: Option<Listed>,
    /// One JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listed {
    Designs,
    Machines,
    Workloads,
    Figures,
}

fn protection(text: &str) -> Result<Protection, String> {
    match text {
        "strict" => Ok(Protection::Strict),
        "deferred" => Ok(Protection::Deferred),
        _ => Err("expected strict or deferred".to_owned()),
    }
}

fn any_protection(text: &str) -> Result<Protection, String> {
    match text {
        "none" => Ok(Protection::None),
        _ => protection(text).map_err(|expected| format!("{expected}, or none")),
    }
}

fn sub_page(text: &str) -> Result<SubPage, String> {
    let named = SubPage::ALL.into_iter().find(|sub_page| sub_page.name() == text);
    named.ok_or_else(|| "expected expose, refuse or bounce".to_owned())
}

fn payload(text: &str) -> Result<PayloadRule, String> {
    PayloadRule::parse(text)
        .ok_or_else(|| "expected bytes from 1 on, or a share above 0 up to 1 with a point in it, as 0.5".to_owned())
}

fn prefetching(text: &str) -> Result<Prefetching, String> {
    Prefetching::parse(text).map_err(|error| error.to_string())
}

fn clock(text: &str) -> Result<ClockMode, String> {
    ClockMode::parse(text).ok_or_else(|| "expected model, trace or scale=K with K from 0 to 1000".to_owned())
}
