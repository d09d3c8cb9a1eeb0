//! The `portcullis` program: arguments, tables, progress and exit codes. What is computed is computed in `portcullis_lab`.

mod arguments;
mod capture;
mod compare;
mod list;
mod table;

use arguments::{Arguments, Command, CompareArguments};
use clap::Parser;
use std::process::ExitCode;

/// Exit status after a check that failed.
const CHECK_FAILED: u8 = 1;
/// Exit status after bad usage or input.
const BAD_INPUT: u8 = 2;

/// Why the program ends without a result.
enum Failure {
    /// Bad usage or input, with what was expected.
    Input(String),
    /// A check failed.
    Check(Vec<String>),
}

impl Failure {
    fn input(error: impl std::fmt::Display) -> Self {
        Self::Input(error.to_string())
    }
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let result = match command.unwrap_or_else(|| Command::Compare(Box::new(CompareArguments::parse_from(["compare"]))))
    {
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::List(arguments) => list::list(&arguments),
        Command::CaptureHelp => {
            print!("{}", capture::HELP);
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Input(message)) => {
            eprintln!("portcullis: {message}");
            ExitCode::from(BAD_INPUT)
        }
        Err(Failure::Check(messages)) => {
            for message in messages {
                eprintln!("portcullis: check failed: {message}");
            }
            ExitCode::from(CHECK_FAILED)
        }
    }
}
