//! `cargo xtask bench --machine`: what a cost book of this machine says of a pair, held against what the pair takes.
//!
//! Prices are of steps, so this finds steps that are missing, that stand for too much, or that are shared by designs which do different
//! work under one name. The benchmark's invalidation is empty, so what the driver and the hardware take is in neither number.

use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;
use serde::Deserialize;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The designs, each under strict protection.
const DESIGNS: [&str; 2] = ["portcullis", "magazine"];
/// What is timed; the example below prices the same.
const WORKLOAD: &str = "page-1";
const EXAMPLE: &str = "priced_pairs";
/// How far the priced may be from the timed.
const RATIO: [f64; 2] = [0.7, 1.3];
/// Times that this machine is priced and the pairs are timed, by turns. Of both the least counts: what else runs here, or on a
/// machine that this one is a part of, comes and goes within seconds, and lengthens one or the other.
const ROUNDS: usize = 5;

/// Of `bench --json`, what is needed here.
#[derive(Deserialize)]
struct Timed {
    results: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    design: String,
    protection: String,
    cycles_per_pair: Option<f64>,
}

/// Cycles of a pair of each design, in the order of [`DESIGNS`].
type Cycles = [f64; DESIGNS.len()];

/// The stages of this, which fail where a ratio is out of its bounds.
pub(super) fn stages(stages: &mut Stages<'_>) -> Result<(), Failure> {
    stages.cargo("machine", &[], &["build", "--profile", "benchmark", "--package", "portcullis-cli"])?;
    stages.cargo("priced", &[], &["build", "--release", "--package", "portcullis-sim", "--example", EXAMPLE])?;
    stages.stage("prices", "what a pair is priced at and what it takes, by turns", |workspace| {
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
        if outside == 0 { Ok(()) } else { Err(Failure::Prices { outside, low: RATIO[0], high: RATIO[1] }) }
    })
}

/// Prices this machine, and the pairs by that.
fn price(workspace: &Workspace) -> Result<Cycles, Failure> {
    let target = workspace.root.join(&workspace.target);
    let path = target.join("machine.json");
    fs::write(&path, output(&target.join("benchmark/portcullis"), &["machine"])?).map_err(Failure::file(&path))?;
    let example = target.join("release/examples").join(EXAMPLE);
    let machine = path.display().to_string();
    let said = output(&example, &[&[machine.as_str()], &DESIGNS[..]].concat())?;
    cycles(&example, |design| said.lines().find_map(|line| line.strip_prefix(design)?.trim().parse().ok()))
}

/// Times the pairs.
fn time(workspace: &Workspace) -> Result<Cycles, Failure> {
    let program = workspace.root.join(&workspace.target).join("benchmark/portcullis");
    let designs = DESIGNS.join(",");
    let said = output(&program, &["bench", "--designs", &designs, "--threads", "1", "--workload", WORKLOAD, "--json"])?;
    let timed: Timed = serde_json::from_str(&said)
        .map_err(|error| Failure::Contents { path: program.clone(), reason: error.to_string() })?;
    let is_of = |row: &&Row, design: &str| row.design == design && row.protection == "strict";
    cycles(&program, |design| timed.results.iter().find(|row| is_of(row, design))?.cycles_per_pair)
}

/// What `of` knows of each design; fails where a program has said nothing of one.
fn cycles(program: &Path, of: impl Fn(&str) -> Option<f64>) -> Result<Cycles, Failure> {
    let mut all = [0.0; DESIGNS.len()];
    for (cycles, design) in all.iter_mut().zip(DESIGNS) {
        let reason = || format!("it printed no cycles for {design}: does anything count them here?");
        *cycles = of(design).ok_or_else(|| Failure::Contents { path: program.to_owned(), reason: reason() })?;
    }
    Ok(all)
}

/// What a program prints.
fn output(program: &Path, arguments: &[&str]) -> Result<String, Failure> {
    let name = || program.display().to_string();
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::Program { program: name(), error })?;
    if !output.status.success() {
        let command = format!("{} {}", name(), arguments.join(" "));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return Err(Failure::Stage { stage: "prices".to_owned(), command });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
