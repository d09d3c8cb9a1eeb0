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
    let keys = ["id", "point", "published", "ours", "tolerance", "within", "calibration", "class", "why"];
    for point in points {
        assert!(keys.iter().all(|key| point.get(key).is_some()), "{point}");
        assert_eq!(point["tolerance"].is_null(), point["within"].is_null(), "{point}");
    }
    let published = points.iter().filter(|point| point["published"].is_number()).count();
    assert_eq!(published, 8, "the configurations beside the naive one");
    assert!(points.iter().any(|point| point["within"] == true) && points.iter().all(|point| point["within"] != false));
}

/// A figure of the laboratory: each number has a class, and the figure a score.
#[test]
fn a_figure_of_the_laboratory_has_a_score() {
    let document = json(&["figures", "eiovar-fig9", "--check", "--json"]);
    let points = document["points"].as_array().expect("points");
    assert!(points.iter().all(|point| point["id"] == "eiovar-fig9" && point["class"].is_string()), "{points:?}");
    let within = points.iter().filter(|point| point["within"] == true).count();
    let score = &document["scores"][0];
    assert_eq!((score["figure"].as_str(), score["within"].as_u64()), (Some("eiovar-fig9"), Some(within as u64)));
    // Only a part of the group was made, so the group has no score.
    assert_eq!(document["scores"].as_array().map(Vec::len), Some(1));
    let text = printed(&["figures", "eiovar-fig9"]);
    assert!(text.contains(&format!("eiovar-fig9: {within} of {} numbers are within", points.len())), "{text}");
}

#[test]
fn figures_are_listed_and_an_unknown_one_is_bad_usage() {
    let listed = json(&["list", "figures", "--json"]);
    let ids: Vec<&str> =
        listed["figures"].as_array().expect("figures").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids[..5], ["thesis-prefetch", "amit-2010", "riommu-cycles", "contiguity", "ceiling"]);
    let of_eiovar =
        ["fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "table2", "table3"];
    assert_eq!(ids[5..17], of_eiovar.map(|part| format!("eiovar-{part}")));
    assert_eq!(ids[17..22], ["table1", "packets", "ratios", "rtt", "none"].map(|part| format!("riommu-{part}")));
    let of_fands = ["fig2", "fig2-all", "fig3", "fig3-all", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "l3"];
    assert_eq!(ids[22..33], of_fands.map(|part| format!("fands-{part}")));
    assert_eq!(ids[33..40], [1, 2, 3, 4, 5, 6, 7].map(|number| format!("atc15-fig{number}")));
    assert_eq!(ids[40..], ["scaling"]);
    let text = printed(&["figures", "--list"]);
    assert!(ids.iter().all(|id| text.contains(id)), "{text}");
    refused(&["figures", "figure-8"], &[&["`figure-8`"][..], &ids, &["eiovar, riommu, fands, atc15"]].concat());
    let of_group = printed(&["figures", "eiovar", "--list"]);
    assert_eq!(of_group.matches("eiovar-").count(), of_eiovar.len(), "{of_group}");
    refused(&["figures", "--list", "--check"], &["--check"]);
}
