//! The page of `attack`.

use super::document::{Attack, Finding, Protection, Setting};
use super::page::{
    Page, cell, design_cells, facts, figure, frame, heads, hypothetical, microseconds, protections, scrolled, shown,
    whole,
};
use super::{ReportError, picture};
use maud::{Markup, html};
use portcullis_sim::number::number;

const QUESTION: &str = "What does a malicious device still reach?";

/// The page for a document.
pub(super) fn page(document: &Attack) -> Result<String, ReportError> {
    let setting = &document.setting;
    let works: Vec<&[Finding]> = document.results.chunk_by(|one, other| one.subject == other.subject).collect();
    let id = |index: usize| format!("work-{index}");
    let section = |(index, findings): (usize, &&[Finding])| section(setting, findings, &id(index));
    let sections = works.iter().enumerate().map(section).collect::<Result<Vec<_>, _>>()?;
    let contents: Vec<_> =
        works.iter().enumerate().map(|(index, findings)| (id(index), findings[0].subject.title(setting))).collect();
    let body = html! { @for section in &sections { (section) } };
    Ok(frame(&Page { question: QUESTION, setting, contents: &contents, assumed: &[], body, is_wide: true }))
}

/// The section for one piece of work.
fn section(setting: &Setting, findings: &[Finding], id: &str) -> Result<Markup, ReportError> {
    let subject = &findings[0].subject;
    let there = |protection| findings.iter().any(|finding| finding.protection == protection);
    let picture = figure(
        &html! {},
        &html! { "how long the device still reached a buffer after its unmap, at most →" },
        |form| picture::attack(findings, form),
    )?;
    Ok(html! {
        section id=(id) {
            h2 { (subject.title(setting)) }
            @if let Some(input) = subject.input(setting) { (facts(input)) }
            (hypothetical(subject))
            (answer(findings, setting.violations.is_empty()))
            @if let Some(picture) = picture {
                h3 { "What got through, and for how long" }
                p.quiet {
                    "Left is safe. The device tries the addresses of a buffer again once it is back in use."
                    @if findings.iter().any(Finding::unbounded) { " An arrow stands for no bound." }
                    @if findings.iter().any(Finding::shows_nothing) { " Attacks that prove nothing are not drawn." }
                }
                (protections(there))
                (picture)
            }
            h3 { "All numbers" }
            (table(findings))
            p.quiet {
                "Windows differ from those of " code { "compare" } ", and may be shorter or longer: the device’s own accesses slow the work \
                 down, so that queues fill and are flushed at other times."
            }
            (columns(findings))
        }
    })
}

/// The summary of the findings. It says that nothing got through only if every run of the document was sound.
fn answer(findings: &[Finding], sound: bool) -> Markup {
    let which = |wanted: fn(&Finding) -> bool| findings.iter().filter(|finding| wanted(finding)).collect::<Vec<_>>();
    let undeclared = which(Finding::undeclared);
    let open = which(|finding| finding.protection == Protection::None && finding.declared == Some(true));
    let unbounded = which(Finding::unbounded);
    let bounded = which(|finding| finding.declared == Some(true) && finding.bound_us.is_some());
    let strict = which(|finding| finding.protection == Protection::Strict);
    let kept = !strict.is_empty() && strict.iter().all(|finding| finding.stale_accesses == 0.0);
    html! {
        div.answer {
            p.lead {
                @if !undeclared.is_empty() { "Something got through that its design does not declare." }
                @else if !sound { "Not every attack proves something, so the device may reach more than was found." }
                @else if kept { "Under strict protection nothing got through." }
                @else { "Nothing got through beyond what the designs declare." }
            }
            ul {
                @for finding in undeclared {
                    li {
                        (name(finding, findings)) " " strong { "let through what it promises to stop" } ": "
                        (shown(finding.stale_accesses, &whole(finding.stale_accesses))) " accesses"
                        @if let Some(window_us) = finding.stale_window_us_max { ", up to " (microseconds(window_us)) " after the unmap" }
                        "."
                    }
                }
                @if let Some((window_us, longest)) = longest(&bounded) {
                    li {
                        "Deferred, within the bound that each declares: still reached up to " (microseconds(window_us))
                        " after the unmap, longest under " (name(longest, findings)) "."
                    }
                }
                @if let Some((window_us, _)) = longest(&unbounded) {
                    li {
                        "Deferred without bound, as declared: " (names(&unbounded)) "; the longest seen was " (microseconds(window_us))
                        " after the unmap."
                    }
                }
                @if !open.is_empty() { li { "Without protection, as declared: " (names(&open)) ", for good." } }
            }
        }
    }
}

