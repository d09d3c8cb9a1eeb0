//! The errors of chores.

pub(crate) mod linux;

use std::io;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("stage `{stage}` failed; to repeat it:\n    {command}")]
    Stage { stage: String, command: String },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Self>),
    #[error("`cargo {subcommand}` is missing; `rustup component add {component}` installs it")]
    Component { subcommand: &'static str, component: &'static str },
    /// A cargo subcommand that comes in a package of its own is not installed.
    #[error("`cargo {subcommand}` is missing; `cargo install {package} --locked` installs it")]
    Install { subcommand: &'static str, package: &'static str },
    #[error("cannot run `{program}`: {error}")]
    Program { program: String, error: io::Error },
    #[error("cargo cannot describe the workspace: {0}")]
    Metadata(String),
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{}: {reason}", .path.display())]
    Contents { path: PathBuf, reason: String },
    #[error("QEMU is needed: {0}; install it, or name one in PORTCULLIS_QEMU")]
    Qemu(String),
    #[error("no kernel source: {0}; install linux-source-6.12, or name its archive in PORTCULLIS_LINUX_SOURCE")]
    LinuxSource(String),
    #[error("counting instructions needs valgrind: {0}")]
    Valgrind(String),
    #[error("{0} of the counts are above their limits; if that is intended, run `cargo xtask bench --check --update`")]
    Instructions(usize),
    #[error("{outside} of the pairs have a price outside {low} to {high} times the cycles that they take")]
    Prices { outside: usize, low: f64, high: f64 },
    #[error("{0} does not exist, or fails without a flaw")]
    MutantTest(String),
    #[error("{0} of the known mutants are not caught")]
    Mutants(usize),
    #[error("cargo-mutants: {0}")]
    CargoMutants(String),
    /// A sample of mutants misses its goals, and why.
    #[error("{}", .0.join("\n"))]
    Sample(Vec<String>),
    #[error("{0} goals are missed")]
    Goals(usize),
    #[error("stage `formatting` failed; to format the files:\n    rustfmt --edition 2024 {}", .0.join(" "))]
    Unformatted(Vec<String>),
    #[error("stage `generated tables` failed: {0} wrong; to write them:\n    cargo xtask readme --quick")]
    Tables(usize),
    #[error("stage `house rules` failed: {} broken; to repeat it:\n    cargo test --package xtask house", .0)]
    House(usize),
    #[error(transparent)]
    Linux(#[from] linux::Error),
}

impl Failure {
    /// An error about the file or folder at `path`.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    pub(crate) fn program(program: impl ToString) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Program { program: program.to_string(), error }
    }

    /// An error about the contents of the file at `path`.
    pub(crate) fn contents<E: ToString>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |reason| Self::Contents { path, reason: reason.to_string() }
    }
}
