//! The page of figures, made from documents without runs.

use crate::page;
use portcullis_sim::figures::{Class, Figure, Numbers, Outcome, Plan, papers};
use serde_json::{Value, json};

/// Numbers that a run could have. Most published ones are others, so most are outside their class.
fn numbers() -> Numbers {
    let numbers = json!({
        "rate": 2.0563, "latency_us": 36.25, "cpu_percent": 100.5, "packet": 17_464.25, "search": 81.675,
        "search_max": 12_173.0, "map": {"allocate": 4_175.75, "table": 588.0, "other": 44.0},
        "unmap": {"find": 249.0, "free": 159.0, "table": 438.0, "invalidate": 2_144.375, "other": 26.0},
        "lists": {"satisfied": 0.5, "mean": 5.5, "longest": 6.0},
        "stream": {"iotlb": 1.0453, "l1": 0.25, "l2": 0.125, "l3": 0.5, "retransmit_percent": 0.75,
            "acknowledgements": 0.0625, "unmapped_percent": 12.5, "reuse_distance": 22.25, "receive_gbps": 27.25,
            "transmit_gbps": 25.875},
        "shared": {"iova_lock_percent": 31.5, "invalidation_lock_percent": 6.5, "hardware_percent": 19.25,
            "table_percent": 11.75, "protection_percent": 89.625, "unit_percent": 91.625, "table_pages": 28.0},
    });
    serde_json::from_value(numbers).expect("numbers of a run")
}

/// The document of all figures of the laboratory, in the form that the program prints.
fn laboratory() -> Value {
    let figures = Figure::GROUPS.iter().chain(&["scaling"]).flat_map(|id| Figure::by_id(id).expect("figures"));
    let plan = Plan::new(figures.collect(), false);
    let made = plan.draw(&vec![Outcome::Numbers(numbers()); plan.pieces().len()]);
    let figures = plan.figures().iter().zip(&made).map(|(figure, made)| {
        let mut entry = serde_json::to_value(made).expect("tables");
        entry["id"] = json!(figure.id);
        entry["title"] = json!(figure.title);
        entry["source"] = json!(figure.source);
        entry["no_such_hardware"] = json!(figure.is_hypothetical);
        entry["tally"] = json!(made.tally());
        entry
    });
    let figures: Vec<Value> = figures.collect();
    json!({
        "schema": "portcullis.figures/1",
        "full": false,
        "classes": Class::ALL.map(|class| json!({"class": class, "meaning": class.meaning()})),
        "papers": papers(&plan, &made),
        "figures": figures,
        "points": made.iter().flat_map(|made| &made.points).collect::<Vec<_>>(),
    })
}

fn section<'p>(page: &'p str, id: &str) -> &'p str {
    let begin = format!("<section id=\"{id}\">");
    page.split(&begin).nth(1).and_then(|rest| rest.split("</section>").next()).unwrap_or_else(|| panic!("no {id}"))
}

/// Text as it stands in a page.
fn escaped(text: &str) -> String {
    maud::html! { (text) }.into_string()
}

#[test]
fn every_figure_has_its_scores_and_every_miss_its_sentence() {
    let document = laboratory();
    let page = page(&document).expect("a page");
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    let all = |key: &str| document[key].as_array().expect("a list").clone();
    for figure in all("figures") {
        let (id, tally) = (figure["id"].as_str().expect("an id"), &figure["tally"]);
        let section = section(&page, id);
        let of = |some: &str, all: &str| {
            format!("<data value=\"{0}\">{0}</data> of <data value=\"{1}\">{1}</data>", tally[some], tally[all])
        };
        if tally["scored"] != 0 {
            for (some, all) in [("within", "scored"), ("within_if_one", "scored")] {
                assert!(section.contains(&of(some, all)), "{id}: {some}");
            }
            assert!(page.contains(&format!("<a href=\"#{id}\"")), "{id}");
        }
        for (name, some, all) in
            [("published zeros met", "zeros_within", "zeros"), ("shapes that are there", "shapes_within", "shapes")]
        {
            let shown = format!("<dt>of these, {name}</dt><dd>{}</dd>", of(some, all));
            assert_eq!(section.contains(&shown), tally[all] != 0, "{id}: {name}");
        }
    }
    let mut sentences = 0;
    for point in all("points") {
        let section = section(&page, point["id"].as_str().expect("an id"));
        let name = escaped(point["point"].as_str().expect("a name"));
        assert!(section.contains(&name), "{point}");
        if point["within"] == false {
            let (_, misses) = section.split_once("<div class=\"misses\">").unwrap_or_else(|| panic!("{point}"));
            let misses = misses.split("</div>").next().expect("the end");
            let why = point["why"].as_str().unwrap_or("No reason is given.");
            let (_, behind) =
                misses.split_once(&format!("<strong>{name}</strong>")).unwrap_or_else(|| panic!("{point}"));
            let sentence = behind.split("<p>").nth(1).and_then(|rest| rest.split("</p>").next());
            assert_eq!(sentence, Some(&*escaped(why)), "{point}");
            sentences += usize::from(point["why"].is_string());
        }
    }
    assert!(sentences > 10, "{sentences}");
}

