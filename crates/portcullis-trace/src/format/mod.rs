//! Which program printed a capture, told from its lines and not from its name.
//!
//! The kernel and trace-cmd write nearly the same. trace-cmd begins with `cpus=4`, and pads the names of events to 20
//! characters where the kernel writes one blank. What perf writes fits neither: it puts a blank before the pid, not a dash.

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

/// What an event looks like where it is not yet known who printed it.
pub(super) const ANY: &str = "`task-pid [cpu] flags seconds: event: …` (ftrace, trace-cmd report) or `task pid [cpu] \
                              seconds: system:event: …` (perf script)";

impl Format {
    /// Understands one line.
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

    /// Who alone writes such a line. `None`: nobody does, or several.
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

    /// Whether a capture begins with this line, and has no other like it.
    pub(super) fn is_beginning(line: &[u8]) -> bool {
        ftrace::is_beginning(line) || trace_cmd::is_beginning(line)
    }

    /// In words, what kind of capture begins with this line. `None`: none that is known.
    pub(super) fn of_capture(line: &[u8]) -> Option<String> {
        let is_event = || matches!(Self::parse_untold(line), Ok(Line::Record(_)));
        match Self::of(line) {
            Some(format) => Some(format!("a capture of the kernel's events ({format})")),
            None if is_event() => Some("a capture of the kernel's events".to_owned()),
            None => None,
        }
    }

    /// Understands a line while nothing is told: what fits several formats means the same in each.
    pub(super) fn parse_untold(line: &[u8]) -> Result<Line<'_>, Flaw> {
        ftrace::parse(line).or_else(|flaw| match perf::parse(line) {
            Ok(Line::Comment) => Ok(Line::Comment),
            _ => Err(flaw),
        })
    }
}

/// The beginning of a file that holds a capture in its tool's own encoding, and how to print it.
pub(super) fn binary(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"\x17\x08\x44tracing") {
        Some("trace-cmd's own encoding, to be printed with `trace-cmd report`")
    } else if head.starts_with(b"PERFILE2") || head.starts_with(b"2ELIFREP") {
        Some("perf's own encoding, to be printed with `perf script`")
    } else {
        None
    }
}
