//! `cargo xtask bench --machine`: compares what a cost book of this machine predicts for a pair with what the pair
//! takes.
//!
//! The cost book prices steps. So this finds steps that are missing, steps that stand for too much work, and steps
//! that designs share by name although they do different work. The benchmark's invalidation is empty, so neither
//! number includes the driver and the hardware.

use crate::failure::Failure;
use crate::process::output;
use crate::stages::Stages;
use crate::workspace::Workspace;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The designs, each under strict protection.
const DESIGNS: [&str; 2] = ["portcullis", "magazine"];
/// The workload that is timed. The example below prices the same workload.
const WORKLOAD: &str = "page-1";
const EXAMPLE: &str = "priced_pairs";
/// The bounds of the ratio of priced to timed cycles.
const RATIO: [f64; 2] = [0.7, 1.3];
/// The number of times that this machine is priced and the pairs are timed, in turns. The smallest result of each
/// counts: other load, on this machine or on its physical host, comes and goes within seconds and lengthens one or
/// the other.
const ROUNDS: usize = 5;

/// Cycles of a pair of each design, in the order of [`DESIGNS`].
type Cycles = [f64; DESIGNS.len()];

/// Fails if a ratio is out of bounds.
pub(super) fn check(stages: &mut Stages<'_>) -> Result<(), Failure> {
    stages.cargo("machine", &[], &["build", "--profile", "benchmark", "--package", "portcullis-cli"])?;
    stages.cargo("priced", &[], &["build", "--release", "--package", "portcullis-sim", "--example", EXAMPLE])?;
    stages.stage("prices", "price a pair and time it, in turns", |workspace| {
        let (mut priced, mut timed) = ([f64::INFINITY; DESIGNS.len()], [f64::INFINITY; DESIGNS.len()]);
        for _ in 0..ROUNDS {
            for (least, now) in [(&mut priced, price(workspace)?), (&mut timed, time(workspace)?)] {
                least.iter_mut().zip(now).for_each(|(least, now)| *least = least.min(now));
            }
        }
        println!("{:<12} {:>14} {:>13} {:>6}", "design", "priced, cycles", "timed, cycles", "ratio");
        let mut outside = 0;
        for (design, (priced, timed)) in DESIGNS.iter().zip(priced.iter().zip(timed)) {
            let ratio = priced / timed;
            let is_within = (RATIO[0]..=RATIO[1]).contains(&ratio);
            outside += usize::from(!is_within);
            let remark = if is_within { "" } else { "  outside" };
            println!("{design:<12} {priced:>14.1} {timed:>13.1} {ratio:>6.2}{remark}");
        }
        let [low, high] = RATIO;
        let bounds = format!("{low} to {high} times the cycles that they take");
        let what = format!("{outside} of the pairs have a price outside {bounds}");
        if outside == 0 { Ok(()) } else { Err(Failure::Other(what)) }
    })
}

/// Writes a cost book of this machine, and prices the pairs with it.
fn price(workspace: &Workspace) -> Result<Cycles, Failure> {
    let target = workspace.root.join(&workspace.target);
    let path = target.join("machine.json");
    fs::write(&path, output(Command::new(target.join("benchmark/portcullis")).arg("machine"))?)
        .map_err(Failure::file(&path))?;
    let example = target.join("release/examples").join(EXAMPLE);
    let said = output(Command::new(&example).arg(&path).args(DESIGNS))?;
    cycles(&example, |design| said.lines().find_map(|line| line.strip_prefix(design)?.trim().parse().ok()))
}

fn time(workspace: &Workspace) -> Result<Cycles, Failure> {
    let program = workspace.root.join(&workspace.target).join("benchmark/portcullis");
    let mut bench = Command::new(&program);
    bench.args(["bench", "--designs", &DESIGNS.join(","), "--threads", "1", "--workload", WORKLOAD, "--json"]);
    let said = output(&mut bench)?;
    let timed: Value = serde_json::from_str(&said).map_err(Failure::contents(&program))?;
    let is_of = |row: &&Value, design: &str| row["design"] == design && row["protection"] == "strict";
    cycles(&program, |design| {
        timed["results"].as_array()?.iter().find(|row| is_of(row, design))?["cycles_per_pair"].as_f64()
    })
}

/// Collects the result of `of` for each design. Fails if a program printed nothing about one of them.
fn cycles(program: &Path, of: impl Fn(&str) -> Option<f64>) -> Result<Cycles, Failure> {
    let mut all = [0.0; DESIGNS.len()];
    for (cycles, design) in all.iter_mut().zip(DESIGNS) {
        let reason = format!("it printed no cycles for {design}; this machine may be unable to count cycles");
        *cycles = of(design).ok_or_else(|| Failure::contents(program)(reason))?;
    }
    Ok(all)
}
