//! The page of `compare`.

use super::document::{Answer, Best, Comparison, Host, Input, Protection, Run, Subject, TracedDevice, Traffic};
use super::page::{Page, counted, facts, figure, frame, hypothetical, microseconds, prose, protections, sentences};
use super::picture::DrawError;
use super::runs::{Batch, columns, misses_table, rate, share, table};
use super::{ReportError, devices, ink, picture, totals};
use maud::{Markup, html};

const QUESTION: &str = "What does protecting this server’s DMA cost, and what is safe?";
const RATES: &str = "estimates at full speed: the smallest of what the CPUs that do the work in the capture, the bus, and the link or \
                     the disks can carry";
/// Id and name of the section on all work.
const ALL: (&str, &str) = ("all", "All of these together");

/// The part of a document for one trace or workload.
struct Item<'d> {
    name: String,
    subject: &'d Subject,
    input: Option<&'d Input>,
    /// The device, if it is one of several of the input.
    part: Option<&'d TracedDevice>,
    answer: Option<&'d Answer>,
    runs: &'d [Run],
    equal_batch: &'d [Run],
    best: &'d Best,
    advice: &'d str,
}

/// The page for a document.
pub(super) fn page(document: &Comparison) -> Result<String, ReportError> {
    let items = items(document)?;
    let id = |index: usize| format!("work-{index}");
    let sections =
        items.iter().enumerate().map(|(index, item)| section(item, &id(index))).collect::<Result<Vec<_>, _>>()?;
    let several: Vec<(String, &Host, &Input)> = document
        .hosts
        .iter()
        .filter_map(|host| Some((format!("devices-{}", host.input), host, document.setting.input.get(host.input)?)))
        .collect();
    let mut contents: Vec<(String, String)> =
        several.iter().map(|(id, _, input)| (id.clone(), format!("{}: its devices", input.file))).collect();
    contents.extend(items.iter().enumerate().map(|(index, item)| (id(index), item.name.clone())));
    let together = !document.all.is_empty();
    if together {
        contents.push((ALL.0.to_owned(), ALL.1.to_owned()));
    }
    let answers = |input: &Input| {
        document.answers.iter().flatten().filter(|answer| answer.trace == input.file).collect::<Vec<_>>()
    };
    let body = html! {
        @for (id, host, input) in &several { (devices::section(id, input, host, &answers(input))) }
        @for section in &sections { (section) }
        @if together { (totals::section(ALL.0, ALL.1, &document.all)) }
    };
    let (setting, assumed) = (&document.setting, &[("rates", RATES)]);
    Ok(frame(&Page { question: QUESTION, setting, contents: &contents, assumed, body, is_wide: true }))
}

/// The items of a document. Its runs are listed item by item, the same number for each.
fn items(document: &Comparison) -> Result<Vec<Item<'_>>, ReportError> {
    if document.results.is_empty() {
        return Ok(Vec::new());
    }
    let count = document.advice.len();
    let malformed = || ReportError::Malformed("results, best and advice do not belong to the same pieces of work");
    let part = |runs: &'_ [Run]| {
        if count > 0 && runs.len().is_multiple_of(count) { Ok(runs.len() / count) } else { Err(malformed()) }
    };
    let (own, equal) = (part(&document.results)?, part(&document.equal_batch)?);
    let item = |index: usize| {
        let runs = &document.results[index * own..(index + 1) * own];
        let first = runs.first().ok_or_else(malformed)?;
        if runs.iter().any(|run| run.subject != first.subject) {
            return Err(malformed());
        }
        Ok(Item {
            name: first.subject.title(&document.setting),
            subject: &first.subject,
            input: first.subject.input(&document.setting),
            part: first.subject.part(&document.setting),
            answer: document.answers.get(index).and_then(Option::as_ref),
            runs,
            equal_batch: &document.equal_batch[index * equal..(index + 1) * equal],
            best: document.best.get(index).ok_or_else(malformed)?,
            advice: &document.advice[index],
        })
    };
    (0..count).map(item).collect()
}

