//! What to choose and why, from the numbers of one comparison.

use crate::compare::{CompareRow, Comparison, EQUAL_BATCHES, Item};
use crate::machine::Machine;
use crate::number::{count, gbps, number, percent};
use crate::outcome::{Limit, RunOutcome};
use portcullis::Protection;
use portcullis::design::Options;
use serde::Serialize;
use std::cmp::Ordering;

/// Estimates within this share of each other are called equal.
const EQUAL_WITHIN: f64 = 0.01;

/// A row whose run ended.
type Candidate<'r> = (&'r CompareRow, &'r RunOutcome);

/// Sentences for each of the plan's `items`, in their order.
pub fn advise(comparison: &Comparison, items: &[Item]) -> Vec<String> {
    let advise_item = |(index, item): (usize, &Item)| {
        let of_item = |rows: &'_ [CompareRow]| rows.iter().filter(|row| row.item == index).cloned().collect::<Vec<_>>();
        let (rows, equal) = (of_item(&comparison.results), of_item(&comparison.equal_batch));
        let hypothetical = rows.iter().find_map(|row| row.prefetcher.clone());
        let sentences = match hypothetical {
            Some(prefetcher) => without_such_hardware(&rows, &prefetcher),
            None => advise_one(&rows, &equal, &item.machine),
        };
        let rings = rings(&rows);
        sentences.into_iter().chain(rings).chain(beyond_the_link(&rows, &item.machine)).collect::<Vec<_>>().join(" ")
    };
    items.iter().enumerate().map(advise_item).collect()
}

/// Hardware that does not exist is no ground for advice.
fn without_such_hardware(rows: &[CompareRow], prefetcher: &str) -> Vec<String> {
    let mut sentences = vec![format!(
        "There is no such hardware as an IOTLB with the prefetcher `{prefetcher}`: these numbers say what it would do, and \
         recommend nothing."
    )];
    if let Some(strict) = best(rows, Protection::Strict) {
        sentences.push(format!(
            "With it, {} would be estimated at {} Gb/s, {} of unprotected, with {} IOTLB misses per page.",
            name(strict),
            gbps(strict.1.estimate_gbps),
            percent(strict.1.estimate_vs_none),
            number(strict.1.iotlb_misses_per_page)
        ));
    }
    sentences
}

/// Designs for hardware that does not exist are compared, and never chosen.
fn rings(rows: &[CompareRow]) -> Option<String> {
    let row = rows.iter().find(|row| row.no_such_hardware)?;
    Some(format!(
        "There is no such hardware as `{}` needs: its numbers say what it would do, and recommend nothing.",
        row.design
    ))
}

/// Runs whose pauses are shorter than the link would make them.
fn beyond_the_link(rows: &[CompareRow], machine: &Machine) -> Option<String> {
    // What the pauses are set by is met within a fraction of this.
    const WITHIN: f64 = 1.01;
    let achieved = |row: &CompareRow| row.outcome().and_then(|outcome| outcome.achieved_gbps);
    let beyond = rows.iter().filter(|row| achieved(row).is_some_and(|gbps| gbps > machine.unprotected_gbps * WITHIN));
    let best = beyond.max_by(|a, b| achieved(a).partial_cmp(&achieved(b)).unwrap_or(Ordering::Equal))?;
    Some(format!(
        "`{}` {} moved {} Gb/s in this run, more than the {} that the machine reaches: no link is modelled.",
        best.label(),
        best.protection,
        gbps(achieved(best).unwrap_or_default()),
        gbps(machine.unprotected_gbps)
    ))
}

/// The best run of each protection for one piece of work: those that the advice speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Best {
    /// Among the strict ones.
    pub strict: Option<Choice>,
    /// Among the deferred ones.
    pub deferred: Option<Choice>,
}

/// A design and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The design.
    pub design: &'static str,
    /// Its parameters, where they differ from the defaults.
    pub options: Options,
    /// The largest batch.
    pub batch: usize,
}

