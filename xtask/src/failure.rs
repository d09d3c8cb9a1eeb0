//! The errors of chores.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("stage `{stage}` failed; to repeat it:\n    {command}")]
    Stage { stage: String, command: String },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Self>),
    #[error("cannot run `{program}`: {error}")]
    Program { program: String, error: io::Error },
    #[error("`{command}` failed{}", ended(.output))]
    Command { command: String, output: String },
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{}: {reason}", .path.display())]
    Contents { path: PathBuf, reason: String },
    /// The distribution has no such package, or there is no supported distribution. This does not mean that
    /// anything is broken.
    #[error("{what} is not available: {why}")]
    NotToBeHad { what: String, why: String },
    /// The distribution has these packages, but they cannot be downloaded.
    #[error("{} cannot be downloaded, although the list of packages contains them", .packages.join(", "))]
    NotDownloaded { packages: Vec<String> },
    /// A guest did not do its job, or the kernel complained.
    #[error("guest `{name}`: {reason}; its output is in {}{}", .log.display(), ended(.console))]
    Guest { name: String, reason: String, has_begun: bool, log: PathBuf, console: String },
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// All failures of things that do not depend on each other.
    pub(crate) fn all(mut failures: Vec<Self>) -> Result<(), Self> {
        match failures.pop() {
            None => Ok(()),
            Some(only) if failures.is_empty() => Err(only),
            Some(last) => Err(Self::Several(failures.into_iter().chain([last]).collect())),
        }
    }

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

    /// Whether the error only means that something that the test needs is missing. On a machine that tests for
    /// others (`CI=true`), a package that exists must also be downloadable.
    pub(crate) fn is_absence(&self, tests_for_others: bool) -> bool {
        match self {
            Self::NotToBeHad { .. } => true,
            Self::NotDownloaded { .. } => !tests_for_others,
            _ => false,
        }
    }
}

/// The last output of a program, on lines of its own.
fn ended(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!(":\n    {}", output.replace('\n', "\n    ")) }
}

/// The last lines of `text`: enough to see what went wrong.
pub(crate) fn tail(text: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Failure, tail};

    #[test]
    fn only_what_is_missing_is_an_absence() {
        let missing = Failure::NotToBeHad { what: "a kernel".to_owned(), why: "there is none".to_owned() };
        let offline = Failure::NotDownloaded { packages: vec!["linux-image".to_owned()] };
        let flaw = Failure::Other("planted".to_owned());
        assert_eq!([&missing, &offline, &flaw].map(|error| error.is_absence(false)), [true, true, false]);
        assert_eq!([&missing, &offline, &flaw].map(|error| error.is_absence(true)), [true, false, false]);
    }

    #[test]
    fn all_failures_are_said() {
        let all = |said: &[&str]| Failure::all(said.iter().map(|one| Failure::Other((*one).to_owned())).collect());
        assert!(all(&[]).is_ok());
        assert_eq!(all(&["one", "two"]).expect_err("two failed").to_string(), "one\ntwo");
    }

    #[test]
    fn the_tail_is_the_last_lines_without_empty_ones() {
        let text: String = (0..100).map(|line| format!("{line}\r\n\r\n")).collect();
        let tail = tail(&text);
        assert_eq!(tail.lines().next(), Some("70"));
        assert_eq!(tail.lines().last(), Some("99"));
    }
}
