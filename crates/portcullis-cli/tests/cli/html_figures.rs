//! The page of figures of the laboratory: scores, and a sentence for each number outside its class.

use super::html::{check, run, times};
use super::{printed, written};
use serde_json::Value;

/// Figures with few runs. They have numbers outside their class, inputs, shapes and a published zero.
const FIGURES: [&str; 2] = ["eiovar-fig8", "riommu-table1"];

#[test]
fn what_is_outside_has_its_sentence_in_every_form() {
    let (page, document) = run("figures", "figures-outside.html", &[&FIGURES[..], &["--check"]].concat());
    assert!(check(&page, &document) > 60, "each number twice, and the tables");
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let points = document["points"].as_array().expect("points");
    let outside = |point: &&Value| point["within"] == false;
    let text = printed(&[&["figures"], &FIGURES[..]].concat()).split_whitespace().collect::<Vec<_>>().join(" ");
    for point in points.iter().filter(outside) {
        let why = point["why"].as_str().unwrap_or_else(|| panic!("{point} has no reason"));
        assert!(page.contains(&format!("<p>{}</p>", why.replace('&', "&amp;"))), "{why}");
        assert!(text.contains(why), "{why}");
    }
    assert!(points.iter().filter(outside).count() >= 2);
    assert!(points.iter().filter(|point| !outside(point)).all(|point| point["why"].is_null()));
    for figure in FIGURES {
        assert_eq!(times(&page, &format!("<section id=\"{figure}\">")), 1);
        assert_eq!(times(&page, &format!("<a href=\"#{figure}\"")), 1);
    }
    assert_eq!(document["papers"].as_array().map(Vec::len), Some(2));
    assert!(page.contains("short (without --full)"));
}

/// A page from long runs, made in shares and joined, is that of the whole.
#[test]
fn joined_shards_have_the_page_of_the_whole() {
    let path = written("figures-joined.html", "");
    let page = |arguments: &[&str]| {
        printed(&[&["figures"], arguments, &["--html", &path]].concat());
        std::fs::read_to_string(&path).expect("a page")
    };
    let whole = page(&["eiovar-fig3", "--full"]);
    assert!(whole.contains("long (--full)") && whole.contains("figures eiovar-fig3 --full --html"));
    let shards = ["1/2", "2/2"].map(|share| {
        let shard = printed(&["figures", "eiovar-fig3", "--full", "--shard", share]);
        written(&format!("page-of-{}.jsonl", &share[..1]), shard)
    });
    assert!(page(&["--merge", &shards[0], &shards[1]]) == whole);
}
