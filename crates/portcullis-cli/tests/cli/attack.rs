//! `attack`: what got through, in the table and in the JSON document, and how the command ends.

use super::{DISK, RECEIVE, bundled, float, json, portcullis, printed, printed_again, rows, text};
use serde_json::Value;

/// The work is small enough to be attacked many times, and large enough to show something.
const RINGS: &str = "rings:count=2,ring=128,tx=0.25,operations=4000";
const TOO_FEW: &str = "rings:ring=16,operations=64";

fn attacked(arguments: &[&str]) -> Value {
    json(&[&["attack"], arguments, &["--json"]].concat())
}

/// The keys that every entry has, even if there is no value for them.
const KEYS: [&str; 18] = [
    "trace",
    "design",
    "options",
    "protection",
    "sub_page",
    "batch",
    "rule",
    "declared",
    "stale_accesses",
    "stale_window_us_max",
    "stale_bytes_us",
    "bound_us",
    "grace_us",
    "probes",
    "probes_cached",
    "residual_accesses",
    "residual_bytes_us",
    "error",
];

fn check_entry(entry: &Value) {
    for key in KEYS {
        let there = entry.as_object().expect("an object").contains_key(key);
        assert_eq!(there, key != "error", "{key}: {entry}");
    }
    assert!(entry["stale_accesses"].is_u64() && entry["probes"].as_u64() > Some(1000), "{entry}");
    let protected = entry["protection"] != "none";
    assert_eq!(entry["probes_cached"].is_u64(), protected, "{entry}");
    assert!(!protected || entry["probes_cached"].as_u64() >= Some(1000), "{entry}");
    if entry["rule"].is_null() {
        assert_eq!(entry["stale_accesses"], 0, "{entry}");
        for key in ["declared", "stale_window_us_max", "stale_bytes_us"] {
            assert!(entry[key].is_null(), "{key}: {entry}");
        }
        return;
    }
    assert!(entry["stale_accesses"].as_u64() > Some(0), "{entry}");
    assert_eq!(entry["declared"], true, "{entry}");
    let window_us = entry["stale_window_us_max"].as_f64();
    assert_eq!((window_us.is_some(), entry["stale_bytes_us"].is_number()), (protected, protected), "{entry}");
    if let (Some(bound_us), Some(window_us)) = (entry["bound_us"].as_f64(), window_us) {
        let grace_us = entry["grace_us"].as_f64().expect("beside a bound");
        assert!(window_us > 0.0 && window_us <= bound_us + grace_us && grace_us < 500.0, "{entry}");
    }
}

/// Checks that every design is there with each of its protections, and that what was found is what it declares.
fn check_document(document: &Value) {
    assert_eq!((&document["schema"], &document["violations"]), (&"portcullis.attack/1".into(), &Value::Array(vec![])));
    rows(document).iter().for_each(check_entry);
    for design in json(&["list", "designs", "--json"])["designs"].as_array().expect("designs") {
        for protection in design["protections"].as_array().expect("protections") {
            let declared: Vec<&Value> = design["breaches"].as_array().expect("breaches").iter().collect();
            let declared = declared.into_iter().filter(|breach| breach["protection"] == *protection);
            // Rules that a device can observe. The others say how mistakes of a driver are answered.
            let visible = declared.map(|breach| &breach["rule"]).filter(|rule| **rule == "S1" || **rule == "S2");
            let visible: Vec<&Value> = visible.collect();
            let of_run = |row: &&Value| row["design"] == design["id"] && row["protection"] == *protection;
            let found: Vec<&Value> = rows(document).iter().filter(of_run).map(|row| &row["rule"]).collect();
            assert_eq!(found, if visible.is_empty() { vec![&Value::Null] } else { visible }, "{design} {protection}");
        }
    }
}

#[test]
fn a_bundled_trace() {
    let path = bundled(RECEIVE);
    let document = attacked(&[&path, "--seed", "4"]);
    check_document(&document);
    assert_eq!((&document["input"][0]["maps"], &document["seed"]), (&7370.into(), &4.into()));
    assert!(rows(&document).iter().all(|row| row["trace"] == path.as_str()));
    // Buffers are half a page: the device reads the other half, and that is no breach. With rings, it reads only the
    // bytes of the buffer.
    for row in rows(&document) {
        let rings = row["design"] == "riommu";
        assert_eq!(row["residual_accesses"].as_u64() == Some(0), rings, "{row}");
        assert_eq!(row["no_such_hardware"], rings, "{row}");
        let in_burst = row.get("in_burst_entries_max").and_then(Value::as_u64);
        assert_eq!((1..=2).contains(&in_burst.unwrap_or(0)), rings, "{row}");
    }
    assert!(document["conclusions"][0].as_str().is_some_and(|said| said.contains("Nothing got through")));
}

