//! The parts of every page: its frame, its marked numbers, the assumptions, and how to reproduce it.

use super::document::{Assumed, Design, Input, Protection, Setting, Subject};
use super::ink::{Ink, variables};
use super::picture::{DrawError, Form};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use portcullis_sim::number::{count, number};
use serde_json::{Map, Value};

/// The beginning of every page. No other file has it, so the program replaces only files that begin like this.
pub const BEGINNING: &str =
    r#"<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="generator" content="portcullis">"#;

const STYLE: &str = include_str!("style.css");

/// The parts that differ between pages.
pub(super) struct Page<'p> {
    pub(super) question: &'p str,
    pub(super) setting: &'p Setting,
    /// The ids and names of its sections.
    pub(super) contents: &'p [(String, String)],
    /// Assumptions in addition to the setting.
    pub(super) assumed: &'p [(&'p str, &'p str)],
    pub(super) body: Markup,
    /// Whether its tables have many columns, so that it takes the whole width of a large window.
    pub(super) is_wide: bool,
}

/// The whole page. It fetches nothing, and tells the browser to forbid it.
pub(super) fn frame(page: &Page<'_>) -> String {
    let (question, setting) = (page.question, page.setting);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="generator" content="portcullis";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                link rel="icon" href="data:,";
                title { (question) }
                style { (PreEscaped(variables())) (PreEscaped(STYLE)) }
            }
            body class=[page.is_wide.then_some("broad")] {
                header {
                    h1 { (question) }
                    @if let Some(assumed) = &setting.assumed {
                        p.quiet {
                            "The same work under every design, on a model of " code { (assumed.id) } ": " (assumed.description)
                            ". Costs are those of its cost book, not of your CPU."
                        }
                    }
                }
                @if page.contents.len() > 1 {
                    nav aria-label="Contents" {
                        ol { @for (id, name) in page.contents { li { a href={ "#" (id) } { (name) } } } }
                    }
                }
                main {
                    @if !setting.violations.is_empty() {
                        div.alarm role="alert" {
                            p { strong { "A check failed." } }
                            ul { @for violation in &setting.violations { li { (violation) } } }
                        }
                    }
                    (page.body)
                    (assumptions(setting, page.assumed))
                    (reproduction(setting))
                }
                footer.quiet {
                    "This page is one file and loads nothing. Every number in it is in the JSON document of the same run."
                }
            }
        }
    }
    .into_string()
}

/// A number of the document, as it is shown. The attribute holds the exact value.
pub(super) fn shown(value: f64, text: &str) -> Markup {
    html! { data value=(value.to_string()) { (text) } }
}

/// A time of the document.
pub(super) fn microseconds(us: f64) -> Markup {
    html! { (shown(us, &number(us))) "\u{a0}µs" }
}

/// A count of the document.
pub(super) fn counted(value: u64) -> Markup {
    html! { data value=(value.to_string()) { (count(value)) } }
}

/// A cell for a number, or a dash if there is none.
pub(super) fn cell(value: Option<f64>, show: impl Fn(f64) -> String) -> Markup {
    html! { td { @match value { Some(value) => (shown(value, &show(value))), None => "–" } } }
}

/// A count that is a float because it comes from a document.
pub(super) fn whole(value: f64) -> String {
    count(value as u64)
}

/// The heads of columns. Their line breaks are kept.
pub(super) fn heads(names: &[&str]) -> Markup {
    html! {
        @for name in names {
            th scope="col" { @for (index, line) in name.lines().enumerate() { @if index > 0 { br; } (line) } }
        }
    }
}

/// The first two cells of a row: the design and its protection.
pub(super) fn design_cells(design: &Design, protection: Protection) -> Markup {
    html! {
        th.word scope="row" {
            (design.label())
            @if design.no_such_hardware { " (no such hardware)" }
            @if design.unpriced { " (reports no steps, so its cost is not known)" }
        }
        (protection_cell(protection))
    }
}

/// The cell of a protection, with its mark.
pub(super) fn protection_cell(protection: Protection) -> Markup {
    html! { td class={ "word " (protection.name()) } { (marked(protection)) (protection.name()) } }
}

/// The mark of a protection, as in the pictures. The element around it must have the protection's class.
fn marked(protection: Protection) -> Markup {
    html! { span.mark style={ "--ink:" (Ink::of(protection).variable()) } {} }
}

