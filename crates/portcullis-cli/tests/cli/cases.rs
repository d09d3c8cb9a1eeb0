//! Captures with the shapes of public reports: what is odd about them is said, and they are compared all the same.

use super::bad_input::refused;
use super::{compared, printed, row, written};
use serde_json::Value;
use std::path::Path;

/// The path of a capture among the tests of portcullis-trace.
fn case(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../portcullis-trace/tests/cases").join(file).display().to_string()
}

/// One line, and one space between words.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_odd_about_a_capture_is_said() {
    for (file, said) in [
        ("f06-map-error-page.trace.xz", "1 map failed (line 413)"),
        ("f07-unmap-of-nothing-size0.trace.xz", "1 unmap has nothing to unmap (line 413)"),
        ("f08-unmap-smaller-than-map.trace", "1 unmap covers a part of a mapping"),
        ("f15-leak-one-in-eight.trace.xz", "500 maps are never unmapped"),
        (
            "f03-ath12k-fault-after-free.trace.xz",
            "the IOMMU refused 40 accesses of 0000:c2:00.0 from 0xfe980000 on: a mapping of 128 pages that was \
             unmapped 6.18 ms before",
        ),
    ] {
        let text = joined(&printed(&["compare", &case(file), "--designs", "none,magazine"]));
        assert!(text.contains(said), "{file}: {text}");
    }
}

#[test]
fn nothing_odd_is_said_of_a_capture_without_it() {
    let text = joined(&printed(&["compare", &case("f01-control-6.12.trace.xz"), "--designs", "none,magazine"]));
    for said in ["failed", "nothing to unmap", "part of a mapping", "never unmapped", "refused"] {
        assert!(!text.contains(said), "{said}: {text}");
    }
}

/// The timer of a flush was past when the last operation ended, and the run went on for ever.
#[test]
fn a_timer_that_is_past_at_the_end_is_taken() {
    let path = case("w04-2nvme-8cpu-16k.trace.xz");
    let document = compared(&[&path, "--protection", "deferred", "--designs", "none,macos", "--batch", "1"]);
    assert!(row(&document, "macos", "deferred")["cycles_per_page"].as_f64() > Some(0.0));
}

/// Writes a capture without `dma:` events: `who` maps 40 buffers, `in_page` of them in each page, and unmaps them.
fn pages(name: &str, who: &str, in_page: u32) -> String {
    let event = |at: u32, what: &str, buffer: u32, rest: &str| {
        let (iova, end) = (0x10_0000 + buffer * 0x1000, 0x10_1000 + buffer * 0x1000);
        format!("  {who}  1.{at:06}: {what}: IOMMU: iova={iova:#x} - {end:#x} {rest}\n")
    };
    let map = |buffer: u32| {
        let paddr = 0x40_0000 + buffer / in_page * 0x1000;
        event(buffer, "map", buffer, &format!("paddr={paddr:#x} size=4096"))
    };
    let unmap = |buffer: u32| event(100 + buffer, "unmap", buffer, "size=4096 unmapped_size=4096");
    written(name, (0..40).map(map).chain((0..40).map(unmap)).collect::<String>())
}

/// A capture without `dma:` events shows pages, but neither lengths nor devices.
#[test]
fn what_pages_do_not_show_is_a_range_and_what_would_narrow_it_is_said() {
    let path = pages("pages.trace", "<idle>-0  [000] ..s1.", 2);
    let compared = |more: &[&str]| compared(&[&[path.as_str(), "--designs", "none,magazine"], more].concat());
    let range = |document: &Value| {
        let range = &row(document, "magazine", "strict")["estimate_vs_none_range"];
        [0, 1].map(|end| range[end].as_f64().expect("an end"))
    };
    let network = compared(&[]);
    let [low, high] = range(&network);
    assert!(low > 0.0 && low < high - 0.1 && high - low <= 0.35 + 1e-9, "{low} to {high}");
    let advice = network["advice"][0].as_str().expect("advice");
    for said in
        ["no `dma:` events", "taken for a network card's", "`--traffic disk`", "What narrows them: ", "`--payload`"]
    {
        assert!(advice.contains(said), "{said}: {advice}");
    }
    let said = range(&compared(&["--payload", "1500"]));
    assert!(said[0] >= low && said[1] <= high && said[1] - said[0] < 0.1, "{said:?} in {low} to {high}");
    let disk = compared(&["--traffic", "disk"]);
    assert_eq!(row(&disk, "magazine", "strict")["traffic"], "disk");
    let [low, high] = range(&disk);
    assert!(high - low < 0.05, "the bytes of a disk hardly matter here: {low} to {high}");
    assert!(!disk["advice"][0].as_str().expect("advice").contains("What narrows them"));
}

/// A disk that is polled, or a card whose interrupts are threads: tasks map and unmap whole pages.
#[test]
fn a_capture_that_may_be_of_either_kind_has_the_range_of_both() {
    let path = pages("polled.trace", "fio-7  [000] .....", 1);
    let range = |more: &[&str]| {
        let document = compared(&[&[path.as_str(), "--designs", "none,magazine"], more].concat());
        let advice = document["advice"][0].as_str().expect("advice").to_owned();
        let range = &row(&document, "magazine", "strict")["estimate_vs_none_range"];
        (advice, [0, 1].map(|end| range[end].as_f64().expect("an end")))
    };
    let (advice, both) = range(&[]);
    assert!(advice.contains("Nothing shows which kind of device it is of"), "{advice}");
    let (said, network) = range(&["--traffic", "network"]);
    let (_, disk) = range(&["--traffic", "disk"]);
    assert!(!said.contains("Nothing shows"), "{said}");
    assert!(network[0] < disk[0] && disk[1] - network[0] > 0.1, "{network:?} {disk:?}");
    // Not to the last digit: the pauses of the run are those of a card or of a disk.
    assert!((both[0] - network[0].min(disk[0])).abs() < 0.02 && (both[1] - network[1].max(disk[1])).abs() < 0.02);
}

#[test]
fn the_kind_of_traffic_can_be_said() {
    let path = case("f05-i915-46bit-4MiB.trace");
    let traffic = |more: &[&str]| {
        let document = compared(&[&[path.as_str(), "--designs", "none"], more].concat());
        document["results"][0]["traffic"].as_str().expect("a kind").to_owned()
    };
    assert_eq!(
        (traffic(&["--traffic", "disk"]).as_str(), traffic(&["--traffic", "network"]).as_str()),
        ("disk", "network")
    );
    let none =
        ["compare", &path, "--traffic", "disk", "--set", "disk_iops=null", "--set", "disk_bytes_per_second=null"];
    refused(&none, &["--traffic: expected a machine with disks"]);
}

#[test]
fn json_has_what_is_odd() {
    let document = compared(&[&case("f03-ath12k-fault-after-free.trace.xz"), "--designs", "none"]);
    let input = &document["input"][0];
    for (key, value) in [
        ("failed_maps", 0),
        ("partial_unmaps", 0),
        ("unmaps_of_nothing", 0),
        ("unmapped_never", 256),
        ("refused_accesses", 40),
    ] {
        assert_eq!(input[key], value, "{key}");
    }
    let fault = &input["faults"][0];
    assert_eq!((&fault["device"], &fault["accesses"]), (&"0000:c2:00.0".into(), &40.into()));
    assert_eq!((&fault["mapped_pages"], &fault["unmapped_us_before"]), (&128.into(), &6178.0.into()));
}
