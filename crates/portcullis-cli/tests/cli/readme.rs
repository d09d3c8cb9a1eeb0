//! The tables of documents that come from runs and from the lab show what the program finds. `cargo xtask readme`
//! writes them: it runs this test with `PORTCULLIS_README` set.

use super::{float, json, printed};
use portcullis_sim::number::{number, percent_range};
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;

/// The root of the repository.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The documents that may have such a table.
fn documents() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).expect("the folder of documents");
    let docs = docs.map(|entry| entry.expect("a file").path());
    let mut documents: Vec<PathBuf> = docs.filter(|path| path.extension().is_some_and(|one| one == "md")).collect();
    documents.extend(["README.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    documents
}

#[test]
fn the_readme_and_its_pages_show_what_the_program_finds() {
    let compared = json(&["compare", "--json"]);
    let tables = [
        ("compare", summary(&compared)),
        ("batches", at_equal_batches(&compared)),
        ("attack", given_up()),
        ("riommu-cycles", format!("```text\n{}\n```", printed(&["figures", "riommu-cycles"]).trim_end())),
        ("machines", machines()),
        ("workloads", workloads()),
    ];
    let mut found = [false; 6];
    let mut stale = Vec::new();
    for path in documents() {
        let before = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut text = before.clone();
        for ((name, table), found) in tables.iter().zip(&mut found) {
            let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
            if let Some(start) = text.find(&begin).map(|at| at + begin.len()) {
                let length = text[start..].find(&end).unwrap_or_else(|| panic!("{}: no {end}", path.display()));
                text.replace_range(start..start + length, &format!("{table}\n"));
                *found = true;
            }
        }
        if text != before && std::env::var_os("PORTCULLIS_README").is_some() {
            std::fs::write(&path, text).unwrap_or_else(|error| panic!("{} cannot be written: {error}", path.display()));
        } else if text != before {
            stale.push(path.display().to_string());
        }
    }
    assert_eq!(found, [true; 6], "each table is in a document");
    assert!(stale.is_empty(), "{stale:?} do not show what the program prints; `cargo xtask readme` writes them");
}

/// A picture cannot be compared; the line under which it was taken can.
#[test]
fn the_picture_of_the_readme_shows_the_advice_of_today() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the README");
    let (before, _) = readme.split_once("](docs/report.png)").expect("the picture");
    let (_, shown) = before.rsplit_once("![").expect("its description");
    let document = json(&["compare", "--json"]);
    let first = document["answers"][0]["lines"][0]["text"].as_str().expect("an answer");
    // It is wrapped, as all of the README is.
    assert_eq!(
        shown.replace('\n', " "),
        first,
        "take docs/report.png again, 1120 by 1390 pixels from the top of the page of `portcullis compare --html`, and \
         describe it in the README by the first line of its answer"
    );
}