impl Best {
    /// For each of the plan's `items` pieces of work, in their order.
    pub fn of_each(comparison: &Comparison, items: usize) -> Vec<Self> {
        let of_item = |item| {
            let rows: Vec<CompareRow> = comparison.results.iter().filter(|row| row.item == item).cloned().collect();
            let choice = |protection| {
                best(&rows, protection).map(|(row, _)| Choice {
                    design: row.design,
                    options: row.options,
                    batch: row.batch,
                })
            };
            Self { strict: choice(Protection::Strict), deferred: choice(Protection::Deferred) }
        };
        (0..items).map(of_item).collect()
    }
}

fn advise_one(rows: &[CompareRow], equal: &[CompareRow], machine: &Machine) -> Vec<String> {
    let strict = best(rows, Protection::Strict);
    let deferred = best(rows, Protection::Deferred);
    let mut sentences = Vec::new();
    match (strict, deferred) {
        (None, None) => return vec!["There is no strict or deferred run here to choose.".to_owned()],
        (Some(strict), None) => sentences.push(choose(strict, "it is the only protection that was run here")),
        (None, Some(deferred)) => {
            sentences.push(choose(deferred, "no strict run is here to compare with"));
            sentences.push(format!("But {}", exposure(deferred)));
        }
        (Some(strict), Some(deferred)) => {
            let gain = deferred.1.estimate_gbps / strict.1.estimate_gbps - 1.0;
            if gain <= EQUAL_WITHIN {
                let cheaper = strict.1.cycles_per_page - deferred.1.cycles_per_page;
                let price = if cheaper > 0.0 {
                    format!("; {} would only save {} cycles per page", name(deferred), number(cheaper))
                } else {
                    String::new()
                };
                let because = format!("deferred protection is estimated to carry no more{price}");
                sentences.push(choose(strict, &because));
            } else {
                let because = format!(
                    "no buffer stays within the device's reach after its unmap; that costs an estimated {} of the unprotected \
                     rate",
                    loss(strict.1)
                );
                sentences.push(choose(strict, &because));
                sentences.push(format!(
                    "If that is too much, {} would cost {} instead, and {}",
                    name(deferred),
                    loss(deferred.1),
                    exposure(deferred)
                ));
            }
        }
    }
    sentences.extend(batching(rows, equal));
    sentences.extend(at_equal_batches(rows, equal));
    sentences.extend(linux(rows));
    sentences.extend(search(strict.or(deferred), machine));
    sentences
}

/// The run of that protection with the highest estimate; among equals, the one with the fewest cycles.
fn best(rows: &[CompareRow], protection: Protection) -> Option<Candidate<'_>> {
    let mut best: Option<Candidate<'_>> = None;
    let may_win =
        |row: &&CompareRow| !row.no_such_hardware && row.protection == protection && row.violation().is_none();
    for row in rows.iter().filter(may_win) {
        let Some(outcome) = row.outcome() else { continue };
        let better = best.is_none_or(|(_, other)| {
            let faster = outcome.estimate_gbps / other.estimate_gbps - 1.0;
            faster > EQUAL_WITHIN || (faster > -EQUAL_WITHIN && outcome.cycles_per_page < other.cycles_per_page)
        });
        if better {
            best = Some((row, outcome));
        }
    }
    best
}

/// With its batches, which are a part of what makes it cheap.
fn name((row, _): Candidate<'_>) -> String {
    let batches = if row.batch == 1 { String::new() } else { format!(" {}", batches(row.batch)) };
    format!("`{}` {}{batches}", row.label(), row.protection)
}

fn batches(batch: usize) -> String {
    if batch == 1 { "without batches".to_owned() } else { format!("in batches of {batch}") }
}

fn choose(candidate: Candidate<'_>, because: &str) -> String {
    let outcome = candidate.1;
    let limit = match outcome.limit {
        Limit::Link => "the link is the limit",
        Limit::Cpu => "the CPUs are the limit",
        Limit::Pcie => "translations are the limit: bytes in flight wait for page walks",
    };
    format!(
        "Choose {}, because {because}. It is estimated at {} Gb/s, {} of unprotected; {limit}.",
        name(candidate),
        gbps(outcome.estimate_gbps),
        percent(outcome.estimate_vs_none)
    )
}

