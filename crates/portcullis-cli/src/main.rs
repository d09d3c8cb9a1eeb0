//! The `portcullis` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    portcullis_cli::run(&portcullis_cli::Registry::default())
}
