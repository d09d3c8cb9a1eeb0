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

/// The options of the measurement.
pub(crate) struct Options {
    /// How often each program is run. The programs take turns, so other load on the machine affects all of them.
    pub(crate) rounds: u32,
    /// Whether to fail if a goal is missed.
    pub(crate) check: bool,
}

pub(crate) fn bench(workspace: &Workspace, options: &Options) -> Result<(), Failure> {
    let folder = workspace.root.join(&workspace.target).join("peers");
    let mut stages = Stages::new(workspace, "bench");
    let programs = build::all(workspace, &mut stages, &folder)?;
    let mut results = Results::default();
    let what = format!("{} rounds of every program", options.rounds);
    stages.stage("measure", &what, |_| {
        for round in 1..=options.rounds {
            eprintln!("xtask: round {round} of {}", options.rounds);
            for program in &programs.all {
                results.add(round, results::run(program)?);
            }
        }
        Ok(())
    })?;
    println!("\n{}", table::render(&results, options.rounds, &programs.linux));
    stages.finish();
    let missed = table::missed(&results);
    if options.check && missed > 0 { Err(Failure::Goals(missed)) } else { Ok(()) }
}
