//! Developer chores: `cargo xtask help` lists them.

mod apt;
mod bench;
mod check;
mod columns;
mod commands;
mod examples;
mod failure;
#[cfg(test)]
mod fixture;
mod frames;
mod fuzz;
mod house;
mod lexer;
mod limits;
mod linux;
mod mutants;
mod peers;
mod process;
mod published;
mod scale;
mod stages;
mod tables;
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
    /// Run every test: the house rules, the no_std proof, its stack frames, the tests of the workspace (with the
    /// conformance suite on QEMU), the examples, the published packages by themselves, the loom models.
    Test {
        /// Run only what one runs at each step: the unit tests, and the tests of the library, the driver, the traces
        /// and the test kit.
        #[arg(value_name = "quick", value_parser = ["quick"])]
        extent: Option<String>,
    },
    /// Check the house rules, generated tables, formatting, clippy, the oldest supported compiler and the
    /// documentation, with warnings as errors.
    Check,
    /// Run the conformance suite on the model and on QEMU.
    Conformance {
        /// Print a line for every check, not only for those that fail.
        #[arg(long)]
        list: bool,
    },
    /// Print how much stack the operations of each design take, and check it against limits. The number is that of
    /// the deepest path through the linked object of a `no_std` build, without what the host supplies. Also check
    /// that no operation panics on a failed allocation.
    Frames(frames::Options),
    /// Run the fuzz targets for a long time, with a new seed.
    Fuzz {
        /// How long each target runs.
        #[arg(long, default_value_t = 1200)]
        seconds: u64,
        /// The seed of the first case, to repeat a failure. By default it comes from the clock.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Run two threads that map and unmap for a long time, and check that nothing has leaked.
    Soak {
        /// The number of maps and unmaps, half of them under each protection.
        #[arg(long, default_value_t = 100_000_000)]
        operations: u64,
    },
    /// Plant flaws, one at a time, in a copy of the tree, and check that the tests catch them.
    Mutants(mutants::Options),
    /// Rewrite the tables of the documents that repeat the code, and those of the README and its pages that show
    /// output of the program.
    Readme {
        /// Only the tables that need no run of the program.
        #[arg(long)]
        quick: bool,
    },
    /// Measure how many operations per second the lab replays under every design and how many packets it simulates, and
    /// check that a cost book of this machine predicts what a pair takes here.
    ///
    /// With --check, count instructions under callgrind instead, and time nothing.
    Bench(bench::Options),
    /// Count the cache lines that move between CPUs, and locked instructions, for a map and its unmap on 1 to 128
    /// virtual CPUs, in the code of the library and of the driver.
    Scale(scale::Options),
    /// Build, test and measure the module for Linux kernels.
    Linux {
        #[command(subcommand)]
        command: linux::Linux,
    },
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
        Chore::Test { extent: None } => test::all(&workspace),
        Chore::Test { extent: Some(_) } => test::quick(&workspace),
        Chore::Check => check::check(&workspace),
        Chore::Conformance { list } => commands::conformance(&workspace, *list),
        Chore::Frames(options) => frames::frames(&workspace, options),
        Chore::Fuzz { seconds, seed } => fuzz::fuzz(&workspace, *seconds, *seed),
        Chore::Soak { operations } => commands::soak(&workspace, *operations),
        Chore::Mutants(options) => mutants::mutants(&workspace, options),
        Chore::Readme { quick } => commands::readme(&workspace, *quick),
        Chore::Bench(options) => {
            bench::bench(&workspace, options)?;
            if options.update { tables::write(&workspace) } else { Ok(()) }
        }
        Chore::Scale(options) => {
            scale::scale(&workspace, options)?;
            if options.update { tables::write(&workspace) } else { Ok(()) }
        }
        Chore::Linux { command } => linux::linux(&workspace, command),
    }
}
