//! `--html`: a page that needs no other file, and whose every number is in the JSON document of the same run. The
//! tests of all commands share one parser of pages, so this file is longer than others.

use super::{DISK, RECEIVE, SEND, bundled, float, portcullis, printed, rows, text, written};
use portcullis_report::page;
use portcullis_sim::number::{count, gbps, low_percent, number, percent, thousands};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

/// A page, parsed into elements and the words between them.
#[derive(Debug)]
enum Piece<'p> {
    Tag(&'p str),
    Words(String),
}

fn pieces(page: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        let words = &rest[..start];
        if !words.trim().is_empty() {
            let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
            pieces.push(Piece::Words(plain.iter().fold(words.to_owned(), |words, (from, to)| words.replace(from, to))));
        }
        let end = start + rest[start..].find('>').expect("every tag ends");
        pieces.push(Piece::Tag(&rest[start + 1..end]));
        rest = &rest[end + 1..];
    }
    assert!(rest.trim().is_empty(), "{rest:?} after the last tag");
    pieces
}

/// Checks that every element is closed, in the order of nesting.
fn check_nesting(page: &str) {
    let mut open = Vec::new();
    for piece in pieces(page) {
        let Piece::Tag(tag) = piece else { continue };
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "in {page:.60}");
        } else if !tag.starts_with('!') && !tag.ends_with('/') && !["meta", "link", "br"].contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

/// Checks that the page fetches nothing and runs nothing.
fn check_self_contained(page: &str) {
    let without_names = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for foreign in ["http:", "https:", "//", "src=", "@import", "url(", "<script", "<img", "<iframe", "onload"] {
        assert!(!without_names.contains(foreign), "{foreign} in the page");
    }
    for piece in pieces(page) {
        let Piece::Tag(tag) = piece else { continue };
        for link in tag.split("href=\"").skip(1) {
            assert!(link.starts_with('#') || link.starts_with("data:,\""), "{tag}");
        }
    }
}

