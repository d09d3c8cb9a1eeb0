//! Developer chores: `cargo xtask test`, `cargo xtask check`, `cargo xtask bench`.

mod bench;
mod check;
mod failure;
mod house;
mod stages;
mod test;
mod workspace;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;
use workspace::Workspace;

/// Developer chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Every test: house rules, the no_std proof, the tests of the workspace, the loom models.
    Test,
    /// Formatting, clippy and the documentation, with warnings as errors.
    Check,
    /// How many operations per second the lab replays, under every design.
    Bench,
}

fn main() -> ExitCode {
    match perform(&Arguments::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn perform(chore: &Chore) -> Result<(), Failure> {
    let workspace = Workspace::read()?;
    match chore {
        Chore::Test => test::test(&workspace),
        Chore::Check => check::check(&workspace),
        Chore::Bench => bench::bench(&workspace),
    }
}
