//! Input that was accepted and should have been refused, and the other way round.

use super::super::bad_input::refused;
use super::super::{DISK, RECEIVE, bundled, compared, json, portcullis, printed, rows, text, written};
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

const SMALL: &str = "rings:ring=16,operations=64";
const EVENT: &str = "fio-1 [000] ..... 1.000001: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096\n";

#[test]
fn found_4_a_design_that_is_there_twice() {
    let expected = ["--designs", "expected each design once"];
    for twice in ["magazine,magazine", "eiovar:k=64,none,eiovar:k=64", "eiovar:k=unbounded,eiovar"] {
        for command in [&["compare"][..], &["attack", "--json"], &["bench"]] {
            if command == ["bench"] && !cfg!(target_os = "linux") {
                continue;
            }
            refused(&[command, &["--designs", twice]].concat(), &expected);
        }
    }
    // The same design with other parameters counts as another design.
    let document = compared(&["--workload", SMALL, "--designs", "eiovar:k=64,eiovar:k=512", "--protection", "strict"]);
    assert_eq!(rows(&document).len(), 2);
}

#[test]
fn found_4_a_hardware_parameter_that_is_set_twice() {
    let disk = bundled(DISK);
    for values in [["walkers=2", "walkers=3"], ["walkers=2", "walkers=2"]] {
        let settings = ["compare", &disk, "--set", values[0], "--set", values[1]];
        refused(&settings, &["--set", values[1], "expected each parameter once", "`walkers`"]);
    }
}

#[test]
fn found_4_sets_of_a_cache_that_are_not_whole() {
    let work = ["compare", "--workload", SMALL, "--designs", "none,stock"];
    let expected = ["iotlb_ways=3", "`iotlb_ways` must be 0 or a divisor of `iotlb_entries`"];
    for settings in [&["--set", "iotlb_ways=3"][..], &["--set", "iotlb_ways=3", "--set", "iotlb_entries=128"]] {
        refused(&[&work, settings].concat(), &expected);
    }
    refused(&[&work[..], &["--set", "iotlb_ways=3", "--sweep", "iotlb_entries=129,128"]].concat(), &expected);
    for (one, other) in [("iotlb_ways=3", "iotlb_entries=129"), ("iotlb_entries=129", "iotlb_ways=3")] {
        printed(&[&work[..], &["--set", one, "--set", other]].concat());
        let (key, value) = other.split_once('=').expect("a parameter");
        printed(&[&work[..], &["--set", one, "--sweep", &format!("{key}={value}")]].concat());
    }
}

#[test]
fn found_4_workloads_that_cannot_be_or_never_end() {
    for (workload, parts) in [
        ("rings:tx=2", ["`tx=2`", "a number from 0 to 1"]),
        ("rings:operations=10000001", ["`operations=10000001`", "a whole number from 1 to 10000000"]),
        ("churn:live=262144,operations=4294967296", ["`operations=4294967296`", "a whole number from 1 to 10000000"]),
        ("rings:ring=16,ring=32", ["`ring` is given twice", "expected each parameter once"]),
        ("churn:live=16,cores=1,live=16", ["`live` is given twice", "expected each parameter once"]),
    ] {
        refused(&["compare", "--workload", workload], &[&[workload], &parts[..]].concat());
    }
    // The boundary is allowed: a transmit buffer for each receive buffer.
    printed(&["compare", "--workload", &format!("{SMALL},tx=1"), "--designs", "none,stock"]);
}

/// Mappings that were left over from the first copy seemed to be unmapped by the second, which had not mapped them.
#[test]
fn found_4_a_trace_behind_itself() {
    let packed = fs::read(bundled(DISK)).expect("a trace");
    let twice = written("twice.trace.xz", [packed.clone(), packed].concat());
    let parts = [&twice, ".trace.xz:48013: a second capture begins here", "expected one capture"];
    refused(&["compare", &twice], &parts);
    refused(&["attack", &twice, "--json"], &parts);
    let later = EVENT.replace("1.000001", "1.000002").replace("0x1000", "0x5000").replace("0x2000", "0x6000");
    let headless = written("twice.trace", [EVENT, &later, EVENT, &later].concat());
    refused(&["compare", &headless], &[&headless, ".trace:3: a second capture", "time goes back"]);
}

