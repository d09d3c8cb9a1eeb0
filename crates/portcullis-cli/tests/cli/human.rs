//! Output for people: tables, advice and lists.

use super::{DISK, RECEIVE, bundled, json, printed, program, text};
use portcullis_sim::number::number;
use serde_json::Value;

/// The only line that begins with these words.
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
    // The answer stands between the head and the table. The table ends at the first blank line after it. It has one
    // row per design and protection, and nothing else.
    let table = text.split("\n\n").nth(2).expect("a table");
    let heads: Vec<[&str; 2]> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().filter(|word| *word != "(Linux)");
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
    for column in
        ["cycles/", "IOTLB", "L3", "inval/", "tables", "window us", "stale", "CPU % as", "Gb/s", "limit", "of none"]
    {
        assert!(table.contains(column), "{column} in\n{table}");
    }
    assert!(line(table, &["none", "none"]).contains("100 %"));
    // A design that leaves a buffer exposed for ever shows it.
    assert!(line(table, &["none", "none"]).contains('∞') && line(table, &["static", "none"]).contains('∞'));
}

/// The paragraph before the footnote, joined to one line.
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
        "the price of batches",
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
    let rings = "rings:count=2,ring=1024,burst=1,operations=4000";
    let searching = of(&["--workload", rings, "--designs", "none,stock"]);
    assert!(searching.contains("is the search for a free address"), "{searching}");
}

/// Designs that batch by themselves never share a table with others that do not.
#[test]
fn tables_are_at_equal_batches() {
    let document = super::compared(&[&bundled(RECEIVE)]);
    // The program carries the same trace.
    let text = printed(&[]);
    let tables: Vec<&str> = text.split("\n\n").collect();
    let all = ["results", "equal_batch"].map(|key| document[key].as_array().expect("rows").clone()).concat();
    for (batch, table, title) in
        [(1, tables[2], "Each unmap by itself:\n"), (64, tables[3], "In batches of up to 64, each with one wait:\n")]
    {
        assert!(table.starts_with(title) && !table.contains("batch  "), "{table}");
        let mut shown = 0;
        for row in all.iter().filter(|row| row["batch"] == batch) {
            let [design, protection] = ["design", "protection"].map(|key| row[key].as_str().expect("a word"));
            let line = match (design, batch) {
                ("magazine", 1) => line(table, &[design, "(Linux)", protection]),
                _ => line(table, &[design, protection]),
            };
            let cycles = number(super::float(row, "cycles_per_page"));
            let cycles = if protection == "none" { "-" } else { &cycles };
            let recorded = super::float(&row["recorded"], "cpu_percent");
            let recorded = if protection == "none" { "-".to_owned() } else { number(recorded) };
            let [least, most] = ["estimate_gbps_min", "estimate_gbps"].map(|key| super::float(row, key));
            let rate = format!("{least:.2}–{most:.1}");
            let share = format!("{:.0} %", 100.0 * super::float(row, "estimate_vs_none"));
            for part in [cycles, &recorded, &rate] {
                assert!(line.split_whitespace().any(|word| word == part), "{part} in {line}");
            }
            assert!(line.ends_with(&share), "{share} in {line}");
            shown += 1;
        }
        let rows = table.lines().filter(|line| line.ends_with(" %")).count();
        assert_eq!(rows, shown, "nothing else: {table}");
    }
    let one = printed(&["compare", &bundled(RECEIVE), "--batch", "8", "--designs", "none,magazine"]);
    assert_eq!(one.matches("In batches of up to 8, each with one wait:").count(), 1);
    assert!(!one.contains("Each unmap by itself"), "{one}");
}