/// The marks of the protections, with their meanings.
pub(super) fn protections(there: impl Fn(Protection) -> bool) -> Markup {
    let meanings = [
        (Protection::Strict, "strict: out of reach once the unmap returns"),
        (Protection::Deferred, "deferred: within reach for a while after the unmap"),
        (Protection::None, "none: everything within reach"),
    ];
    html! {
        ul.key {
            @for (protection, meaning) in meanings.into_iter().filter(|(protection, _)| there(*protection)) {
                li class=(protection.name()) { (marked(protection)) (meaning) }
            }
        }
    }
}

/// A picture in both of its forms, with text above and below. `None` if there is nothing to draw.
pub(super) fn figure(
    above: &Markup,
    below: &Markup,
    draw: impl Fn(Form) -> Result<Option<String>, DrawError>,
) -> Result<Option<Markup>, DrawError> {
    let [Some(wide), Some(narrow)] = [draw(Form::ALL[0])?, draw(Form::ALL[1])?] else { return Ok(None) };
    Ok(Some(html! {
        figure {
            p.axis { (above) }
            div.wide { (PreEscaped(wide)) }
            div.narrow { (PreEscaped(narrow)) }
            p.axis.x { (below) }
        }
    }))
}

/// A table that scrolls by itself if the page is too narrow.
pub(super) fn scrolled(name: &str, table: &Markup) -> Markup {
    html! { div.scroll role="region" tabindex="0" aria-label=(name) { table { (table) } } }
}

/// Text in which parts between backquotes are names.
pub(super) fn prose(text: &str) -> Markup {
    html! {
        @for (index, piece) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (piece) } } @else { (piece) }
        }
    }
}

/// Splits a paragraph into sentences. A sentence ends with a full stop before a space and a capital letter.
pub(super) fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut rest = text;
    while let Some(end) =
        rest.match_indices(". ").map(|(at, _)| at).find(|at| rest[at + 2..].starts_with(char::is_uppercase))
    {
        sentences.push(&rest[..=end]);
        rest = &rest[end + 2..];
    }
    sentences.push(rest);
    sentences
}

/// The contents of a trace.
pub(super) fn facts(input: &Input) -> Markup {
    html! {
        p.quiet {
            (counted(input.maps)) " maps, " (counted(input.pages)) " pages, " (counted(input.cpus)) " CPUs; "
            (counted(input.unmatched_unmaps)) " unmaps precede the capture, "
            (counted(input.unmapped_never)) " maps are never unmapped."
            @for (number, what) in [
                (input.failed_maps, "maps failed."),
                (input.unmaps_of_nothing, "unmaps have nothing to unmap."),
                (input.partial_unmaps, "unmaps cover a part of a mapping."),
                (input.refused_accesses, "accesses were refused by the IOMMU during the capture."),
            ] {
                @if number > 0 {
                    " " strong { (counted(number)) " " (what) }
                }
            }
            @if input.lost_events > 0 {
                " " strong { "The tracer lost " (counted(input.lost_events)) " events; their effects are missing here." }
            }
            @if input.out_of_order > 0 {
                " " strong { (counted(input.out_of_order)) " events are older than the one before them on their CPU." }
            }
            @match input.events.as_str() {
                "iommu" => " Without dma: events only pages are known, and neither devices nor lengths of buffers; shares are ranges.",
                "dma" => " Read from dma: events alone; coherent buffers are missing.",
                _ => "",
            }
        }
    }
}

/// The note above results for hardware that does not exist.
pub(super) fn hypothetical(subject: &Subject) -> Markup {
    html! {
        @if let Some(prefetcher) = subject.hypothetical() {
            p { strong { "No such hardware: " } "an IOTLB with the prefetcher " code { (prefetcher) } " is hypothetical." }
        }
    }
}

