//! The page of `compare`.

use super::document::{Best, Comparison, Input, Protection, Run, Subject};
use super::page::{
    Page, cell, counted, design_cells, facts, figure, frame, heads, hypothetical, microseconds, prose, protections,
    scrolled, sentences, shown, whole,
};
use super::{ReportError, ink, picture};
use maud::{Markup, html};
use portcullis_sim::number::{gbps, number, percent};

const QUESTION: &str = "What does protecting this server’s DMA cost, and what is safe?";
const RATES: &str = "estimates: the lower of what the bus and the machine’s cores could carry, if the work spreads evenly over \
                     them, and never above the unprotected rate";

/// The part of a document that belongs to one trace or workload.
struct Item<'d> {
    name: String,
    subject: &'d Subject,
    input: Option<&'d Input>,
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
    let contents: Vec<_> = items.iter().enumerate().map(|(index, item)| (id(index), item.name.clone())).collect();
    let body = html! { @for section in &sections { (section) } };
    let (setting, assumed) = (&document.setting, &[("rates", RATES)]);
    Ok(frame(&Page { question: QUESTION, setting, contents: &contents, assumed, body }))
}

/// A document has its runs one item after the other, each with as many.
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
            runs,
            equal_batch: &document.equal_batch[index * equal..(index + 1) * equal],
            best: document.best.get(index).ok_or_else(malformed)?,
            advice: &document.advice[index],
        })
    };
    (0..count).map(item).collect()
}

impl Item<'_> {
    /// Whether the advice speaks of the run.
    fn is_best(&self, run: &Run) -> bool {
        let best = match run.protection {
            Protection::Strict => &self.best.strict,
            Protection::Deferred => &self.best.deferred,
            Protection::None => &None,
        };
        best.as_ref().is_some_and(|best| (&best.design, best.batch) == (&run.design, run.batch))
    }
}

fn section(item: &Item<'_>, id: &str) -> Result<Markup, ReportError> {
    let there = |protection| item.runs.iter().any(|run| run.protection == protection);
    let reach = html! { "↑ how long a device still reaches a buffer after its unmap, at most" };
    let cost = figure(&reach, &html! { "CPU cycles per page: what it costs →" }, |form| {
        picture::cost(item.runs, same_batch(item.runs).is_none(), |run| item.is_best(run), form)
    })?;
    let misses = figure(&html! {}, &html! { "misses per page, each a read of memory →" }, |form| {
        picture::misses(item.runs, form)
    })?;
    let age = html! { "↑ age of the oldest buffer that is back in use and still within reach" };
    let over_time =
        figure(&age, &html! { "time since the start of the run →" }, |form| picture::over_time(item.runs, form))?;
    Ok(html! {
        section id=(id) {
            h2 { (item.name) }
            @if let Some(input) = item.input { (facts(input)) }
            (hypothetical(item.subject))
            (answer(item))
            @if let Some(cost) = cost {
                h3 { "Cost against exposure" }
                p.quiet {
                    "Left is cheap, low is safe. What the answer speaks of is in bold."
                    @if let Some(batch) = same_batch(item.runs).filter(|batch| *batch > 1) { " All unmap in batches of " (counted(batch)) "." }
                }
                (protections(there))
                (cost)
            }
            h3 { "All numbers" }
            (table(item.runs, |run| item.is_best(run)))
            (columns())
            @if let Some(misses) = misses {
                h3 { "Misses by level" }
                p.quiet {
                    "Where a device access finds no translation, memory is read: once for the page itself, once more for each \
                     level whose pointer is not cached either."
                }
                ul.key {
                    @for (name, ink, _) in picture::LEVELS {
                        li { span.mark style={ "--ink:" (ink.variable()) } {} (name) }
                    }
                }
                (misses)
                (misses_table(item.runs))
            }
            @if let Some(over_time) = over_time {
                h3 { "The stale window over time" }
                (over_time)
            }
            @if !item.equal_batch.is_empty() {
                details {
                    summary { "All designs at equal batches" }
                    p.quiet { "Where unmaps are collected, each batch takes one wait; its buffers go back together." }
                    (table(item.equal_batch, |_| false))
                }
            }
        }
    })
}

fn answer(item: &Item<'_>) -> Markup {
    let sentences = sentences(item.advice);
    html! {
        div.answer {
            @if let Some((first, others)) = sentences.split_first() {
                p.lead { (prose(first)) }
                (tiles(item))
                @if !others.is_empty() { ul { @for sentence in others { li { (prose(sentence)) } } } }
            }
        }
    }
}

