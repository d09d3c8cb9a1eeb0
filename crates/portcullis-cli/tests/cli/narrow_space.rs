//! An address space too narrow for the work: the row says so, and the other rows are complete.

use super::nothing_tested::untested;
use super::{RECEIVE, bundled, compared, float, nothing_assumed, portcullis, row, rows, text, written};
use serde_json::Value;

/// Buffers of 2 MiB and one page. The tree of `stock` rounds each up to 4 MiB, so that 255 fit below 1 GiB beside
/// page 0. All buffers lie in the first GiB of memory.
const BUFFERS: u64 = 260;
const BYTES: u64 = (2 << 20) + 4096;
const NARROW: &str = "address_bits=30";

fn wide_capture(name: &str) -> String {
    let mut capture = String::new();
    for number in 0..BUFFERS {
        let (from, phys) = (0x1_0000_0000 + number * (4 << 20), (16 << 20) + number * BYTES);
        let to = from + BYTES;
        let head = format!("           dd-7       [000] .....     1.{number:06}:");
        capture += &format!("{head} map: IOMMU: iova=0x{from:016x} - 0x{to:016x} paddr=0x{phys:016x} size={BYTES}\n");
        capture += &format!(
            "{head} dma_map_page: 0000:00:04.0 dir=FROM_DEVICE dma_addr={from:x} size=64 phys_addr=0 attrs=\n"
        );
    }
    written(name, capture)
}

/// Checks that the row has the keys of any other row, but no numbers.
fn check_nothing_was_measured(row: &Value) {
    for key in
        ["operations", "pages", "cycles_per_page", "stale_accesses", "faults", "estimate_gbps", "estimate_vs_none"]
    {
        assert_eq!(row.get(key), Some(&Value::Null), "{key}: {row}");
    }
    for key in ["trace", "design", "options", "protection", "batch", "error"] {
        assert!(!row[key].is_null(), "{key}: {row}");
    }
}

#[test]
fn exhaustion_is_the_error_of_its_row() {
    let path = wide_capture("narrow-json.trace");
    let document = compared(&[&path, "--machine", nothing_assumed(), "--batch", "1", "--set", NARROW]);
    for protection in ["strict", "deferred"] {
        let refused = row(&document, "stock", protection);
        let error = refused["error"].as_str().unwrap_or_else(|| panic!("no error: {refused}"));
        assert!(error.contains("no run of 513 free pages below 30-bit addresses"), "{error}");
        check_nothing_was_measured(refused);
    }
    for design in ["none", "static"] {
        let complete = row(&document, design, "none");
        assert!(complete["error"].is_null());
        assert_eq!((float(complete, "operations"), float(complete, "faults")), (BUFFERS as f64, 0.0), "{complete}");
        assert!(float(complete, "estimate_gbps") > 0.0);
    }
}

#[test]
fn the_table_says_which_run_has_no_result_and_why() {
    let path = wide_capture("narrow-table.trace");
    let output = portcullis(&["compare", &path, "--set", NARROW, "--designs", "none,stock,magazine"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let reason = printed.lines().find(|line| line.contains("stock strict")).unwrap_or_else(|| panic!("{printed}"));
    assert!(reason.contains("513 free pages"), "{reason}");
    assert!(printed.lines().any(|line| line.starts_with("none ") && line.contains("100 %")), "{printed}");
}

#[test]
fn a_wider_space_has_room() {
    let path = wide_capture("narrow-not.trace");
    // `identity` uses two address bits for the rights, `kmalloc` has no memory that low, and `portcullis` keeps half of
    // the space for small requests. All others have room as soon as there is one bit more.
    let narrow = ["identity", "kmalloc", "portcullis"];
    let with = |bits, more: &[&str]| {
        // Nothing is unmapped, so batches make no difference.
        let machine = ["--machine", nothing_assumed(), "--batch", "1", "--set", bits];
        compared(&[&[path.as_str()], &machine[..], more].concat())
    };
    let document = with("address_bits=31", &[]);
    for row in rows(&document).iter().filter(|row| narrow.iter().all(|id| row["design"] != *id)) {
        assert!(row["error"].is_null(), "31 bits: {row}");
    }
    let document = with("address_bits=39", &["--designs", &["stock", &narrow.join(",")].join(",")]);
    assert!(rows(&document).len() > narrow.len());
    for row in rows(&document) {
        assert!(row["error"].is_null(), "39 bits: {row}");
    }
}

/// The space has 256 pages, and the memory lies beyond them. No design has a result, but the program still finishes
/// and says so.
#[test]
fn a_space_too_narrow_for_any_design_is_no_crash() {
    let path = bundled(RECEIVE);
    // `riommu` is left out, because its rings have separate addresses.
    let arguments =
        ["compare", &path, "--set", "address_bits=20", "--designs", "none,static,stock,magazine,portcullis"];
    let document = untested(&arguments, "nothing was tested because every run failed");
    assert!(rows(&document).len() >= 4);
    rows(&document).iter().for_each(check_nothing_was_measured);
    let output = portcullis(&arguments);
    let said = text(&output.stdout).replace('\n', " ");
    assert!(said.contains("no strict or deferred run here to choose"), "{}", text(&output.stdout));
}
