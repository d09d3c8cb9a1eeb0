//! The program `portcullis`: arguments, tables, progress and exit codes. The crates that it uses compute what it
//! prints. Each command has a file, and so does each thing that several commands share. This folder therefore has more
//! files than others.
//!
//! [`run`] is the program with the designs of a [`Registry`]. A crate with designs of its own makes a program of three
//! lines, whose commands take them like all others:
//!
//! ```text
//! fn main() -> std::process::ExitCode {
//!     portcullis_cli::run(&portcullis_cli::Registry::default().with::<MyDesign>())
//! }
//! ```
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod arguments;
mod attack;
#[cfg(target_os = "linux")]
mod bench;
mod bundled;
mod capture;
mod compare;
mod devices;
mod figures;
mod flat;
mod html;
mod list;
#[cfg(target_os = "linux")]
mod machine;
mod machine_file;
mod nearest;
mod plan;
mod registry;
mod replacement;
mod shards;
mod share;
mod show;
mod simulate;
mod stop;
mod table;
mod totals;
mod works;

pub use registry::{AnyDesign, Registry};

use arguments::{Arguments, Command, CompareArguments};
use clap::Parser;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit status when all is well.
const FINE: u8 = 0;
/// Exit status after a check that failed.
const CHECK_FAILED: u8 = 1;
/// Exit status after bad usage or input.
const BAD_INPUT: u8 = 2;

/// Why the program ends without a result.
enum Failure {
    /// The command line cannot be parsed.
    Usage(clap::Error),
    /// Bad usage or input, with what was expected.
    Input(String),
    /// A check failed.
    Check(Vec<String>),
    /// The result could not be written.
    Output(io::Error),
    /// The user stopped the program, and results are missing.
    Stopped,
    /// Several steps failed. The exit status is that of the first failure that has one.
    Several(Vec<Self>),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failure {
    fn input(error: impl std::fmt::Display) -> Self {
        Self::Input(error.to_string())
    }

    /// Combines the results of several steps. Fails with all failures, if there are any.
    fn of(steps: impl IntoIterator<Item = Result<(), Self>>) -> Result<(), Self> {
        let failures: Vec<Self> = steps.into_iter().filter_map(Result::err).collect();
        if failures.is_empty() { Ok(()) } else { Err(Self::Several(failures)) }
    }

    /// The exit status for this failure.
    fn status(&self) -> u8 {
        match self {
            Self::Check(_) => CHECK_FAILED,
            // The reader closed the pipe because it has seen enough.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => FINE,
            Self::Usage(_) | Self::Input(_) | Self::Output(_) => BAD_INPUT,
            Self::Stopped => stop::STOPPED,
            Self::Several(failures) => failures.iter().map(Self::status).find(|status| *status != FINE).unwrap_or(FINE),
        }
    }

    /// Prints what is wrong to standard error.
    fn report(&self) {
        match self {
            // If standard error cannot be written, there is no other place to report to.
            Self::Usage(error) => drop(error.print()),
            Self::Input(message) => eprintln!("portcullis: {message}"),
            Self::Output(_) if self.status() == FINE => {}
            Self::Output(error) => eprintln!("portcullis: the result could not be written: {error}"),
            Self::Check(messages) => {
                messages.iter().for_each(|message| eprintln!("portcullis: check failed: {message}"));
            }
            Self::Stopped => eprintln!("portcullis: stopped; what was not done is missing"),
            Self::Several(failures) => failures.iter().for_each(Self::report),
        }
    }
}

/// Fails with these messages, if there are any.
fn verdict(failed: &[String]) -> Result<(), Failure> {
    if failed.is_empty() { Ok(()) } else { Err(Failure::Check(failed.to_vec())) }
}

/// Runs the command of the command line. Returns the exit status of the program.
pub fn run(registry: &Registry) -> ExitCode {
    let status = command(registry).map_or_else(
        |failure| {
            failure.report();
            failure.status()
        },
        |()| FINE,
    );
    ExitCode::from(status)
}

fn command(registry: &Registry) -> Result<(), Failure> {
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) if error.use_stderr() => return Err(Failure::Usage(error)),
        // Help and the version are results like any other.
        Err(help) => return help.print().and_then(|()| io::stdout().flush()).map_err(Failure::Output),
    };
    let mut out = io::stdout().lock();
    match command.unwrap_or_else(|| Command::Compare(Box::new(CompareArguments::parse_from(["compare"])))) {
        Command::Compare(arguments) => compare::compare(&arguments, registry, &mut out),
        Command::Attack(arguments) => attack::attack(&arguments, registry, &mut out),
        Command::Simulate(arguments) => simulate::simulate(&arguments, registry, &mut out),
        Command::Figures(arguments) => figures::figures(&arguments, registry, &mut out),
        #[cfg(target_os = "linux")]
        Command::Bench(arguments) => bench::bench(&arguments, registry, &mut out),
        #[cfg(target_os = "linux")]
        Command::Machine => machine::machine(&mut out),
        Command::List(arguments) => list::list(&arguments, registry, &mut out),
        Command::CaptureHelp => out.write_all(capture::HELP.as_bytes()).map_err(Failure::Output),
    }
}
