//! `cargo xtask bench --peers`: builds and measures the library and its peers.

mod build;
mod carve;
mod results;
mod source;
mod table;

use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;
use results::Results;

/// The Rust crates among the peers. They have a separate workspace, so only this chore builds them.
const RUST_PEERS: &str = "benches/peers/rust/Cargo.toml";

/// Runs each program so many times. The programs take turns, so other load on the machine affects all of them. With
/// `check`, fails if a goal is missed.
pub(crate) fn bench(workspace: &Workspace, stages: &mut Stages<'_>, rounds: u32, check: bool) -> Result<(), Failure> {
    let folder = workspace.root.join(&workspace.target).join("peers");
    let (programs, linux) = build::all(workspace, stages, &folder)?;
    let mut results = Results::default();
    stages.stage("measure", &format!("{rounds} rounds of every program"), |_| {
        for round in 1..=rounds {
            eprintln!("xtask: round {round} of {rounds}");
            for program in &programs {
                results.add(round, results::run(program)?);
            }
        }
        Ok(())
    })?;
    println!("\n{}", table::render(&results, rounds, &linux));
    let missed = table::missed(&results);
    if check && missed > 0 { Err(Failure::Other(format!("{missed} goals are missed"))) } else { Ok(()) }
}
