//! `cargo xtask scale`: counts the cache lines that move between CPUs, and locked instructions, for a map and its unmap
//! on 1 to 128 virtual CPUs in one domain, and compares the counts with limits.
//!
//! The code of the library and of the driver runs on the model of `portcullis-coherence`, each run as the last, so
//! counts do not depend on this machine. Cycles follow from the counts and from estimates of what a transfer costs.
//!
//! The runs are chaotic: what CPUs do depends on when each has begun. So a count is the mean of several runs, and the
//! least and the greatest cycles stand beside it.

use crate::columns::aligned;
use crate::failure::Failure;
use crate::limits;
use crate::process::output;
use crate::stages::Stages;
use crate::test::flags_with;
use crate::workspace::Workspace;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::{fs, panic, thread};

pub(crate) const LIMITS: &str = "benches/scale.json";
const PROGRAM: &str = "portcullis-scale";
/// The runs of a row, unless the hardware is its limit. They differ in when each CPU begins.
const STARTS: usize = 5;
/// The factor by which a new limit exceeds the count, and what it exceeds it by in any case: a count of nearly nothing
/// must not fail for a few transfers more.
const ALLOWANCE: f64 = 1.03;
const ALLOWANCE_MIN: f64 = 0.01;

#[derive(Args)]
pub(crate) struct Options {
    /// Fail if a count exceeds its limit in benches/scale.json.
    #[arg(long)]
    check: bool,
    /// Write the present counts, and lower the limits to 3 % above them. A limit rises only if its count is above it.
    #[arg(long, requires = "check")]
    pub(crate) update: bool,
}

/// What a pair takes on so many CPUs, and the limits.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    /// Who answers invalidations: see the program.
    pub(crate) hardware: String,
    pub(crate) cpus: u32,
    /// The fewest commits that share a submission and whose commands one may replace, if any are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merge: Option<u8>,
    /// Lines that come from the caches of other CPUs.
    pub(crate) transfers: f64,
    /// Locked instructions and full fences.
    pub(crate) locked: f64,
    /// An estimate, with all CPUs on one socket.
    pub(crate) cycles: f64,
    /// The same, of the run that took least, and of the one that took most.
    pub(crate) cycles_range: [f64; 2],
    /// An estimate, with half of the CPUs on another socket.
    pub(crate) cycles_two_sockets: f64,
    transfers_max: f64,
    locked_max: f64,
}

impl Row {
    /// The number of runs. Hardware that takes so long that all CPUs wait for it takes as long whatever they do.
    fn starts(&self) -> usize {
        if self.hardware == "slow" && self.merge.is_none() { 1 } else { STARTS }
    }

    /// The hardware, and how it is used.
    pub(crate) fn who(&self) -> String {
        match self.merge {
            Some(merge) => format!("{}, merge={merge}", self.hardware),
            None => self.hardware.clone(),
        }
    }
}

/// What the program prints.
#[derive(Clone, Copy, Deserialize)]
struct Run {
    transfers: f64,
    locked: f64,
    cycles: f64,
    /// Commands for each unmap.
    commands: f64,
}

/// The means of some runs.
#[derive(Clone, Copy)]
struct Counted {
    transfers: f64,
    locked: f64,
    cycles: f64,
    cycles_range: [f64; 2],
}

impl Counted {
    fn of(runs: &[Run]) -> Self {
        let mean = |number: fn(&Run) -> f64| runs.iter().map(number).sum::<f64>() / runs.len() as f64;
        let cycles = || runs.iter().map(|run| run.cycles);
        Self {
            transfers: mean(|run| run.transfers),
            locked: mean(|run| run.locked),
            cycles: mean(|run| run.cycles),
            cycles_range: [cycles().fold(f64::MAX, f64::min), cycles().fold(0.0, f64::max)],
        }
    }
}

