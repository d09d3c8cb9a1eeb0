//! The same command prints the same bytes.

use super::{SEND, bundled, printed};

#[test]
fn a_trace_twice() {
    // All designs as JSON; then some designs as JSON on another clock, and as a table.
    let few = ["--designs", "none,stock,identity,magazine,portcullis"];
    let other = [&["--json", "--clock", "trace", "--batch", "64"], &few[..]].concat();
    for arguments in [vec!["--json"], other, few.to_vec()] {
        let path = bundled(SEND);
        let arguments = [vec!["compare", &path], arguments].concat();
        assert_eq!(printed(&arguments), printed(&arguments), "{arguments:?}");
    }
}

#[test]
fn a_workload_twice_with_one_seed_and_otherwise_with_another() {
    let with = |seed| {
        let workload = "rings:count=3,ring=128,tx=0.3,operations=2000";
        printed(&["compare", "--workload", workload, "--seed", seed, "--json"])
    };
    assert_eq!(with("5"), with("5"));
    let without_seed = |text: String| text.lines().filter(|line| !line.contains("\"seed\"")).collect::<String>();
    assert_ne!(without_seed(with("5")), without_seed(with("6")));
}
