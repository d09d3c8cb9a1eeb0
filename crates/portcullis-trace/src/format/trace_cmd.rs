//! The output of `trace-cmd report`: `task-pid [cpu] seconds: event:      text`. Newer versions and `-l` print flags
//! after the CPU, `-t` prints nanoseconds, and `--ts-diff` prints the difference to the line before.
//!
//! Sources: `trace_show_data` in trace-cmd's `trace-read.c`, and `tep_print_event` in libtraceevent. In the first
//! second of the clock, and under `--raw-ts`, the time has no fraction. Such a time may or may not be in nanoseconds,
//! so it is refused.

use super::ftrace::{self, named};
use crate::columns::{Line, Place, Record, cpu, is_call, is_padded, level, notice, pid, starts, task, time};
use crate::error::Flaw;
use crate::event::Event;
use crate::scan::Scan;

/// Parses one line.
pub(super) fn parse(line: &[u8]) -> Result<Line<'_>, Flaw> {
    // The kernel's own notices are accepted too, because text of both kinds is sometimes combined.
    if let Some(lost) = notice(line).and_then(|notice| dropped(notice).or_else(|| ftrace::lost(notice))) {
        return lost.map(Line::Lost);
    }
    if line.first() == Some(&b'#') || line.trim_ascii().is_empty() || is_header(line) {
        return Ok(Line::Comment);
    }
    let (place, rest) = match task(line) {
        Err(Flaw::Columns) if is_call(line) => return Ok(Line::Comment),
        Err(Flaw::Columns) => latency(line).ok_or(Flaw::Columns)?,
        columns => columns?,
    };
    let event = match named(difference(rest)) {
        Some((name, text)) if !text.starts_with(b"  ") && is_padded(name, text) == Some(false) => {
            return Err(Flaw::Columns);
        }
        Some((name, text)) => Event::parse(name, text.trim_ascii())?,
        None => Event::Other,
    };
    Ok(Line::Record(Record { place, event }))
}

/// Whether only trace-cmd writes such a line: `cpus=4`, `version = 7`, `CPU 1 is empty` or `CPU:1 [12 EVENTS
/// DROPPED]`.
pub(super) fn is_header(line: &[u8]) -> bool {
    is_beginning(line)
        || has_number_between(line, b"version = ", b"")
        || has_number_between(line, b"CPU ", b" is empty")
        || notice(line).is_some_and(|text| text == b"SUBBUFFER START" || dropped(text).is_some())
}

/// Whether the line is `cpus=4` or similar, which trace-cmd prints before the first event.
pub(super) fn is_beginning(line: &[u8]) -> bool {
    has_number_between(line, b"cpus=", b"")
}

fn has_number_between(line: &[u8], before: &[u8], after: &[u8]) -> bool {
    let mut scan = Scan(line.trim_ascii_end());
    scan.literal(before).and_then(|()| scan.decimal()).is_some() && scan.0 == after
}

/// Parses `1234 EVENTS DROPPED`. If the ring buffer did not count them, there is no number; at least one event was
/// dropped.
fn dropped(notice: &[u8]) -> Option<Result<u64, Flaw>> {
    let count = notice.strip_suffix(b"EVENTS DROPPED")?;
    if count.is_empty() {
        return Some(Ok(1));
    }
    let mut scan = Scan(count);
    let count = scan.decimal().filter(|_| scan.0 == b" ");
    Some(count.ok_or(Flaw::Expected("`CPU:n [n EVENTS DROPPED]`")))
}

/// Parses the columns of `-l`: `task-pid   1d.h1. seconds: `. The flags stand right behind the CPU.
pub(super) fn latency(line: &[u8]) -> Option<(Place, &[u8])> {
    starts(line, |byte| byte.is_ascii_digit()).find_map(|start| {
        let pid = pid(&line[..start])?;
        let mut scan = Scan(&line[start..]);
        let cpu = cpu(&mut scan)?;
        let level = level(scan.word())?;
        let time_ns = time(&mut scan).ok()?;
        Some((Place { cpu, pid, level, time_ns }, scan.0))
    })
}

/// Skips the `(+12)` of `--ts-diff`.
fn difference(rest: &[u8]) -> &[u8] {
    let mut scan = Scan(rest);
    match scan.literal(b"(+").and_then(|()| scan.until(b')')) {
        Some(_) => scan.0.trim_ascii_start(),
        None => rest,
    }
}
