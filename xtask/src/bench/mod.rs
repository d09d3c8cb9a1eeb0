//! `cargo xtask bench`: measures how many operations per second the lab replays and how many packets it simulates, and
//! checks a cost book of this machine.

pub(crate) mod instructions;
mod machine;

use crate::columns::aligned;
use crate::failure::Failure;
use crate::peers;
use crate::stages::Stages;
use crate::workspace::Workspace;
use clap::Args;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use walkdir::WalkDir;

/// Operations per second that every design must reach.
const GOAL: f64 = 1e6;
/// The work whose elements are packets, each on one core, and the goals by machine.
const PACKETS: &str = "packets";
const PACKET_GOALS: [(&str, f64); 2] = [("r210-bcm57810", 0.8e6), ("r210-cx3", 0.4e6)];

struct Rate {
    measured: SystemTime,
    work: String,
    design: String,
    per_second: f64,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Instead, measure what a map and an unmap cost here: the library beside Linux, Rust crates and the least that the
    /// machine can do.
    #[arg(long)]
    peers: bool,
    /// Check only the cost book.
    #[arg(long, conflicts_with_all = ["peers", "check"])]
    machine: bool,
    /// How often each program is run.
    #[arg(long, requires = "peers", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Count the instructions of a map and its unmap, and fail if they exceed the limits in benches/instructions.json,
    /// or if the profiles `release` and `plain` take more than 1.2 times those of `benchmark`. With --peers: fail if a
    /// goal is missed.
    #[arg(long)]
    check: bool,
    /// Write the present counts, and lower the limits to 3 % above them. A limit rises only if its count is above it.
    #[arg(long, requires = "check", conflicts_with = "peers")]
    pub(crate) update: bool,
}

pub(crate) fn bench(workspace: &Workspace, options: &Options) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "bench");
    match options {
        Options { peers: true, rounds, check, .. } => peers::bench(workspace, &mut stages, *rounds, *check)?,
        Options { check: true, update, .. } => instructions::check(workspace, &mut stages, *update)?,
        Options { machine: true, .. } => machine::check(&mut stages)?,
        _ => {
            replay(workspace, &mut stages)?;
            machine::check(&mut stages)?;
        }
    }
    stages.finish();
    Ok(())
}

/// Measures how many operations and packets the lab processes per second.
fn replay(workspace: &Workspace, stages: &mut Stages<'_>) -> Result<(), Failure> {
    let begun = SystemTime::now();
    stages.cargo("replay", &[], &["bench", "--package", "portcullis-sim-bench", "--bench", "replay"])?;
    let criterion = workspace.root.join(&workspace.target).join("criterion");
    let mut rates = collect(&criterion, begun)?;
    if rates.is_empty() {
        return Err(Failure::contents(criterion)("the bench left no estimates here"));
    }
    rates.sort_by_key(|rate| rate.measured);
    print(&rates);
    Ok(())
}

/// Collects the rates measured since `begun` from all folders below `folder`.
fn collect(folder: &Path, begun: SystemTime) -> Result<Vec<Rate>, Failure> {
    let mut rates = Vec::new();
    for entry in WalkDir::new(folder) {
        let path = entry.map_err(io::Error::from).map_err(Failure::file(folder))?.into_path();
        // The folder `base` beside `new` has the same content.
        if !(path.ends_with("new") && path.is_dir()) {
            continue;
        }
        let estimates = path.join("estimates.json");
        let measured = fs::metadata(&estimates).and_then(|file| file.modified()).map_err(Failure::file(&estimates))?;
        if measured < begun {
            continue;
        }
        // Criterion estimates nanoseconds per iteration.
        let (benchmark, estimates) = (read(path.join("benchmark.json"))?, read(estimates)?);
        let text = |key: &str| benchmark[key].as_str().unwrap_or_default().to_owned();
        let operations = benchmark["throughput"]["Elements"].as_f64();
        let nanoseconds = estimates["median"]["point_estimate"].as_f64();
        let Some((operations, nanoseconds)) = operations.zip(nanoseconds) else { continue };
        let per_second = operations / nanoseconds * 1e9;
        rates.push(Rate { measured, work: text("group_id"), design: text("function_id"), per_second });
    }
    Ok(rates)
}

fn read(path: PathBuf) -> Result<Value, Failure> {
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    serde_json::from_str(&text).map_err(Failure::contents(path))
}

/// Prints the rates of operations and of simulated packets of a host core, each beside its goal.
fn print(rates: &[Rate]) {
    let goal = |Rate { work, design: machine, .. }: &Rate| match work.starts_with(PACKETS) {
        true => PACKET_GOALS.iter().find(|(known, _)| known == machine).map(|(_, goal)| *goal),
        false => Some(GOAL),
    };
    let mut rows =
        vec![["work", "design, or machine", "million/s (median)", "of the goal"].map(str::to_owned).to_vec()];
    rows.extend(rates.iter().map(|rate| {
        let Rate { work, design, per_second, .. } = rate;
        let ratio = goal(rate).map(|goal| format!("{:.2} of {:.1}", per_second / goal, goal / 1e6));
        vec![work.clone(), design.clone(), format!("{:.2}", per_second / 1e6), ratio.unwrap_or_default()]
    }));
    let slow = rates.iter().filter(|rate| goal(rate).is_some_and(|goal| rate.per_second < goal)).count();
    println!("\n{}\n{slow} of {} rates are below their goals", aligned(&rows), rates.len());
}