/// The finding with the longest window, and that window.
fn longest<'f>(findings: &[&'f Finding]) -> Option<(f64, &'f Finding)> {
    let windows = findings.iter().filter_map(|finding| Some((finding.stale_window_us_max?, *finding)));
    windows.max_by(|(one, _), (other, _)| one.total_cmp(other))
}

fn names(findings: &[&Finding]) -> Markup {
    html! {
        @for (index, finding) in findings.iter().enumerate() {
            @if index > 0 { ", " }
            code { (finding.design.label_with(finding.protection)) }
        }
    }
}

/// The name of a finding among `all`, with its rule.
fn name(finding: &Finding, all: &[Finding]) -> Markup {
    html! {
        (names(&[finding]))
        @if let Some(rule) = &finding.rule {
            " (" (rule) @if let Some(side) = finding.side_of_bound(all) { ", " (side) } ")"
        }
    }
}

fn table(findings: &[Finding]) -> Markup {
    let table = html! {
        thead {
            tr {
                @for name in ["design", "protection", "rule broken", "declared"] { th.word scope="col" { (name) } }
                (heads(&["stale\naccesses", "window µs\nmax", "bound\nµs", "stale\nbytes·µs", "probes", "of those\ncached"]))
            }
        }
        tbody {
            @for finding in findings {
                tr.broken[finding.undeclared()] {
                    (design_cells(&finding.design, finding.protection))
                    td.word { (finding.rule.as_deref().unwrap_or("–")) }
                    td.word {
                        (match finding.declared { Some(true) => "yes", Some(false) => "no", None => "–" })
                        @if let Some(side) = finding.side_of_bound(findings) { ": " (side) }
                    }
                    (cell(Some(finding.stale_accesses), whole))
                    (cell(finding.stale_window_us_max, number))
                    (bound(finding))
                    (cell(finding.stale_bytes_us, number))
                    (cell(Some(finding.probes), whole))
                    (cell(finding.probes_cached, whole))
                }
            }
        }
    };
    scrolled("All numbers", &table)
}

/// The design's bound, and what the hardware may add to it.
fn bound(finding: &Finding) -> Markup {
    match (finding.protection, finding.bound_us, finding.grace_us) {
        (Protection::Deferred, Some(bound_us), Some(grace_us)) => html! {
            td { (shown(bound_us, &number(bound_us))) " + " (shown(grace_us, &number(grace_us))) }
        },
        (Protection::Deferred, None, _) => html! { td { "none" } },
        (Protection::None, ..) => cell(None, number),
        (_, bound_us, _) => cell(bound_us, number),
    }
}

/// The rules whose breach a device can observe: number, name, and meaning.
const RULES: [(&str, &str, &str); 7] = [
    (
        "S1",
        "reach",
        "a device reaches only memory that is mapped for it, or that its design’s declared stale window still covers",
    ),
    (
        "S2",
        "strict",
        "under strict protection, once an unmap has returned, no access through its addresses succeeds, except to pages that \
         another live mapping has at the same address",
    ),
    ("S3", "reuse", "no address is handed out while it is live, nor before its invalidation has completed"),
    (
        "S4",
        "tables",
        "no table page is freed before an all-levels invalidation of its range and every software walk of it are over",
    ),
    ("S5", "rights", "a right is never wider than requested"),
    ("S9", "reserved", "page 0, the interrupt range and firmware-reserved regions are never handed out"),
    ("S11", "completion", "a time-out or queue error never returns a buffer"),
];

fn columns(findings: &[Finding]) -> Markup {
    let rules = RULES.iter().filter(|(rule, ..)| findings.iter().any(|finding| finding.rule.as_deref() == Some(rule)));
    let meanings = [
        ("rule broken, declared", "the safety rule that was broken, and whether the design declares that it breaks it"),
        ("stale accesses", "accesses that succeeded although their buffer was back in use"),
        (
            "window µs max, stale bytes·µs",
            "how long after the unmap the last of them succeeded; bytes within reach, each times how long",
        ),
        (
            "bound µs",
            "the design’s bound on how long an unmap waits until the hardware is told, plus what timers and the hardware may add: \
             only a buffer that is reached for longer than both together is a breach",
        ),
        (
            "probes, of those cached",
            "the accesses that the device tried, and how many of them found a cached translation before the unmap: only these can \
             show a breach",
        ),
    ];
    html! {
        details {
            summary { "What the columns say" }
            dl {
                @for (name, meaning) in meanings { dt { (name) } dd { (meaning) } }
                @for (rule, name, meaning) in rules { dt { (rule) " " (name) } dd { (meaning) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RULES;
    use portcullis_sim::attack::SEEN_BY_DEVICES;

    #[test]
    fn every_rule_that_an_attack_can_find_is_explained() {
        assert_eq!(RULES.map(|(rule, ..)| rule.to_owned()), SEEN_BY_DEVICES.map(|rule| rule.to_string()));
    }
}
