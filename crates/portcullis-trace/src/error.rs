//! Errors in a trace or an access log: each names the file, the line, and what was expected there.

use super::Format;
use std::io;
use thiserror::Error;

/// Why a trace or an access log could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file is missing or the system refuses to read it.
    #[error("{file}: {source}")]
    Io {
        /// The name of the file, as given.
        file: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The compressed data is damaged, or ends before its own end mark.
    #[error("{file}: the compressed data is damaged or cut short after line {line}: {source}")]
    Compression {
        /// The name of the file, as given.
        file: String,
        /// The last whole line before the damage.
        line: u64,
        /// The error of the decoder.
        source: io::Error,
    },
    /// The file was compressed with a larger window than this library allows.
    #[error(
        "{file}: decompression after line {line} takes more than the {limit_mib} MiB of memory that are allowed: {source}"
    )]
    DecoderMemory {
        /// The name of the file, as given.
        file: String,
        /// The last whole line before the limit was exceeded.
        line: u64,
        /// The limit, in MiB.
        limit_mib: u64,
        /// The error of the decoder.
        source: io::Error,
    },
    /// The file has no bytes.
    #[error(
        "{file}: the file is empty; expected the text of an ftrace capture, of trace-cmd report or perf script, or an access log"
    )]
    Empty {
        /// The name of the file, as given.
        file: String,
    },
    /// No line of the file looks like an event.
    #[error("{file}:{line}: not a trace: expected {expected}; the file begins:\n{found}")]
    NotATrace {
        /// The name of the file, as given.
        file: String,
        /// The first line that is neither an event nor a comment.
        line: u64,
        /// What an event looks like.
        expected: &'static str,
        /// The first lines of the file, each shortened.
        found: String,
    },
    /// The file is of another kind that this library knows.
    #[error("{file}:{line}: not {wanted} but {found}: expected {expected}")]
    OtherKind {
        /// The name of the file, as given.
        file: String,
        /// The line that shows it.
        line: u64,
        /// The kind of file that was wanted.
        wanted: &'static str,
        /// The kind of file that was found.
        found: String,
        /// What a line should look like.
        expected: &'static str,
    },
    /// The file begins in the format of one program and continues in that of another.
    #[error("{file}:{line}: the file begins as {first} prints and goes on as {then} does: expected {expected}")]
    FormatChanges {
        /// The name of the file, as given.
        file: String,
        /// The first line in the other format.
        line: u64,
        /// The program that printed the beginning.
        first: Format,
        /// The program that prints lines like this one.
        then: Format,
        /// What an event of the first program looks like.
        expected: &'static str,
    },
    /// Another capture follows the first. It is not known what was mapped between the two.
    #[error(
        "{file}:{line}: a second capture begins here ({sign}): expected one capture; give each as a file of its own"
    )]
    SecondCapture {
        /// The name of the file, as given.
        file: String,
        /// The first line of the second capture.
        line: u64,
        /// What shows it.
        sign: &'static str,
    },
    /// A line among good ones cannot be parsed.
    #[error("{file}:{line}: expected {expected}, found `{found}`")]
    Malformed {
        /// The name of the file, as given.
        file: String,
        /// The line.
        line: u64,
        /// What was expected on the line.
        expected: &'static str,
        /// The line, shortened.
        found: String,
    },
    /// The file ends inside a line.
    #[error("{file}:{line}: the file is cut short: expected the rest of this line, which ends `{found}`")]
    CutShort {
        /// The name of the file, as given.
        file: String,
        /// The last line.
        line: u64,
        /// The end of the incomplete line.
        found: String,
    },
    /// The line is longer than any line that a tracer writes.
    #[error("{file}:{line}: expected a line of at most {limit} bytes")]
    LineTooLong {
        /// The name of the file, as given.
        file: String,
        /// The line.
        line: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The file has comments and other events, but no mapping.
    #[error(
        "{file}: expected iommu:map or iommu:unmap events, or dma:dma_map_… or dma:dma_unmap_…, found none in {lines} lines"
    )]
    NoEvents {
        /// The name of the file, as given.
        file: String,
        /// Lines read.
        lines: u64,
    },
    /// There is more of something than this library can count.
    #[error("{file}:{line}: expected at most {limit} {what} in one trace")]
    TooMany {
        /// The name of the file, as given.
        file: String,
        /// The line that holds the first one too many.
        line: u64,
        /// What there is too much of, in the plural.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

/// What is wrong with one line. The reader adds the file and the line number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// Its columns are not those of an event.
    Columns,
    /// The line lacks this.
    Expected(&'static str),
    /// There is one more of this than can be counted.
    TooMany(&'static str, u64),
}

impl Flaw {
    /// Makes the error. `columns` says what an event looks like.
    pub(super) fn at(self, file: &str, line: u64, text: &[u8], columns: &'static str) -> TraceError {
        let file = file.to_owned();
        let malformed = |expected, file| TraceError::Malformed { file, line, expected, found: excerpt(text) };
        match self {
            Self::Columns => malformed(columns, file),
            Self::Expected(expected) => malformed(expected, file),
            Self::TooMany(what, limit) => TraceError::TooMany { file, line, what, limit },
        }
    }
}

/// Enough of a line to recognize it, in printable characters.
pub(super) fn excerpt(text: &[u8]) -> String {
    const SHOWN: usize = 160;
    let text = text.trim_ascii();
    let shown = text.len().min(SHOWN);
    let dots = if shown < text.len() { "…" } else { "" };
    format!("{}{dots}", text[..shown].escape_ascii())
}