#[test]
fn rings() {
    let document = attacked(&["--workload", RINGS, "--seed", "1"]);
    check_document(&document);
    assert_eq!((&document["workload"], &document["seed"]), (&RINGS.into(), &1.into()));
    let by_itself = attacked(&["--workload", RINGS, "--designs", "stock"]);
    assert_eq!(by_itself["seed"], 1, "unless another is given");
}

#[test]
fn the_options_of_compare() {
    let with = |arguments: &[&str]| {
        let document = attacked(&[&["--workload", RINGS, "--designs", "stock"], arguments].concat());
        rows(&document).iter().for_each(check_entry);
        document
    };
    assert_eq!(rows(&with(&["--protection", "strict"])).len(), 1);
    assert!(rows(&with(&["--batch", "16"])).iter().all(|row| row["batch"] == 16));
    assert_eq!(with(&["--no-hint"])["no_hint"], true);
    assert_eq!(with(&["--merge", "4"])["merge"], 4);
    assert_eq!((with(&[]).get("halves"), &with(&["--halves"])["halves"]), (None, &true.into()));
    assert_eq!(with(&["--clock", "scale=2"])["clock"], "scale=2");
    assert_eq!(with(&["--machine", "r210-cx3"])["machine"], "r210-cx3");
    assert_eq!(with(&["--set", "iotlb_entries=64"])["set"], Value::from(vec!["iotlb_entries=64"]));
    let eiovar = attacked(&["--workload", RINGS, "--designs", "eiovar:k=64"]);
    assert_eq!(rows(&eiovar)[0]["options"]["k"], 64);
    let log = bundled("q-nvme-randread4k.strict.2cpu.qemu.xz");
    let logged = attacked(&[&bundled(DISK), "--accesses", &log, "--designs", "stock", "--protection", "strict"]);
    rows(&logged).iter().for_each(check_entry);
}

/// The pages that one command takes out of reach for many CPUs are out of reach when these go on.
#[test]
fn nothing_gets_through_merged_commands() {
    let crowd = ["--workload", "rings:count=16,operations=4000", "--batch", "1", "--protection", "strict"];
    let designs = ["--designs", "portcullis", "--merge", "4"];
    let document = attacked(&[&crowd[..], &designs].concat());
    for row in rows(&document) {
        assert!(row["rule"].is_null() && row["stale_accesses"] == 0 && row["probes"].as_u64() > Some(10_000), "{row}");
    }
}

/// Between the halves of a commit the device still has the buffers: what it reaches counts as mapped. After the second
/// half it reaches nothing of them, under any design.
#[test]
fn nothing_gets_through_between_the_halves() {
    let work = ["--workload", "rings:count=4,operations=4000", "--halves", "--protection", "strict"];
    let document = attacked(&[&work[..], &["--batch", "16"]].concat());
    assert_eq!(document["halves"], true);
    assert!(rows(&document).len() > 10);
    for row in rows(&document) {
        check_entry(row);
        assert!(row["rule"].is_null() || row["declared"] == true, "{row}");
    }
    let strict = attacked(&[&work[..], &["--batch", "16", "--designs", "portcullis,magazine,stock"]].concat());
    assert!(rows(&strict).iter().all(|row| row["stale_accesses"] == 0), "{strict}");
    // It reaches what is not invalidated yet, and this is said.
    assert!(rows(&strict).iter().all(|row| row["between_halves"].as_u64() > Some(1_000)), "{strict}");
    assert!(strict["conclusions"].to_string().contains("between the two halves of their commits"), "{strict}");
    let whole = attacked(&["--workload", "rings:count=4,operations=4000", "--designs", "stock"]);
    assert!(rows(&whole).iter().all(|row| row.get("between_halves").is_none()), "{whole}");
}

#[test]
fn a_window_is_as_long_as_compare_says() {
    // Operations are rare enough that the malicious device does not slow the work down.
    let arguments = ["--workload", RINGS, "--designs", "stock", "--protection", "deferred", "--clock", "scale=20"];
    let document = attacked(&arguments);
    let compared = super::compared(&arguments);
    let [found, known] = [&document, &compared].map(|document| float(&rows(document)[0], "stale_window_us_max"));
    assert!((found - known).abs() < 0.05 * known, "{found} and {known} us");
}