pub(crate) fn scale(workspace: &Workspace, options: &Options) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "scale");
    let target = workspace.target_beside("coherence");
    let build = ["build", "--release", "--package", PROGRAM, "--target-dir", &target];
    stages.cargo("build", &[("RUSTFLAGS", &flags_with("coherence"))], &build)?;
    let path = workspace.root.join(LIMITS);
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let mut rows: Vec<Row> = serde_json::from_str(&text).map_err(Failure::contents(&path))?;
    let mut wrong = Vec::new();
    stages.stage("count", "transfers and locked instructions per pair, for each limit", |workspace| {
        let program = workspace.root.join(&target).join("release").join(PROGRAM);
        let columns =
            ["hardware", "CPUs", "transfers", "limit", "locked", "limit", "cycles", "from, to", "two sockets", ""];
        let mut lines = vec![columns.map(str::to_owned).to_vec()];
        let counted = count(&program, &rows)?;
        for (row, [near, far]) in rows.iter_mut().zip(counted) {
            if options.update {
                *row = renewed(row, near, far);
            }
            let found = faults(row, near);
            let remark = if found.is_empty() { "" } else { "above" };
            let two = |number: f64| format!("{number:.2}");
            let counts = [two(near.transfers), two(row.transfers_max), two(near.locked), two(row.locked_max)];
            let [least, most] = near.cycles_range;
            let cycles =
                [format!("{:.0}", near.cycles), format!("{least:.0}, {most:.0}"), format!("{:.0}", far.cycles)];
            let names = [row.who(), row.cpus.to_string()];
            lines.push(names.into_iter().chain(counts).chain(cycles).chain([remark.to_owned()]).collect());
            wrong.extend(found);
        }
        print!("{}", aligned(&lines));
        Ok(())
    })?;
    if options.update {
        let text = serde_json::to_string_pretty(&rows).map_err(Failure::contents(&path))?;
        fs::write(&path, text + "\n").map_err(Failure::file(&path))?;
    }
    if options.check && !wrong.is_empty() {
        return Err(Failure::Other(wrong.join("\n")));
    }
    stages.finish();
    Ok(())
}

/// Counts all rows, with the CPUs on one socket and on two. Each run takes one CPU of this machine, so several run at
/// once; those that take longest come first.
fn count(program: &Path, rows: &[Row]) -> Result<Vec<[Counted; 2]>, Failure> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| u32::MAX - rows[*row].cpus);
    let sockets: [&[&str]; 2] = [&[], &["--two-sockets"]];
    let all = order
        .iter()
        .flat_map(|row| (0..rows[*row].starts()).flat_map(move |start| [0, 1].map(|far| (*row, start, far))));
    let (left, found) = (Mutex::new(all), Mutex::new(vec![[const { Vec::new() }; 2]; rows.len()]));
    let work = || {
        let next = || left.lock().expect("no panic while it was held").next();
        while let Some((row, start, far)) = next() {
            let run = run(program, &rows[row], start, sockets[far])?;
            found.lock().expect("no panic while it was held")[row][far].push(run);
        }
        Ok(())
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join =
            |worker: thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
        workers.into_iter().try_for_each(join)
    })?;
    let found = found.into_inner().expect("no panic while it was held");
    Ok(found.into_iter().map(|sockets| sockets.map(|runs| Counted::of(&runs))).collect())
}

fn run(program: &Path, row: &Row, start: usize, more: &[&str]) -> Result<Run, Failure> {
    let mut command = Command::new(program);
    command.args(["--hardware", &row.hardware, "--cpus", &row.cpus.to_string(), "--start", &start.to_string()]);
    command.args(more);
    if let Some(merge) = row.merge {
        command.args(["--merge", &merge.to_string()]);
    }
    let run: Run = serde_json::from_str(&output(&mut command)?).map_err(Failure::contents(program))?;
    // One command for each unmap at least, unless some are merged, and then some must be.
    if (run.commands < 1.0) != row.merge.is_some() {
        return Err(Failure::Other(format!("{} {}: {} commands for each unmap", row.who(), row.cpus, run.commands)));
    }
    Ok(run)
}

