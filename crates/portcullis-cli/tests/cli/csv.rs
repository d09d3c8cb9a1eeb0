//! `--csv`: the rows of the JSON document, and nothing else.

use super::{RECEIVE, bundled, json, portcullis, printed, text};
use serde_json::Value;
use std::collections::BTreeMap;

/// The lines of a run, each as a map from column names to cells.
fn read(arguments: &[&str]) -> Vec<BTreeMap<String, String>> {
    let printed = printed(&[arguments, &["--csv"]].concat());
    let mut reader = ::csv::Reader::from_reader(printed.as_bytes());
    reader.deserialize().map(|line| line.expect("as many cells as columns")).collect()
}

/// The cell for a value.
fn cell(value: &Value) -> String {
    let words = |words: Vec<String>| words.join(" ");
    match value {
        Value::Null => String::new(),
        Value::String(word) => word.clone(),
        Value::Array(values) => words(values.iter().map(cell).collect()),
        Value::Object(pairs) => words(pairs.iter().map(|(key, value)| format!("{key}={}", cell(value))).collect()),
        other => other.to_string(),
    }
}

/// Checks that every key of a row is in its line, with the same value.
fn check(line: &BTreeMap<String, String>, row: &Value) {
    for (key, value) in row.as_object().expect("a row") {
        match value {
            Value::Object(parts) if key != "set" && key != "options" => {
                for (part, value) in parts {
                    assert_eq!(line[&format!("{key}.{part}")], cell(value), "{key}.{part}");
                }
            }
            Value::Null if ["recorded", "riotlb", "prefetch"].contains(&key.as_str()) => {
                let parts = line.iter().filter(|(column, _)| column.starts_with(&format!("{key}.")));
                assert!(parts.clone().count() > 0 && parts.clone().all(|(_, cell)| cell.is_empty()), "{key}");
            }
            _ => assert_eq!(line[key], cell(value), "{key}"),
        }
    }
}

#[test]
fn compare_has_a_line_for_each_row() {
    let path = bundled(RECEIVE);
    let work = ["compare", &path, "--designs", "none,eiovar:k=64,riommu", "--set", "ptcache_l3_entries=9"];
    let (lines, document) = (read(&work), json(&[&work[..], &["--json"]].concat()));
    let of = |key: &str| document[key].as_array().expect("rows").clone();
    let (own, equal) = (of("results"), of("equal_batch"));
    assert_eq!(lines.len(), own.len() + equal.len());
    for (line, row) in lines.iter().zip(own.iter().chain(&equal)) {
        check(line, row);
    }
    let tables: Vec<&str> = lines.iter().map(|line| line["table"].as_str()).collect();
    assert_eq!(tables, [vec!["own"; own.len()], vec!["equal"; equal.len()]].concat());
    assert!(lines.iter().all(|line| line["set"] == "ptcache_l3_entries=9"));
    assert!(lines.iter().any(|line| line["options"] == "k=64"));
}

#[test]
fn columns_are_the_same_for_all_work() {
    let header = |arguments: &[&str]| {
        let text = printed(&[&["compare", "--csv"], arguments].concat());
        text.lines().next().map(str::to_owned)
    };
    let trace = header(&["--designs", "none"]);
    assert_eq!(trace, header(&["--workload", "rings:operations=4000", "--designs", "riommu"]));
    assert_eq!(trace, header(&["--designs", "none,riommu", "--set", "rings=false"]), "errors have theirs as well");
}

#[test]
fn attack_has_a_line_for_each_rule() {
    let work = ["attack", "--designs", "none,stock,riommu"];
    let (lines, document) = (read(&work), json(&[&work[..], &["--json"]].concat()));
    let rows = super::rows(&document);
    assert_eq!(lines.len(), rows.len());
    for (line, row) in lines.iter().zip(rows) {
        check(line, row);
    }
}

#[test]
fn checks_fail_as_they_do_with_json() {
    let too_few = ["attack", "--workload", "rings:ring=16,operations=64", "--designs", "stock"];
    let [lines, document] = ["--csv", "--json"].map(|face| portcullis(&[&too_few[..], &[face]].concat()));
    assert_eq!((lines.status.code(), text(&lines.stderr)), (Some(1), text(&document.stderr)));
    assert!(text(&lines.stdout).starts_with("trace,set,design,"), "{}", text(&lines.stdout));
    let both = portcullis(&["compare", "--csv", "--json"]);
    assert_eq!((both.status.code(), text(&both.stdout)), (Some(2), ""));
}
