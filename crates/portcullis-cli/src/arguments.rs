//! The command line.

use crate::share::Share;
use clap::{Args, Parser, Subcommand, ValueEnum};
use portcullis::{Protection, SubPage};
#[cfg(target_os = "linux")]
use portcullis_bench::Workload;
use portcullis_sim::advice::Today;
use portcullis_sim::compare::ClockMode;
use portcullis_sim::prefetch::Prefetching;
use portcullis_sim::{Machine, PayloadRule, SERVER_WORKLOADS, Traffic};
use serde::Serialize;
use std::path::PathBuf;

/// Compares I/O memory protection designs on real DMA traces: what each design costs, and what it leaves exposed
///
/// Without a command, the program compares every design on a trace that it carries.
#[derive(Parser)]
#[command(name = "portcullis", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Runs the same work under every design: cost, misses, memory, stale window, estimated rate
    // After an error, clap would otherwise show the options that were given as a usage, even if they exclude each
    // other.
    #[command(override_usage = "portcullis compare [OPTIONS] [TRACES]...")]
    Compare(Box<CompareArguments>),
    /// Runs a malicious device against every design: what it reached after hand-back, for how long, and which
    /// rules that broke
    #[command(override_usage = "portcullis attack [OPTIONS] [TRACES]...")]
    Attack(Box<AttackArguments>),
    /// Simulates a server with its network card, link and clients: throughput, latency, CPU time, drops
    ///
    /// All of these result from events and not from formulas. The program first makes the same run with no protection.
    /// docs/laboratory.md describes what is simulated, and lists the inputs.
    #[command(after_long_help = of_servers())]
    Simulate(SimulateArguments),
    /// Reproduces published tables and figures, with the published number beside the reproduced one; adds some of our
    /// own
    ///
    /// The program carries the traces that the figures need. All figures take a few minutes on two idle cores, of
    /// which `fands` takes a minute and a half.
    ///
    /// `eiovar` stands for all figures and tables of EiovaR, and `riommu` for those of rIOMMU. Each of their numbers
    /// has a class, which says how near it must be to the published one: R15 within 15 %, R25 within 25 %, C2 and C4
    /// within a factor, Z about nothing, S a shape that is there (1) or not (0); cal and input show nothing, because
    /// the model was made with the published number. The program carries the share of numbers within their class that
    /// was reached before, and --check fails if it falls.
    ///
    /// The runs are independent. `--shard 1/8` to `--shard 8/8`, anywhere, make an eighth each. `--merge` joins the
    /// eight files, and prints what one run of everything prints. docs/sweep.md has scripts for Slurm and Kubernetes.
    #[command(override_usage = "portcullis figures [OPTIONS] [IDS]...")]
    Figures(FiguresArguments),
    /// Times the protection layer on the CPUs of this machine: nanoseconds, cycles and instructions of a map and its
    /// unmap
    ///
    /// Every workload maps and unmaps buffers, in pairs, in one domain. Each thread has its own CPU and its own live
    /// mappings. There is no device and no IOMMU: the timed code is what a kernel or a driver would run. An
    /// invalidation calls an empty function that counts. page-1-queued instead writes descriptors and a wait to a ring
    /// in memory, under a lock, and page-1-driven uses the queue of the VT-d driver. Neither waits for hardware,
    /// because there is none.
    ///
    /// The timed code is checked: under strict protection one commit makes one submission, live pages translate as
    /// they should, and the table entries of unmapped pages are clear.
    ///
    /// Cycles come from the machine's counters if it has them. Otherwise they are ticks of the time stamp counter.
    /// These are scaled by the speed of a chain of dependent additions, timed before and after each sample, and there
    /// are no instruction counts.
    #[cfg(target_os = "linux")]
    #[command(after_long_help = bench_workloads())]
    Bench(BenchArguments),
    /// Describes this host as a machine, in JSON: what Linux reports, and how long each step of the layer takes here
    ///
    /// Run `portcullis machine > mine.json`, and then pass `--machine mine.json`: costs are then those of your CPU.
    /// The command takes a few seconds and does not need root. It times each step in many short samples, on one CPU,
    /// and takes the lower quartile, so that disturbed samples do not show. Keep the machine quiet, and use the
    /// profile `benchmark`: `cargo run --profile benchmark -- machine`.
    ///
    /// A program cannot measure everything: the sizes of the IOMMU's caches, for instance. Such values are listed in
    /// `assumed`, each with a range. If the command runs as root and Linux counts invalidation times
    /// (CONFIG_DMAR_PERF), it reads them from the kernel.
    #[cfg(target_os = "linux")]
    Machine,
    /// Lists the designs, machines, workloads and figures
    List(ListArguments),
    /// How to record a trace on a Linux host, and what it costs
    CaptureHelp,
}

