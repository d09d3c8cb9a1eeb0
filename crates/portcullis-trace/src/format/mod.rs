//! Recognizes which program printed a capture. The lines of the capture show it, not the name of the file.
//!
//! The kernel and trace-cmd write nearly the same text. trace-cmd begins with `cpus=4`, and pads the names of events
//! to 20 characters where the kernel writes one blank. perf's text differs from both: it has a blank before the pid,
//! not a dash.

mod ftrace;
mod perf;
mod trace_cmd;

use crate::columns::{Line, is_padded, task};
use crate::error::Flaw;
use serde::Serialize;
use std::fmt;

/// Which program printed the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// The kernel: `/sys/kernel/tracing/trace`.
    Ftrace,
    /// `trace-cmd report`.
    TraceCmd,
    /// `perf script`.
    Perf,
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ftrace => "ftrace",
            Self::TraceCmd => "trace-cmd report",
            Self::Perf => "perf script",
        })
    }
}

/// What an event looks like, before the format is known.
pub(super) const ANY: &str = "`task-pid [cpu] flags seconds: event: …` (ftrace, trace-cmd report) or `task pid [cpu] \
                              seconds: system:event: …` (perf script)";

impl Format {
    /// Parses one line.
    pub(super) fn parse(self, line: &[u8]) -> Result<Line<'_>, Flaw> {
        match self {
            Self::Ftrace => ftrace::parse(line),
            Self::TraceCmd => trace_cmd::parse(line),
            Self::Perf => perf::parse(line),
        }
    }

    /// What an event looks like.
    pub(super) fn event(self) -> &'static str {
        match self {
            Self::Ftrace => "`task-pid [cpu] flags seconds: event: …`",
            Self::TraceCmd => "`task-pid [cpu] seconds: event:    …`",
            Self::Perf => "`task pid [cpu] seconds: system:event: …`",
        }
    }

    /// The only program that writes such a line. `None` if no program does, or several do.
    pub(super) fn of(line: &[u8]) -> Option<Self> {
        if ftrace::is_header(line) {
            return Some(Self::Ftrace);
        }
        if trace_cmd::is_header(line) {
            return Some(Self::TraceCmd);
        }
        if line.first() == Some(&b'#') {
            return None;
        }
        if let Ok((_, rest)) = task(line) {
            let (name, text) = ftrace::named(rest)?;
            return is_padded(name, text).map(|padded| if padded { Self::TraceCmd } else { Self::Ftrace });
        }
        if trace_cmd::latency(line).is_some() {
            return Some(Self::TraceCmd);
        }
        match perf::parse(line) {
            Ok(Line::Comment) | Err(Flaw::Columns) => None,
            Ok(_) | Err(_) => Some(Self::Perf),
        }
    }

    /// Whether the line can only be the first line of a capture.
    pub(super) fn is_beginning(line: &[u8]) -> bool {
        ftrace::is_beginning(line) || trace_cmd::is_beginning(line)
    }

    /// Describes the kind of capture that begins with this line, if it is known.
    pub(super) fn of_capture(line: &[u8]) -> Option<String> {
        let is_event = || matches!(Self::parse_untold(line), Ok(Line::Record(_)));
        match Self::of(line) {
            Some(format) => Some(format!("a capture of the kernel's events ({format})")),
            None if is_event() => Some("a capture of the kernel's events".to_owned()),
            None => None,
        }
    }

    /// Parses a line before the format is known. A line that fits several formats means the same in each.
    pub(super) fn parse_untold(line: &[u8]) -> Result<Line<'_>, Flaw> {
        ftrace::parse(line).or_else(|flaw| match perf::parse(line) {
            Ok(Line::Comment) => Ok(Line::Comment),
            _ => Err(flaw),
        })
    }
}

/// If these bytes begin a capture in a tool's own encoding, names the encoding and how to print it.
pub(super) fn binary(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"\x17\x08\x44tracing") {
        Some("trace-cmd's own encoding, to be printed with `trace-cmd report`")
    } else if head.starts_with(b"PERFILE2") || head.starts_with(b"2ELIFREP") {
        Some("perf's own encoding, to be printed with `perf script`")
    } else {
        None
    }
}
