//! `bench`: what it prints and how it ends. No test depends on how long anything takes.

use super::{float, json, portcullis, printed, rows, text};

const LITTLE: [&str; 6] = ["bench", "--samples", "2", "--threads", "1", "--designs"];

#[test]
fn a_document_with_every_key() {
    let document = json(&[&LITTLE[..], &["magazine,none,eiovar:k=64", "--workload", "page-1", "--json"]].concat());
    assert_eq!(document["schema"], "portcullis.bench/1");
    assert!(document["version"].is_string() && document["command"].is_array());
    assert!(
        ["counter", "calibrated"].iter().any(|from| document["cycles_from"] == *from)
            || document["cycles_from"].is_null()
    );
    assert!(document["undisturbed"].is_boolean());
    let rows = rows(&document);
    let named: Vec<_> = rows.iter().map(|row| (row["design"].as_str(), row["protection"].as_str())).collect();
    let expected = [
        ("magazine", "strict"),
        ("magazine", "deferred"),
        ("none", "none"),
        ("eiovar", "strict"),
        ("eiovar", "deferred"),
    ];
    assert_eq!(named, expected.map(|(design, protection)| (Some(design), Some(protection))));
    assert_eq!(rows[3]["options"]["k"], 64);
    for row in rows {
        assert_eq!((&row["workload"], &row["threads"], &row["samples"]), (&"page-1".into(), &1.into(), &2.into()));
        let [min, median, p90] = ["ns_per_pair_min", "ns_per_pair", "ns_per_pair_p90"].map(|key| float(row, key));
        assert!(0.0 < min && min <= median && median <= p90, "{row}");
        // A machine without counters has no cycles. Otherwise there are both.
        for key in ["cycles_per_pair", "cycles_per_pair_min", "cycles_per_pair_p90"] {
            assert_eq!(row[key].is_number(), !document["cycles_from"].is_null(), "{key}: {row}");
        }
        assert_eq!(row["instructions_per_pair"].is_number(), document["cycles_from"] == "counter");
        for key in ["queue_ns_per_pair", "queue_cycles_per_pair", "error"] {
            assert!(row.get(key).is_some_and(|value| value.is_null()), "{key}: {row}");
        }
    }
}

#[test]
fn a_table_for_people() {
    let table = printed(&[&LITTLE[..], &["stock", "--workload", "page-1,descriptor-64"]].concat());
    let cells: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    for workload in ["page-1", "descriptor-64"] {
        for protection in ["strict", "deferred"] {
            let row = |cells: &&Vec<&str>| cells.starts_with(&[workload, "stock", protection, "1"]);
            assert_eq!(cells.iter().filter(row).count(), 1, "{table}");
        }
    }
    assert!(table.contains("Medians over samples"), "{table}");
}

#[test]
fn what_there_is_not_is_refused() {
    for (arguments, expected) in [
        (["--workload", "page-2"], "no workload `page-2`; there are: page-1, page-1-queued"),
        (["--designs", "stick"], "no design `stick`; there are: "),
        (["--threads", "60000"], "60000 threads, each on a CPU of its own"),
        (["--threads", "0"], "invalid value '0' for '--threads"),
    ] {
        let output = portcullis(&[&["bench"], &arguments[..]].concat());
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn the_help_tells_the_workloads_and_where_cycles_come_from() {
    let help = printed(&["bench", "--help"]);
    for words in ["page-1-noncoherent", "cross-cpu", "ticks of the time stamp counter", "an empty function"] {
        assert!(help.contains(words), "{words}: {help}");
    }
}
