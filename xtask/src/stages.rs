//! The stages of a chore: commands that run one after the other until one fails, each with its time.

use crate::failure::Failure;
use crate::process::{self, line};
use crate::workspace::{Workspace, cargo};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A running chore.
pub(crate) struct Stages<'w> {
    workspace: &'w Workspace,
    chore: &'static str,
    begun: Instant,
    /// The stages that have succeeded, with the seconds that each took.
    done: Vec<(String, f64)>,
}

impl<'w> Stages<'w> {
    pub(crate) fn new(workspace: &'w Workspace, chore: &'static str) -> Self {
        Self { workspace, chore, begun: Instant::now(), done: Vec::new() }
    }

    /// Runs a stage that is a cargo command, with its output shown.
    pub(crate) fn cargo(&mut self, name: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Result<(), Failure> {
        let mut command = self.workspace.cargo(arguments);
        let line = line(command.envs(variables.iter().copied()));
        self.stage(name, &line, |_| succeed(name, &mut command))
    }

    /// Runs a stage and returns the result of `work`; `what` describes the stage.
    pub(crate) fn stage<T>(
        &mut self,
        name: &str,
        what: &str,
        work: impl FnOnce(&Workspace) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        println!("\n==> {name}: {what}");
        let begun = Instant::now();
        let result = work(self.workspace)?;
        let seconds = begun.elapsed().as_secs_f64();
        println!("==> {name}: ok, {seconds:.1} s");
        self.done.push((name.to_owned(), seconds));
        Ok(result)
    }

    /// Reports that all stages have succeeded.
    pub(crate) fn finish(self) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let stages: Vec<String> = self.done.iter().map(|(name, seconds)| format!("{name} {seconds:.1} s")).collect();
        println!("\nxtask {}: passed in {seconds:.1} s ({})", self.chore, stages.join(", "));
    }
}

/// Runs a command of a stage, with its output shown. The command reports its own errors.
pub(crate) fn succeed(stage: &str, command: &mut Command) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).status();
    let status = status.map_err(Failure::program(command.get_program().display()))?;
    let failed = || Failure::Stage { stage: stage.to_owned(), command: line(command) };
    status.success().then_some(()).ok_or_else(failed)
}

/// Fails if a cargo subcommand is not installed.
pub(crate) fn require(subcommand: &str, component: &str) -> Result<(), Failure> {
    let how = format!("`cargo {subcommand}` is missing; `rustup component add {component}` installs it");
    if installed(subcommand)? { Ok(()) } else { Err(Failure::Other(how)) }
}

/// Whether a cargo subcommand is installed.
pub(crate) fn installed(subcommand: &str) -> Result<bool, Failure> {
    Ok(process::run(Command::new(cargo()).args([subcommand, "--version"]))?.status.success())
}
