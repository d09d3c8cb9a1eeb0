//! `cargo xtask bench --check`: counts the instructions of a map and its unmap under callgrind, and compares them
//! with limits. They are counted as the benchmarks are built and as users build the library, and must not differ much.
//!
//! Counts do not depend on the load of the machine, so they can guard what times cannot. They do depend on the
//! compiler, and callgrind does not support restartable sequences: operations of a design on per-CPU words are
//! counted with locked instructions.

use crate::apt;
use crate::failure::Failure;
use crate::limits;
use crate::process::run;
use crate::stages::Stages;
use crate::workspace::Workspace;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
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
/// The profile of all timings, which optimizes all crates as one, that of the program, and the one that users have.
const PROFILES: [&str; 3] = ["benchmark", "release", "plain"];
/// The most instructions in the other profiles, as a multiple of those in the first.
const RATIO_MAX: f64 = 1.2;

/// A count and its limit.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Limit {
    pub(crate) design: String,
    pub(crate) protection: String,
    pub(crate) workload: String,
    /// Instructions per pair at the last update.
    pub(crate) counted: f64,
    /// The same in the profile of the program.
    pub(crate) release: f64,
    /// The same in the profile that users have.
    pub(crate) plain: f64,
    /// Instructions per pair at most.
    pub(crate) limit: f64,
}

/// Counts and compares with the limits, or renews the limits if `update` is set.
pub(super) fn check(workspace: &Workspace, stages: &mut Stages<'_>, update: bool) -> Result<(), Failure> {
    stages.stage("valgrind", "find it, or install it", |_| apt::require(VALGRIND, VALGRIND).map_err(failure))?;
    for profile in PROFILES {
        let build = ["build", "--profile", profile, "--package", "portcullis-bench", "--example", PROGRAM];
        stages.cargo(&format!("build {profile}"), &[], &build)?;
    }
    let path = workspace.root.join(LIMITS);
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let mut limits: Vec<Limit> = serde_json::from_str(&text).map_err(Failure::contents(&path))?;
    let mut wrong = Vec::new();
    stages.stage("count", "the instructions per pair, for each limit", |workspace| {
        let target = workspace.root.join(&workspace.target);
        let programs = PROFILES.map(|profile| target.join(profile).join("examples").join(PROGRAM));
        let head = format!("{:<14} {:<9} {:<28}", "design", "protection", "workload");
        println!("{head} {:>9} {:>9} {:>9} {:>9}", "counted", "limit", PROFILES[1], PROFILES[2]);
        for limit in &mut limits {
            let counts = count(&programs, limit)?;
            if update {
                *limit = renewed(limit, counts);
            }
            let found = faults(limit, counts);
            let remark = if found.is_empty() { "" } else { "  above" };
            let row = format!("{:<14} {:<9} {:<28}", limit.design, limit.protection, limit.workload);
            let [counted, release, plain] = counts;
            let ratios = format!("{:>8.2}x {:>8.2}x", release / counted, plain / counted);
            println!("{row} {counted:>9.1} {:>9.1} {ratios}{remark}", limit.limit);
            wrong.extend(found);
        }
        Ok(())
    })?;
    if update {
        let text = serde_json::to_string_pretty(&limits).map_err(Failure::contents(&path))?;
        fs::write(&path, text + "\n").map_err(Failure::file(&path))?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Other(wrong.join("\n"))) }
}

/// What is wrong with the counts of a row in the profiles.
fn faults(limit: &Limit, counts: [f64; 3]) -> Vec<String> {
    let Limit { design, protection, workload, limit, .. } = limit;
    let row = format!("{design} {protection} {workload}");
    let mut faults = Vec::new();
    let counted = counts[0];
    if counted > *limit {
        let intended = "if that is intended, run `cargo xtask bench --check --update`";
        faults.push(format!("{row}: {counted:.1} instructions, {limit:.1} allowed; {intended}"));
    }
    for (profile, count) in PROFILES.into_iter().zip(counts).skip(1) {
        let ratio = count / counted;
        if ratio > RATIO_MAX {
            let what = format!("{ratio:.2} times the instructions of `{}`, {RATIO_MAX} allowed", PROFILES[0]);
            faults.push(format!("{row}: the profile `{profile}` takes {what}; what is not inlined across crates?"));
        }
    }
    faults
}

