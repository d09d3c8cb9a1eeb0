//! What can go wrong with a kernel and its module.

use std::path::PathBuf;
use thiserror::Error;

/// What went wrong.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The distribution has no such package, or there is no distribution of that kind. Nothing here is broken.
    #[error("{what} is not to be had: {why}")]
    NotToBeHad { what: String, why: String },
    /// A program ended with an error.
    #[error("`{command}` failed{}", ended(.output))]
    Command { command: String, output: String },
    /// The Rust half is not fit for a kernel.
    #[error("{}: a kernel cannot take it:\n    {}", .path.display(), .flaws.join("\n    "))]
    Unfit { path: PathBuf, flaws: Vec<String> },
    /// The kernel's build has a warning about the module.
    #[error("the module for {version} is built with a warning:\n    {line}")]
    Warning { version: String, line: String },
    /// A test does not see a flaw.
    #[error("the flaw `{flaw}` was planted, and the test passes")]
    NotFound { flaw: String },
    /// A guest did not do its job, or the kernel complained.
    #[error("guest `{name}`: {reason}; all it printed is in {}{}", .log.display(), ended(.console))]
    Guest { name: String, reason: String, log: PathBuf, console: String },
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
    use super::tail;

    #[test]
    fn the_tail_is_the_last_lines_without_empty_ones() {
        let text: String = (0..100).map(|line| format!("{line}\r\n\r\n")).collect();
        let tail = tail(&text);
        assert_eq!(tail.lines().next(), Some("70"));
        assert_eq!(tail.lines().last(), Some("99"));
    }
}