#[derive(Parser)]
#[command(no_binary_name = false)]
pub(crate) struct CompareArguments {
    #[command(flatten)]
    pub(crate) plan: PlanArguments,
    /// What the host runs today, from which the answer says what strict protection costs: lazy, the default of Linux
    /// on x86, or none
    #[arg(long, value_name = "PROTECTION", value_parser = today, default_value = "lazy")]
    pub(crate) today: Today,
    /// Prints one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Prints the rows of that document to standard output, as comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Also writes a page with pictures to this file. The page needs no network. Replaces an earlier page or an empty
    /// file, but no other file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct AttackArguments {
    #[command(flatten)]
    pub(crate) plan: PlanArguments,
    /// Prints one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Prints the rows of that document to standard output, as comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Also writes a page with pictures to this file. The page needs no network. Replaces an earlier page or an empty
    /// file, but no other file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct FiguresArguments {
    /// Makes only these figures, by id
    pub(crate) ids: Vec<String>,
    /// Lists the figures and makes none
    #[arg(long)]
    pub(crate) list: bool,
    /// Fails if a number is out of its tolerance, or outside its class without a reason, or a score below the recorded
    /// one
    #[arg(long, conflicts_with = "list")]
    pub(crate) check: bool,
    /// Makes runs of the laboratory that are ten times as long, and no fewer earlier runs than simulate makes
    #[arg(long, conflicts_with = "list")]
    pub(crate) full: bool,
    /// Makes only the share I of N of the runs, and prints a line of JSON for each, to be joined by --merge
    #[arg(long, value_name = "I/N", value_parser = share, conflicts_with_all = ["list", "check", "json", "html"])]
    pub(crate) shard: Option<Share>,
    /// Joins all shards of the figures for which they were made, and makes no run
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["ids", "list", "full", "shard"])]
    pub(crate) merge: Vec<PathBuf>,
    /// Prints one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Also writes a page with pictures to this file. The page needs no network. Replaces an earlier page or an empty
    /// file, but no other file
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct SimulateArguments {
    /// The machine, by id, or a file with one entry of `list machines --json`. Its network card must be known; that of
    /// a host that `portcullis machine` describes is not
    #[arg(long)]
    pub(crate) machine: String,
    /// The workload, by id; `list workloads` shows those of `simulate`
    #[arg(long)]
    pub(crate) workload: String,
    /// The design, by id; parameters as in eiovar:k=512; `list designs` shows them
    #[arg(long)]
    pub(crate) design: String,
    /// One of the protections that the design offers: strict, deferred or none
    #[arg(long, value_parser = any_protection)]
    pub(crate) protection: Protection,
    /// CPUs that serve (default: 1; 5 for iperf, 6 for rpc-tail, 8 for redis, nginx and spdk)
    #[arg(long, value_name = "N")]
    pub(crate) cores: Option<u32>,
    /// Flows, which are spread over the CPUs (default: 32 for Apache and Memcached, one per CPU for the others)
    #[arg(long, value_name = "N")]
    pub(crate) flows: Option<u32>,
    /// Entries of each ring of the card (default: those of its driver)
    #[arg(long, value_name = "N")]
    pub(crate) ring: Option<u32>,
    /// Largest batch of unmaps under one commit (default: that of the design)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) batch: Option<u8>,
    /// Costs of the software of the protection layer: those of the machine's cost book, or zero, which leaves the waits
    /// for hardware
    #[arg(long, value_enum, default_value = "book")]
    pub(crate) costs: Costs,
    /// Sends no invalidation hint, as Linux did before October 2025
    #[arg(long)]
    pub(crate) no_hint: bool,
    /// Lets one invalidation replace those of N or more CPUs that submit together, as only `portcullis` does. It also
    /// drops the IOTLB entries of mapped pages in between
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=64), conflicts_with = "no_hint")]
    pub(crate) merge: Option<u8>,
    /// Uses the invalidation queue as Linux does: each commit is submitted alone, and each look of its wait takes the
    /// lock of the queue
    #[arg(long, conflicts_with = "merge")]
    pub(crate) linux_wait: bool,
    /// The driver commits in two halves: it submits what a poll has unmapped, refills, and then waits for what
    /// has arrived. Only with batches, and not under mlx5e
    #[arg(long)]
    pub(crate) halves: bool,
    /// Sets a value of the machine, such as iotlb_entries=64, but of its card only the numbers of rings and the receive
    /// buffer; `list machines --json` shows all
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Seed of the clients
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Prints one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// The costs of the software of the protection layer.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Costs {
    /// Those of the cost book.
    Book,
    /// Zero.
    Zero,
}

