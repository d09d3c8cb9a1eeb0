//! The same command prints the same bytes.

use super::{SEND, bundled, printed, printed_again};

#[test]
fn a_trace_twice() {
    // All designs as JSON; then some designs in batches on another clock, as JSON and as a table.
    let other = ["--clock", "trace", "--batch", "64", "--designs", "none,stock,identity,magazine,portcullis"];
    for arguments in [vec!["--json"], [&["--json"], &other[..]].concat(), other.to_vec()] {
        let path = bundled(SEND);
        let arguments = [vec!["compare", &path], arguments].concat();
        assert_eq!(printed(&arguments), printed_again(&arguments), "{arguments:?}");
    }
}

#[test]
fn a_workload_twice_with_one_seed_and_otherwise_with_another() {
    let with = |run: fn(&[&str]) -> String, seed| {
        run(&["compare", "--workload", "rings:count=3,ring=128,tx=0.3,operations=2000", "--seed", seed, "--json"])
    };
    assert_eq!(with(printed, "5"), with(printed_again, "5"));
    let without_seed = |text: String| text.lines().filter(|line| !line.contains("\"seed\"")).collect::<String>();
    assert_ne!(without_seed(with(printed, "5")), without_seed(with(printed, "6")));
}