/// The row with new counts.
fn renewed(limit: &Limit, counts: [f64; 3]) -> Limit {
    let at_most = limits::limit(counts[0], limit.limit, (counts[0] * ALLOWANCE).ceil());
    let [counted, release, plain] = counts.map(|count| (count * 10.0).round() / 10.0);
    Limit { counted, release, plain, limit: at_most, ..limit.clone() }
}

/// Counts the pairs of the programs one after the other: what a deferred design does depends on time.
fn count(programs: &[PathBuf; 3], limit: &Limit) -> Result<[f64; 3], Failure> {
    let [benchmark, release, plain] = programs.each_ref().map(|program| instructions_per_pair(program, limit));
    Ok([benchmark?, release?, plain?])
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
    use super::{LIMITS, Limit, RATIO_MAX, collected, faults, renewed};
    use crate::workspace::Workspace;

    #[test]
    fn reads_what_callgrind_prints() {
        let said = "==7== Events    : Ir\n==7== Collected : 3145728\n==7== \n==7== I   refs:      3,145,728\n";
        assert_eq!(collected(said), Some(3_145_728));
        assert_eq!(collected("valgrind: no such program\n"), None);
    }

    fn limit() -> Limit {
        let names = r#""design": "a", "protection": "strict", "workload": "page-1""#;
        let counts = r#""counted": 1.0, "release": 1.0, "plain": 1.0, "limit": 2.0"#;
        serde_json::from_str(&format!("{{{names}, {counts}}}")).expect("a line")
    }

    #[test]
    fn limits_allow_a_little() {
        let limit = renewed(&limit(), [100.04, 115.0, 110.06]);
        assert_eq!((limit.counted, limit.release, limit.plain, limit.limit), (100.0, 115.0, 110.1, 104.0));
        assert_eq!(renewed(&limit, [101.0; 3]).limit, 104.0, "a count within its limit does not raise it");
        assert_eq!(renewed(&limit, [90.0; 3]).limit, 93.0);
    }

    #[test]
    fn a_row_above_its_limit_or_its_ratio_is_named() {
        let limit = renewed(&limit(), [100.0; 3]);
        assert!(faults(&limit, [103.0, 123.6, 123.6]).is_empty(), "all are as high as they may be");
        let wrong = [
            ([103.1, 100.0, 100.0], "103.1 instructions"),
            ([100.0, 120.6, 100.0], "`release` takes 1.21 times"),
            ([100.0, 100.0, 120.6], "`plain` takes 1.21 times"),
        ];
        for (counts, says) in wrong {
            let found = faults(&limit, counts);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with("a strict page-1: ") && found[0].contains(says), "{found:?}");
        }
        assert_eq!(faults(&limit, [200.0, 300.0, 300.0]).len(), 3);
    }

    /// A limit below what was counted, or far above it, guards nothing.
    #[test]
    fn the_limits_guard_something() {
        let path = Workspace::read().expect("a workspace").root.join(LIMITS);
        let limits: Vec<Limit> =
            serde_json::from_str(&std::fs::read_to_string(path).expect("limits")).expect("lines of limits");
        assert!(!limits.is_empty());
        for Limit { design, workload, counted, release, plain, limit, .. } in limits {
            assert!(counted > 0.0 && (counted..=counted * 1.05 + 1.0).contains(&limit), "{design} {workload}");
            assert!(
                [release, plain].iter().all(|&count| count > 0.0 && count <= counted * RATIO_MAX),
                "{design} {workload}"
            );
        }
    }
}
