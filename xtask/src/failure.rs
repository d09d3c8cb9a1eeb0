//! The errors of chores.

pub(crate) mod linux;

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a chore failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A command of a stage failed, and has printed why.
    #[error("stage `{stage}` failed; to repeat it:\n    {command}")]
    Stage { stage: String, command: String },
    /// Some of several independent stages failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Self>),
    /// A cargo subcommand is not installed.
    #[error("`cargo {subcommand}` is missing; `rustup component add {component}` installs it")]
    Component { subcommand: &'static str, component: &'static str },
    /// A cargo subcommand that comes in a package of its own is not installed.
    #[error("`cargo {subcommand}` is missing; `cargo install {package} --locked` installs it")]
    Install { subcommand: &'static str, package: &'static str },
    /// A program could not be started.
    #[error("cannot run `{program}`: {error}")]
    Program { program: String, error: io::Error },
    /// `cargo metadata` failed, or its output was not understood.
    #[error("cargo cannot describe the workspace: {0}")]
    Metadata(String),
    /// A file or folder could not be read.
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    /// A file has unexpected contents.
    #[error("{}: {reason}", .path.display())]
    Contents { path: PathBuf, reason: String },
    /// QEMU is not installed, and could not be installed.
    #[error("QEMU is needed: {0}; install it, or name one in PORTCULLIS_QEMU")]
    Qemu(String),
    /// The kernel's source could not be obtained.
    #[error(
        "there is no kernel source: {0}; install linux-source-6.12, or name its archive in PORTCULLIS_LINUX_SOURCE"
    )]
    LinuxSource(String),
    /// valgrind is not installed, and could not be installed.
    #[error("counting instructions needs valgrind: {0}")]
    Valgrind(String),
    /// The fast paths take more instructions than their limits allow.
    #[error("{0} of the counts are above their limits; if that is intended, run `cargo xtask bench --check --update`")]
    Instructions(usize),
    /// A cost book of this machine does not predict what its designs take.
    #[error("{outside} of the pairs have a price outside {low} to {high} times the cycles that they take")]
    Prices { outside: usize, low: f64, high: f64 },
    /// The test that should catch a flaw fails without the flaw.
    #[error("{0} does not exist, or fails without a flaw")]
    MutantTest(String),
    /// There are flaws that no test has caught.
    #[error("{0} of the known mutants are not caught")]
    Mutants(usize),
    /// `cargo mutants` failed, or its output was not understood.
    #[error("cargo-mutants cannot list the mutants: {0}")]
    MutantList(String),
    /// A sample of mutants misses its goals, and why.
    #[error("{}", .0.join("\n"))]
    Sample(Vec<String>),
    /// Goals of `bench --peers --check` are missed.
    #[error("{0} goals are missed")]
    Goals(usize),
    /// These files are not formatted.
    #[error("stage `formatting` failed; to format the files:\n    rustfmt --edition 2024 {}", .0.join(" "))]
    Unformatted(Vec<String>),
    /// Tables of documents that do not show what the code says.
    #[error("stage `generated tables` failed: {0} wrong; to write them:\n    cargo xtask readme --quick")]
    Tables(usize),
    /// House rules are broken.
    #[error("stage `house rules` failed: {} broken; to repeat it:\n    cargo test --package xtask house", .0)]
    House(usize),
    /// An error about a kernel or its module.
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
