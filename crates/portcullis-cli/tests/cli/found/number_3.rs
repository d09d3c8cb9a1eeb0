//! Numbers that disagreed with a bound, with the code, or with each other.

use super::super::{bundled, compared, float, rows};
use portcullis::INVALIDATION_TIMEOUT_US;
use std::fs;

/// Every trace of the folder `traces`, in order of size.
fn traces() -> Vec<String> {
    let entries = fs::read_dir(bundled("")).expect("the folder of traces");
    let names = entries.map(|entry| entry.expect("a file").file_name().into_string().expect("a name"));
    let mut traces: Vec<String> = names.filter(|name| name.ends_with(".trace.xz")).collect();
    traces.sort_by_key(|name| (fs::metadata(bundled(name)).expect("a file").len(), name.clone()));
    traces
}

/// A window of 67.9 µs was seen where the bound was 0, and one of 501 µs where it was 500: timers and hardware add
/// time.
#[test]
fn found_3_no_window_is_longer_than_the_bound_and_what_is_added_to_it() {
    let traces = traces();
    assert!(traces.len() >= 6, "{traces:?}");
    let mut beyond_bound = 0;
    for (number, trace) in traces.into_iter().enumerate() {
        let path = bundled(&trace);
        // All designs run on one of the traces.
        let few = if number == 0 { &[][..] } else { &["--designs", "stock,macos,magazine,portcullis"] };
        let document = compared(&[&[path.as_str()], few].concat());
        let equal = document["equal_batch"].as_array().expect("the same at equal batches");
        for row in rows(&document).iter().chain(equal) {
            assert_eq!(row["bound_us"].is_null(), row["grace_us"].is_null(), "{row}");
            if row["bound_us"].is_null() {
                continue;
            }
            let (seen_us, bound_us) = (float(row, "stale_window_us_max"), float(row, "bound_us"));
            assert!(seen_us <= bound_us + float(row, "grace_us"), "{trace}: {row}");
            beyond_bound += usize::from(seen_us > bound_us);
        }
    }
    assert!(beyond_bound > 0, "where nothing is added to a bound, nothing has to be said of it");
}

/// `attack` tells a breach by the same number.
#[test]
fn found_3_attack_and_compare_add_the_same_to_a_bound() {
    let arguments = ["--workload", "rings:count=2,ring=64,operations=2000", "--designs", "portcullis,macos"];
    let compared = compared(&arguments);
    let attacked = super::super::json(&[&["attack"], &arguments[..], &["--json"]].concat());
    for row in rows(&compared) {
        let same =
            |other: &&serde_json::Value| other["design"] == row["design"] && other["protection"] == row["protection"];
        let other = rows(&attacked).iter().find(same).expect("an attack on the same");
        assert_eq!((&row["bound_us"], &row["grace_us"]), (&other["bound_us"], &other["grace_us"]));
    }
}

/// The README named a limit of two seconds.
#[test]
fn found_3_the_readme_names_the_time_limit_of_a_commit() {
    let read = |file: &str| {
        let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(path).expect(file).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let seconds = INVALIDATION_TIMEOUT_US / 1_000_000;
    assert_eq!(seconds * 1_000_000, INVALIDATION_TIMEOUT_US);
    let readme = format!(
        "A commit spins until the hardware is done, for at most {seconds} s. If it had shared the submission of another CPU \
         and that has failed, it submits its own and spins once more."
    );
    assert!(read("README.md").contains(&readme), "{readme}");
    let design = format!("A commit spins for at most `INVALIDATION_TIMEOUT_US`, {seconds} s");
    assert!(read("docs/portcullis.md").contains(&design), "{design}");
}

/// The same design in other batches has another row. The name must show which of them is best.
#[test]
fn found_3_the_best_is_named_with_its_batch() {
    let workload = "rings:count=2,ring=64,operations=2000";
    for (batch, expected) in [(&[][..], None), (&["--batch", "16"], Some(16))] {
        let document = compared(&[&["--workload", workload, "--designs", "none,portcullis,magazine"], batch].concat());
        for protection in ["strict", "deferred"] {
            let best = &document["best"][0][protection];
            let same = |row: &&serde_json::Value| {
                row["design"] == best["design"] && row["protection"] == protection && row["batch"] == best["batch"]
            };
            let all = rows(&document).iter().chain(document["equal_batch"].as_array().expect("rows"));
            assert_eq!(all.filter(same).count(), 1, "{best}");
            assert!(best["batch"].is_u64() && expected.is_none_or(|batch: u64| best["batch"] == batch), "{best}");
        }
    }
}
