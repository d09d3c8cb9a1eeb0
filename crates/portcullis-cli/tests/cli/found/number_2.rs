//! A run with an empty table, or with errors only, ended with status 0, as if all were well.

use super::super::nothing_tested::untested;
use super::super::{DISK, bundled, portcullis, rows, written};

#[test]
fn found_2_no_design_offers_the_protection() {
    let complaint =
        |protection| format!("check failed: nothing was tested: none of these designs offers {protection} protection");
    for (command, designs, protection) in
        [("attack", "solaris", "strict"), ("compare", "fast-and-safe", "deferred"), ("compare", "solaris", "strict")]
    {
        let page = written("untested.html", "");
        let arguments = [command, "--designs", designs, "--protection", protection, "--html", &page];
        let document = untested(&arguments, &complaint(protection));
        assert!(rows(&document).is_empty());
        let page = std::fs::read_to_string(page).expect("a page");
        assert!(page.contains("role=\"alert\"") && page.contains("nothing was tested"), "{command}");
        assert_eq!(document["violations"].as_array().map(Vec::len), Some(1));
    }
    // A design without protection also tests something.
    let tested = ["compare", "--workload", "rings:ring=16,operations=64", "--designs", "none,solaris", "--protection"];
    assert_eq!(portcullis(&[&tested[..], &["strict"]].concat()).status.code(), Some(0));
}

#[test]
fn found_2_every_run_failed() {
    let disk = bundled(DISK);
    for command in ["compare", "attack"] {
        for designs in ["stock", "static"] {
            for setting in ["address_bits=13", "queued_invalidation=false"] {
                let arguments = [command, &disk, "--designs", designs, "--set", setting];
                let document = untested(&arguments, &format!("nothing was tested because every run failed ({disk})"));
                assert!(!rows(&document).is_empty() && rows(&document).iter().all(|row| row["error"].is_string()));
            }
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn found_2_a_workload_that_takes_more_threads() {
    let arguments = ["bench", "--threads", "1", "--workload", "cross-cpu"];
    let document = untested(&arguments, "nothing was timed: none of these workloads takes these numbers of threads");
    assert!(rows(&document).is_empty());
}
