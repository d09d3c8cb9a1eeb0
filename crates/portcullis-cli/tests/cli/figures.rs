//! `figures`: published numbers beside the reproduced ones.

use super::bad_input::refused;
use super::{json, printed};

#[test]
fn a_figure_is_made_from_what_the_program_carries_and_checked() {
    let document = json(&["figures", "amit-2010", "--check", "--json"]);
    assert_eq!(document["schema"], "portcullis.figures/1");
    let figure = &document["figures"][0];
    assert_eq!((figure["id"].as_str(), figure["no_such_hardware"].as_bool()), (Some("amit-2010"), Some(true)));
    assert!(figure["findings"].as_array().is_some_and(|findings| !findings.is_empty()));
    let points = document["points"].as_array().expect("points");
    let keys = ["id", "point", "published", "ours", "tolerance", "within", "calibration"];
    for point in points {
        assert!(keys.iter().all(|key| point.get(key).is_some()), "{point}");
        assert_eq!(point["tolerance"].is_null(), point["within"].is_null(), "{point}");
    }
    let published = points.iter().filter(|point| point["published"].is_number()).count();
    assert_eq!(published, 8, "the configurations beside the naive one");
    assert!(points.iter().any(|point| point["within"] == true) && points.iter().all(|point| point["within"] != false));
}

#[test]
fn figures_are_listed_and_an_unknown_one_is_bad_usage() {
    let listed = json(&["list", "figures", "--json"]);
    let ids: Vec<&str> =
        listed["figures"].as_array().expect("figures").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["thesis-prefetch", "amit-2010", "riommu-cycles", "contiguity", "ceiling"]);
    let text = printed(&["figures", "--list"]);
    assert!(ids.iter().all(|id| text.contains(id)), "{text}");
    refused(&["figures", "figure-8"], &[&["`figure-8`"][..], &ids].concat());
    refused(&["figures", "--list", "--check"], &["--check"]);
}
