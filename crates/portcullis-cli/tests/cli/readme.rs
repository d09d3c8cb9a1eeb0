//! The tables of the README and of its pages in `docs` show what the program prints. `cargo xtask readme` runs this
//! test in a mode that rewrites them.

use super::{json, printed};
use serde_json::Value;
use std::fmt::Write;

/// Reads a page, given its path relative to the root.
fn read(page: &str) -> String {
    std::fs::read_to_string(path(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

fn path(page: &str) -> String {
    format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_readme_and_its_pages_show_what_the_program_finds() {
    let text = printed(&[]);
    let (headline, _) = text.split_once("\n\nIn batches of").expect("the first table");
    let tables = [
        ("README.md", "compare", format!("```text\n{headline}\n```")),
        ("docs/designs.md", "batches", at_equal_batches()),
        ("docs/attack.md", "attack", given_up()),
        (
            "docs/riommu.md",
            "riommu-cycles",
            format!("```text\n{}\n```", printed(&["figures", "riommu-cycles"]).trim_end()),
        ),
    ];
    let mut stale = Vec::new();
    for (page, name, table) in &tables {
        let mut found = read(page);
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("\n<!-- /{name} -->"));
        let start = found.find(&begin).unwrap_or_else(|| panic!("{page}: no {begin}")) + begin.len();
        let length = found[start..].find(&end).unwrap_or_else(|| panic!("{page}: no {end}"));
        found.replace_range(start..start + length, table);
        if std::env::var_os("PORTCULLIS_README").is_some() {
            std::fs::write(path(page), &found).unwrap_or_else(|error| panic!("{page} cannot be written: {error}"));
        }
        if read(page) != found {
            stale.push(page);
        }
    }
    assert!(stale.is_empty(), "{stale:?} do not show what the program prints; `cargo xtask readme` rewrites them");
}

/// A picture cannot be compared, but the line above it can.
#[test]
fn the_picture_of_the_readme_shows_the_advice_of_today() {
    let readme = read("README.md");
    let (before, _) = readme.split_once("](docs/report.png)").expect("the picture");
    let (_, shown) = before.rsplit_once("![").expect("its description");
    let document = json(&["compare", "--json"]);
    let advice = document["advice"][0].as_str().expect("advice");
    let first = advice.split_inclusive(". ").next().expect("a sentence").trim_end();
    // The line is wrapped, like all of the README.
    assert_eq!(
        shown.replace('\n', " "),
        first,
        "take docs/report.png again, 1120 by 1390 pixels from the top of the page of `portcullis compare --html`, and \
         describe it in the README by the first sentence of its answer"
    );
}

/// The rates of strict designs on that trace, at equal batches.
fn at_equal_batches() -> String {
    let document = json(&["compare", "--json"]);
    let all = ["results", "equal_batch"].map(|key| document[key].as_array().expect("rows"));
    let mut table = String::from(
        "| strict, of the rate without protection | without batches | in batches of 64 |\n|---|---:|---:|\n",
    );
    for row in all[0].iter().filter(|row| row["protection"] == "strict" && row["no_such_hardware"] == false) {
        let shares = [1, 64].map(|batch| {
            let same = |other: &&Value| {
                other["design"] == row["design"] && other["protection"] == "strict" && other["batch"] == batch
            };
            let found = all[0].iter().chain(all[1]).find(same).expect("a run with these batches");
            let share = found["estimate_vs_none"].as_f64().expect("a share");
            portcullis_sim::number::percent_range(found["estimate_vs_none_min"].as_f64(), share)
        });
        let design = row["design"].as_str().expect("an id");
        writeln!(table, "| `{design}` | {} | {} |", shares[0], shares[1]).expect("a string takes all");
    }
    table.trim_end().to_owned()
}

/// What each design gives up on the trace that the program carries, as found by a malicious device.
fn given_up() -> String {
    let (attack, listed) = (json(&["attack", "--json"]), json(&["list", "designs", "--json"]));
    let mut table = String::from(
        "| design | protection | rule | because | accesses that got through | longest, µs | bytes·µs within reach |\n|---|---|---|---|---:|---:|---:|\n",
    );
    let mut row = |cells: [&str; 7]| writeln!(table, "| {} |", cells.join(" | ")).expect("a string takes all");
    for design in listed["designs"].as_array().expect("designs") {
        let id = design["id"].as_str().expect("an id");
        for protection in design["protections"].as_array().expect("protections") {
            let of = |entry: &&Value| entry["design"] == id && entry["protection"] == *protection;
            let found: Vec<&Value> = attack["results"].as_array().expect("results").iter().filter(of).collect();
            let protection = protection.as_str().expect("a protection");
            let declared: Vec<&Value> = design["breaches"].as_array().expect("breaches").iter().collect();
            let declared = declared.into_iter().filter(|breach| breach["protection"] == protection);
            let declared: Vec<&Value> = declared.collect();
            if declared.is_empty() {
                assert!(found.iter().all(|entry| entry["rule"].is_null()), "{id} {protection}: {found:?}");
                row([&format!("`{id}`"), protection, "none", "", "0", "0", "0"]);
            }
            for breach in declared {
                let rule = breach["rule"].as_str().expect("a rule");
                let entry = found.iter().find(|entry| entry["rule"] == rule);
                let number = |key: &str| {
                    // A rule that was not broken has zeros. A window that never closes has no length.
                    let value = entry.map_or(Some(0.0), |entry| entry[key].as_f64());
                    value.map_or_else(|| "-".to_owned(), portcullis_sim::number::number)
                };
                let numbers = ["stale_accesses", "stale_window_us_max", "stale_bytes_us"].map(number);
                let because = breach["bound"].as_str().expect("a bound");
                row([&format!("`{id}`"), protection, rule, because, &numbers[0], &numbers[1], &numbers[2]]);
            }
        }
    }
    table.trim_end().to_owned()
}
