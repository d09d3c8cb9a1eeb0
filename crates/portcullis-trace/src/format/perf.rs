//! The output of `perf script`: `task pid [cpu] seconds: system:event: text`. With `-F`, the thread may follow behind
//! a slash. If the event had a period, it stands before the event.
//!
//! perf does not distinguish an interrupt from the task that it interrupted: all events of a task are at
//! [`Level::Task`].
//!
//! Sources: `perf_sample__fprintf_start` and `process_event` in perf's `builtin-script.c`, and the output of perf 6.1.

use crate::columns::{Level, Line, Place, Record, cpu, number, starts, time};
use crate::error::Flaw;
use crate::event::Event;
use crate::scan::Scan;

/// Parses one line.
pub(super) fn parse(line: &[u8]) -> Result<Line<'_>, Flaw> {
    if line.first() == Some(&b'#') || line.trim_ascii().is_empty() || is_call(line) {
        return Ok(Line::Comment);
    }
    let mut flaw = Flaw::Columns;
    for bracket in starts(line, |byte| byte == b'[') {
        let Some(pid) = pid(&line[..bracket]) else { continue };
        match columns(&line[bracket + 1..]) {
            Ok((cpu, time_ns, rest)) => {
                let place = Place { cpu, pid, level: Level::Task, time_ns };
                return match rest.strip_prefix(b"PERF_RECORD_") {
                    Some(record) => lost(record),
                    None => Ok(Line::Record(Record { place, event: event(rest)? })),
                };
            }
            Err(found) => flaw = found,
        }
    }
    Err(flaw)
}

/// The thread in `task pid` or `task pid/thread`. Other tracers call it the pid.
fn pid(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii_end();
    let blank = text.iter().rposition(|&byte| byte == b' ')?;
    let word = &text[blank + 1..];
    match word.iter().position(|&byte| byte == b'/') {
        Some(slash) => number(&word[..slash]).and_then(|_| number(&word[slash + 1..])),
        None => number(word),
    }
    .filter(|_| !text[..blank].trim_ascii().is_empty())
}

/// Parses `000]    11.938529: rest`. The letters of `-F +misc` may stand before the time.
fn columns(text: &[u8]) -> Result<(u16, u64, &[u8]), Flaw> {
    let mut scan = Scan(text);
    let cpu = cpu(&mut scan).filter(|_| scan.literal(b"]").is_some()).ok_or(Flaw::Columns)?;
    scan.spaces();
    let mut after = scan;
    if after.word().iter().all(u8::is_ascii_alphabetic) {
        scan = after;
    }
    let time_ns = time(&mut scan)?;
    Ok((cpu, time_ns, scan.0))
}

/// Parses `[period] system:event: text`. The system is checked, because other systems have events of the same names.
fn event(rest: &[u8]) -> Result<Event<'_>, Flaw> {
    let mut scan = Scan(rest);
    let mut word = scan.word();
    if word.iter().all(u8::is_ascii_digit) {
        scan.spaces();
        word = scan.word();
    }
    // A modifier may follow the name: `iommu:map:k`.
    let mut parts = word.split(|&byte| byte == b':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(b"iommu" | b"dma" | b"intel_iommu"), Some(name), Some(_)) => Event::parse(name, scan.0.trim_ascii()),
        _ => Ok(Event::Other),
    }
}

/// Parses `LOST lost 12`, which `--show-lost-events` prints. Other records are ignored. A record without a number
/// stands for at least one event.
fn lost(record: &[u8]) -> Result<Line<'_>, Flaw> {
    let mut scan = Scan(record);
    if !scan.word().starts_with(b"LOST") {
        return Ok(Line::Comment);
    }
    scan.spaces();
    if scan.0.is_empty() {
        return Ok(Line::Lost(1));
    }
    let count = scan.literal(b"lost ").and_then(|()| scan.decimal()).filter(|_| scan.at_gap());
    count.map(Line::Lost).ok_or(Flaw::Expected("`PERF_RECORD_LOST lost n`"))
}

/// Whether the line is a step of a call chain: a tab, an address, a name.
fn is_call(line: &[u8]) -> bool {
    let mut scan = Scan(line);
    line.first() == Some(&b'\t') && {
        scan.spaces();
        scan.hexadecimal().is_some() && scan.at_gap()
    }
}