/// What `portcullis` comes to on the trace that the program carries, beside Linux as it is and no protection.
fn summary(document: &Value) -> String {
    let mut table = String::from(
        "| design | protection | cycles/page, each unmap by itself | of none | cycles/page, in batches of 64 | of none | longest \
         stale window seen, µs | stale pages |\n|---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    let all: Vec<&Value> =
        ["results", "equal_batch"].iter().flat_map(|key| document[*key].as_array().expect("rows")).collect();
    let shown = ["magazine", "portcullis"].map(|design| ["strict", "deferred"].map(|protection| (design, protection)));
    for (design, protection) in [("none", "none")].into_iter().chain(shown.into_iter().flatten()) {
        let runs = [1, 64].map(|batch| {
            // Without protection nothing is unmapped, so there is one run.
            let is_it = |row: &&&Value| {
                row["design"] == design
                    && row["protection"] == protection
                    && (row["batch"] == batch || design == "none")
            };
            *all.iter().find(is_it).unwrap_or_else(|| panic!("no run of {design} {protection} in batches of {batch}"))
        });
        let share = |row: &Value| percent_range(row["estimate_vs_none_min"].as_f64(), float(row, "estimate_vs_none"));
        let cells = runs.map(|row| {
            let cycles = float(row, "cycles_per_page");
            let cycles = if design == "none" { "-".to_owned() } else { number(cycles) };
            format!("{cycles} | {}", share(row))
        });
        let most = |key: &str, unlimited: &str| {
            // What has no end is `null`.
            let values = runs.map(|row| row[key].as_f64().unwrap_or(f64::INFINITY));
            let most = values[0].max(values[1]);
            if most.is_finite() { number(most) } else { unlimited.to_owned() }
        };
        let stale = [most("stale_window_us_max", "∞"), most("stale_accesses", "-")].join(" | ");
        writeln!(table, "| `{design}` | {protection} | {} | {} | {stale} |", cells[0], cells[1])
            .expect("a string takes all");
    }
    table.trim_end().to_owned()
}

/// What strict designs carry on that trace at equal batches.
fn at_equal_batches(document: &Value) -> String {
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
            percent_range(found["estimate_vs_none_min"].as_f64(), share)
        });
        let design = row["design"].as_str().expect("an id");
        writeln!(table, "| `{design}` | {} | {} |", shares[0], shares[1]).expect("a string takes all");
    }
    table.trim_end().to_owned()
}

/// A row of cells, in which a `|` is escaped.
fn row<const N: usize>(table: &mut String, cells: [&str; N]) {
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    writeln!(table, "| {} |", cells.join(" | ")).expect("a string takes all");
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is {}", value[key]))
}

/// The machines of the lab.
fn machines() -> String {
    let listed = json(&["list", "machines", "--json"]);
    let mut table = String::from(
        "| machine | what it is | CPU clock | cores | link | assumed values | where the others come from |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for machine in listed["machines"].as_array().expect("machines") {
        let link = machine["link_gbps"].as_f64().map_or_else(|| "none".to_owned(), |gbps| format!("{gbps} Gb/s"));
        let assumed = machine["assumed"].as_object().expect("values with their ranges").len();
        row(
            &mut table,
            [
                &format!("`{}`", text(machine, "id")),
                text(machine, "description"),
                &format!("{} GHz", float(machine, "core_hz") / 1e9),
                &machine["cores"].to_string(),
                &link,
                &assumed.to_string(),
                text(machine, "source"),
            ],
        );
    }
    table.trim_end().to_owned()
}

/// What the workloads do, and their parameters.
fn workloads() -> String {
    let listed = json(&["list", "workloads", "--json"]);
    let mut table =
        String::from("| workload | parameter | is | unless given | what it does |\n|---|---|---|---|---|\n");
    for workload in listed["workloads"].as_array().expect("workloads") {
        row(&mut table, [&format!("`{}`", text(workload, "id")), "", "", "", text(workload, "description")]);
        for parameter in workload["parameters"].as_array().expect("parameters") {
            let default = parameter["default"].as_str().map_or_else(|| parameter["default"].to_string(), str::to_owned);
            let key = format!("`{}`", text(parameter, "key"));
            row(&mut table, ["", &key, text(parameter, "expected"), &default, text(parameter, "description")]);
        }
    }
    table.trim_end().to_owned()
}

/// What each design gives up on the trace that the program carries, as a malicious device finds it.
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
                    // What was not found got through never; what is always within reach has no window.
                    let value = entry.map_or(Some(0.0), |entry| entry[key].as_f64());
                    value.map_or_else(|| "-".to_owned(), number)
                };
                let numbers = ["stale_accesses", "stale_window_us_max", "stale_bytes_us"].map(number);
                let because = breach["bound"].as_str().expect("a bound");
                row([&format!("`{id}`"), protection, rule, because, &numbers[0], &numbers[1], &numbers[2]]);
            }
        }
    }
    table.trim_end().to_owned()
}
