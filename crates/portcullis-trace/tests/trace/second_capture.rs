//! A file with one capture after another is refused: it is not known what was mapped between them. Also tests what may
//! precede the first capture.

use super::printed::{STYLES, printed};
use super::{BUNDLED, OTHER_CPU, TASK, Text, bundled, read, unpacked};
use portcullis_trace::{AccessLog, Trace, TraceError};
use std::fs;

/// The line at which a second capture begins, according to the error.
fn second(capture: impl AsRef<[u8]>) -> u64 {
    let error = read(capture).expect_err("a second capture");
    let message = error.to_string();
    let TraceError::SecondCapture { line, .. } = error else { panic!("{message}") };
    assert!(message.starts_with(&format!("test.trace:{line}: a second capture begins here")), "{message}");
    assert!(message.contains("expected one capture"), "{message}");
    line
}

/// The bundled trace without its header.
fn events() -> String {
    unpacked(&format!("{}.trace.xz", BUNDLED[0]))
        .lines()
        .filter(|it| !it.starts_with('#'))
        .flat_map(|it| [it, "\n"])
        .collect()
}

#[test]
fn a_file_that_holds_a_capture_twice_is_refused() {
    for name in BUNDLED {
        let packed = fs::read(bundled(&format!("{name}.trace.xz"))).expect("a trace");
        let text = unpacked(&format!("{name}.trace.xz"));
        let lines = text.lines().count() as u64;
        assert_eq!(second(text.repeat(2)), lines + 1, "{name}");
        assert_eq!(second([packed.clone(), packed].concat()), lines + 1, "{name}, packed");
    }
}

/// Without a header, the clock shows the second capture.
#[test]
fn a_clock_that_goes_back_begins_another() {
    let events = events();
    let lines = events.lines().count() as u64;
    assert_eq!(second(events.repeat(2)), lines + 1);
    for (style, _) in STYLES {
        let once = printed(&events, style);
        let headless: String = once
            .lines()
            .filter(|it| !it.starts_with(['#', 'v']) && !it.starts_with("CPU") && !it.starts_with("cpus"))
            .flat_map(|it| [it, "\n"])
            .collect();
        let first_event = headless.lines().count() as u64 + 1;
        assert_eq!(second(headless.repeat(2)), first_event, "{style:?}");
        assert!(second(once.repeat(2)) > once.lines().count() as u64, "{style:?}");
    }
}

/// A later capture follows an earlier one: time advances, and only the header shows it.
#[test]
fn a_header_after_events_begins_another() {
    let mut text = Text::default();
    for header in ["# tracer: nop", "cpus=4"] {
        let mut two = format!("{header}\n");
        for page in 1..=2 {
            text.text.clear();
            text.map(TASK, page << 12, page << 13, 4096);
            let event = if header.starts_with('c') {
                text.text.replace("map: ", "map:                  ")
            } else {
                text.text.clone()
            };
            two += &event;
            two += &format!("{header}\n");
        }
        assert_eq!(second(two), 3);
    }
}

#[test]
fn lines_that_were_moved_a_little_are_one_capture() {
    let mut lines: Vec<String> = events().lines().map(str::to_owned).collect();
    for at in (0..lines.len() - 4).step_by(1000) {
        lines.swap(at + 1, at + 4);
    }
    let trace = read(lines.join("\n") + "\n").expect("one capture");
    assert!(trace.statistics.out_of_order > 0);
    // Events of one CPU after those of another do not begin a capture either.
    let mut text = Text::default();
    text.map(TASK, 0x1000, 0x9000, 4096).map(TASK, 0x2000, 0xa000, 4096);
    text.time_us = 0;
    text.map(OTHER_CPU, 0x3000, 0xb000, 4096).map(OTHER_CPU, 0x4000, 0xc000, 4096);
    assert_eq!(text.read().statistics.out_of_order, 0);
}

#[test]
fn a_byte_order_mark_may_come_first() {
    let mut text = Text::default();
    text.line("# tracer: nop").map(TASK, 0x1000, 0x9000, 4096);
    let marked = |text: &str| format!("\u{feff}{text}");
    assert_eq!(read(marked(&text.text)).expect("a trace"), text.read());
    let headless = text.text.lines().nth(1).expect("an event").to_owned() + "\n";
    assert_eq!(read(marked(&headless)).expect("a trace"), text.read());
    let log = "vtd_inv_desc invalidate desc type wait high 0x9b0c04 low 0x200000\n";
    let read_log = |text: &str| AccessLog::read_from("log", text.as_bytes(), |_| ()).expect("a log");
    assert_eq!(read_log(&marked(log)), read_log(log));
    // The mark is accepted nowhere else. By itself it is an empty file.
    assert!(matches!(read(marked("")), Err(TraceError::Empty { .. })));
    assert!(matches!(read(text.text.clone() + "\u{feff}\n"), Err(TraceError::Malformed { line: 3, .. })));
    assert!(matches!(Trace::read_from("a", "\u{feff}\n".as_bytes(), |_| ()), Err(TraceError::NoEvents { .. })));
}
