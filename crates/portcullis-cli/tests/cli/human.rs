//! What is meant for people: tables, advice and lists.

use super::{RECEIVE, bundled, json, printed};
use serde_json::Value;

/// The one line that begins with these words.
fn line<'t>(text: &'t str, words: &[&str]) -> &'t str {
    let begins = |line: &&str| line.split_whitespace().take(words.len()).eq(words.iter().copied());
    let found: Vec<&str> = text.lines().filter(begins).collect();
    assert_eq!(found.len(), 1, "{words:?} in\n{text}");
    found[0]
}

#[test]
fn without_arguments_the_bundled_trace_is_compared() {
    let text = printed(&[]);
    let first = text.lines().next().unwrap_or_default();
    for part in [RECEIVE, "7,370 maps", "9,820 pages", "2 CPUs", "255 unmaps precede the capture"] {
        assert!(first.contains(part), "{part} in {first}");
    }
    let machine = line(&text, &["machine", "cascadelake-cx5"]);
    assert!(machine.contains("model clock") && machine.contains("not your CPU"), "{machine}");
    // Up to the first blank line after it: one row per design and protection, and nothing else.
    let table = text.split("\n\n").nth(1).expect("a table");
    let heads: Vec<[&str; 2]> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let head = [words.next()?, words.next()?];
            ["none", "strict", "deferred"].contains(&head[1]).then_some(head)
        })
        .collect();
    let designs = json(&["list", "designs", "--json"]);
    let mut expected = Vec::new();
    for design in designs["designs"].as_array().unwrap() {
        for protection in design["protections"].as_array().unwrap() {
            expected.push([design["id"].as_str().unwrap(), protection.as_str().unwrap()]);
        }
    }
    assert_eq!(heads, expected);
    for column in ["cycles/", "IOTLB", "inval/", "tables", "window us", "Gb/s", "limit", "of none"] {
        assert!(table.contains(column), "{column} in\n{table}");
    }
    assert!(line(table, &["none", "none"]).contains("100 %"));
    // What leaves a buffer exposed for ever says so.
    assert!(line(table, &["none", "none"]).contains('∞') && line(table, &["static", "none"]).contains('∞'));
}

/// The last paragraph but the footnote, on one line.
fn advice(text: &str) -> String {
    let mut paragraphs = text.trim_end().rsplit("\n\n");
    let footnote = paragraphs.next();
    assert!(footnote.is_some_and(|footnote| footnote.contains("estimates")), "estimates are called so: {text}");
    paragraphs.next().expect("advice").replace('\n', " ")
}

