//! The kernel's own text: `task-pid [cpu] flags seconds: event: text`.

use crate::columns::{Line, Record, is_call, is_padded, notice, task};
use crate::error::Flaw;
use crate::event::Event;
use crate::scan::Scan;

/// Parses one line.
pub(super) fn parse(line: &[u8]) -> Result<Line<'_>, Flaw> {
    if line.first() == Some(&b'#') {
        return header(line);
    }
    if let Some(lost) = notice(line).and_then(lost) {
        return lost.map(Line::Lost);
    }
    if line.trim_ascii().is_empty() {
        return Ok(Line::Comment);
    }
    let (place, rest) = match task(line) {
        Err(Flaw::Columns) if is_call(line) => return Ok(Line::Comment),
        columns => columns?,
    };
    let event = match named(rest) {
        Some((name, text)) if text.starts_with(b"  ") && is_padded(name, text) == Some(true) => {
            return Err(Flaw::Columns);
        }
        Some((name, text)) => Event::parse(name, text.trim_ascii())?,
        None => Event::Other,
    };
    Ok(Line::Record(Record { place, event }))
}

/// Whether only the kernel writes such a line.
pub(super) fn is_header(line: &[u8]) -> bool {
    is_beginning(line) || line.starts_with(ENTRIES) || notice(line).and_then(lost).is_some()
}

/// Whether the line is `# tracer: nop` or similar, the first line that the kernel prints.
pub(super) fn is_beginning(line: &[u8]) -> bool {
    line.starts_with(b"# tracer: ")
}

/// Splits `function: text`. The function tracer's own lines have no such colon.
pub(super) fn named(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = rest.iter().position(|&byte| byte == b':')?;
    Some((&rest[..colon], &rest[colon + 1..])).filter(|(name, _)| !name.contains(&b' '))
}

const ENTRIES: &[u8] = b"# entries-in-buffer/entries-written: ";

/// Parses `# entries-in-buffer/entries-written: 100/250   #P:4`. The difference of the two numbers was overwritten.
fn header(line: &[u8]) -> Result<Line<'_>, Flaw> {
    let mut scan = Scan(line);
    if scan.literal(ENTRIES).is_none() {
        return Ok(Line::Comment);
    }
    let expected = Flaw::Expected("`entries-in-buffer/entries-written:` and two numbers");
    let kept = scan.decimal().ok_or(expected)?;
    scan.literal(b"/").ok_or(expected)?;
    let written = scan.decimal().ok_or(expected)?;
    Ok(match written.saturating_sub(kept) {
        0 => Line::Comment,
        lost => Line::Lost(lost),
    })
}

/// Parses `LOST 1234 EVENTS`. If the tracer does not know the number, it prints none; at least one event was lost.
pub(super) fn lost(notice: &[u8]) -> Option<Result<u64, Flaw>> {
    let mut scan = Scan(notice);
    scan.literal(b"LOST ")?;
    if scan.0 == b"EVENTS" {
        return Some(Ok(1));
    }
    let count = scan.decimal().filter(|_| scan.0 == b" EVENTS");
    Some(count.ok_or(Flaw::Expected("`CPU:n [LOST n EVENTS]`")))
}
