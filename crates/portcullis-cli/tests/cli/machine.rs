//! `machine` and `--machine FILE`: the contents of the document, and which documents are refused. No test depends on
//! how long anything takes.

use super::{DISK, again, bundled, compared, json, portcullis, printed, text, written};
use serde_json::{Value, json};
use std::sync::OnceLock;

/// The program's description of this host, measured once.
fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let output = portcullis(&["machine"]);
        let said = text(&output.stderr);
        // Other programs may keep the host busy, and the program says so.
        let is_expected = said.lines().all(|line| line.contains("warning: other programs took"));
        assert!(output.status.success() && is_expected, "{said}");
        serde_json::from_slice(&output.stdout).expect("one JSON document")
    })
}

/// Writes the document to a file, after an edit.
fn edited(name: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut edited = document().clone();
    edit(&mut edited);
    written(name, edited.to_string())
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn it_has_the_keys_of_every_machine() {
    let listed = json(&["list", "machines", "--json"]);
    for machine in listed["machines"].as_array().expect("machines") {
        // What is behind the IOMMU of a simulated server is not measured here, nor what several sockets share.
        let mut machine_keys = keys(machine);
        machine_keys.retain(|key| !["server", "sharing"].contains(key));
        assert_eq!(machine_keys, keys(document()));
        assert_eq!(keys(&machine["costs"]), keys(&document()["costs"]));
    }
    assert_eq!(document()["id"], "this-host");
}

#[test]
fn what_is_assumed_is_there_and_what_was_measured_is_not_assumed() {
    let (machine, assumed) = (document(), &document()["assumed"]);
    for key in keys(assumed) {
        let value = [machine, &machine["costs"], &machine["iommu"]].into_iter().find_map(|part| part.get(key));
        let value = value.and_then(Value::as_f64).unwrap_or_else(|| panic!("{key} is no number of the machine"));
        let [low, high] = [0, 1].map(|end| assumed[key][end].as_f64().expect("an end"));
        assert!(low <= value && value <= high, "{key}");
    }
    // Other tests keep the host busy, and prices are then not trusted.
    let is_busy = machine["source"].as_str().expect("a source").contains("on a busy host");
    assert!(!keys(assumed).contains(&"core_hz"));
    for key in ["lock", "map", "unmap", "table_read", "table_write", "tree_find", "chunk_take", "list_pop", "copy_kib"]
    {
        assert_eq!(keys(assumed).contains(&key), is_busy, "{key}");
    }
    // No program can measure these.
    for key in ["register_write", "handoff_per_waiter", "iotlb_entries", "memory_read_ps", "wait_ps"] {
        assert!(keys(assumed).contains(&key), "{key}");
    }
    assert!(machine["source"].as_str().is_some_and(|source| source.contains("measured here")));
}

#[test]
fn it_is_taken_where_a_machine_is() {
    let file = written("mine.json", document().to_string());
    let work = ["--workload", "rings:operations=500", "--designs", "stock,portcullis"];
    let compared = compared(&[&["--machine", &file][..], &work].concat());
    assert_eq!((&compared["machine"], &compared["assumed"]), (&json!("this-host"), document()));
    let head = |machine: &str| printed(&[&["compare", "--machine", machine][..], &work].concat());
    let assumed = keys(&document()["assumed"]).len();
    let of_file = format!("machine {file}: this-host (a file; {assumed} of its values are assumed)");
    assert!(head(&file).contains(&of_file), "{of_file}");
    assert!(head("r210-cx3").contains("machine r210-cx3 (assumed)   costs from its cost book, not your CPU"));
    printed(&["attack", "--machine", &file, "--workload", "rings:operations=4000", "--designs", "stock"]);
    let set = printed(&[&["compare", "--machine", &file, "--set", "lock=77"][..], &work].concat());
    assert!(set.contains("lock=77"), "{set}");
}

#[test]
fn what_a_file_assumes_is_counted() {
    let assumed = |count: usize| {
        let edit = |machine: &mut Value| {
            let all = machine["assumed"].as_object().expect("ranges").clone();
            machine["assumed"] = all.into_iter().take(count).collect();
        };
        let file = edited(&format!("assumes-{count}.json"), edit);
        printed(&["compare", "--machine", &file, "--workload", "rings:operations=500", "--designs", "stock"])
    };
    assert!(assumed(0).contains("this-host (a file; none of its values is assumed)"));
    assert!(assumed(1).contains("this-host (a file; 1 of its values is assumed)"));
}

#[test]
fn a_prefetcher_of_the_file_stays_unless_another_is_asked_for_or_none() {
    let file = edited("prefetches.json", |machine| machine["iommu"]["prefetcher"] = json!("next"));
    let prefetcher = |arguments: &[&str]| {
        let work = ["--machine", &file, "--workload", "rings:operations=500", "--designs", "stock"];
        compared(&[&work[..], arguments].concat())["results"][0]["prefetcher"].clone()
    };
    assert_eq!(prefetcher(&[]), "next:depth=1:buffer=16");
    assert_eq!(prefetcher(&["--prefetch", "recency:length=9"]), "recency:length=9:form=modified:buffer=16");
    assert_eq!(prefetcher(&["--prefetch", "none"]), Value::Null);
}

/// Checks that the program refuses the file: status 2, with all of these parts in the message.
fn refused(file: &str, expected: &[&str]) {
    // Some of these files have the same name.
    let output = again(&["compare", &bundled(DISK), "--machine", file]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{said}");
    assert!(said.contains(&format!("portcullis: {file}: ")), "{said}");
    assert!(expected.iter().all(|expected| said.contains(expected)), "{said}");
}

#[test]
fn wrong_documents_are_refused_with_file_key_and_reason() {
    let cost = |key: &str, value: Value| edited(&format!("{key}.json"), |machine| machine["costs"][key] = value);
    refused(&cost("lock", json!("dear")), &["`costs.lock`", "invalid type: string \"dear\", expected u64"]);
    refused(&cost("poll", json!(-1)), &["`costs.poll`", "invalid value: integer `-1`, expected u64"]);
    refused(&cost("map", json!(1.5)), &["`costs.map`", "invalid type: floating point `1.5`, expected u64"]);
    refused(&cost("unmap", json!(10_000_000_000_u64)), &["`unmap`", "at most 1000000000 cycles"]);
    refused(&cost("locks", json!(1)), &["`costs.locks`", "unknown field `locks`", "`lock`"]);
    let no_json = "expected a machine in JSON, as `portcullis machine` prints it";
    refused(&bundled(DISK), &[no_json, "line 1"]);
    refused(&written("cut.json", "{\"id\": "), &[no_json, "line 1"]);
    let without = |part: &str, key: &str| {
        edited(&format!("without-{key}.json"), |machine| {
            let part = if part.is_empty() { machine } else { &mut machine[part] };
            part.as_object_mut().expect("an object").remove(key);
        })
    };
    refused(&without("costs", "tree_find"), &["`costs`", "missing field `tree_find`"]);
    refused(&without("iommu", "walkers"), &["`iommu`", "missing field `walkers`"]);
    refused(&without("", "cores"), &["missing field `cores`"]);
    let with = |key: &str, value: Value| edited(&format!("with-{key}.json"), |machine| machine[key] = value);
    refused(&with("core", json!(1)), &["`core`", "unknown field `core`"]);
    refused(&with("cores", json!(0)), &["`cores`", "from 1 to 4096"]);
    refused(&with("core_hz", json!(3.3)), &["`core_hz`", "from 100 MHz to 100 GHz"]);
    refused(
        &with("assumed", json!({"weather": [0, 1]})),
        &["`weather`", "a number of the machine, because `assumed` has a range for it"],
    );
    refused(&with("assumed", json!({"lock": [1e6, 2e6]})), &["`lock`", "within its range in `assumed`"]);
    refused(&with("assumed", json!({"lock": [1]})), &["`assumed.lock", "invalid length 1"]);
    refused(&edited("walkers.json", |machine| machine["iommu"]["walkers"] = json!(0)), &["`walkers`"]);
}

#[test]
fn what_is_no_document_is_refused() {
    refused(&written("cut.json", "{\"id\": \"mine\","), &["EOF while parsing", "line 1"]);
    refused(&written("empty.json", ""), &["EOF while parsing"]);
    refused(&written("two.json", format!("{0}{0}", document())), &["trailing characters"]);
    refused(&written("text.json", "mine"), &["expected value at line 1"]);
    refused("nowhere.json", &["No such file"]);
    refused(&written("no-ending", "[1]"), &["invalid"]);
    let output = portcullis(&["compare", "--machine", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(
        "no machine `nowhere`; there are: r210-cx3, r210-bcm57810, r430-bcm57810, cascadelake-cx5, cascadelake-cx5-9k, icelake-cx5, future-800g, xeon-16"
    ));
}
