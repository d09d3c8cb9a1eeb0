//! If nothing was tested, the exit status is 1, and a message says so.

use super::{portcullis, rows, text, written};
use serde_json::Value;
use std::process::{Command, Stdio};

/// Checks that a run that tested nothing ends with status 1 and this message, and still prints the table and the
/// document.
pub(super) fn untested(arguments: &[&str], complaint: &str) -> Value {
    let output = portcullis(arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(said.contains(complaint), "{arguments:?}: {said}");
    assert!(text(&output.stdout).contains("design"), "the table is printed, although the check failed: {arguments:?}");
    let output = portcullis(&[arguments, &["--json"]].concat());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), said), "{arguments:?}");
    serde_json::from_str(text(&output.stdout)).expect("one JSON document, although the check failed")
}

/// A good trace does not make up for another one on which every run failed.
#[test]
fn every_run_on_one_trace_failed() {
    let far = "  fio-1 [000] ..... 1.0: map: IOMMU: iova=0x5000 - 0x6000 paddr=0x8000000000000 size=4096\n";
    let near = "  fio-1 [000] ..... 1.0: map: IOMMU: iova=0x5000 - 0x6000 paddr=0x8000 size=4096\n";
    let (far, near) = (written("untested-far.trace", far), written("untested-near.trace", near));
    let document = untested(&["compare", &near, &far, "--designs", "stock"], &format!("every run failed ({far})"));
    assert_eq!(document["violations"].as_array().map(Vec::len), Some(1));
    assert!(rows(&document)[0]["error"].is_null());
}

/// A reader that closes the pipe early is no failure, but does not hide one either.
#[test]
fn a_closed_pipe_hides_no_failed_check() {
    let work = ["--workload", "rings:ring=16,operations=64", "--designs"];
    let status = |command: &str, design: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        program.arg(command).args(work).arg(design).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = program.spawn().expect("the program starts");
        drop(child.stdout.take());
        child.wait().expect("it ends").code()
    };
    assert_eq!((status("compare", "stock"), status("attack", "stock")), (Some(0), Some(1)));
}