#[test]
fn a_disk_has_requests_and_says_why_it_is_one() {
    let arguments = ["compare", &bundled(DISK), "--designs", "none,stock"];
    let (text, document) = (printed(&arguments), super::compared(&arguments[1..]));
    assert!(text.contains("because all buffers are whole sectors") && text.contains("kIO/s"), "{text}");
    let stock = super::row(&document, "stock", "strict");
    let requests = number(super::float(stock, "estimate_operations_per_second") / 1000.0);
    let table = text.split("\n\n").nth(2).expect("a table");
    assert!(line(table, &["stock", "strict"]).contains(&format!(" {requests}   disk ")), "{requests} in {table}");
    assert!(!text.contains("Gb/s"), "{text}");
    let set = ["--set", "disk_iops=null", "--set", "disk_bytes_per_second=null"];
    // The unit does not depend on the protection.
    let deferred = [&arguments[..], &["--protection", "deferred"]].concat();
    let network = printed(&[&deferred[..], &set].concat());
    assert!(network.contains("Gb/s") && !network.contains("kIO/s") && !network.contains("sectors"), "{network}");
    let no_link = printed(&[&deferred[..], &["--set", "link_gbps=null"]].concat());
    assert!(no_link.contains("because the machine has no link"), "{no_link}");
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let (disk, receive) = (bundled(DISK), bundled(RECEIVE));
    let little = ["--workload", "rings:count=2,ring=64,operations=500"];
    let parameters = ["--designs", "none,eiovar:k=64:queue=per-core", "--no-hint", "--set", "ptcache_l3_entries=9"];
    // Of several traces the point is the totals.
    let deferred = ["--protection", "deferred"];
    let commands: [&[&str]; 6] = [
        &[&["compare"], &little[..]].concat(),
        &[&["compare"], &little[..], &parameters].concat(),
        &["compare", &disk, "--designs", "none,portcullis"],
        &[&["compare", &disk, &receive, "--designs", "none,magazine"], &deferred[..]].concat(),
        &["attack", "--designs", "none,eiovar:k=64:queue=per-core,macos", "--workload", "rings:operations=2000"],
        &["list"],
    ];
    for command in commands {
        let mut tallest = usize::MAX;
        for columns in [60, 80, 130, 200] {
            let output = program(command).env("COLUMNS", columns.to_string()).output().expect("the program starts");
            let text = text(&output.stdout);
            // The path of a trace is never broken.
            for line in text.lines().filter(|line| !line.contains("/../")) {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
                assert_eq!(line.trim_end(), line, "{columns}");
            }
            assert!(text.lines().count() <= tallest, "{command:?} makes use of {columns} columns");
            tallest = text.lines().count();
            let dropped = text.contains("No room for: ");
            assert!(text.matches("No room for: ").count() <= 1 || columns < 130, "{text}");
            if columns != 130 {
                assert_eq!(dropped, columns < 130 && command[0] != "list", "{command:?} in {columns}:\n{text}");
            }
            for always in ["cycles/", "window us", "(est.)", "of none"] {
                assert!(command[0] != "compare" || text.contains(always), "{always} in {columns} columns");
            }
        }
    }
}

#[test]
fn lists_tell_what_there_is() {
    let text = printed(&["list"]);
    for name in ["none", "static", "stock", "r210-cx3", "cascadelake-cx5", "churn", "copy_kib"] {
        line(&text, &[name]);
    }
    let document = json(&["list", "--json"]);
    assert_eq!(document["schema"], "portcullis.list/1");
    let ids = |kind: &str| -> Vec<String> {
        let entries = document[kind].as_array().unwrap_or_else(|| panic!("{kind}"));
        entries.iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    assert!(ids("designs").starts_with(&["none", "static", "stock"].map(str::to_owned)));
    for id in ids("designs").iter().chain(&ids("machines")) {
        line(&text, &[id]);
    }
    // A value of machines is called `rings` too.
    let text_of_workloads = printed(&["list", "workloads"]);
    for id in ids("workloads") {
        line(&text_of_workloads, &[&id]);
    }
    for design in document["designs"].as_array().unwrap() {
        let string = |of: &Value, key: &str| of[key].as_str().unwrap_or_else(|| panic!("{key}")).to_owned();
        let id = string(design, "id");
        let paragraph = text.split("\n\n").find(|paragraph| paragraph.lines().next() == Some(&id));
        let paragraph = paragraph.unwrap_or_else(|| panic!("no paragraph for {id} in\n{text}"));
        // The paragraph is wrapped.
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        for fact in ["source", "allocator", "invalidation", "tables"].map(|key| string(design, key)) {
            assert!(paragraph.contains(&fact), "{id}: {fact}");
        }
        for breach in design["breaches"].as_array().unwrap() {
            let [rule, protection, bound] = ["rule", "protection", "bound"].map(|key| string(breach, key));
            assert!(paragraph.contains(&format!("gives up {rule} under {protection}: {bound}")), "{id}: {rule}");
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
    let simulate = printed(&["simulate", "--help"]);
    assert!(
        simulate.contains(
            "Machines whose card is known: r210-cx3, r210-bcm57810, r430-bcm57810, cascadelake-cx5, cascadelake-cx5-9k, icelake-cx5, future-800g\n"
        ),
        "{simulate}"
    );
    assert!(printed(&["--version"]).starts_with("portcullis "));
}