/// Names the counts that exceed their limits.
fn faults(row: &Row, counted: Counted) -> Vec<String> {
    let (who, Row { cpus, transfers_max, locked_max, .. }) = (row.who(), row);
    let checks =
        [("transfers", counted.transfers, *transfers_max), ("locked instructions", counted.locked, *locked_max)];
    let above = checks.into_iter().filter(|(_, count, most)| count > most);
    let intended = "if that is intended, run `cargo xtask scale --check --update`";
    above.map(|(what, count, most)| format!("{who} {cpus}: {count:.2} {what}, {most} allowed; {intended}")).collect()
}

/// The row with new counts.
fn renewed(row: &Row, near: Counted, far: Counted) -> Row {
    let limit = |count: f64, before: f64| {
        let renewed = (count * ALLOWANCE).max(count + ALLOWANCE_MIN);
        // Up, but not because of the last bit.
        limits::limit(count, before, (renewed * 100.0 - 1e-6).ceil() / 100.0)
    };
    let places = |number: f64, places: f64| (number * places).round() / places;
    Row {
        hardware: row.hardware.clone(),
        cpus: row.cpus,
        merge: row.merge,
        transfers: places(near.transfers, 1e3),
        locked: places(near.locked, 1e3),
        cycles: places(near.cycles, 10.0),
        cycles_range: near.cycles_range.map(|cycles| places(cycles, 10.0)),
        cycles_two_sockets: places(far.cycles, 10.0),
        transfers_max: limit(near.transfers, row.transfers_max),
        locked_max: limit(near.locked, row.locked_max),
    }
}

#[cfg(test)]
mod tests {
    use super::{Counted, LIMITS, Row, Run, faults, renewed};
    use crate::workspace::Workspace;

    fn row() -> Row {
        let counts = r#""transfers": 0, "locked": 0, "cycles": 0, "cycles_range": [0, 0], "cycles_two_sockets": 0"#;
        let limits = r#""transfers_max": 0, "locked_max": 0"#;
        serde_json::from_str(&format!(r#"{{"hardware": "fast", "cpus": 2, {counts}, {limits}}}"#)).expect("a row")
    }

    #[test]
    fn a_count_above_its_limit_is_named() {
        let run = |transfers, locked, cycles| Run { transfers, locked, cycles, commands: 1.0 };
        let counted =
            |transfers, locked| Counted::of(&[run(transfers - 1.0, locked, 3.0), run(transfers + 1.0, locked, 1.0)]);
        let row = renewed(&row(), counted(10.0, 0.1), counted(11.0, 0.1));
        assert_eq!((row.transfers_max, row.locked_max, row.transfers), (10.3, 0.11, 10.0));
        assert_eq!((row.cycles, row.cycles_range), (2.0, [1.0, 3.0]));
        assert!(faults(&row, counted(10.3, 0.11)).is_empty());
        let found = faults(&row, counted(10.4, 0.13));
        assert!(found[0].starts_with("fast 2: 10.40 transfers, 10.3 allowed; "), "{found:?}");
        assert!(found[1].starts_with("fast 2: 0.13 locked instructions, 0.11 allowed; "), "{found:?}");
        assert_eq!(renewed(&row, counted(10.2, 0.1), counted(0.0, 0.0)).transfers_max, 10.3, "it does not rise");
        assert_eq!(renewed(&row, counted(9.0, 0.1), counted(0.0, 0.0)).transfers_max, 9.27);
    }

    /// A limit below what was counted, or far above it, guards nothing.
    #[test]
    fn the_limits_fit_what_was_counted() {
        let path = Workspace::read().expect("metadata").root.join(LIMITS);
        let rows: Vec<Row> = serde_json::from_str(&std::fs::read_to_string(path).expect("limits")).expect("rows");
        assert!(rows.iter().any(|row| row.cpus == 128 && row.transfers > 0.0));
        for row in rows {
            for (count, most) in [(row.transfers, row.transfers_max), (row.locked, row.locked_max)] {
                assert!((count..=count * 1.05 + 0.03).contains(&most), "{row:?}");
            }
        }
    }
}