fn assumptions(setting: &Setting, also: &[(&str, &str)]) -> Markup {
    let clock = setting.clock.as_deref().map(|clock| match clock {
        "model" => {
            "modelled costs, and the pauses of the work scaled so that the unprotected run reaches the machine's rate"
        }
        "trace" => "the timestamps of the trace",
        _ => "modelled costs, and the pauses of the work times a factor",
    });
    html! {
        h2 #assumed { "What was assumed" }
        dl {
            @if let Some(assumed) = &setting.assumed {
                dt { "machine" } dd { code { (assumed.id) } ": " (assumed.description) }
                dt { "sources" } dd { (assumed.source) }
            }
            @if let (Some(clock), Some(meaning)) = (&setting.clock, clock) { dt { "clock" } dd { (clock) ": " (meaning) } }
            @if !setting.sweep.is_empty() { dt { "swept" } dd { code { (setting.sweep.join(" ")) } } }
            @if !setting.set.is_empty() { dt { "changed" } dd { code { (setting.set.join(" ")) } } }
            @if let Some(dropped) = setting.no_hint {
                dt { "invalidation hint" }
                dd { (if dropped { "dropped: no invalidation carries the hint that only leaves have changed" } else { "given if only leaves have changed" }) }
            }
            @if let Some(sub_page) = &setting.sub_page {
                dt { "parts of pages" }
                dd {
                    (match sub_page.as_str() {
                        "bounce" => "bounced: devices use separate whole pages, and parts are copied",
                        "refuse" => "refused: a buffer with such a part is not mapped",
                        _ => "exposed: devices reach the rest of their pages",
                    })
                }
            }
            @if let Some(seed) = setting.seed { dt { "seed" } dd { (counted(seed)) } }
            @for (name, meaning) in also { dt { (name) } dd { (meaning) } }
        }
        @if let Some(assumed) = &setting.assumed { (values(assumed)) }
    }
}

/// Every value of the machine, by its key in the document.
fn values(assumed: &Assumed) -> Markup {
    let plain = assumed.values.iter().filter(|(_, value)| !value.is_object());
    let plain: Map<String, Value> = plain.map(|(key, value)| (key.clone(), value.clone())).collect();
    let tables = assumed.values.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_object()?)));
    html! {
        details {
            summary { "Every value of the machine" }
            div.columns {
                @for (name, values) in [("machine", &plain)].into_iter().chain(tables) {
                    div {
                        h3 { (name) }
                        (scrolled(name, &html! {
                            tbody {
                                @for (key, value) in values {
                                    tr { th.word scope="row" { code { (key) } } td { (literal(value)) } }
                                }
                            }
                        }))
                    }
                }
            }
        }
    }
}

fn literal(value: &Value) -> Markup {
    match value {
        Value::Number(value) => match (value.as_u64(), value.as_f64()) {
            (Some(value), _) => counted(value),
            (None, Some(value)) => shown(value, &number(value)),
            (None, None) => html! { (value.to_string()) },
        },
        Value::String(word) => html! { (word) },
        // The two ends of a range.
        Value::Array(ends) => {
            html! { @for (index, end) in ends.iter().enumerate() { @if index > 0 { " to " } (literal(end)) } }
        }
        other => html! { (other.to_string()) },
    }
}

fn reproduction(setting: &Setting) -> Markup {
    html! {
        h2 #reproduce { "How to reproduce" }
        pre { (setting.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")) }
        p {
            @if let Some(version) = &setting.version { "portcullis " (version) ". " }
            "The same command on the same input gives the same numbers, on any computer. With " code { "--json" }
            " it prints the document that this page was made from, which has more."
        }
    }
}

/// Quotes a word for a shell, if necessary.
fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_=+,.:/@%".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_falls_into_sentences_and_numbers_stay_whole() {
        let text = "Choose `a`, at 48.8 Gb/s, 50 % of 97.6. If not, take `b`. Cannot change kernels? `c` it is; 1. 2.";
        let parts =
            ["Choose `a`, at 48.8 Gb/s, 50 % of 97.6.", "If not, take `b`.", "Cannot change kernels? `c` it is; 1. 2."];
        assert_eq!(sentences(text), parts);
        assert_eq!(sentences(""), [""]);
    }

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        assert_eq!(
            ["a.xz", "k=1:x", "", "my trace", "it's", "$HOME"].map(quoted),
            ["a.xz", "k=1:x", "''", "'my trace'", r"'it'\''s'", "'$HOME'"]
        );
    }

    #[test]
    fn what_is_text_stays_text() {
        assert_eq!(prose("a <b> `c&d`").into_string(), "a &lt;b&gt; <code>c&amp;d</code>");
    }
}
