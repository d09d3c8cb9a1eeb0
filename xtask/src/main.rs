//! Developer chores: `cargo xtask test`, `cargo xtask check`, `cargo xtask frames`, `cargo xtask conformance`, `cargo xtask fuzz`,
//! `cargo xtask soak`, `cargo xtask mutants`, `cargo xtask readme`, `cargo xtask bench`, `cargo xtask linux`.

mod apt;
mod bench;
mod check;
mod conformance;
mod examples;
mod failure;
mod frames;
mod fuzz;
mod house;
mod linux;
mod mutants;
mod peers;
mod qemu;
mod readme;
mod soak;
mod stages;
mod test;
mod workspace;

use clap::{ArgGroup, Parser, Subcommand};
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
    /// Every test: house rules, the no_std proof, the frames of its stack, the tests of the workspace (the conformance suite on QEMU among them), the
    /// examples, the loom models.
    Test,
    /// Formatting, clippy and the documentation, with warnings as errors.
    Check,
    /// The packages of `examples/`, each copied out of the workspace, built and tested there; the design once more with a flaw, which the test
    /// kit has to find.
    Examples,
    /// The conformance suite, on the model and on QEMU.
    Conformance {
        /// A line for every check, not only for those that fail.
        #[arg(long)]
        list: bool,
    },
    /// How much stack the operations of each design take, with a limit for each: the deepest path through the linked object of a `no_std`
    /// build, without what the host supplies. And that none of them panics for want of memory.
    Frames {
        /// The functions on each path, with what each of them takes.
        #[arg(long)]
        path: bool,
        /// Only the operations of this design.
        #[arg(long)]
        design: Option<String>,
    },
    /// The fuzz targets for a long time, with a fresh seed.
    Fuzz {
        /// How long each target runs.
        #[arg(long, default_value_t = 1200)]
        seconds: u64,
        /// The seed of the first case, to repeat a failure; the clock's unless given.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Two threads that map and unmap without end, after which nothing may be missing.
    Soak {
        /// Maps and unmaps, half of them under each protection.
        #[arg(long, default_value_t = 100_000_000)]
        operations: u64,
    },
    /// Plants flaws, one at a time, in a copy of the tree, and sees whether the tests catch them.
    #[command(group = ArgGroup::new("which").required(true))]
    Mutants {
        /// Those of the list in xtask/src/mutants: flaws that once no test saw. Each has to be caught by the test that is named for
        /// it.
        #[arg(long, group = "which")]
        known: bool,
        /// Only those with this in their name.
        #[arg(long, requires = "known")]
        only: Option<String>,
        /// So many that cargo-mutants makes up, in the files that safety rests on; docs/mutants.md says how to read what is
        /// printed. What was interrupted goes on.
        #[arg(long, group = "which", requires = "seed", value_parser = clap::value_parser!(u32).range(1..))]
        sample: Option<u32>,
        /// Which ones: the same seed draws the same.
        #[arg(long, requires = "sample")]
        seed: Option<u64>,
    },
    /// Writes the tables of the README and of its pages in docs anew, from what the program prints.
    Readme,
    /// How many operations per second the lab replays, under every design; and whether a cost book of this machine comes near what
    /// a pair takes here.
    ///
    /// With --check, nothing is timed: instructions are counted, under callgrind.
    Bench {
        /// Instead, what a map and an unmap cost here: ours beside Linux, Rust crates and the machine's floor.
        #[arg(long)]
        peers: bool,
        /// The second of these alone.
        #[arg(long, conflicts_with_all = ["peers", "check"])]
        machine: bool,
        /// How often each of them is run.
        #[arg(long, requires = "peers", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Count the instructions of a map and its unmap, and fail where they are more than benches/instructions.json allows.
        /// With --peers: fail where a goal is missed.
        #[arg(long)]
        check: bool,
        /// Write new limits, from what is counted now.
        #[arg(long, requires = "check", conflicts_with = "peers")]
        update: bool,
    },
    /// The module for Linux kernels.
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
        Chore::Test => test::test(&workspace),
        Chore::Check => check::check(&workspace),
        Chore::Examples => examples::examples(&workspace),
        Chore::Conformance { list } => conformance::conformance(&workspace, *list),
        Chore::Frames { path, design } => {
            frames::frames(&workspace, &frames::Options { path: *path, design: design.clone() })
        }
        Chore::Fuzz { seconds, seed } => fuzz::fuzz(&workspace, *seconds, *seed),
        Chore::Soak { operations } => soak::soak(&workspace, *operations),
        Chore::Mutants { sample: Some(size), seed: Some(seed), .. } => {
            mutants::sample(&workspace, *size as usize, *seed)
        }
        Chore::Mutants { only, .. } => mutants::mutants(&workspace, only.as_deref()),
        Chore::Readme => readme::readme(&workspace),
        Chore::Bench { peers: false, check: true, update, .. } => bench::instructions::check(&workspace, *update),
        Chore::Bench { machine: true, .. } => bench::machine(&workspace),
        Chore::Bench { peers: false, .. } => bench::bench(&workspace),
        Chore::Bench { rounds, check, .. } => {
            peers::bench(&workspace, &peers::Options { rounds: *rounds, check: *check })
        }
        Chore::Linux { command } => linux::linux(&workspace, command),
    }
}
