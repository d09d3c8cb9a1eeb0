//! Runs the program and checks what it prints and how it ends. Each subject has a file, so there are more files than
//! in other folders.

mod attack;
mod bad_input;
#[cfg(target_os = "linux")]
mod bench;
mod csv;
mod determinism;
mod figures;
mod found;
mod html;
mod html_batches;
mod html_target;
mod human;
mod json;
#[cfg(target_os = "linux")]
mod machine;
mod narrow_space;
mod nothing_tested;
mod prefetching;
mod readme;
mod riommu;
mod shards;
mod simulate;
mod sub_page;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RECEIVE: &str = "q-e1000e-rx.strict.2cpu.trace.xz";
const SEND: &str = "q-e1000e-tx.lazy.2cpu.trace.xz";
const DISK: &str = "q-nvme-randread4k.strict.2cpu.trace.xz";

/// The path of a file in the folder `traces`.
fn bundled(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(file).display().to_string()
}

/// Writes a file for a test, and returns its path.
fn written(name: &str, contents: impl AsRef<[u8]>) -> String {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, contents).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path.display().to_string()
}

/// The program with the default line length of a pipe, regardless of the environment of the tests.
fn program(arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    program.args(arguments).env_remove("COLUMNS");
    program
}

fn portcullis(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// What a successful run prints. Standard error stays empty: progress is not shown on a pipe.
fn printed(arguments: &[&str]) -> String {
    let output = portcullis(arguments);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{arguments:?}");
    text(&output.stdout).to_owned()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(arguments)).expect("one JSON document")
}

/// `compare … --json`.
fn compared(arguments: &[&str]) -> Value {
    json(&[&["compare"], arguments, &["--json"]].concat())
}

fn rows(document: &Value) -> &[Value] {
    document["results"].as_array().expect("a list of results")
}

/// The first result of a design and protection.
fn row<'d>(document: &'d Value, design: &str, protection: &str) -> &'d Value {
    let found = rows(document).iter().find(|row| row["design"] == design && row["protection"] == protection);
    found.unwrap_or_else(|| panic!("no row for {design} {protection}"))
}

fn float(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is {}", row[key]))
}