/// What a run costs, as a share of the unprotected rate: never "-0 %".
fn loss(outcome: &RunOutcome) -> String {
    percent((1.0 - outcome.estimate_vs_none).max(0.0))
}

fn exposure((_, outcome): Candidate<'_>) -> String {
    match outcome.stale_window_us_max {
        Some(window_us) if window_us > 0.0 => format!(
            "the device can reach a buffer after it is back in use: seen up to {} µs, {} ({} stale pages were \
             seen to translate).",
            number(window_us),
            bound(outcome),
            count(outcome.stale_accesses)
        ),
        _ => "no window was seen in which the device could reach a buffer after its unmap.".to_owned(),
    }
}

/// What the design promises of a window that was seen, and what is not up to the design.
fn bound(outcome: &RunOutcome) -> String {
    let grace = number(outcome.grace_us.unwrap_or_default());
    match outcome.bound_us {
        Some(0) => format!("until the hardware has worked off its queue, which takes {grace} µs at most"),
        Some(bound_us) => format!("bound {} µs + {grace} µs for timers and the hardware", count(bound_us)),
        None => "no bound".to_owned(),
    }
}

/// What batching does, where it was measured.
fn batching(rows: &[CompareRow], equal: &[CompareRow]) -> Option<String> {
    let (row, outcome) = best(rows, Protection::Strict)?;
    let other = equal.iter().find(|other| other.label() == row.label() && other.protection == row.protection)?;
    let batched = other.outcome()?;
    Some(format!(
        "What batches do: `{}` {} takes {} cycles per page {}, and would take {} {}.",
        row.label(),
        row.protection,
        number(outcome.cycles_per_page),
        batches(row.batch),
        number(batched.cycles_per_page),
        batches(other.batch)
    ))
}

/// The best strict design where all have the same batches, so that none looks good for its batches alone.
fn at_equal_batches(rows: &[CompareRow], equal: &[CompareRow]) -> Option<String> {
    let best_of = |batch| {
        let all: Vec<CompareRow> = rows.iter().chain(equal).filter(|row| row.batch == batch).cloned().collect();
        let (row, outcome) = best(&all, Protection::Strict)?;
        Some(format!("`{}` {} ({} Gb/s)", row.label(), batches(batch), gbps(outcome.estimate_gbps)))
    };
    let differ = rows.iter().any(|row| row.batch != rows[0].batch);
    let each: Vec<String> = EQUAL_BATCHES.into_iter().filter_map(best_of).collect();
    (differ && !each.is_empty()).then(|| format!("At equal batches the best strict design is {}.", each.join(" and ")))
}

/// What a host can do whose kernel cannot be changed: Linux defers by default, and `iommu.strict=1` makes it strict.
fn linux(rows: &[CompareRow]) -> Option<String> {
    let today =
        |protection| rows.iter().find(|row| row.label() == "magazine" && row.protection == protection)?.outcome();
    let (strict, deferred) = (today(Protection::Strict)?, today(Protection::Deferred)?);
    Some(format!(
        "Cannot change kernels? Linux today is `magazine`, deferred unless told otherwise, at an estimated {} of unprotected; \
         with iommu.strict=1 it would be at {}.",
        percent(deferred.estimate_vs_none),
        percent(strict.estimate_vs_none)
    ))
}

/// A warning where the search for addresses is what costs.
fn search(candidate: Option<Candidate<'_>>, machine: &Machine) -> Option<String> {
    let (row, outcome) = candidate?;
    let steps = outcome.search_steps_mean?;
    let per_page = outcome.operations as f64 / outcome.pages.max(1) as f64;
    let share = steps * machine.costs.tree_search as f64 * per_page / outcome.cycles_per_page;
    (share > 0.2).then(|| {
        format!(
            "{} of what `{}` costs here is the search for a free address ({} steps each).",
            percent(share),
            row.label(),
            number(steps)
        )
    })
}