impl Item<'_> {
    /// Whether the advice names the run.
    fn is_best(&self, run: &Run) -> bool {
        let best = match run.protection {
            Protection::Strict => &self.best.strict,
            Protection::Deferred => &self.best.deferred,
            Protection::None => &None,
        };
        best.as_ref().is_some_and(|best| best.design == run.design && best.batch == run.batch)
    }
}

/// Shows something for each batch. With `closed`, only that of the first batch is open.
fn each(
    batches: &[Batch<'_>],
    closed: bool,
    show: impl Fn(&Batch<'_>) -> Result<Option<Markup>, DrawError>,
) -> Result<Option<Markup>, DrawError> {
    let mut shown = Vec::new();
    for batch in batches {
        if let Some(content) = show(batch)? {
            shown.push((batch.title(), content));
        }
    }
    let markup = html! {
        @for (index, (title, content)) in shown.iter().enumerate() {
            @if closed && index > 0 { details { summary { (title) } (content) } }
            @else { h4 { (title) } (content) }
        }
    };
    Ok((!shown.is_empty()).then_some(markup))
}

fn section(item: &Item<'_>, id: &str) -> Result<Markup, ReportError> {
    let batches = Batch::all(item.runs, item.equal_batch);
    let all: Vec<&Run> = batches.iter().flat_map(|batch| batch.runs.iter().copied()).collect();
    let there = |protection| all.iter().any(|run| run.protection == protection);
    let cost = each(&batches, false, |batch| {
        let reach = html! { "↑ how long a device still reaches a buffer after its unmap, at most" };
        figure(&reach, &html! { "CPU cycles per page: what it costs →" }, |form| {
            picture::cost(&batch.runs, &all, |run| item.is_best(run), form)
        })
    })?;
    let tables = each(&batches, false, |batch| Ok(Some(table(&batch.runs, |run| item.is_best(run)))))?;
    let misses = each(&batches, true, |batch| {
        let below = html! { "misses per page, each a read of memory →" };
        let picture = figure(&html! {}, &below, |form| picture::misses(&batch.runs, form))?;
        Ok(picture.map(|picture| html! { (picture) (misses_table(&batch.runs)) }))
    })?;
    let over_time = each(&batches, true, |batch| {
        let age = html! { "↑ age of the oldest buffer that is back in use and still within reach" };
        figure(&age, &html! { "time since the start of the run →" }, |form| picture::over_time(&batch.runs, form))
    })?;
    Ok(html! {
        section id=(id) {
            h2 { (item.name) }
            @match (item.part, item.input) {
                (Some(traced), _) => p.quiet { (counted(traced.maps)) " maps of this device." },
                (None, Some(input)) => { (facts(input)) },
                (None, None) => {}
            }
            @if all.iter().any(|run| run.traffic == Some(Traffic::Disk)) {
                p.quiet { "This is taken for a disk’s traffic: all buffers are whole sectors, the machine has no link, or `--traffic` says so." }
            }
            (hypothetical(item.subject))
            (answer(item, &all))
            @if let Some(cost) = cost {
                h3 { "Cost against exposure" }
                p.quiet {
                    "Left is cheap, low is safe. The best of each protection is in bold."
                    @if batches.len() > 1 { " Each picture has one batch, so that all its runs unmap alike." }
                }
                (protections(there))
                (cost)
            }
            h3 { "All numbers" }
            @if let Some(tables) = tables { (tables) }
            (columns())
            @if let Some(misses) = misses {
                h3 { "Misses by level" }
                p.quiet {
                    "If a device access finds no translation, memory is read: once for the page itself, and once more for each \
                     level whose pointer is not cached either."
                }
                ul.key {
                    @for (name, ink, _) in picture::LEVELS {
                        li { span.mark style={ "--ink:" (ink.variable()) } {} (name) }
                    }
                }
                (misses)
            }
            @if let Some(over_time) = over_time {
                h3 { "The stale window over time" }
                (over_time)
            }
        }
    })
}

/// The answer, which stands before everything else, and the advice in full.
fn answer(item: &Item<'_>, runs: &[&Run]) -> Markup {
    let sentences = sentences(item.advice);
    let Some(answer) = item.answer else {
        return html! {
            div.answer {
                @if let Some((first, others)) = sentences.split_first() {
                    p.lead { (prose(first)) }
                    (tiles(item, runs))
                    @if !others.is_empty() { ul { @for sentence in others { li { (prose(sentence)) } } } }
                }
            }
        };
    };
    html! {
        div.answer {
            @if let Some((cost, others)) = answer.lines.split_first() {
                p.lead { (prose(&cost.text)) }
                (tiles(item, runs))
                dl { @for line in others { dt { (line.about) } dd { (prose(&line.text)) } } }
            }
            details {
                summary { "The advice in full" }
                ul { @for sentence in &sentences { li { (prose(sentence)) } } }
            }
        }
    }
}

/// Tiles side by side: no protection, Linux lazy, Linux strict, and the best strict protection to be had.
fn tiles(item: &Item<'_>, runs: &[&Run]) -> Markup {
    let linux = |protection| {
        let is_it = |run: &&&Run| run.protection == protection && run.is_linux() && run.error.is_none();
        runs.iter().find(is_it).copied()
    };
    let unprotected = runs.iter().find(|run| run.protection == Protection::None).copied();
    let best = |protection| {
        runs.iter().find(|run| run.protection == protection && item.is_best(run) && !run.is_linux()).copied()
    };
    let lazy = linux(Protection::Deferred).or_else(|| best(Protection::Deferred));
    let tiles = [unprotected, lazy, linux(Protection::Strict), best(Protection::Strict)];
    html! {
        ul.tiles {
            @for run in tiles.into_iter().flatten() {
                li style={ "--ink:" (ink::Ink::of(run.protection).variable()) } {
                    b { (tile_name(run)) }
                    // A rate of anything between empty and full buffers says nothing; its share does.
                    @match (rate(run), share(run.share)) {
                        (Some((rate, unit)), Some(share)) if run.estimate_gbps_min.is_none() => {
                            span.rate { (rate) " " small { (unit) ", " (share) } }
                        }
                        (_, Some(share)) => span.rate { (share) " " small { "of the rate without protection" } },
                        _ => {}
                    }
                    span.quiet {
                        @if run.protection != Protection::None && run.batch > 1 { "in batches of " (counted(run.batch)) "; " }
                        "reach after the unmap: "
                        @match run.stale_window_us_max {
                            Some(window_us) if window_us > 0.0 => { "seen up to " (microseconds(window_us)) ", " (bound(run)) },
                            Some(_) => strong { "never" },
                            None => strong { "always" },
                        }
                    }
                }
            }
        }
    }
}

fn tile_name(run: &Run) -> String {
    match (run.protection, run.is_linux()) {
        (Protection::None, _) => "no protection".to_owned(),
        (Protection::Deferred, true) => "Linux, lazy".to_owned(),
        (Protection::Strict, true) => "Linux, strict".to_owned(),
        (protection, false) => run.design.label_with(protection),
    }
}

/// What the design promises about the window that was seen, and what it cannot promise.
fn bound(run: &Run) -> Markup {
    let grace_us = run.grace_us.unwrap_or_default();
    html! {
        @match run.bound_us {
            Some(0.0) => { "until the hardware has worked off its queue, which takes " (microseconds(grace_us)) " at most" },
            Some(bound_us) => { "bound " (microseconds(bound_us)) " + " (microseconds(grace_us)) },
            None => "no bound",
        }
    }
}
