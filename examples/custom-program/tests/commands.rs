//! Each command takes the design of this package like those of the list.

use serde_json::Value;
use std::process::{Command, Output};

fn program(arguments: &str) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_custom-program")).args(arguments.split(' ')).output();
    output.expect("the program starts")
}

fn succeeds(arguments: &str) -> String {
    let output = program(arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The rows of the design in a document's list.
fn rows(arguments: &str, list: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(&succeeds(arguments)).expect("JSON");
    let all = document[list].as_array().expect("a list").iter();
    all.filter(|row| row["design"] == "tree-per-cpu" || row["id"] == "tree-per-cpu").cloned().collect()
}

const WORK: &str = "--workload rings:count=2,operations=4000 --designs none,magazine,tree-per-cpu";

#[test]
fn compare_names_it_in_table_page_and_advice() {
    let strict = rows(&format!("compare {WORK} --json"), "results");
    let cycles = |row: &Value| row["cycles_per_page"].as_f64().expect("a number");
    assert!(strict.iter().any(|row| row["protection"] == "strict" && cycles(row) > 0.0), "{strict:?}");
    assert!(succeeds(&format!("compare {WORK}")).contains("tree-per-cpu"));
    let page = std::env::temp_dir().join(format!("custom-program-{}.html", std::process::id()));
    succeeds(&format!("compare {WORK} --html {}", page.display()));
    let html = std::fs::read_to_string(&page).expect("the page");
    std::fs::remove_file(page).expect("ours");
    assert!(html.contains(">tree-per-cpu</th>") && html.contains("\ntree-per-cpu\n</text>"), "a row, and a picture");
    // Alone with the unprotected run, it is the best there is.
    let alone = succeeds("compare --workload rings:count=2,operations=4000 --designs none,tree-per-cpu --json");
    let document: Value = serde_json::from_str(&alone).expect("JSON");
    let advice = document["advice"][0].as_str().expect("advice");
    assert!(advice.starts_with("Choose `tree-per-cpu` strict"), "{advice}");
}

#[test]
fn the_other_commands_take_it() {
    assert_eq!(rows("list designs --json", "designs").len(), 1);
    let attacked = rows(&format!("attack {WORK} --json"), "results");
    assert!(attacked.iter().any(|row| row["protection"] == "strict" && row["rule"].is_null()), "{attacked:?}");
    let simulated =
        "simulate --machine r210-cx3 --workload netperf-rr --design tree-per-cpu --protection strict --json";
    assert_eq!(rows(simulated, "results").len(), 1);
    let unknown = program("compare --designs tree-per-cp");
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("tree-per-cpu"), "it is named and proposed");
}

#[test]
fn figures_that_show_all_designs_show_it() {
    assert!(succeeds("figures contiguity").contains("tree-per-cpu"));
}

#[cfg(target_os = "linux")]
#[test]
fn bench_times_it() {
    let rows = rows("bench --designs tree-per-cpu --workload page-1 --threads 1 --samples 1 --json", "results");
    assert_eq!(rows.len(), 2, "strict and deferred");
    assert!(rows.iter().all(|row| row["error"].is_null() && row["ns_per_pair"].as_f64() > Some(0.0)), "{rows:?}");
}
