//! Runs the program and checks what it prints and how it ends. Each subject has a file, so there are more files than
//! in other folders.

mod attack;
mod bad_input;
#[cfg(target_os = "linux")]
mod bench;
mod cases;
mod csv;
mod determinism;
mod engineer;
mod figures;
mod found;
mod html;
mod html_batches;
mod html_figures;
mod html_target;
mod human;
mod json;
#[cfg(target_os = "linux")]
mod machine;
#[path = "../../../portcullis-trace/tests/trace/merged.rs"]
mod merged;
mod narrow_space;
mod nothing_tested;
mod prefetching;
mod readme;
mod riommu;
mod shards;
mod simulate;
mod sub_page;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};

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

/// The results so far, by command line.
static RESULTS: Mutex<BTreeMap<Vec<String>, Arc<OnceLock<Output>>>> = Mutex::new(BTreeMap::new());

/// Runs the program, or waits for the run of another test: the same command line prints the same bytes, so one run
/// serves all tests. A run that writes a page is never shared, and neither may be one whose files change in between.
fn portcullis(arguments: &[&str]) -> Output {
    if arguments.contains(&"--html") {
        return again(arguments);
    }
    let command_line = arguments.iter().map(ToString::to_string).collect();
    let result = RESULTS.lock().expect("no panic").entry(command_line).or_default().clone();
    result.get_or_init(|| again(arguments)).clone()
}

/// Runs the program, whether or not it has run with these arguments before.
fn again(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// What a successful run prints.
fn printed(arguments: &[&str]) -> String {
    successful(arguments, &portcullis(arguments))
}

/// What another run with these arguments prints.
fn printed_again(arguments: &[&str]) -> String {
    successful(arguments, &again(arguments))
}

/// Standard error stays empty: progress is not shown on a pipe.
fn successful(arguments: &[&str], output: &Output) -> String {
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

/// A file with the default machine, in which nothing is assumed: no run is repeated to find out what the advice depends
/// on.
fn nothing_assumed() -> &'static str {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| {
        let listed = json(&["list", "machines", "--json"]);
        let machines = listed["machines"].as_array().expect("machines");
        let mut machine = machines.iter().find(|one| one["id"] == "cascadelake-cx5").expect("the default").clone();
        machine["assumed"] = serde_json::json!({});
        written("nothing-assumed.json", machine.to_string())
    })
}

/// The first result of a design and protection.
fn row<'d>(document: &'d Value, design: &str, protection: &str) -> &'d Value {
    let found = rows(document).iter().find(|row| row["design"] == design && row["protection"] == protection);
    found.unwrap_or_else(|| panic!("no row for {design} {protection}"))
}

fn float(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is {}", row[key]))
}