/// The machines and the workloads of `simulate`.
fn of_servers() -> String {
    let machines = Machine::all().into_iter().filter(|machine| machine.server.is_some());
    let machines: Vec<String> = machines.map(|machine| machine.id).collect();
    let lines = SERVER_WORKLOADS.iter().map(|(id, _, what)| format!("\n  {id:<15} {what}"));
    let workloads = lines.fold("Workloads:".to_owned(), |all, line| all + &line);
    format!("Machines whose card is known: {}\n\n{workloads}", machines.join(", "))
}

/// Which designs run, on which work and which machine.
#[derive(Args)]
pub(crate) struct PlanArguments {
    /// Traces to replay one by one: text of ftrace, trace-cmd report or perf script; plain, xz, gz or zst; `-` is
    /// standard input. Without a trace, the program replays one that it carries
    pub(crate) traces: Vec<PathBuf>,
    /// Runs a synthetic workload instead of a trace, such as
    /// rings:count=40,ring=256,burst=16,tx=0.05,pages=1,idle=4096; `list workloads` explains the parameters
    #[arg(long, conflicts_with_all = ["traces", "accesses"])]
    pub(crate) workload: Option<String>,
    /// Runs only these designs, by id; parameters as in eiovar:k=512:queue=per-core,magazine; `list designs` shows
    /// them
    #[arg(long, value_delimiter = ',')]
    pub(crate) designs: Vec<String>,
    /// Protections under which to run the designs that protect
    #[arg(long, value_delimiter = ',', value_parser = protection, default_value = "strict,deferred")]
    pub(crate) protection: Vec<Protection>,
    /// The machine, by id, or a file that `portcullis machine` wrote
    #[arg(long, default_value = "cascadelake-cx5")]
    pub(crate) machine: String,
    /// The accesses of the device itself: the `.qemu` log of the one trace given; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) accesses: Option<PathBuf>,
    /// Largest batch of unmaps under one commit, for all designs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) batch: Option<u8>,
    /// Sends invalidations without the hint that only leaves have changed, as Linux did before October 2025
    #[arg(long)]
    pub(crate) no_hint: bool,
    /// Lets one invalidation replace those of N or more CPUs that submit together, as only `portcullis` does. It also
    /// drops the IOTLB entries of mapped pages in between
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=64), conflicts_with = "no_hint")]
    pub(crate) merge: Option<u8>,
    /// Commits in two halves: a core submits the unmaps of a burst, maps new buffers, and then waits for the hardware.
    /// Only with `--workload rings`: a trace shows when its own driver had its buffers back
    #[arg(long, requires = "workload")]
    pub(crate) halves: bool,
    /// How to treat pages that a buffer covers only in part: expose them, as most systems do; refuse them; or bounce,
    /// which copies that part to and from a separate page of the domain
    #[arg(long, default_value = "expose", value_parser = sub_page)]
    pub(crate) sub_page: SubPage,
    /// How much of each buffer a network card writes: bytes, as in 128, or a share, as in 0.5. Without this option,
    /// what the capture shows, or else a range from one byte to the whole buffer
    #[arg(long, value_name = "BYTES|FRACTION", value_parser = payload)]
    pub(crate) payload: Option<PayloadRule>,
    /// Runs only the work of this device, such as 0000:3b:00.0. Without this option, `compare` runs each device of a
    /// capture by itself, and `attack` runs all of them together
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["workload", "accesses"])]
    pub(crate) device: Option<String>,
    /// What the network card of the capture received while it was made, in bits a second, such as 9.4e9; or what its
    /// disk served, in requests a second. Where that is more than the buffers that were mapped for it, the driver uses
    /// pages again while they stay mapped, and protection costs less for each packet or request
    #[arg(long, value_name = "RATE", value_parser = rate, allow_negative_numbers = true, conflicts_with_all = ["workload", "accesses", "payload"])]
    pub(crate) rate: Option<f64>,
    /// What the traces are: network or disk. Without this option, their buffers show it, and who maps and unmaps them;
    /// docs/advice.md has the rules
    #[arg(long, value_name = "KIND", value_parser = traffic)]
    pub(crate) traffic: Option<Traffic>,
    /// Virtual time: model, trace, or scale=K
    #[arg(long, default_value = "model", value_parser = clock)]
    pub(crate) clock: ClockMode,
    /// Sets a value of the machine, such as cores=8, core_hz=2.5e9, link_gbps=25 or iotlb_entries=64; `list machines
    /// --json` shows all values
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Runs with each of these values of a machine parameter; with several sweeps, runs each combination
    #[arg(long = "sweep", value_name = "KEY=A,B,C")]
    pub(crate) sweeps: Vec<String>,
    /// Puts a prefetcher of the IOTLB in place of the machine's own; no real hardware has one. One of: none,
    /// adjacent:direction=both|up, next:depth=N, markov:rows=N:slots=N, recency:length=N, distance:rows=N:slots=N. The
    /// last three take :form=baseline|modified, and all take :buffer=N. Append +map-hint=reads or +map-hint=all to let
    /// the driver announce what it has mapped, and +unmap-hint to let it announce what the device is done with
    #[arg(long, value_name = "PREFETCHER", value_parser = prefetching)]
    pub(crate) prefetch: Option<Prefetching>,
    /// Seed for random choices of synthetic workloads and malicious devices
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
    /// Times only these designs, by id; parameters as in eiovar:k=512:queue=per-core,magazine; `list designs` shows
    /// them
    #[arg(long, value_delimiter = ',')]
    pub(crate) designs: Vec<String>,
    /// Numbers of threads; none may exceed the number of CPUs
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Vec<u16>,
    /// Times only these workloads
    #[arg(long, value_delimiter = ',')]
    pub(crate) workload: Vec<String>,
    /// Samples of each row. Rows take turns, a few samples at a time, so that all rows see the same phases of the
    /// machine
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) samples: u16,
    /// Prints one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// The list of workloads below the help of `bench`.
