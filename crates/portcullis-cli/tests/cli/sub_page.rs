//! `--sub-page`: how pages are treated that buffers cover only in part, and what that costs.

use super::nothing_tested::untested;
use super::{RECEIVE, bundled, compared, float, json, printed, row, rows};
use serde_json::Value;

const DESIGNS: [&str; 2] = ["--designs", "none,stock,magazine,identity,fast-and-safe,portcullis"];

/// Two buffers of the trace share a page, and each unmap leaves the page mapped for the other. Bouncing avoids this,
/// because the device then has separate pages of the domain.
#[test]
fn bouncing_closes_the_rest_of_pages_and_has_its_price() {
    let trace = bundled(RECEIVE);
    let with = |sub_page| compared(&[&[&trace, "--sub-page", sub_page], &DESIGNS[..]].concat());
    let (exposed, bounced) = (with("expose"), with("bounce"));
    assert_eq!((&exposed["sub_page"], &bounced["sub_page"]), (&"expose".into(), &"bounce".into()));
    let default = compared(&[&trace]);
    for after in rows(&bounced) {
        let (design, protection) = (after["design"].as_str().unwrap(), after["protection"].as_str().unwrap());
        let before = row(&exposed, design, protection);
        assert_eq!(before, row(&default, design, protection), "the default");
        if protection == "none" {
            assert!(after["sub_page"].is_null(), "nothing can be done about them: {after}");
            assert_eq!(before, after);
            continue;
        }
        assert_eq!((&before["sub_page"], &after["sub_page"]), (&"expose".into(), &"bounce".into()));
        assert!(float(before, "residual_bytes_us") > 0.0 && float(after, "residual_bytes_us") == 0.0, "{after}");
        // The buffers have 1,522 bytes and more in a page. Each is copied to the device and back, or only one of both.
        let [before, after] = [before, after].map(|row| float(row, "cycles_per_page"));
        assert!(after > before + 400.0, "{design} {protection}: {before} and {after}");
    }
    let table = printed(&["compare", &trace, "--sub-page", "bounce", "--designs", "portcullis"]);
    assert!(table.contains("parts of pages bounced"), "{table}");
}

#[test]
fn a_malicious_device_reaches_no_rest_of_a_bounced_page() {
    let trace = bundled(RECEIVE);
    for sub_page in ["expose", "bounce"] {
        let document = json(&["attack", &trace, "--sub-page", sub_page, "--designs", "portcullis,stock", "--json"]);
        assert_eq!((&document["sub_page"], &document["violations"]), (&sub_page.into(), &Value::Array(vec![])));
        for row in rows(&document) {
            assert_eq!(row["sub_page"], sub_page, "{row}");
            let reached = row["residual_accesses"].as_u64().expect("a count") > 0;
            assert_eq!((reached, float(row, "residual_bytes_us") > 0.0), (sub_page == "expose", reached), "{row}");
        }
    }
}

#[test]
fn what_is_refused_is_told_with_its_place() {
    let trace = bundled(RECEIVE);
    let arguments = ["compare", &trace, "--sub-page", "refuse", "--designs", "portcullis"];
    let document = untested(&arguments, "nothing was tested because every run failed");
    for row in rows(&document) {
        let error = row["error"].as_str().expect("each run ends early");
        assert!(error.contains("has a part of a page only"), "{error}");
    }
}
