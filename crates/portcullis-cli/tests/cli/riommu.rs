//! `riommu` on the command line: hardware that does not exist is compared, but never recommended.

use super::{RECEIVE, SEND, bundled, compared, float, json, portcullis, printed, row, rows, text};

const DISK: &str = "nvme-seqread128k.strict.4cpu.trace.xz";

#[test]
fn it_is_marked_and_never_chosen() {
    let path = bundled(RECEIVE);
    let designs = ["compare", &path, "--designs", "magazine,riommu"];
    let said = printed(&designs);
    assert!(said.lines().any(|line| line.starts_with("riommu") && line.contains(" strict * ")), "{said}");
    // Line breaks may fall anywhere in the advice.
    let flat = said.replace('\n', " ");
    assert!(flat.contains("*  no such hardware") && flat.contains("recommend nothing"), "{said}");
    assert!(flat.contains("Strict protection with Linux as it is (`magazine`"), "{said}");
    let named: Vec<_> = flat.match_indices("`riommu`").map(|(at, _)| &flat[..at]).collect();
    assert!(matches!(named[..], [before] if before.ends_with("There is no such hardware as ")), "{said}");
    let document = json(&[&designs[..], &["--json"]].concat());
    let (rings, other) = (row(&document, "riommu", "strict"), row(&document, "magazine", "strict"));
    assert!(float(rings, "estimate_gbps") > float(other, "estimate_gbps"), "it would win: {document}");
    assert_eq!(document["best"][0]["strict"]["design"], "magazine");
    assert_eq!((rings["batch"].as_u64(), float(rings, "residual_bytes_us")), (Some(64), 0.0));
    // With a single design there is nothing to choose.
    let alone = printed(&["compare", &path, "--designs", "riommu"]);
    assert!(!alone.contains("Choose "), "{alone}");
    let listed = printed(&["list", "designs"]);
    assert!(listed.contains("riommu") && listed.contains("no such hardware"), "{listed}");
}

#[test]
fn rings_have_from_1_to_262143_entries() {
    for ring in ["0", "262144", "-1", "many"] {
        let output = portcullis(&["compare", "--designs", &format!("riommu:ring={ring}")]);
        assert_eq!(output.status.code(), Some(2), "{ring}");
        assert!(text(&output.stderr).contains("from 1 to 262143"), "{}", text(&output.stderr));
    }
    let document = compared(&[&bundled(SEND), "--designs", "riommu:ring=262143"]);
    assert_eq!(row(&document, "riommu", "strict")["faults"], 0);
}

#[test]
fn a_prefetcher_has_no_part_in_it() {
    let path = bundled(RECEIVE);
    let without = compared(&[&path, "--designs", "riommu"]);
    let with = compared(&[&path, "--designs", "riommu", "--prefetch", "next:depth=1:buffer=16+map-hint=all"]);
    let row_of = |document| row(document, "riommu", "strict").clone();
    assert_eq!(row_of(&with), row_of(&without));
    assert!(row_of(&with)["prefetch"].is_null() && row_of(&with)["prefetcher"].is_null());
}

#[test]
fn a_ring_that_is_too_small_is_the_error_of_its_row() {
    let path = bundled(DISK);
    let output = portcullis(&["compare", &path, "--designs", "none,riommu:ring=64", "--json"]);
    // No such hardware exists, so it does not decide how the comparison ends.
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    let (refused, other) = (row(&document, "riommu", "strict"), row(&document, "none", "none"));
    let error = refused["error"].as_str().expect("an error");
    let (said, would_do) = error.split_once("riommu:ring=").expect("what would do");
    assert!(said.contains("ring 1 is full") && said.contains("64 entries"), "{error}");
    assert!(refused["cycles_per_page"].is_null() && other["operations"].as_u64() > Some(0));
    let would_do = would_do.strip_suffix(" would do").expect("a size");
    let document = compared(&[&path, "--designs", &format!("riommu:ring={would_do}")]);
    assert_eq!((rows(&document).len(), &row(&document, "riommu", "strict")["faults"]), (1, &0.into()));
}

#[test]
fn a_full_ring_of_a_workload_makes_its_driver_wait() {
    let workload = ["--workload", "rings:ring=64,burst=8,operations=4000", "--designs"];
    let of = |design| compared(&[&workload[..], &[design]].concat());
    let (small, large) = (of("riommu:ring=32"), of("riommu:ring=64"));
    assert!(row(&small, "riommu", "strict")["refused_maps"].as_u64() > Some(0), "{small}");
    assert_eq!(row(&large, "riommu", "strict")["refused_maps"], 0);
    assert_eq!(row(&of("magazine"), "magazine", "strict")["refused_maps"], 0);
}

#[test]
fn where_the_unit_has_no_rings_the_row_says_so() {
    let document = compared(&[&bundled(SEND), "--designs", "none,riommu", "--set", "rings=false"]);
    let error = row(&document, "riommu", "strict")["error"].as_str().expect("an error");
    assert!(error.contains("no rings"), "{error}");
    assert!(row(&document, "none", "none")["error"].is_null());
}