/// Collects every number of a document, and every string and key.
fn contents(document: &Value, numbers: &mut BTreeSet<u64>, strings: &mut String) {
    match document {
        Value::Number(number) => {
            numbers.insert(number.as_f64().expect("a float has it").to_bits());
        }
        // As it is, and as it is quoted for a shell.
        Value::String(string) => strings.push_str(&format!("{string}\n{}\n", string.replace('\'', r"'\''"))),
        Value::Array(values) => values.iter().for_each(|value| contents(value, numbers, strings)),
        Value::Object(values) => values.iter().for_each(|(key, value)| {
            // The key with its value, as in `eiovar:k=64`.
            strings.push_str(&format!("{key}={value}\n"));
            contents(value, numbers, strings);
        }),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Checks the numbers of a page. They stand in `data` elements, whose value is in the document and which show it as a
/// terminal does. Digits elsewhere belong to strings of the document, except for the scales of pictures. Returns how
/// many numbers there are.
fn check_numbers(page: &str, document: &Value) -> usize {
    let (mut numbers, mut strings) = (BTreeSet::new(), String::new());
    contents(document, &mut numbers, &mut strings);
    let mut data: Option<f64> = None;
    let mut skipped = None;
    let mut shown = 0;
    for piece in pieces(page) {
        match piece {
            Piece::Tag(tag) => {
                let name = tag.split(' ').next().unwrap_or_default();
                if skipped.is_none() && ["svg", "style"].contains(&name) {
                    skipped = Some(format!("/{name}"));
                } else if skipped.as_deref() == Some(tag) {
                    skipped = None;
                } else if let Some(value) = tag.strip_prefix("data value=\"") {
                    data = Some(value.trim_end_matches('"').parse().expect("a number"));
                } else if tag == "/data" {
                    data = None;
                }
            }
            Piece::Words(_) if skipped.is_some() => {}
            Piece::Words(words) => match data {
                Some(value) => {
                    shown += 1;
                    assert!(numbers.contains(&value.to_bits()), "{value}, shown as {words}, is not in the document");
                    let ways = [number(value), count(value as u64), gbps(value), percent(value)];
                    let ways = [&ways[..], &[thousands(value), low_percent(value)]].concat();
                    assert!(ways.contains(&words), "{value} is shown as {words}");
                }
                None => {
                    for word in words.split([' ', '\n', ':']).filter(|word| word.contains(|c: char| c.is_ascii_digit()))
                    {
                        let word =
                            word.trim_matches(['.', ',', ';', ':', '(', ')', '\'']).trim_start_matches("PTcache-");
                        let level = ["L1", "L2", "L3"].contains(&word);
                        assert!(level || strings.contains(word), "{word} of {words:?} is not in the document");
                    }
                }
            },
        }
    }
    shown
}

pub(super) fn check(page: &str, document: &Value) -> usize {
    check_nesting(page);
    check_self_contained(page);
    check_numbers(page, document)
}

/// A page and the document of the same run.
type Page = (String, Value);

/// The pages so far, by command line.
static PAGES: Mutex<BTreeMap<Vec<String>, Arc<OnceLock<Page>>>> = Mutex::new(BTreeMap::new());

/// The page and the document of one run, whether or not its checks failed. One run serves all tests with the same
/// arguments, and the page has the name that the first of them gives it.
pub(super) fn run(command: &str, name: &str, arguments: &[&str]) -> Page {
    let command_line = [&[command], arguments].concat().iter().map(ToString::to_string).collect();
    let page = PAGES.lock().expect("no panic").entry(command_line).or_default().clone();
    page.get_or_init(|| made(command, name, arguments)).clone()
}

fn made(command: &str, name: &str, arguments: &[&str]) -> Page {
    let path = written(name, "");
    let output = portcullis(&[&[command], arguments, &["--json", "--html", &path]].concat());
    let page = std::fs::read_to_string(&path).expect("a page");
    let document: Value = serde_json::from_str(text(&output.stdout)).expect("one JSON document");
    let status = if document["violations"] == json!([]) { 0 } else { 1 };
    assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
    (page, document)
}

pub(super) fn compared(name: &str, arguments: &[&str]) -> (String, Value) {
    run("compare", name, arguments)
}

/// The pictures of a page. Each has one form for a wide page and one for a phone.
pub(super) fn pictures(page: &str) -> Vec<[&str; 2]> {
    let svgs: Vec<&str> =
        page.split("<svg ").skip(1).map(|svg| svg.split("</svg>").next().unwrap_or_default()).collect();
    svgs.chunks(2).map(|both| [both[0], both[1]]).collect()
}

pub(super) fn times(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

#[test]
fn every_number_of_a_figures_page_is_in_the_document() {
    let (page, document) = run("figures", "figures.html", &["ceiling", "--check"]);
    assert_eq!(document["violations"], json!([]));
    assert!(check(&page, &document) > 36, "the table, and what is compared with what");
    let finding = document["figures"][0]["findings"][0].as_str().unwrap();
    let alone = "Numbers without a published one";
    for part in ["No such hardware", "class=\"answer\"", &finding[..20], alone, "<details open>", "How to reproduce"] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(pictures(&page).len(), 1);
}

#[test]
fn every_number_of_the_page_is_in_the_document() {
    let path = bundled(RECEIVE);
    let (page, document) = compared("receive.html", &[&path]);
    assert!(check(&page, &document) > 15 * rows(&document).len(), "the tables are there");
    // The question, the answer, the picture, the table, the misses, the window over time, the assumptions, and how to
    // reproduce it.
    let advice = document["advice"][0].as_str().unwrap();
    let parts = [
        "<h1>What does protecting",
        "Going from lazy to strict",
        "class=\"tiles\"",
        &advice[..6],
        "<h3>Cost against exposure",
        "<svg",
        "<h3>All numbers",
        "<h3>Misses by level",
        "<h3>The stale window over time",
        "What was assumed",
        "How to reproduce",
        &format!("portcullis compare {path} --json --html"),
    ];
    let places = parts.map(|part| page.find(part).unwrap_or_else(|| panic!("no {part:?}")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(page.contains(document["version"].as_str().unwrap()));
    assert!(page.contains(&document["assumed"]["source"].as_str().unwrap().replace('&', "&amp;")));
    assert!(!page.contains("<nav"), "one section needs no contents");
}

#[test]
fn every_design_and_protection_is_a_point_with_its_name() {
    let designs = "none,static,stock,eiovar:k=64:queue=per-core,magazine:queue=global,magazine";
    let (page, document) = compared("points.html", &[&bundled(SEND), "--designs", designs]);
    check(&page, &document);
    let of = |protection: &str| rows(&document).iter().filter(|row| row["protection"] == protection).count();
    assert_eq!(pictures(&page).len(), 6, "three for each of two batches");
    let [alone, together] = [0, 1].map(|index| pictures(&page)[index]);
    for (cost, unprotected) in
        [(alone, 1), (together, 0)].into_iter().flat_map(|(both, one)| both.map(|cost| (cost, one)))
    {
        // A disc is two circles, because it has a rim.
        assert_eq!(times(cost, "<circle"), 2 * of("strict"));
        assert_eq!(times(cost, "<polygon") - of("deferred"), unprotected, "none and static lie on each other");
        assert_eq!(times(cost, "none, static"), unprotected);
        for name in ["eiovar:k=64:queue=per-core", "magazine:queue=global"] {
            assert!(cost.contains(name), "{name}");
        }
    }
    for form in [0, 1] {
        let bold = times(alone[form], "font-weight=\"bold\"") + times(together[form], "font-weight=\"bold\"");
        assert_eq!(bold, 2, "what the advice speaks of, once");
    }
    let [misses, over_time] = [2, 4].map(|index| pictures(&page)[index]);
    for picture in misses {
        let translated = rows(&document).iter().filter(|row| row["memory_reads_per_page"].as_f64() > Some(0.0)).count();
        assert!(times(picture, "fill=\"var(--iotlb)\"") <= translated && translated > of("strict"));
        assert!(times(picture, "fill=\"var(--iotlb)\"") >= of("strict") + of("deferred"));
    }
    for picture in over_time {
        assert_eq!(times(picture, "opacity=\"0.3\""), of("deferred"), "a strip for each that leaves anything stale");
    }
}

/// If only the hardware's queue bounds the window, the page must not show a bound of 0 beside it.
#[test]
fn a_window_that_only_the_hardware_bounds_says_so() {
    let (page, document) = compared("hardware.html", &[&bundled(RECEIVE), "--designs", "none,freebsd,macos"]);
    check(&page, &document);
    let grace_us = float(super::row(&document, "macos", "deferred"), "grace_us");
    let grace = number(grace_us);
    let said = format!("until the hardware has worked off its queue, which takes {grace} µs at most");
    assert!(document["advice"][0].as_str().is_some_and(|advice| advice.contains(&said)), "{}", document["advice"]);
    let shown = format!("<data value=\"{grace_us}\">{grace}</data>");
    let tile = format!("\u{a0}µs, until the hardware has worked off its queue, which takes {shown}\u{a0}µs at most");
    assert!(page.contains(&tile), "{tile}");
    let cell = format!("<td><data value=\"0\">0</data> + {shown}</td>");
    assert_eq!(times(&page, &cell), 2, "with batches and without: {cell}");
}

#[test]
fn nothing_on_a_page_refers_to_what_is_not_on_it() {
    for machine in ["cascadelake-cx5", "r210-cx3"] {
        let name = format!("{machine}.html");
        let (page, _) = compared(&name, &[&bundled(DISK), "--designs", "none,stock", "--machine", machine]);
        for piece in pieces(&page) {
            let Piece::Words(words) = piece else { continue };
            let mark = words.split(' ').find(|word| word.starts_with('[') && word.ends_with(']'));
            assert!(words.contains('{') || mark.is_none(), "{mark:?} in {words}");
        }
    }
}

#[test]
fn several_traces_have_a_section_each_and_contents() {
    let paths = [SEND, DISK].map(bundled);
    let designs = "none,static,stock,solaris,identity,magazine,portcullis";
    let options = ["--clock", "trace", "--no-hint", "--designs", designs];
    let (page, document) = compared("several.html", &[&[&*paths[0], &paths[1]], &options[..]].concat());
    check(&page, &document);
    let (contents, body) = page.split_once("</nav>").expect("contents");
    for path in &paths {
        let name = format!(">{path}</a>");
        let link = contents.split("href=\"#").find(|link| link.contains(&name)).expect("a link");
        let id = link.split('"').next().unwrap();
        let section = body.split(&format!("<section id=\"{id}\">")).nth(1).expect("what it leads to");
        assert!(section.starts_with(&format!("<h2>{path}</h2>")));
    }
    assert!(page.contains("the timestamps of the trace") && page.contains("dropped: no invalidation"));
    let bold = |section: &str| times(section, "<tr class=\"best\">");
    let sections: Vec<&str> = body.split("<section").skip(1).collect();
    let (all, one_each) = sections.split_last().expect("sections");
    assert!(one_each.iter().all(|section| bold(section) == 2), "the best of each protection");
    assert!(all.starts_with(" id=\"all\">") && contents.contains("href=\"#all\""), "and one for all");
    for total in document["all"].as_array().expect("totals") {
        assert!(
            all.contains(&format!("<data value=\"{}\">", float(total, "cycles_per_page")))
                || total["protection"] == "none"
        );
    }
}

#[test]
fn a_workload_shows_its_seed_and_a_changed_machine_its_values() {
    let workload = "rings:count=2,ring=256,operations=4000";
    let arguments = ["--workload", workload, "--seed", "77", "--set", "ptcache_l3_entries=9", "--batch", "8"];
    let (page, document) = compared("workload.html", &arguments);
    check(&page, &document);
    assert_eq!(document["assumed"]["iommu"]["ptcache_l3_entries"], 9);
    for part in [
        workload,
        "<data value=\"77\">77</data>",
        "ptcache_l3_entries=9",
        "<code>ptcache_l3_entries</code></th><td><data value=\"9\">",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let title = "<h4>In batches of up to <data value=\"8\">8</data>, each with one wait</h4>";
    assert_eq!((times(&page, "<h4>"), times(&page, title)), (4, 4), "three pictures and a table");
}

#[test]
fn a_run_without_result_says_why() {
    let arguments = [&bundled(DISK), "--designs", "static,stock", "--set", "address_bits=13"];
    let (page, document) = compared("refused.html", &arguments);
    check(&page, &document);
    let failed: Vec<&Value> = rows(&document).iter().filter(|row| row["error"].is_string()).collect();
    assert!(!failed.is_empty());
    for row in failed {
        let line = format!("No result for <code>{}</code>", row["design"].as_str().unwrap());
        assert!(page.contains(&line) && page.contains(row["error"].as_str().unwrap()), "{row}");
    }
}

#[test]
fn a_name_is_text_and_no_markup() {
    let trace = std::fs::read(bundled(DISK)).unwrap();
    let path = written("<b>&it's.xz", trace);
    let (page, document) = compared("name.html", &[&path, "--designs", "none,stock", "--protection", "deferred"]);
    check(&page, &document);
    assert!(page.contains("&lt;b&gt;&amp;it's.xz") && !page.contains("<b>&"));
    assert!(page.contains(r"it'\''s.xz'"), "a shell takes it as one word");
}

#[test]
fn what_is_printed_stays_the_same() {
    let path = written("beside.html", "");
    let work = ["--workload", "rings:ring=64,operations=1000", "--designs", "none,magazine,portcullis"];
    let with = |more: &[&str]| printed(&[&["compare"], &work[..], more].concat());
    assert_eq!(with(&["--html", &path]), with(&[]));
    let document = |arguments: &[&str]| {
        let mut document = super::compared(&[&work[..], arguments].concat());
        document.as_object_mut().unwrap().remove("command");
        document
    };
    assert_eq!(document(&["--html", &path]), document(&[]));
}

/// A document in the form that `attack` writes.
fn attacked(findings: &Value) -> Value {
    let compared = super::compared(&[&bundled(RECEIVE), "--designs", "none"]);
    json!({
        "schema": "portcullis.attack/1",
        "version": "0.1.0",
        "command": ["portcullis", "attack", "my trace.xz"],
        "input": compared["input"],
        "machine": compared["machine"],
        "assumed": compared["assumed"],
        "clock": "model",
        "seed": 7,
        "results": findings,
    })
}

fn finding(design: &str, protection: &str, declared: bool, stale: u64, window_us: Value) -> Value {
    json!({
        "trace": "my trace.xz", "design": design, "options": {}, "protection": protection, "rule": "S2",
        "declared": declared, "stale_accesses": stale, "stale_window_us_max": window_us,
        "stale_bytes_us": 1500.5 * stale as f64, "bound_us": 10_000, "grace_us": 412.25, "probes": 41_234, "probes_cached": 9_431,
    })
}

/// An entry in which nothing was found.
fn nothing(design: &str, protection: &str) -> Value {
    let mut nothing = finding(design, protection, false, 0, Value::Null);
    for key in ["rule", "declared", "stale_bytes_us"] {
        nothing[key] = Value::Null;
    }
    nothing
}

#[test]
fn an_attack_that_found_nothing_undeclared() {
    let mut deferred = finding("eiovar", "deferred", true, 9_431, json!(9_999.25));
    deferred["options"] = json!({"k": 64, "queue": "per-core"});
    let findings = [
        finding("none", "none", true, 9_474, Value::Null),
        nothing("stock", "strict"),
        deferred,
        nothing("magazine", "deferred"),
    ];
    let document = attacked(&json!(findings));
    let page = page(&document).expect("a page");
    assert!(check(&page, &document) > 4 * findings.len());
    for part in [
        "What does a malicious device still reach?",
        "Under strict protection nothing got through.",
        "still reached up to <data value=\"9999.25\">9,999</data>\u{a0}µs after the unmap, longest under \
         <code>eiovar:k=64:queue=per-core deferred</code> (S2).",
        "Without protection, as declared: <code>none</code>, for good.",
        "<td><data value=\"10000\">10,000</data> + <data value=\"412.25\">412</data></td>",
        "<td><data value=\"10000\">10,000</data></td>",
        "<dt>S2 strict</dt>",
        "slow the work down",
        // The table heads for a wide screen, and the hint that more columns follow on a phone.
        "of those<br>cached",
        ".scroll:has(thead)::before{content:",
        "portcullis attack 'my trace.xz'",
        "What was assumed",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        !page.contains("its bound") && !page.contains("<dt>S1"),
        "of what there is no need to tell apart, and of rules that do not occur, it does not speak"
    );
    assert!(
        !page.contains("class=\"broken\"") && !page.contains("promises to stop") && !page.contains("role=\"alert\"")
    );
    for picture in pictures(&page)[0] {
        assert_eq!((times(picture, "<circle"), times(picture, "<polygon")), (2, 3));
    }
}

/// Runs the command, checks its page, and returns the page and the document.
fn attack(name: &str, arguments: &[&str]) -> (String, Value) {
    let (page, document) = run("attack", name, arguments);
    check(&page, &document);
    (page, document)
}

/// Some of these designs lack some kinds of results.
#[test]
fn an_attack_writes_its_page() {
    let (page, document) = attack("attack.html", &[&bundled(RECEIVE), "--designs", "none,stock,solaris"]);
    assert!(check_numbers(&page, &document) > 10);
    assert!(page.contains("Under strict protection nothing got through."));
    let solaris = rows(&document).iter().find(|row| row["design"] == "solaris").expect("a row");
    let window = solaris["stale_window_us_max"].as_f64().expect("it was reached");
    let without_bound = format!(
        "without bound, as declared: <code>solaris deferred</code>; the longest seen was <data value=\"{window}\">{}</data>",
        number(window)
    );
    assert!(page.contains(&without_bound), "{without_bound}");
    assert!(page.contains("<dt>S1 reach</dt>") && page.contains("<dt>S2 strict</dt>"));
    assert_eq!(times(&page, "<td>none</td>"), 1);
    assert!(page.contains("An arrow stands for no bound.") && page.contains(">rule broken</th>"));
    for picture in pictures(&page)[0] {
        assert_eq!(times(picture, "no bound"), 1);
        assert_eq!(
            times(picture, "stroke=\"var(--deferred)\" stroke-width=\"1\""),
            2,
            "the line and head of one arrow"
        );
    }
}

#[test]
fn several_attacks_have_a_section_each() {
    let paths = [RECEIVE, DISK].map(bundled);
    let (page, document) =
        attack("attacks.html", &[&paths[0], &paths[1], "--designs", "stock", "--protection", "strict"]);
    let sections: Vec<&str> = page.split("<section").skip(1).collect();
    assert_eq!(sections.len(), 2);
    for (section, (path, row)) in sections.iter().zip(paths.iter().zip(rows(&document))) {
        let probes = format!("<data value=\"{}\">", row["probes"]);
        assert!(section.contains(&format!("<h2>{path}</h2>")) && section.contains(&probes));
    }
    assert!(page.contains("<nav"));
}

#[test]
fn an_attack_that_proves_nothing_says_so_on_its_page() {
    let too_few = ["--workload", "rings:ring=16,operations=64", "--designs", "stock", "--protection", "strict"];
    let (page, document) = attack("too-few.html", &too_few);
    let violation = document["violations"][0].as_str().expect("a violation");
    assert!(violation.contains("proves nothing") && page.contains("role=\"alert\"") && page.contains(violation));
    assert!(!page.contains("nothing got through."), "what was not found shows nothing");
    assert!(pictures(&page).is_empty(), "there is nothing to draw");
}

/// A design is drawn as never reached only if the attack has shown that.
#[test]
fn what_proves_nothing_is_not_drawn() {
    let drawn = |key: &str, value: Value| {
        let mut other = nothing("magazine", "strict");
        other[key] = value;
        let document = attacked(&json!([nothing("stock", "strict"), other]));
        let page = page(&document).expect("a page");
        check(&page, &document);
        let said = page.contains("Attacks that prove nothing are not drawn.");
        (pictures(&page)[0].map(|picture| times(picture, "magazine strict")), said)
    };
    assert_eq!(drawn("probes_cached", json!(1000)), ([1, 1], false));
    assert_eq!(drawn("probes_cached", json!(999)), ([0, 0], true));
    assert_eq!(drawn("error", json!("no free pages")), ([0, 0], true));
}

#[test]
fn an_attack_that_found_what_a_design_does_not_admit() {
    let broken = finding("broken", "strict", false, 3, json!(1.25));
    let document = attacked(&json!([nothing("stock", "strict"), broken]));
    let mut document = document;
    document["violations"] = json!(["broken strict: 3 stale accesses (S2)"]);
    let page = page(&document).expect("a page");
    check(&page, &document);
    assert!(page.contains("Something got through that its design does not declare."));
    assert!(!page.contains("Under strict protection nothing got through."));
    assert!(
        page.contains("<strong>let through what it promises to stop</strong>: <data value=\"3\">3</data> accesses")
    );
    assert_eq!(times(&page, "<tr class=\"broken\">"), 1);
    assert!(page.contains("role=\"alert\"") && page.contains("broken strict: 3 stale accesses (S2)"));
    for picture in pictures(&page)[0] {
        assert!(picture.contains("broken strict S2") && times(picture, "font-weight=\"bold\"") == 1);
    }
}

/// The answer has a sentence for each kind of finding, regardless of the number of designs.
#[test]
fn what_is_beyond_its_bound_has_a_name_of_its_own() {
    let findings = json!([
        finding("stock", "deferred", true, 7, json!(9_000.5)),
        finding("macos", "deferred", true, 12, json!(25.5)),
        finding("macos", "deferred", false, 3, json!(99_000.5)),
        finding("magazine", "deferred", true, 5, json!(4_000.5)),
    ]);
    let document = attacked(&findings);
    let page = page(&document).expect("a page");
    check(&page, &document);
    let (answer, rest) = page.split_once("<h3>").expect("a picture");
    assert!(answer.contains("<code>macos deferred</code> (S2, beyond its bound) <strong>let through"), "{answer}");
    assert!(answer.contains("longest under <code>stock deferred</code> (S2)."), "{answer}");
    assert_eq!(times(answer, "<li>"), 2, "one for what is wrong, and one for all that is not: {answer}");
    for side in ["beyond its bound", "within its bound"] {
        for picture in pictures(&page)[0] {
            assert_eq!(times(picture, &format!("macos deferred S2, {side}")), 1, "{side}");
        }
    }
    assert_eq!((times(rest, "yes: within its bound"), times(rest, "no: beyond its bound")), (1, 1));
}

#[test]
fn other_documents_have_no_page() {
    let refused = |document: &Value| page(document).expect_err("no page").to_string();
    assert!(refused(&json!({"schema": "portcullis.list/1"})).contains("`portcullis.list/1`"));
    assert!(refused(&json!([])).contains("schema"));
    let mut document = super::compared(&[&bundled(DISK), "--designs", "none,stock"]);
    document["best"] = json!([]);
    assert!(refused(&document).contains("contradicts itself"));
    document.as_object_mut().unwrap().remove("results");
    assert!(refused(&document).contains("results"));
}