#[test]
fn found_4_a_byte_order_mark() {
    let trace = format!("\u{feff}# tracer: nop\n{EVENT}");
    let document = compared(&[&written("marked.trace", trace), "--designs", "none,stock"]);
    assert_eq!(document["input"][0]["maps"], 1);
    // The same holds for a log: it is refused because it does not belong to this trace, not because it cannot be read.
    let log = "\u{feff}vtd_inv_desc invalidate desc type iotlb high 0x10040 low 0x400f2\n";
    refused(&["compare", &bundled(DISK), "--accesses", &written("marked.qemu", log)], &["different runs"]);
}

/// Runs the program with this file as standard input.
fn piped(file: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    program.args(arguments).stdin(File::open(file).expect("a file"));
    program.output().expect("the program starts")
}

#[test]
fn found_4_standard_input_is_a_trace() {
    let disk = bundled(DISK);
    let designs = ["--designs", "none,stock", "--protection", "deferred", "--json"];
    let document = |output: Output| -> Value {
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        serde_json::from_slice(&output.stdout).expect("one JSON document")
    };
    for command in ["compare", "attack"] {
        let mut here = document(piped(&disk, &[&[command, "-"], &designs[..]].concat()));
        let mut there = json(&[&[command, &disk], &designs[..]].concat());
        assert_eq!(
            (&here["input"][0]["file"], &here["results"][0]["trace"]),
            (&"standard input".into(), &"standard input".into())
        );
        for document in [&mut here, &mut there] {
            document["command"].take();
            document["input"][0]["file"].take();
            let results = document["results"].as_array_mut().expect("results");
            results.iter_mut().for_each(|row| drop(row["trace"].take()));
            if let Some(equal) = document["equal_batch"].as_array_mut() {
                equal.iter_mut().for_each(|row| drop(row["trace"].take()));
            }
        }
        assert!(here == there, "the same as from the file");
    }
    let log = bundled("q-nvme-randread4k.strict.2cpu.qemu.xz");
    document(piped(&log, &[&["compare", &disk, "--accesses", "-"], &designs[..]].concat()));
    let twice = "`-` appears twice; expected it once";
    refused(&["compare", "-", "-"], &[twice]);
    refused(&["compare", "-", "--accesses", "-"], &[twice]);
    let empty = piped(&written("nothing", ""), &["compare", "-"]);
    assert_eq!(empty.status.code(), Some(2));
    assert!(text(&empty.stderr).contains("standard input: the file is empty"), "{}", text(&empty.stderr));
}

#[test]
fn found_4_a_clock_that_printed_three_hundred_zeros() {
    let work = ["compare", "--workload", SMALL, "--designs", "none,stock", "--clock", "scale=1e-300"];
    let text = printed(&work);
    assert!(text.contains("   pauses × 1e-300\n"), "{text}");
    let document = json(&[&work[..], &["--json"]].concat());
    let clock = document["clock"].as_str().and_then(|clock| clock.strip_prefix("scale=")).expect("a scale");
    assert_eq!(clock.parse(), Ok(1e-300));
}

/// The usage below an error listed the very options that exclude each other.
#[test]
fn found_4_no_usage_suggests_what_cannot_be() {
    let disk = bundled(RECEIVE);
    for (arguments, contradiction) in [
        (&["figures", "--list", "--check"][..], "--list"),
        (&["figures", "--check", "--list", "--bogus"], "--list"),
        (&["compare", "--workload", SMALL, &disk], "--workload <WORKLOAD>"),
        (&["attack", "--workload", SMALL, &disk], "--workload <WORKLOAD>"),
        (&["compare", "--workload", SMALL, "--accesses", &disk], "--workload <WORKLOAD>"),
    ] {
        let output = portcullis(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let usage: Vec<&str> = said.lines().filter(|line| line.starts_with("Usage:")).collect();
        assert!(usage.iter().all(|line| !line.contains(contradiction)), "{arguments:?}: {said}");
        assert!(said.contains("cannot be used with") || said.contains("unexpected argument"), "{said}");
    }
}

/// Help and the version are results: if they cannot be written, the exit status says so.
#[test]
#[cfg(target_os = "linux")]
fn found_4_help_on_a_full_disk() {
    for arguments in [&["--help"][..], &["compare", "--help"], &["help", "figures"], &["--version"], &["capture-help"]]
    {
        let mut program = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        let full = File::options().write(true).open("/dev/full").expect("a disk that is full");
        let output = program.args(arguments).stdout(full).output().expect("the program starts");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("the result could not be written"), "{arguments:?}: {said}");
        // A reader that closes the pipe early is no failure.
        let mut program = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = program.args(arguments).stdout(Stdio::from(writer)).output().expect("the program starts");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{arguments:?}");
        assert!(!printed(arguments).is_empty());
    }
}
