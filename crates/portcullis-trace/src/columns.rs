//! The columns before the event on a line: task, CPU and time. The kernel and `trace-cmd report` share most of them.

use super::error::Flaw;
use super::event::{Event, is_known};
use super::scan::Scan;

/// What a CPU was doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// A task, or a capture that does not record the level.
    Task,
    /// A soft interrupt.
    SoftInterrupt,
    /// A hard interrupt.
    HardInterrupt,
    /// A hard interrupt inside a soft interrupt.
    HardInSoftInterrupt,
    /// A non-maskable interrupt.
    NonMaskable,
}

/// An event, and where it happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record<'a> {
    pub(super) place: Place,
    pub(super) event: Event<'a>,
}

/// The context in which something happened, and the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) cpu: u16,
    pub(super) pid: u32,
    pub(super) level: Level,
    pub(super) time_ns: u64,
}

/// A line of the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line<'a> {
    Record(Record<'a>),
    /// Events for which the tracer had no room.
    Lost(u64),
    /// A comment, a step of a call chain, or nothing.
    Comment,
}

const TIME: Flaw = Flaw::Expected("a time in seconds with a fraction (trace_clock global, local or mono)");

/// Parses `task-pid [cpu] flags seconds: ` and returns the rest. Without the option `irq-info` there are no flags.
///
/// A task's name may hold blanks, dashes, brackets and colons. The CPU is therefore the first bracket that has the
/// right columns on both sides.
pub(super) fn task(line: &[u8]) -> Result<(Place, &[u8]), Flaw> {
    let mut flaw = Flaw::Columns;
    for bracket in starts(line, |byte| byte == b'[') {
        let Some(pid) = pid(&line[..bracket]) else { continue };
        let mut scan = Scan(&line[bracket + 1..]);
        let Some(cpu) = cpu(&mut scan).filter(|_| scan.literal(b"]").is_some()) else { continue };
        scan.spaces();
        let mut after = scan;
        let word = after.word();
        let level = if word.ends_with(b":") {
            Level::Task
        } else if let Some(level) = level(word) {
            scan = after;
            level
        } else {
            continue;
        };
        match time(&mut scan) {
            Ok(time_ns) => return Ok((Place { cpu, pid, level, time_ns }, scan.0)),
            Err(found) => flaw = found,
        }
    }
    Err(flaw)
}

/// The positions after a blank at which a byte satisfies `first`: a column may begin there.
pub(super) fn starts(line: &[u8], first: impl Fn(u8) -> bool) -> impl Iterator<Item = usize> {
    (1..line.len()).filter(move |&at| first(line[at]) && matches!(line[at - 1], b' ' | b'\t'))
}

/// The number at the end of `task-pid`. The thread group in parentheses, if any, is skipped.
pub(super) fn pid(text: &[u8]) -> Option<u32> {
    let mut text = text.trim_ascii_end();
    if let Some(inside) = text.strip_suffix(b")") {
        let open = inside.iter().rposition(|&byte| byte == b'(')?;
        text = inside[..open].trim_ascii_end();
    }
    let dash = text.iter().rposition(|&byte| byte == b'-')?;
    number(&text[dash + 1..])
}

/// The number, if the text consists of digits only.
pub(super) fn number(text: &[u8]) -> Option<u32> {
    let mut scan = Scan(text);
    let number = scan.decimal().filter(|_| scan.0.is_empty())?;
    u32::try_from(number).ok()
}

pub(super) fn cpu(scan: &mut Scan<'_>) -> Option<u16> {
    u16::try_from(scan.decimal()?).ok()
}

/// Parses flags such as `d.h1.`. The third shows what interrupted the task. A kernel prints four to eight flags,
/// depending on its version.
pub(super) fn level(flags: &[u8]) -> Option<Level> {
    match (flags.len(), flags.get(2)?) {
        (4..=8, b's') => Some(Level::SoftInterrupt),
        (4..=8, b'h') => Some(Level::HardInterrupt),
        (4..=8, b'H') => Some(Level::HardInSoftInterrupt),
        (4..=8, b'z' | b'Z') => Some(Level::NonMaskable),
        (4..=8, b'.') => Some(Level::Task),
        _ => None,
    }
}

/// Parses `    11.938529: ` and returns nanoseconds.
pub(super) fn time(scan: &mut Scan<'_>) -> Result<u64, Flaw> {
    scan.spaces();
    let time_ns = seconds(scan).ok_or(TIME)?;
    scan.literal(b":").ok_or(TIME)?;
    scan.spaces();
    Ok(time_ns)
}

/// Parses `11.938529` and returns nanoseconds.
fn seconds(scan: &mut Scan<'_>) -> Option<u64> {
    let whole = scan.decimal()?;
    scan.literal(b".")?;
    let before = scan.0.len();
    let fraction = scan.decimal()?;
    let digits = before - scan.0.len();
    let scale = 10u64.checked_pow(9u32.checked_sub(u32::try_from(digits).ok()?)?)?;
    whole.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
}

/// The text inside the bracket of `CPU:1 [...]`, with which a tracer reports something about one CPU.
pub(super) fn notice(line: &[u8]) -> Option<&[u8]> {
    let mut scan = Scan(line);
    scan.literal(b"CPU:")?;
    scan.decimal()?;
    scan.literal(b" [")?;
    scan.0.strip_suffix(b"]")
}

/// Whether the line is a step of a call chain, `=> iommu_map`. These follow the event that they led to.
pub(super) fn is_call(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"=>")
}

/// Whether the text of the event `name` is padded to a common column: trace-cmd pads, and the kernel does not. `text`
/// begins right behind the name's colon. Returns `None` if the name is too long to tell, or if the event is not known,
/// because its text may begin with a blank.
pub(super) fn is_padded(name: &[u8], text: &[u8]) -> Option<bool> {
    /// The width to which trace-cmd pads a name.
    const WIDTH: usize = 20;
    match text {
        [b' ', second, ..] if name.len() < WIDTH && is_known(name) => Some(*second == b' '),
        _ => None,
    }
}
