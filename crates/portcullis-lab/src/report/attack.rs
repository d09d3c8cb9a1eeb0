//! The page of `attack`.

use super::document::{Attack, Finding, Protection};
use super::number::number;
use super::page::{Page, cell, design_cells, facts, figure, frame, protections, scrolled, shown, whole};
use super::{ReportError, picture};
use maud::{Markup, html};

const QUESTION: &str = "What does a malicious device still reach?";

impl Finding {
    /// Something got through that the design does not say of itself.
    fn undeclared(&self) -> bool {
        self.stale_accesses > 0.0 && self.declared != Some(true)
    }
}

/// The page for a document.
pub(super) fn page(document: &Attack) -> Result<String, ReportError> {
    let findings = &document.results;
    let there = |protection| findings.iter().any(|finding| finding.protection == protection);
    let picture = figure(
        &html! {},
        &html! { "how long the device still reached a buffer after its unmap, at most →" },
        |form| picture::attack(findings, form),
    )?;
    let body = html! {
        @for input in &document.setting.input { h2 { (input.file) } (facts(input)) }
        @if let Some(workload) = &document.setting.workload { h2 { (workload) } }
        (answer(findings))
        @if let Some(picture) = picture {
            h3 { "What got through, and for how long" }
            p.quiet { "Left is safe. The device tries the addresses of a buffer again once it is back in use." }
            (protections(there))
            (picture)
        }
        h3 { "All numbers" }
        (table(findings))
        (columns())
    };
    Ok(frame(&Page { question: QUESTION, setting: &document.setting, contents: &[], assumed: &[], body }))
}

fn answer(findings: &[Finding]) -> Markup {
    let which = |wanted: fn(&Finding) -> bool| findings.iter().filter(|finding| wanted(finding)).collect::<Vec<_>>();
    let undeclared = which(Finding::undeclared);
    let given_up = which(|finding| finding.declared == Some(true) && finding.stale_accesses > 0.0);
    let unseen = which(|finding| finding.declared == Some(true) && finding.stale_accesses == 0.0);
    let strict = which(|finding| finding.protection == Protection::Strict);
    let kept = !strict.is_empty() && strict.iter().all(|finding| finding.stale_accesses == 0.0);
    html! {
        div.answer {
            p.lead {
                @if !undeclared.is_empty() { "Something got through that its design does not admit to." }
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
                @if !unseen.is_empty() {
                    li { "Declared, but nothing got through here: " (list(&unseen, name)) "." }
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

/// Until when after the unmap.
fn until(finding: &Finding) -> Markup {
    html! {
        @match finding.stale_window_us_max {
            Some(window_us) => { ", up to " (shown(window_us, &number(window_us))) "\u{a0}µs after the unmap" },
            None => ", for good",
        }
    }
}

fn table(findings: &[Finding]) -> Markup {
    let table = html! {
        thead {
            tr {
                @for name in ["design", "protection", "rule", "declared"] { th.word scope="col" { (name) } }
                @for name in ["stale accesses", "window µs max", "bytes·µs", "probes", "of those cached"] {
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