/// No protection, and the best of each, side by side.
fn tiles(item: &Item<'_>) -> Markup {
    let unprotected = item.runs.iter().find(|run| run.protection == Protection::None);
    let best = |protection| item.runs.iter().find(|run| run.protection == protection && item.is_best(run));
    let tiles = [unprotected, best(Protection::Strict), best(Protection::Deferred)];
    html! {
        ul.tiles {
            @for run in tiles.into_iter().flatten() {
                li style={ "--ink:" (ink::Ink::of(run.protection).variable()) } {
                    b { @if run.protection == Protection::None { "no protection" } @else { (run.design.label()) " " (run.protection.name()) } }
                    @if let (Some(rate), Some(share)) = (run.estimate_gbps, run.estimate_vs_none) {
                        span.rate { (shown(rate, &gbps(rate))) " " small { "Gb/s, " (shown(share, &percent(share))) } }
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

/// What the design promises of a window that was seen, and what is not up to the design.
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

fn bound_cell(run: &Run) -> Markup {
    match (run.bound_us, run.grace_us) {
        _ if run.unbounded() => html! { td { "none" } },
        (Some(bound_us), Some(grace_us)) if run.protection == Protection::Deferred => html! {
            td { (shown(bound_us, &number(bound_us))) " + " (shown(grace_us, &number(grace_us))) }
        },
        (bound_us, _) => cell(bound_us, number),
    }
}

/// The batch of all runs, where it is the same.
fn same_batch(runs: &[Run]) -> Option<u64> {
    let batch = runs.first()?.batch;
    runs.iter().all(|run| run.batch == batch).then_some(batch)
}

/// The table that a terminal shows, and what bounds the windows. Where batches differ the reader must see it.
fn table(runs: &[Run], is_best: impl Fn(&Run) -> bool) -> Markup {
    let with_batch = same_batch(runs).is_none();
    let table = html! {
        thead {
            tr {
                th.word scope="col" { "design" } th.word scope="col" { "protection" }
                @if with_batch { th scope="col" { "batch" } }
                (heads(&["cycles/\npage", "IOTLB\nmisses/p", "L3\nmisses/p", "inval/\npage", "tables\nmax", "window\nµs seen",
                    "bound\nµs", "stale\npages", "Gb/s\n(est.)", "limit", "of none"]))
            }
        }
        tbody {
            @for run in runs.iter().filter(|run| run.error.is_none()) {
                tr.best[is_best(run)] {
                    (design_cells(&run.design, run.protection))
                    @if with_batch { td { (counted(run.batch)) } }
                    @for value in [run.cycles_per_page, run.iotlb_misses_per_page, run.ptcache_l3_misses_per_page, run.invalidations_per_page] {
                        // Where nothing is translated there is nothing to count.
                        (cell(value.filter(|value| run.protection != Protection::None || *value != 0.0), number))
                    }
                    (cell(run.table_pages_max, whole))
                    @if run.stale_window_us_max.is_none() { td { "∞" } } @else { (cell(run.stale_window_us_max, number)) }
                    (bound_cell(run))
                    (cell(run.stale_accesses, whole))
                    (cell(run.estimate_gbps, gbps))
                    td { (run.limit.as_deref().unwrap_or("–")) }
                    (cell(run.estimate_vs_none, percent))
                }
            }
        }
    };
    html! {
        (scrolled("All numbers", &table))
        @for run in runs {
            @if let Some(error) = &run.error {
                p { "No result for " code { (run.design.label()) } " " (run.protection.name()) ": " (error) }
            }
        }
    }
}

fn misses_table(runs: &[Run]) -> Markup {
    let table = html! {
        thead {
            tr {
                th.word scope="col" { "design" } th.word scope="col" { "protection" }
                @for (name, _, _) in picture::LEVELS { th scope="col" { (name) } }
                th scope="col" { "reads of memory" }
            }
        }
        tbody {
            @for run in runs.iter().filter(|run| run.memory_reads_per_page.is_some_and(|reads| reads > 0.0)) {
                tr {
                    (design_cells(&run.design, run.protection))
                    @for (_, _, misses) in picture::LEVELS { (cell(misses(run), number)) }
                    (cell(run.memory_reads_per_page, number))
                }
            }
        }
    };
    html! { details { summary { "Misses per page in numbers" } (scrolled("Misses per page", &table)) } }
}

fn columns() -> Markup {
    let meanings = [
        ("cycles/page", "CPU cycles in map, unmap and flushes, waits included, per page mapped"),
        (
            "IOTLB, L3 misses/p",
            "device accesses per page that needed a walk, and walks that missed the cache of pointers to leaf tables",
        ),
        ("inval/page, tables max", "invalidation commands per page; table pages in use at most"),
        (
            "window µs seen, bound µs",
            "how long an unmapped page was seen within the device’s reach at most; how long the design says that an unmap waits until \
             the hardware is told, + what timers and the hardware may take beside it",
        ),
        ("stale pages", "pages that were still within reach when handed back"),
        ("batch", "how many unmaps in a row share an invalidation and a wait at most; their buffers go back together"),
        (
            "Gb/s, limit, of none",
            "an estimate from the above: what it is bound by (CPUs, bus or link), and its share of the unprotected rate",
        ),
    ];
    html! {
        details {
            summary { "What the columns say" }
            dl { @for (name, meaning) in meanings { dt { (name) } dd { (meaning) } } }
        }
    }
}
