//! What can be wrong with a trace or an access log: which file, which line, what was expected there.

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
        /// The file as it was named.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The compressed data is damaged, or ends before its own end mark.
    #[error("{file}: the compressed data is damaged or cut short after line {line}: {source}")]
    Compression {
        /// The file as it was named.
        file: String,
        /// The last whole line before the damage.
        line: u64,
        /// What the decoder said.
        source: io::Error,
    },
    /// It was compressed with a larger window than is allowed for.
    #[error(
        "{file}: decompression after line {line} takes more than the {limit_mib} MiB of memory that are allowed: {source}"
    )]
    DecoderMemory {
        /// The file as it was named.
        file: String,
        /// The last whole line before.
        line: u64,
        /// The limit, in MiB.
        limit_mib: u64,
        /// What the decoder said.
        source: io::Error,
    },
    /// No byte in it.
    #[error(
        "{file}: the file is empty; expected the text of an ftrace capture, of trace-cmd report or perf script, or an access log"
    )]
    Empty {
        /// The file as it was named.
        file: String,
    },
    /// Not one line of it looks like an event.
    #[error("{file}:{line}: not a trace: expected {expected}; the file begins:\n{found}")]
    NotATrace {
        /// The file as it was named.
        file: String,
        /// The first line that is no event and no comment.
        line: u64,
        /// What an event looks like.
        expected: &'static str,
        /// The first lines of the file, each shortened.
        found: String,
    },
    /// It is something else that this library knows.
    #[error("{file}:{line}: not {wanted} but {found}: expected {expected}")]
    OtherKind {
        /// The file as it was named.
        file: String,
        /// The line that shows it.
        line: u64,
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: String,
        /// What a line should look like.
        expected: &'static str,
    },
    /// It begins as one program prints and goes on as another does.
    #[error("{file}:{line}: the file begins as {first} prints and goes on as {then} does: expected {expected}")]
    FormatChanges {
        /// The file as it was named.
        file: String,
        /// The first line of the other program.
        line: u64,
        /// Who printed the beginning.
        first: Format,
        /// Who prints lines like this one.
        then: Format,
        /// What an event of the first looks like.
        expected: &'static str,
    },
    /// Another capture follows the first. Nothing tells what was mapped between the two.
    #[error(
        "{file}:{line}: a second capture begins here ({sign}): expected one capture; give each as a file of its own"
    )]
    SecondCapture {
        /// The file as it was named.
        file: String,
        /// The first line of the second capture.
        line: u64,
        /// What shows it.
        sign: &'static str,
    },
    /// A line in the midst of good ones that cannot be understood.
    #[error("{file}:{line}: expected {expected}, found `{found}`")]
    Malformed {
        /// The file as it was named.
        file: String,
        /// The line.
        line: u64,
        /// What should have stood there.
        expected: &'static str,
        /// What stands there, shortened.
        found: String,
    },
    /// The file ends inside a line.
    #[error("{file}:{line}: the file is cut short: expected the rest of this line, which ends `{found}`")]
    CutShort {
        /// The file as it was named.
        file: String,
        /// The last line.
        line: u64,
        /// The end of what there is of it.
        found: String,
    },
    /// A line that no tracer writes.
    #[error("{file}:{line}: expected a line of at most {limit} bytes")]
    LineTooLong {
        /// The file as it was named.
        file: String,
        /// The line.
        line: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// Comments and other events, but no mapping.
    #[error(
        "{file}: expected iommu:map or iommu:unmap events, or dma:dma_map_… or dma:dma_unmap_…, found none in {lines} lines"
    )]
    NoEvents {
        /// The file as it was named.
        file: String,
        /// Lines read.
        lines: u64,
    },
    /// More of something than can be counted here.
    #[error("{file}:{line}: expected at most {limit} {what} in one trace")]
    TooMany {
        /// The file as it was named.
        file: String,
        /// The line that holds the first one too many.
        line: u64,
        /// What there is too much of.
        what: &'static str,
        /// How many are possible.
        limit: u64,
    },
}

/// What is wrong with one line; the reader adds file and line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// Its columns are not those of an event.
    Columns,
    /// The line does not say this.
    Expected(&'static str),
    /// One more than can be counted.
    TooMany(&'static str, u64),
}

impl Flaw {
    /// The error; `columns` is what an event looks like.
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

/// Enough of a line to recognise it, in printable characters.
pub(super) fn excerpt(text: &[u8]) -> String {
    const SHOWN: usize = 160;
    let text = text.trim_ascii();
    let shown = text.len().min(SHOWN);
    let dots = if shown < text.len() { "…" } else { "" };
    format!("{}{dots}", text[..shown].escape_ascii())
}
