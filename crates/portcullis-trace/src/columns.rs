//! What stands before the event on a line: who, on which CPU, when. The kernel and `trace-cmd report` share most of it.

use super::error::Flaw;
use super::event::{Event, is_known};
use super::scan::Scan;

/// What a CPU was doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// A task, or a capture that does not say.
    Task,
    /// A soft interrupt.
    SoftInterrupt,
    /// A hard interrupt.
    HardInterrupt,
    /// A hard interrupt that came into a soft one.
    HardInSoftInterrupt,
    /// A non-maskable interrupt.
    NonMaskable,
}

/// An event and where it happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record<'a> {
    pub(super) place: Place,
    pub(super) event: Event<'a>,
}

/// Who did something, where and when.
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
    /// Events that the tracer had no room for.
    Lost(u64),
    /// A comment, a step of a call chain, or nothing.
    Comment,
}

const TIME: Flaw = Flaw::Expected("a time in seconds with a fraction (trace_clock global, local or mono)");

/// `task-pid [cpu] flags seconds: ` and what follows. Without the option `irq-info` there are no flags.
///
/// The name of a task may hold blanks, dashes, brackets and colons, so the CPU is the first bracket with the right things on
/// both sides of it.
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

/// Where a column begins: behind a blank, with such a byte.
pub(super) fn starts(line: &[u8], first: impl Fn(u8) -> bool) -> impl Iterator<Item = usize> {
    (1..line.len()).filter(move |&at| first(line[at]) && matches!(line[at - 1], b' ' | b'\t'))
}

/// The number at the end of `task-pid`, before the optional thread group in parentheses.
pub(super) fn pid(text: &[u8]) -> Option<u32> {
    let mut text = text.trim_ascii_end();
    if let Some(inside) = text.strip_suffix(b")") {
        let open = inside.iter().rposition(|&byte| byte == b'(')?;
        text = inside[..open].trim_ascii_end();
    }
    let dash = text.iter().rposition(|&byte| byte == b'-')?;
    number(&text[dash + 1..])
}

/// Digits, all of it.
pub(super) fn number(text: &[u8]) -> Option<u32> {
    let mut scan = Scan(text);
    let number = scan.decimal().filter(|_| scan.0.is_empty())?;
    u32::try_from(number).ok()
}

pub(super) fn cpu(scan: &mut Scan<'_>) -> Option<u16> {
    u16::try_from(scan.decimal()?).ok()
}

/// `d.h1.`: the third tells what came in between. There are four to eight of them, by the kernel's version.
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

/// `    11.938529: `, in nanoseconds.
pub(super) fn time(scan: &mut Scan<'_>) -> Result<u64, Flaw> {
    scan.spaces();
    let time_ns = seconds(scan).ok_or(TIME)?;
    scan.literal(b":").ok_or(TIME)?;
    scan.spaces();
    Ok(time_ns)
}

/// `11.938529`, in nanoseconds.
fn seconds(scan: &mut Scan<'_>) -> Option<u64> {
    let whole = scan.decimal()?;
    scan.literal(b".")?;
    let before = scan.0.len();
    let fraction = scan.decimal()?;
    let digits = before - scan.0.len();
    let scale = 10u64.checked_pow(9u32.checked_sub(u32::try_from(digits).ok()?)?)?;
    whole.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
}

/// `CPU:1 [` and what stands in the bracket, where a tracer says something about one CPU.
pub(super) fn notice(line: &[u8]) -> Option<&[u8]> {
    let mut scan = Scan(line);
    scan.literal(b"CPU:")?;
    scan.decimal()?;
    scan.literal(b" [")?;
    scan.0.strip_suffix(b"]")
}

/// `=> iommu_map`: a step of a call chain, below the event that it led to.
pub(super) fn is_call(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"=>")
}

/// Whether the words of the event `name` are brought to a common column, as trace-cmd does and the kernel does not; `text`
/// begins right behind the name's colon. `None`: the name is too long to tell, or nothing is known of its words, which may
/// begin with a blank.
pub(super) fn is_padded(name: &[u8], text: &[u8]) -> Option<bool> {
    /// trace-cmd's width of a name.
    const WIDTH: usize = 20;
    match text {
        [b' ', second, ..] if name.len() < WIDTH && is_known(name) => Some(*second == b' '),
        _ => None,
    }
}