#[cfg(target_os = "linux")]
fn bench_workloads() -> String {
    let line = |workload: Workload| format!("\n  {:<28} {}", workload.id(), workload.description());
    Workload::ALL.map(line).into_iter().fold("Workloads:".to_owned(), |all, line| all + &line)
}

#[derive(Args)]
pub(crate) struct ListArguments {
    /// Lists only this kind
    #[arg(value_enum)]
    pub(crate) what: Option<Listed>,
    /// Prints one JSON document to standard output
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
        // The word of Linux for it.
        "deferred" | "lazy" => Ok(Protection::Deferred),
        _ => Err("expected strict or deferred (lazy)".to_owned()),
    }
}

fn any_protection(text: &str) -> Result<Protection, String> {
    match text {
        "none" => Ok(Protection::None),
        _ => protection(text).map_err(|expected| format!("{expected}, or none")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= RATE_MAX);
    rate.ok_or_else(|| "expected bits or requests a second, above 0 and up to 1e13, such as 9.4e9".to_owned())
}

/// No card receives more, in bits a second.
const RATE_MAX: f64 = 1e13;

fn today(text: &str) -> Result<Today, String> {
    Today::parse(text).ok_or_else(|| "expected lazy or none".to_owned())
}

fn share(text: &str) -> Result<Share, String> {
    Share::parse(text).ok_or_else(|| "expected I/N with I from 1 to N, such as 1/8".to_owned())
}

fn sub_page(text: &str) -> Result<SubPage, String> {
    let named = SubPage::ALL.into_iter().find(|sub_page| sub_page.name() == text);
    named.ok_or_else(|| "expected expose, refuse or bounce".to_owned())
}

fn payload(text: &str) -> Result<PayloadRule, String> {
    PayloadRule::parse(text).ok_or_else(|| {
        "expected bytes from 1 on, or a share above 0 and up to 1 with a decimal point, such as 0.5".to_owned()
    })
}

fn traffic(text: &str) -> Result<Traffic, String> {
    Traffic::parse(text).ok_or_else(|| "expected network or disk".to_owned())
}

fn prefetching(text: &str) -> Result<Prefetching, String> {
    Prefetching::parse(text).map_err(|error| error.to_string())
}

fn clock(text: &str) -> Result<ClockMode, String> {
    ClockMode::parse(text).ok_or_else(|| "expected model, trace or scale=K with K from 0 to 1000".to_owned())
}