#[test]
fn the_same_seed_prints_the_same_bytes() {
    let with = |run: fn(&[&str]) -> String, seed, faces: &[&str]| {
        run(&[&["attack", "--workload", RINGS, "--seed", seed], faces].concat())
    };
    // The head names the seed, so only the text after it is compared.
    let found = |printed: &str, face: &str| match printed.split_once(face) {
        Some((_, found)) => found.to_owned(),
        None => panic!("no {face} in {printed}"),
    };
    // All designs as JSON, and some as a table.
    let few = ["--designs", "none,stock,magazine,portcullis"];
    for (faces, face) in [(&["--json"][..], "\"results\""), (&few, "\n\n")] {
        let first = with(printed, "5", faces);
        assert_eq!(first, with(printed_again, "5", faces));
        assert_ne!(found(&first, face), found(&with(printed, "1", faces), face));
    }
}

#[test]
fn a_table_and_a_last_paragraph() {
    let text = printed(&["attack"]);
    assert!(text.starts_with(RECEIVE), "without arguments, the bundled trace: {text}");
    let parts: Vec<&str> = text.trim_end().split("\n\n").collect();
    let [head, table, conclusion] = parts[..] else { panic!("head, table and conclusion: {text}") };
    assert!(head.contains("machine cascadelake-cx5"), "{head}");
    for column in ["got through", "window us", "bound", "verdict", "probes", "cached", "rest of pages"] {
        assert!(table.contains(column), "{column} in\n{table}");
    }
    let line = |design: &str, protection: &str| {
        let begins = |line: &&str| line.split_whitespace().take(2).eq([design, protection]);
        table.lines().find(begins).unwrap_or_else(|| panic!("no row for {design} {protection} in\n{table}"))
    };
    assert!(line("stock", "strict").contains("nothing"));
    assert!(line("stock", "deferred").contains("S2 ") && line("stock", "deferred").contains("declared"));
    assert!(line("macos", "deferred").contains(" 0 + "), "what the hardware may take is a part of the bound");
    assert!(line("none", "none").contains("S1 ") && line("none", "none").contains("declared"));
    let conclusion = conclusion.replace('\n', " ");
    assert!(conclusion.starts_with("Nothing got through `stock` strict"), "{conclusion}");
    for part in ["`stock` deferred", "within the bound that each declares", "Without protection, as declared"] {
        assert!(conclusion.contains(part), "{part} in {conclusion}");
    }
    assert!(!conclusion.contains("did not see"), "of what a device can see, it sees all: {conclusion}");
    assert!(text.lines().all(|line| line.chars().count() <= 130 && line.trim_end() == line), "{text}");
}

#[test]
fn a_run_that_proves_nothing_fails() {
    let arguments = ["attack", "--workload", TOO_FEW, "--designs", "stock", "--protection", "strict"];
    let output = portcullis(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let complaint = "stock strict: only";
    assert!(text(&output.stderr).contains(complaint) && text(&output.stderr).contains("proves nothing"));
    assert!(text(&output.stdout).contains("PROVES NOTHING"), "{}", text(&output.stdout));
    let output = portcullis(&[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let document: Value =
        serde_json::from_str(text(&output.stdout)).expect("one JSON document, although the check failed");
    assert!(rows(&document)[0]["probes_cached"].as_u64() < Some(1000));
    assert!(document["conclusions"][0].as_str().is_some_and(|said| said.contains("FAILED")));
}

/// If addresses run out, the run ends early. Its findings up to then are printed, but prove nothing.
#[test]
fn a_run_that_ends_early_fails_and_says_why() {
    let arguments = ["attack", &bundled(RECEIVE), "--designs", "stock", "--set", "address_bits=20", "--json"];
    let output = portcullis(&arguments);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("ended early"), "{}", text(&output.stderr));
    let document: Value = serde_json::from_str(text(&output.stdout)).expect("one JSON document");
    assert!(rows(&document)[0]["error"].as_str().is_some_and(|error| error.contains("free pages")), "{document}");
}

#[test]
fn bad_usage_and_input() {
    let table: [(&[&str], &str); 7] = [
        (&["attack", "--designs", "magic"], "no design `magic`"),
        (&["attack", "no/such.trace"], "no/such.trace"),
        (&["attack", "--workload", "knots"], "no workload `knots`"),
        (&["attack", "--machine", "abacus"], "no machine `abacus`"),
        (&["attack", "--protection", "hope"], "expected strict or deferred"),
        (&["attack", "--set", "walkers=0"], "`walkers`"),
        (&["attack", "--fast"], "--fast"),
    ];
    for (arguments, part) in table {
        let output = portcullis(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
    }
}
