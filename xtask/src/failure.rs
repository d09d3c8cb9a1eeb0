//! Why a chore was not done.

pub(crate) mod linux;

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a chore was not done.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A command of a stage ended with an error, which it has printed.
    #[error("stage `{stage}` failed; to repeat it:\n    {command}")]
    Stage { stage: String, command: String },
    /// Some of several stages failed that do not depend on each other.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Self>),
    /// A cargo subcommand is not installed.
    #[error("`cargo {subcommand}` is missing; `rustup component add {component}` installs it")]
    Component { subcommand: &'static str, component: &'static str },
    /// A cargo subcommand is not installed that is a package of its own.
    #[error("`cargo {subcommand}` is missing; `cargo install {package} --locked` installs it")]
    Install { subcommand: &'static str, package: &'static str },
    /// A program could not be started at all.
    #[error("cannot run `{program}`: {error}")]
    Program { program: String, error: io::Error },
    /// `cargo metadata` refused, or said what it should not.
    #[error("cargo cannot describe the workspace: {0}")]
    Metadata(String),
    /// A file or folder could not be read.
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    /// A file holds what it should not.
    #[error("{}: {reason}", .path.display())]
    Contents { path: PathBuf, reason: String },
    /// There is no QEMU, and none could be installed.
    #[error("QEMU is needed: {0}; install it, or name one in PORTCULLIS_QEMU")]
    Qemu(String),
    /// The kernel's source is not to be had.
    #[error(
        "there is no kernel source: {0}; install linux-source-6.12, or name its archive in PORTCULLIS_LINUX_SOURCE"
    )]
    LinuxSource(String),
    /// There is no valgrind, and none could be installed.
    #[error("counting instructions needs valgrind: {0}")]
    Valgrind(String),
    /// The fast paths have become longer.
    #[error("{0} of the counts are above their limits; where that is meant, `cargo xtask bench --check --update`")]
    Instructions(usize),
    /// A cost book of this machine is not what its designs take.
    #[error("{outside} of the pairs are priced outside {low} to {high} of what they take")]
    Prices { outside: usize, low: f64, high: f64 },
    /// The test that is to catch a flaw does not pass without it.
    #[error("{0} does not pass, or is not there, where nothing is planted")]
    MutantTest(String),
    /// Flaws that no test has caught.
    #[error("{0} of the known mutants are not caught")]
    Mutants(usize),
    /// `cargo mutants` refused, or said what it should not.
    #[error("cargo-mutants cannot list the mutants: {0}")]
    MutantList(String),
    /// A sample of mutants is not good enough, and why.
    #[error("{}", .0.join("\n"))]
    Sample(Vec<String>),
    /// Goals of `bench --peers --check` are missed.
    #[error("{0} goals are missed")]
    Goals(usize),
    /// These files are not formatted.
    #[error("stage `formatting` failed; to format what is not:\n    rustfmt --edition 2024 {}", .0.join(" "))]
    Unformatted(Vec<String>),
    /// Tables of documents that do not show what the code says.
    #[error("stage `generated tables` failed: {0} wrong; to write them:\n    cargo xtask readme --quick")]
    Tables(usize),
    /// House rules are broken.
    #[error("stage `house rules` failed: {} broken; to repeat it:\n    cargo test --package xtask house", .0)]
    House(usize),
    /// Something about a kernel or its module.
    #[error(transparent)]
    Linux(#[from] linux::Error),
}

impl Failure {
    /// An error about the file or folder at `path`.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }
}
