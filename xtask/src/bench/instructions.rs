//! `cargo xtask bench --check`: counts the instructions of a map and its unmap under callgrind, and compares them
//! with limits.
//!
//! Counts do not depend on the load of the machine, so they can guard what times cannot. They do depend on the
//! compiler, and callgrind does not support restartable sequences: operations of a design on per-CPU words are
//! counted with locked instructions.

use crate::apt;
use crate::failure::Failure;
use crate::process::run;
use crate::stages::Stages;
use crate::workspace::Workspace;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;

pub(crate) const LIMITS: &str = "benches/instructions.json";
/// The program whose instructions are counted, an example of `portcullis-bench`.
const PROGRAM: &str = "pairs";
const VALGRIND: &str = "valgrind";
/// The numbers of pairs of two runs. The difference of the runs is due to the pairs alone, without start-up and
/// exit.
const PAIRS: [u64; 2] = [8192, 24_576];
/// The factor by which a new limit exceeds the count.
const ALLOWANCE: f64 = 1.03;

/// A count and its limit.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Limit {
    pub(crate) design: String,
    pub(crate) protection: String,
    pub(crate) workload: String,
    /// Instructions per pair at the last update.
    pub(crate) counted: f64,
    /// Instructions per pair at most.
    pub(crate) limit: f64,
}

/// Counts and compares with the limits, or renews the limits if `update` is set.
pub(super) fn check(workspace: &Workspace, stages: &mut Stages<'_>, update: bool) -> Result<(), Failure> {
    stages.stage("valgrind", "find it, or install it", |_| apt::require(VALGRIND, VALGRIND).map_err(failure))?;
    let build = ["build", "--profile", "benchmark", "--package", "portcullis-bench", "--example", PROGRAM];
    stages.cargo("build", &[], &build)?;
    let path = workspace.root.join(LIMITS);
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let mut limits: Vec<Limit> = serde_json::from_str(&text).map_err(Failure::contents(&path))?;
    let mut above = 0;
    stages.stage("count", "the instructions per pair, for each limit", |workspace| {
        let program = workspace.root.join(&workspace.target).join("benchmark/examples").join(PROGRAM);
        println!("{:<14} {:<9} {:<28} {:>9} {:>9}", "design", "protection", "workload", "counted", "limit");
        for limit in &mut limits {
            let counted = instructions_per_pair(&program, limit)?;
            if update {
                *limit = renewed(limit, counted);
            }
            let is_above = counted > limit.limit;
            above += usize::from(is_above);
            let Limit { design, protection, workload, limit, .. } = limit;
            let remark = if is_above { "  above" } else { "" };
            println!("{design:<14} {protection:<9} {workload:<28} {counted:>9.1} {limit:>9.1}{remark}");
        }
        Ok(())
    })?;
    if update {
        let text = serde_json::to_string_pretty(&limits).map_err(Failure::contents(&path))?;
        fs::write(&path, text + "\n").map_err(Failure::file(&path))?;
    }
    let intended = "if that is intended, run `cargo xtask bench --check --update`";
    let what = format!("{above} of the counts are above their limits; {intended}");
    if above > 0 { Err(Failure::Other(what)) } else { Ok(()) }
}

/// A limit for the new count. It only rises if the count is above it, so small losses cannot add up.
fn renewed(limit: &Limit, counted: f64) -> Limit {
    let renewed = (counted * ALLOWANCE).ceil();
    let at_most = if counted > limit.limit { renewed } else { renewed.min(limit.limit) };
    Limit { counted: (counted * 10.0).round() / 10.0, limit: at_most, ..limit.clone() }
}

fn instructions_per_pair(program: &Path, limit: &Limit) -> Result<f64, Failure> {
    let count = |pairs: u64| {
        let mut valgrind = Command::new(VALGRIND);
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
        valgrind.args([&limit.design, &limit.protection, &limit.workload, &pairs.to_string()]);
        let output = run(&mut valgrind)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        collected(&said).filter(|_| output.status.success()).ok_or_else(|| failure(said))
    };
    let [few, many] = [count(PAIRS[0])?, count(PAIRS[1])?];
    Ok((many as f64 - few as f64) / (PAIRS[1] - PAIRS[0]) as f64)
}

/// The sum that callgrind prints at the end, as in `==1== Collected : 123`.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

fn failure(why: String) -> Failure {
    Failure::Other(format!("counting instructions needs valgrind: {why}"))
}

#[cfg(test)]
mod tests {
    use super::{LIMITS, Limit, collected, renewed};
    use crate::workspace::Workspace;

    #[test]
    fn reads_what_callgrind_prints() {
        let said = "==7== Events    : Ir\n==7== Collected : 3145728\n==7== \n==7== I   refs:      3,145,728\n";
        assert_eq!(collected(said), Some(3_145_728));
        assert_eq!(collected("valgrind: no such program\n"), None);
    }

    #[test]
    fn limits_allow_a_little() {
        let text = r#"{"design": "a", "protection": "strict", "workload": "page-1", "counted": 1.0, "limit": 2.0}"#;
        let limit: Limit = serde_json::from_str(text).expect("a line");
        let limit = renewed(&limit, 100.04);
        assert_eq!((limit.counted, limit.limit), (100.0, 104.0));
        assert_eq!(renewed(&limit, 101.0).limit, 104.0, "a count within its limit does not raise it");
        assert_eq!(renewed(&limit, 90.0).limit, 93.0);
    }

    /// A limit below what was counted, or far above it, guards nothing.
    #[test]
    fn the_limits_guard_something() {
        let path = Workspace::read().expect("a workspace").root.join(LIMITS);
        let limits: Vec<Limit> =
            serde_json::from_str(&std::fs::read_to_string(path).expect("limits")).expect("lines of limits");
        assert!(!limits.is_empty());
        for Limit { design, workload, counted, limit, .. } in limits {
            assert!(counted > 0.0 && (counted..=counted * 1.05 + 1.0).contains(&limit), "{design} {workload}");
        }
    }
}
