//! Programs that are run for their output.

use crate::failure::{Failure, tail};
use crate::workspace::cargo;
use std::ffi::OsStr;
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

/// The command as a user would type it, with its variables.
pub(crate) fn line(command: &Command) -> String {
    let quoted = |word: &OsStr| match word.to_string_lossy() {
        word if word.contains(' ') => format!("\"{word}\""),
        word => word.into_owned(),
    };
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let variables = set.map(|(name, value)| format!("{}={}", name.display(), quoted(value)));
    let program = command.get_program();
    let program = if program == cargo() { OsStr::new("cargo") } else { program };
    let words = [program].into_iter().chain(command.get_args()).map(quoted);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{Command, cargo, line};

    #[test]
    fn a_command_can_be_typed_again() {
        let mut command = Command::new(cargo());
        let line = line(command.env("RUSTFLAGS", "--cfg loom").args(["test", "--release"]));
        assert_eq!(line, "RUSTFLAGS=\"--cfg loom\" cargo test --release");
    }
}
