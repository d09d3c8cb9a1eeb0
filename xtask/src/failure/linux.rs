//! What can go wrong with a kernel and its module.

use std::path::PathBuf;
use thiserror::Error;

/// What went wrong.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The distribution has no such package, or there is no distribution of that kind. Nothing here is broken.
    #[error("{what} is not to be had: {why}")]
    NotToBeHad { what: String, why: String },
    /// The distribution has these packages, and they do not come.
    #[error("{} cannot be downloaded, though the list of packages has them", .packages.join(", "))]
    NotDownloaded { packages: Vec<String> },
    /// A program ended with an error.
    #[error("`{command}` failed{}", ended(.output))]
    Command { command: String, output: String },
    /// The Rust half is not fit for a kernel.
    #[error("{}: a kernel cannot take it:\n    {}", .path.display(), .flaws.join("\n    "))]
    Unfit { path: PathBuf, flaws: Vec<String> },
    /// The kernel's build has a warning about the module.
    #[error("the module for {version} is built with a warning:\n    {line}")]
    Warning { version: String, line: String },
    /// A test was named that there is not.
    #[error("there is no test `{name}`; there are {names}")]
    NoSuchTest { name: String, names: String },
    /// A test does not see a flaw.
    #[error("the flaw `{flaw}` was planted, and the test passes")]
    NotFound { flaw: String },
    /// A guest has not said what it was to measure.
    #[error("the guest of `{configuration}` says nothing of {what}")]
    Unsaid { configuration: &'static str, what: &'static str },
    /// A guest did not do its job, or the kernel complained.
    #[error("guest `{name}`: {reason}; all it printed is in {}{}", .log.display(), ended(.console))]
    Guest { name: String, reason: String, log: PathBuf, console: String },
}

impl Error {
    /// Whether only what the test is done with is missing: on a machine that tests for others, what can be downloaded has to be.
    pub(crate) fn is_absence(&self, tests_for_others: bool) -> bool {
        match self {
            Self::NotToBeHad { .. } => true,
            Self::NotDownloaded { .. } => !tests_for_others,
            _ => false,
        }
    }
}

/// What a program printed at last, on lines of its own.
fn ended(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!(":\n    {}", output.replace('\n', "\n    ")) }
}

/// The last lines of `text`: enough to see what went wrong, and no more.
pub(crate) fn tail(text: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Error, tail};

    #[test]
    fn only_what_is_missing_is_an_absence() {
        let missing = Error::NotToBeHad { what: "a kernel".to_owned(), why: "there is none".to_owned() };
        let offline = Error::NotDownloaded { packages: vec!["linux-image".to_owned()] };
        let flaw = Error::NotFound { flaw: "planted".to_owned() };
        assert_eq!([&missing, &offline, &flaw].map(|error| error.is_absence(false)), [true, true, false]);
        assert_eq!([&missing, &offline, &flaw].map(|error| error.is_absence(true)), [true, false, false]);
    }

    #[test]
    fn the_tail_is_the_last_lines_without_empty_ones() {
        let text: String = (0..100).map(|line| format!("{line}\r\n\r\n")).collect();
        let tail = tail(&text);
        assert_eq!(tail.lines().next(), Some("70"));
        assert_eq!(tail.lines().last(), Some("99"));
    }
}