#[test]
fn it_ends_with_what_can_be_had_today_and_what_would_be_better() {
    let text = printed(&[]);
    let advice = advice(&text);
    assert!(
        advice.starts_with("Strict protection with Linux as it is (`magazine`, kernel option `iommu.strict=1`)"),
        "{advice}"
    );
    for part in [
        "of the unprotected rate",
        "of one core at the recorded load",
        "after it is back in use",
        "What would lower it",
        "The price of batches",
        "assumed constants",
        "`--payload` sets it",
    ] {
        assert!(advice.contains(part), "{part} in {advice}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 130 && line.trim_end() == line), "{text}");
}

#[test]
fn the_advice_rests_on_the_numbers() {
    let receive = bundled(RECEIVE);
    let of = |arguments: &[&str]| advice(&printed(&[&["compare"], arguments].concat()));
    let strict = of(&[&receive, "--protection", "strict", "--designs", "stock,eiovar"]);
    assert!(strict.contains("the only protection that was run"), "{strict}");
    let deferred = of(&[&receive, "--protection", "deferred", "--designs", "stock"]);
    assert!(deferred.contains("Choose `stock` deferred, because no strict run is here to compare with"), "{deferred}");
    let none = of(&[&receive, "--designs", "none,static"]);
    assert!(none.contains("no strict or deferred run here to choose"), "{none}");
    let rings = "rings:count=2,ring=1024,burst=1,operations=8000";
    let searching = of(&["--workload", rings, "--designs", "none,stock"]);
    assert!(searching.contains("is the search for a free address"), "{searching}");
}

#[test]
fn both_faces_show_the_same_numbers() {
    let document = super::compared(&[&bundled(RECEIVE)]);
    let text = printed(&["compare", &bundled(RECEIVE)]);
    let table = text.split("\n\n").nth(1).expect("a table");
    let strict = super::row(&document, "stock", "strict");
    let shown = line(table, &["stock", "strict"]);
    let rate = format!("{:.1}", super::float(strict, "estimate_gbps"));
    let share = format!("{:.0} %", 100.0 * super::float(strict, "estimate_vs_none"));
    assert!(shown.contains(&rate) && shown.ends_with(&share), "{rate}, {share} in {shown}");
}

#[test]
fn lists_tell_what_there_is() {
    let text = printed(&["list"]);
    for name in ["none", "static", "stock", "r210-cx3", "cascadelake-cx5", "rings"] {
        line(&text, &[name]);
    }
    let document = json(&["list", "--json"]);
    assert_eq!(document["schema"], "portcullis.list/1");
    let ids = |kind: &str| -> Vec<String> {
        let entries = document[kind].as_array().unwrap_or_else(|| panic!("{kind}"));
        entries.iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    assert!(ids("designs").starts_with(&["none", "static", "stock"].map(str::to_owned)));
    for id in ids("designs").iter().chain(&ids("machines")).chain(&ids("workloads")) {
        line(&text, &[id]);
    }
    for design in document["designs"].as_array().unwrap() {
        let string = |of: &Value, key: &str| of[key].as_str().unwrap_or_else(|| panic!("{key}")).to_owned();
        let id = string(design, "id");
        let paragraph = text.split("\n\n").find(|paragraph| paragraph.lines().next() == Some(&id));
        let paragraph = paragraph.unwrap_or_else(|| panic!("no paragraph for {id} in\n{text}"));
        for fact in ["source", "allocator", "invalidation", "tables"].map(|key| string(design, key)) {
            assert!(paragraph.contains(&fact), "{id}: {fact}");
        }
        for breach in design["breaches"].as_array().unwrap() {
            let [rule, protection, bound] = ["rule", "protection", "bound"].map(|key| string(breach, key));
            assert!(paragraph.contains(&format!("gives up      {rule} under {protection}: {bound}")), "{id}: {rule}");
        }
    }
    let stock = document["designs"].as_array().unwrap().iter().find(|design| design["id"] == "stock").unwrap();
    assert_eq!(stock["breaches"][0]["rule"], "S2", "deferred gives up strictness, and says so");
    for machine in document["machines"].as_array().unwrap() {
        assert!(machine["costs"].is_object() && machine["iommu"].is_object() && machine["source"].is_string());
    }
    for (kind, others) in [("designs", "machines"), ("machines", "workloads"), ("workloads", "designs")] {
        let one = json(&["list", kind, "--json"]);
        assert_eq!(one[kind], document[kind]);
        assert_eq!(one.get(others), None::<&Value>);
        assert!(!printed(&["list", kind]).is_empty());
    }
}

#[test]
fn three_commands_record_a_trace() {
    let text = printed(&["capture-help"]);
    for number in ["1. ", "2. ", "3. "] {
        assert_eq!(text.lines().filter(|line| line.trim_start().starts_with(number)).count(), 1, "{number}");
    }
    assert!(!text.lines().any(|line| line.trim_start().starts_with("4. ")));
    for part in ["trace-cmd start", "iommu:map", "What it costs", "Limits", "lost"] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn help_and_version_are_results() {
    assert!(printed(&["--help"]).contains("compare"));
    assert!(printed(&["compare", "--help"]).contains("--accesses"));
    assert!(printed(&["--version"]).starts_with("portcullis "));
}
