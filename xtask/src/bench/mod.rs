//! `cargo xtask bench`: measures how many operations per second the lab replays and how many packets it simulates, and
//! checks a cost book of this machine.

pub(crate) mod instructions;
mod machine;

use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Operations per second that every design must reach.
const GOAL: f64 = 1e6;
/// The work whose elements are packets, each on one core, and the goals by machine.
const PACKETS: &str = "packets";
const PACKET_GOALS: [(&str, f64); 2] = [("r210-bcm57810", 0.8e6), ("r210-cx3", 0.4e6)];

/// What criterion writes to `benchmark.json`.
#[derive(Deserialize)]
struct Benchmark {
    group_id: String,
    function_id: Option<String>,
    throughput: Option<Throughput>,
}

#[derive(Deserialize)]
enum Throughput {
    Elements(u64),
}

/// What criterion writes to `estimates.json`: nanoseconds per iteration.
#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// A line of the table.
struct Rate {
    /// When the rate was measured.
    measured: SystemTime,
    work: String,
    design: String,
    operations_per_second: f64,
}

pub(crate) fn bench(workspace: &Workspace) -> Result<(), Failure> {
    let begun = SystemTime::now();
    let mut stages = Stages::new(workspace, "bench");
    stages.cargo("replay", &[], &["bench", "--package", "portcullis-sim", "--bench", "replay"])?;
    let criterion = workspace.root.join(&workspace.target).join("criterion");
    let mut rates = Vec::new();
    collect(&criterion, begun, &mut rates)?;
    if rates.is_empty() {
        return Err(Failure::Contents { path: criterion, reason: "the bench left no estimates here".to_owned() });
    }
    rates.sort_by_key(|rate| rate.measured);
    let (packets, operations): (Vec<_>, Vec<_>) = rates.into_iter().partition(|rate| rate.work.starts_with(PACKETS));
    print(&operations);
    print_packets(&packets);
    machine::stages(&mut stages)?;
    stages.finish();
    Ok(())
}

/// Runs only the check of the cost book.
pub(crate) fn machine(workspace: &Workspace) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "bench");
    machine::stages(&mut stages)?;
    stages.finish();
    Ok(())
}

/// Collects the rates measured since `begun` from `folder` and all folders below it.
fn collect(folder: &Path, begun: SystemTime, rates: &mut Vec<Rate>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder).map_err(Failure::file(folder))? {
        let path = entry.map_err(Failure::file(folder))?.path();
        if !path.is_dir() {
            continue;
        }
        // The folder `base` beside `new` has the same content.
        if !path.ends_with("new") {
            collect(&path, begun, rates)?;
            continue;
        }
        let estimates = path.join("estimates.json");
        let measured = fs::metadata(&estimates).and_then(|file| file.modified()).map_err(Failure::file(&estimates))?;
        if measured < begun {
            continue;
        }
        let benchmark: Benchmark = read(path.join("benchmark.json"))?;
        let estimates: Estimates = read(estimates)?;
        let Some(Throughput::Elements(operations)) = benchmark.throughput else { continue };
        rates.push(Rate {
            measured,
            work: benchmark.group_id,
            design: benchmark.function_id.unwrap_or_default(),
            operations_per_second: operations as f64 / estimates.median.point_estimate * 1e9,
        });
    }
    Ok(())
}

fn read<T: DeserializeOwned>(path: PathBuf) -> Result<T, Failure> {
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    serde_json::from_str(&text).map_err(|error| Failure::Contents { path, reason: error.to_string() })
}

fn print(rates: &[Rate]) {
    let width = |of: fn(&Rate) -> &str| rates.iter().map(|rate| of(rate).len()).max().unwrap_or(0);
    let (work_width, design_width) = (width(|rate| &rate.work), width(|rate| &rate.design));
    println!("\n{:work_width$}  {:design_width$}  million operations/s (median)", "work", "design");
    let mut slow = 0;
    for Rate { work, design, operations_per_second, .. } in rates {
        let reached = *operations_per_second >= GOAL;
        slow += usize::from(!reached);
        let remark = if reached { "" } else { "  below 1" };
        println!("{work:work_width$}  {design:design_width$}  {:6.2}{remark}", operations_per_second / 1e6);
    }
    match slow {
        0 => println!("every design replays at least 1 million operations per second"),
        _ => println!("{slow} of {} runs replay fewer than 1 million operations per second", rates.len()),
    }
}

/// Prints the rates of packets, of which there is one for each machine.
fn print_packets(rates: &[Rate]) {
    let width = rates.iter().map(|rate| rate.design.len()).max().unwrap_or(0);
    println!("\n{:width$}  million simulated packets/s of a host core (median)", "machine");
    for Rate { work, design: machine, operations_per_second: rate, .. } in rates {
        let goal = PACKET_GOALS.iter().find(|(known, _)| known == machine).map(|(_, goal)| goal);
        let ratio = goal.map_or(String::new(), |goal| format!(", {:.2} of the goal {:.1}", rate / goal, goal / 1e6));
        println!("{machine:width$}  {:.2}{ratio} ({work})", rate / 1e6);
    }
}
