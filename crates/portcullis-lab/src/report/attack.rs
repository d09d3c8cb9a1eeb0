//! The page of `attack`.

use super::document::{Attack, Finding, Protection, Setting};
use super::number::number;
use super::page::{Page, cell, design_cells, facts, figure, frame, protections, scrolled, shown, whole};
use super::{ReportError, picture};
use maud::{Markup, html};

const QUESTION: &str = "What does a malicious device still reach?";

/// The page for a document.
pub(super) fn page(document: &Attack) -> Result<String, ReportError> {
    let setting = &document.setting;
    let works: Vec<&[Finding]> = document.results.chunk_by(|one, other| one.trace == other.trace).collect();
    let id = |index: usize| format!("work-{index}");
    let section = |(index, findings): (usize, &&[Finding])| section(setting, findings, &id(index));
    let sections = works.iter().enumerate().map(section).collect::<Result<Vec<_>, _>>()?;
    let contents: Vec<_> =
        works.iter().enumerate().map(|(index, findings)| (id(index), findings[0].trace.clone())).collect();
    let body = html! { @for section in &sections { (section) } };
    Ok(frame(&Page { question: QUESTION, setting, contents: &contents, assumed: &[], body }))
}

/// What was found on one piece of work.
fn section(setting: &Setting, findings: &[Finding], id: &str) -> Result<Markup, ReportError> {
    let work = &findings[0].trace;
    let there = |protection| findings.iter().any(|finding| finding.protection == protection);
    let picture = figure(
        &html! {},
        &html! { "how long the device still reached a buffer after its unmap, at most →" },
        |form| picture::attack(findings, form),
    )?;
    Ok(html! {
        section id=(id) {
            h2 { (work) }
            @if let Some(input) = setting.input.iter().find(|input| input.file == *work) { (facts(input)) }
            (answer(findings, setting.violations.is_empty()))
            @if let Some(picture) = picture {
                h3 { "What got through, and for how long" }
                p.quiet { "Left is safe. The device tries the addresses of a buffer again once it is back in use." }
                (protections(there))
                (picture)
            }
            h3 { "All numbers" }
            (table(findings))
            (columns())
        }
    })
}

/// What to make of the findings. Unless every run of the document has gone well, not having found something shows nothing.
fn answer(findings: &[Finding], sound: bool) -> Markup {
    let which = |wanted: fn(&Finding) -> bool| findings.iter().filter(|finding| wanted(finding)).collect::<Vec<_>>();
    let undeclared = which(Finding::undeclared);
    let given_up = which(|finding| finding.declared == Some(true));
    let strict = which(|finding| finding.protection == Protection::Strict);
    let kept = !strict.is_empty() && strict.iter().all(|finding| finding.stale_accesses == 0.0);
    html! {
        div.answer {
            p.lead {
                @if !undeclared.is_empty() { "Something got through that its design does not admit to." }
                @else if !sound { "Not every attack went as it should: what was not found may be there all the same." }
                @else if kept { "Under strict protection nothing got through." }
                @else { "Nothing got through beyond what the designs say of themselves." }
            }
            ul {
                @for finding in undeclared {
                    li {
                        (name(finding)) " " strong { "let through what it promises to stop" } ": "
                        (shown(finding.stale_accesses, &whole(finding.stale_accesses))) " accesses" (until(finding)) "."
                    }
                }
                @if !given_up.is_empty() {
                    li { "Given up by design, as declared: " (list(&given_up, |finding| html! { (name(finding)) (until(finding)) })) "." }
                }
            }
        }
    }
}

/// One after the other, set apart by semicolons.
fn list(findings: &[&Finding], item: impl Fn(&Finding) -> Markup) -> Markup {
    html! { @for (index, finding) in findings.iter().enumerate() { @if index > 0 { "; " } (item(finding)) } }
}

fn name(finding: &Finding) -> Markup {
    html! {
        code { (finding.design.label_with(finding.protection)) }
        @if let Some(rule) = &finding.rule { " (" (rule) ")" }
    }
}

/// Until when after the unmap, where it is a matter of time.
fn until(finding: &Finding) -> Markup {
    html! {
        @match finding.stale_window_us_max {
            Some(window_us) if finding.unbounded() => {
                ", still " (microseconds(window_us)) " after the unmap when the attack ended: there is no bound"
            },
            Some(window_us) => { ", up to " (microseconds(window_us)) " after the unmap" },
            None if finding.protection == Protection::None => ", for good",
            None => "",
        }
    }
}

fn microseconds(us: f64) -> Markup {
    html! { (shown(us, &number(us))) "\u{a0}µs" }
}

fn table(findings: &[Finding]) -> Markup {
    let table = html! {
        thead {
            tr {
                @for name in ["design", "protection", "rule", "declared"] { th.word scope="col" { (name) } }
                @for name in ["stale accesses", "window µs max", "bound µs", "bytes·µs", "probes", "of those cached"] {
                    th scope="col" { (name) }
                }
            }
        }
        tbody {
            @for finding in findings {
                tr.broken[finding.undeclared()] {
                    (design_cells(&finding.design, finding.protection))
                    td.word { (finding.rule.as_deref().unwrap_or("–")) }
                    td.word { (match finding.declared { Some(true) => "yes", Some(false) => "no", None => "–" }) }
                    (cell(Some(finding.stale_accesses), whole))
                    (cell(finding.stale_window_us_max, number))
                    @if finding.unbounded() { td { "none" } } @else { (cell(finding.bound_us, number)) }
                    (cell(finding.stale_bytes_us, number))
                    (cell(Some(finding.probes), whole))
                    (cell(finding.probes_cached, whole))
                }
            }
        }
    };
    scrolled("All numbers", &table)
}

fn columns() -> Markup {
    let meanings = [
        ("rule, declared", "the safety rule that was tried, and whether the design says of itself that it breaks it"),
        ("stale accesses", "accesses that succeeded although their buffer was back in use"),
        (
            "window µs max, bytes·µs",
            "how long after the unmap the last of them succeeded; bytes within reach times how long",
        ),
        ("bound µs", "how long the design says that an unmap waits, at most, until the hardware is told"),
        (
            "probes, of those cached",
            "what the device tried, and how many of those found a cached translation before the unmap: only those can tell",
        ),
    ];
    html! {
        details {
            summary { "What the columns say" }
            dl { @for (name, meaning) in meanings { dt { (name) } dd { (meaning) } } }
        }
    }
}
