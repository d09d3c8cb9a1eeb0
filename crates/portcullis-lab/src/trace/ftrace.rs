//! The columns of an ftrace line: `task-pid [cpu] flags seconds: event: what it says`.

use super::error::Flaw;
use super::event::Event;
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
    pub(super) cpu: u16,
    pub(super) pid: u32,
    pub(super) level: Level,
    pub(super) time_ns: u64,
    pub(super) event: Event<'a>,
}

/// A line of the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line<'a> {
    Record(Record<'a>),
    /// Events that the tracer had no room for.
    Lost(u64),
    /// A comment, or nothing.
    Comment,
}

/// What [`parse`] wants to see.
pub(super) const EXPECTED: &str = "`task-pid [cpu] flags seconds: event: …`";
const TIME: &str = "a time in seconds with a fraction (trace_clock global, local or mono)";

/// Understands one line.
pub(super) fn parse(line: &[u8]) -> Result<Line<'_>, Flaw> {
    if line.first() == Some(&b'#') {
        return header(line);
    }
    if let Some(lost) = lost(line) {
        return lost.map(Line::Lost);
    }
    if line.trim_ascii().is_empty() {
        return Ok(Line::Comment);
    }
    // The name of a task may hold blanks, dashes, brackets and colons, so the CPU is the first bracket with the right
    // things on both sides of it.
    let mut flaw = Flaw::Expected(EXPECTED);
    for bracket in (1..line.len()).filter(|&at| line[at] == b'[' && matches!(line[at - 1], b' ' | b'\t')) {
        let Some(pid) = pid(&line[..bracket]) else { continue };
        match columns(&line[bracket + 1..]) {
            Ok((cpu, level, time_ns, rest)) => {
                let event = match rest.iter().position(|&byte| byte == b':') {
                    // `function: text`; the function tracer's own lines have no such colon.
                    Some(colon) if !rest[..colon].contains(&b' ') => {
                        Event::parse(&rest[..colon], rest[colon + 1..].trim_ascii())?
                    }
                    _ => Event::Other,
                };
                return Ok(Line::Record(Record { cpu, pid, level, time_ns, event }));
            }
            Err(found) => flaw = found,
        }
    }
    Err(flaw)
}

/// `# entries-in-buffer/entries-written: 100/250   #P:4`: the difference was overwritten.
fn header(line: &[u8]) -> Result<Line<'_>, Flaw> {
    let mut scan = Scan(line);
    if scan.literal(b"# entries-in-buffer/entries-written: ").is_none() {
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

/// `CPU:1 [LOST 1234 EVENTS]`. Where the tracer does not know how many, it prints no number: at least one.
fn lost(line: &[u8]) -> Option<Result<u64, Flaw>> {
    let mut scan = Scan(line);
    scan.literal(b"CPU:")?;
    scan.decimal()?;
    scan.literal(b" [LOST ")?;
    if scan.0 == b"EVENTS]" {
        return Some(Ok(1));
    }
    let count = scan.decimal().filter(|_| scan.0 == b" EVENTS]");
    Some(count.ok_or(Flaw::Expected("`CPU:n [LOST n EVENTS]`")))
}

/// The number at the end of `task-pid`, before the optional thread group in parentheses.
fn pid(text: &[u8]) -> Option<u32> {
    let mut text = text.trim_ascii_end();
    if let Some(inside) = text.strip_suffix(b")") {
        let open = inside.iter().rposition(|&byte| byte == b'(')?;
        text = inside[..open].trim_ascii_end();
    }
    let dash = text.iter().rposition(|&byte| byte == b'-')?;
    let mut scan = Scan(&text[dash + 1..]);
    let pid = scan.decimal().filter(|_| scan.0.is_empty())?;
    u32::try_from(pid).ok()
}

/// `000] ..s1.    11.938529: rest`.
fn columns(text: &[u8]) -> Result<(u16, Level, u64, &[u8]), Flaw> {
    let mut scan = Scan(text);
    let cpu = scan.decimal().and_then(|cpu| u16::try_from(cpu).ok());
    let cpu = cpu.filter(|_| scan.literal(b"]").is_some()).ok_or(Flaw::Expected(EXPECTED))?;
    scan.spaces();
    let mut level = Level::Task;
    let mut time = scan;
    let word = time.word();
    // Without the option `irq-info` there are no flags.
    if !word.ends_with(b":") {
        level = match (word.len(), word.get(2)) {
            (4..=8, Some(b's')) => Level::SoftInterrupt,
            (4..=8, Some(b'h')) => Level::HardInterrupt,
            (4..=8, Some(b'H')) => Level::HardInSoftInterrupt,
            (4..=8, Some(b'z' | b'Z')) => Level::NonMaskable,
            (4..=8, Some(b'.')) => Level::Task,
            _ => return Err(Flaw::Expected(EXPECTED)),
        };
        scan = time;
        scan.spaces();
    }
    let time_ns = seconds(&mut scan).ok_or(Flaw::Expected(TIME))?;
    scan.literal(b":").ok_or(Flaw::Expected(TIME))?;
    scan.spaces();
    Ok((cpu, level, time_ns, scan.0))
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
