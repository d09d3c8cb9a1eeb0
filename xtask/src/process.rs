//! Programs that are run for their output.

use crate::failure::{Failure, tail};
use std::process::{Command, Output, Stdio};

/// The standard output of a command, which must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = run(command)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let all = [output.stdout, output.stderr].concat();
        Err(Failure::Command { command: line(command), output: tail(&String::from_utf8_lossy(&all)) })
    }
}

/// The exit status and the output of a command.
pub(crate) fn run(command: &mut Command) -> Result<Output, Failure> {
    let output = command.stdin(Stdio::null()).output();
    output.map_err(Failure::program(command.get_program().display()))
}

/// The command as a user would type it.
pub(crate) fn line(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
