//! `--prefetch`, `--set` and `--sweep`: a row names its hardware, and hardware that does not exist is marked.

use super::bad_input::refused;
use super::{compared, float, json, printed, rows, written};
use serde_json::json as value;

const WORK: [&str; 6] =
    ["--workload", "rings:ring=64,operations=1000", "--designs", "none,magazine,portcullis", "--protection", "strict"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&WORK, more].concat()
}

#[test]
fn a_row_says_what_prefetches_and_what_came_of_it() {
    let without = compared(&with(&[]));
    for row in rows(&without) {
        assert_eq!((&row["prefetcher"], &row["prefetch"], &row["set"]), (&value!(null), &value!(null), &value!({})));
        assert!(float(row, "achieved_gbps") > 0.0);
    }
    assert_eq!(compared(&with(&["--prefetch", "none"]))["results"], without["results"]);
    let document = compared(&with(&["--prefetch", "next+map-hint=reads"]));
    for row in rows(&document) {
        assert_eq!(row["prefetcher"], "next:depth=1:buffer=16+map-hint=reads");
        let counts = &row["prefetch"];
        if row["protection"] == "none" {
            assert!(counts.is_null(), "nothing is translated: {row}");
            continue;
        }
        let [useful, late, useless, unmapped] =
            ["useful", "late", "useless", "unmapped"].map(|key| counts[key].as_u64().expect(key));
        let issued = counts["issued"].as_u64().expect("issued");
        // Prefetches of the warm-up may end in the measured part, and those at the end are still in the buffer.
        let ended = useful + late + useless + unmapped;
        assert!(issued > 0 && issued.abs_diff(ended) <= 16 + 6, "{row}");
    }
    let misses = |design: &str| float(super::row(&document, design, "strict"), "iotlb_misses_per_page");
    assert!(misses("portcullis") < 0.1 && misses("magazine") > 0.3, "{} {}", misses("portcullis"), misses("magazine"));
}

#[test]
fn hardware_that_does_not_exist_is_called_so_and_not_recommended() {
    for command in ["compare", "attack"] {
        let page = written("prefetching.html", "");
        let arguments = with(&["--prefetch", "recency:length=100", "--html", &page]);
        let text = printed(&[&[command], &arguments[..]].concat());
        let named = "recency:length=100:form=modified:buffer=16 (no such hardware)";
        assert!(text.contains(named), "{text}");
        assert!(!text.contains("Choose"), "{text}");
        let page = std::fs::read_to_string(&page).expect("a page");
        assert!(page.contains("No such hardware") && !page.contains("Choose"), "{command}");
    }
}

#[test]
fn each_combination_of_a_sweep_has_its_rows() {
    let sweep = ["--set", "walkers=2", "--sweep", "iotlb_entries=4,64", "--sweep", "prefetcher=none,next"];
    let document = compared(&with(&sweep));
    let sets: Vec<_> = rows(&document).chunks(3).map(|rows| rows[0]["set"].clone()).collect();
    let expected = [(4, "none"), (4, "next"), (64, "none"), (64, "next")];
    let expected = expected
        .map(|(entries, prefetcher)| value!({"walkers": 2, "iotlb_entries": entries, "prefetcher": prefetcher}));
    assert_eq!(sets, expected);
    for rows in rows(&document).chunks(3) {
        assert!(rows.iter().all(|row| row["set"] == rows[0]["set"]));
        assert_eq!(rows[0]["prefetcher"].is_null(), rows[0]["set"]["prefetcher"] == "none");
    }
    assert_eq!(document["advice"].as_array().map(Vec::len), Some(4));
    let attacked = json(&[&["attack"], &with(&sweep[..4])[..], &["--json"]].concat());
    assert_eq!(rows(&attacked).iter().filter(|row| row["set"]["iotlb_entries"] == 64).count(), 3);
    assert!(printed(&[&["compare"], &with(&sweep[..4])[..]].concat()).contains("iotlb_entries=64   walkers=2"));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let prefetchers = [
        ("stride", "there is no prefetcher `stride`"),
        ("next:rows=2", "the prefetcher `next` has no parameter `rows`"),
        ("markov:rows=0", "`rows=0` of the prefetcher `markov`: expected a number from 1 to 1048576"),
        ("distance:slots=1048577", "expected a number from 1 to 1048576"),
        ("next+hint", "expected +map-hint=reads or +map-hint=all"),
    ];
    for (prefetcher, message) in prefetchers {
        refused(&["compare", "--prefetch", prefetcher], &[message]);
    }
    let sweeps = [
        ("iotlb=1,2", "a machine has no value `iotlb`"),
        ("walkers", "expected KEY=A,B,C"),
        ("walkers=1,2,1", "expected each value of `walkers` once, but `1` appears twice"),
        ("walkers=1,0", "`walkers` must be from 1 to 1024"),
        ("prefetcher=none,stride", "there is no prefetcher `stride`"),
    ];
    for (sweep, message) in sweeps {
        refused(&["compare", "--sweep", sweep], &[message]);
    }
    refused(&["compare", "--set", "walkers=1", "--sweep", "walkers=2,3"], &["a parameter that is not set already"]);
}