/// A small document: one figure, with these numbers.
fn with(points: &[Value]) -> Value {
    let tally = json!({
        "scored": 1, "within": 1, "within_if_one": 0, "zeros": 0, "zeros_within": 0, "shapes": 0, "shapes_within": 0,
        "calibrated": 0, "inputs": 0, "held": 0, "held_within": 0,
    });
    let mut paper = tally.clone();
    paper["source"] = json!("A paper");
    paper["figures"] = json!(["a-figure"]);
    json!({
        "schema": "portcullis.figures/1", "full": true, "classes": [], "papers": [paper],
        "figures": [{"id": "a-figure", "title": "A figure", "source": "A paper", "no_such_hardware": false,
            "tally": tally, "findings": [], "tables": []}],
        "points": points,
    })
}

fn point(name: &str, class: &str, published: f64, ours: Value) -> Value {
    let class = Some(class).filter(|class| !class.is_empty());
    json!({"id": "a-figure", "point": name, "published": published, "ours": ours, "tolerance": null, "within": null,
        "class": class, "why": null})
}

fn held(mut point: Value, tolerance: Value, within: bool) -> Value {
    (point["tolerance"], point["within"]) = (tolerance, json!(within));
    point
}

/// The row of a number in the picture.
fn row<'p>(page: &'p str, name: &str) -> &'p str {
    let before = page.find(&format!("<th scope=\"row\">{name}</th>")).unwrap_or_else(|| panic!("no row of {name}"));
    let start = page[..before].rfind("<tr").expect("a row");
    &page[start..start + page[start..].find("</tr>").expect("its end")]
}

#[test]
fn ours_stands_at_its_ratio_to_the_published_number() {
    let quarter = |published: f64| json!({"between": [0.75 * published, 1.25 * published]});
    let page = page(&with(&[
        held(point("twice", "R25", 40.0, json!(80.0)), quarter(40.0), false),
        held(point("near", "R25", 40.0, json!(40.0)), quarter(40.0), true),
        held(point("far above", "R25", 1.0, json!(99.0)), quarter(1.0), false),
        held(point("far below", "R25", 1.0, json!(-2.0)), quarter(1.0), false),
        held(point("not made", "R25", 1.0, Value::Null), quarter(1.0), false),
        held(point("nothing", "Z", 0.0, json!(0.03)), json!({"at_most": 0.06}), true),
    ]));
    let page = page.expect("a page");
    let twice = row(&page, "twice");
    assert!(twice.starts_with("<tr class=\"outside\">"), "{twice}");
    assert!(
        twice.contains("class=\"theirs\" style=\"left:50.0%\"")
            && twice.contains("class=\"ours\" style=\"left:71.5%\"")
    );
    assert!(twice.contains("class=\"band\" style=\"left:41.1%;width:15.9%\""), "{twice}");
    let near = row(&page, "near");
    assert!(near.starts_with("<tr>") && near.contains("class=\"ours\" style=\"left:50.0%\""), "{near}");
    assert!(
        row(&page, "far above").contains("class=\"ours above\"")
            && row(&page, "far below").contains("class=\"ours below\"")
    );
    let missing = row(&page, "not made");
    assert!(missing.contains("<td>not made</td>") && !missing.contains("class=\"ours"), "{missing}");
    // Of a ratio to nothing there is no scale. This one ends at twice the limit.
    let nothing = row(&page, "nothing");
    assert!(
        nothing.contains("class=\"theirs\" style=\"left:0.0%\"")
            && nothing.contains("class=\"ours\" style=\"left:25.0%\"")
    );
    assert!(nothing.contains("class=\"band\" style=\"left:0.0%;width:50.0%\""), "{nothing}");
    assert!(page.contains("long (--full)"));
}

#[test]
fn what_is_not_scored_has_no_range_and_a_shape_no_value() {
    let there = held(point("a trend", "S", 1.0, json!(1.0)), json!({"at_least": 1.0}), true);
    let missing = held(point("an order", "S", 1.0, json!(0.0)), json!({"at_least": 1.0}), false);
    let page = page(&with(&[
        point("calibrated", "cal", 10.0, json!(10.0)),
        point("given", "input", 10.0, json!(12.0)),
        point("shown", "", 10.0, json!(11.0)),
        there,
        missing,
    ]));
    let page = page.expect("a page");
    for (name, class) in [("calibrated", "cal"), ("given", "input"), ("shown", "–")] {
        let row = row(&page, name);
        assert!(row.contains("class=\"ours unscored\"") && row.contains(&format!("<td>{class}</td>")), "{row}");
        assert!(!row.contains("class=\"band\""), "{row}");
    }
    assert!(row(&page, "a trend").contains("✓ there") && row(&page, "an order").contains("✗ not there"));
    for name in ["a trend", "an order"] {
        assert!(!row(&page, name).contains("<data"), "{name}");
    }
    assert!(page.contains("<strong>an order</strong>: not there.</li></ul><p>No reason is given.</p>"));
}
