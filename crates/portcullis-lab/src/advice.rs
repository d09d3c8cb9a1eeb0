//! What to choose and why, from the numbers of one comparison.

use crate::compare::{Comparison, EQUAL_BATCHES, Row, option_map};
use crate::machine::Machine;
use crate::outcome::{Limit, Outcome};
use portcullis::Protection;
use portcullis::design::Options;
use serde::Serialize;

/// Estimates within this share of each other are called equal.
const EQUAL_WITHIN: f64 = 0.01;

/// A row whose run ended.
type Candidate<'r> = (&'r Row, &'r Outcome);

/// Sentences for each of the plan's `items` pieces of work, in their order.
pub fn advise(comparison: &Comparison, items: usize, machine: &Machine) -> Vec<String> {
    let advise_item = |item| {
        let of_item = |rows: &'_ [Row]| rows.iter().filter(|row| row.item == item).cloned().collect::<Vec<_>>();
        advise_one(&of_item(&comparison.results), &of_item(&comparison.equal_batch), machine)
    };
    (0..items).map(advise_item).collect()
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
    #[serde(serialize_with = "option_map")]
    pub options: Options,
}

impl Best {
    /// For each of the plan's `items` pieces of work, in their order.
    pub fn of_each(comparison: &Comparison, items: usize) -> Vec<Self> {
        let of_item = |item| {
            let rows: Vec<Row> = comparison.results.iter().filter(|row| row.item == item).cloned().collect();
            let choice = |protection| {
                best(&rows, protection).map(|(row, _)| Choice { design: row.design, options: row.options })
            };
            Self { strict: choice(Protection::Strict), deferred: choice(Protection::Deferred) }
        };
        (0..items).map(of_item).collect()
    }
}

fn advise_one(rows: &[Row], equal: &[Row], machine: &Machine) -> String {
    let strict = best(rows, Protection::Strict);
    let deferred = best(rows, Protection::Deferred);
    let mut sentences = Vec::new();
    match (strict, deferred) {
        (None, None) => return "There is no strict or deferred run here to choose.".to_owned(),
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
                    format!("; {} would only save {cheaper:.0} cycles per page", name(deferred))
                } else {
                    String::new()
                };
                let because = format!("deferred protection is estimated to carry no more{price}");
                sentences.push(choose(strict, &because));
            } else {
                let because =
                    format!("no buffer stays within the device's reach after its unmap; that costs {}", loss(strict.1));
                sentences.push(choose(strict, &because));
                let more = if gain < 1.0 {
                    format!("{:.0} % more", 100.0 * gain)
                } else {
                    format!("{:.1} times as much", 1.0 + gain)
                };
                sentences.push(format!(
                    "If that is too much, {} would carry {more}, and {}",
                    name(deferred),
                    exposure(deferred)
                ));
            }
        }
    }
    sentences.extend(batching(rows, equal));
    sentences.extend(at_equal_batches(rows, equal));
    sentences.extend(linux(rows));
    sentences.extend(search(strict.or(deferred), machine));
    sentences.join(" ")
}

/// The run of that protection with the highest estimate; among equals, the one with the fewest cycles.
fn best(rows: &[Row], protection: Protection) -> Option<Candidate<'_>> {
    let mut best: Option<Candidate<'_>> = None;
    for row in rows.iter().filter(|row| row.protection == protection && row.violation().is_none()) {
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
    let batches = if row.batch == 1 { String::new() } else { format!(" in batches of {}", row.batch) };
    format!("`{}` {}{batches}", row.label(), row.protection)
}

fn choose(candidate: Candidate<'_>, because: &str) -> String {
    let outcome = candidate.1;
    let limit = match outcome.limit {
        Limit::Link => "the link is the limit",
        Limit::Cpu => "the CPUs are the limit",
        Limit::Pcie => "translations are the limit: bytes in flight wait for page walks",
    };
    format!(
        "Choose {}, because {because}. It is estimated at {:.1} Gb/s, {:.0} % of unprotected; {limit}.",
        name(candidate),
        outcome.estimate_gbps,
        100.0 * outcome.estimate_vs_none
    )
}

fn loss(outcome: &Outcome) -> String {
    format!("an estimated {:.0} % of the unprotected rate", 100.0 * (1.0 - outcome.estimate_vs_none))
}

fn exposure((_, outcome): Candidate<'_>) -> String {
    match outcome.stale_window_us_max {
        Some(window_us) if window_us > 0.0 => format!(
            "the device can reach a buffer after it is back in use: seen up to {window_us:.0} µs, {} ({} stale pages were \
             seen to translate).",
            bound(outcome),
            outcome.stale_accesses
        ),
        _ => "no window was seen in which the device could reach a buffer after its unmap.".to_owned(),
    }
}

/// What the design promises of a window that was seen.
fn bound(outcome: &Outcome) -> String {
    match outcome.bound_us {
        Some(0) => "until the hardware has worked off its queue".to_owned(),
        Some(bound_us) => format!("bound {bound_us} µs"),
        None => "no bound".to_owned(),
    }
}

/// What batching does, where it was measured.
fn batching(rows: &[Row], equal: &[Row]) -> Option<String> {
    let (row, outcome) = best(rows, Protection::Strict)?;
    let other = equal.iter().find(|other| other.label() == row.label() && other.protection == row.protection)?;
    let batched = other.outcome()?;
    let alone =
        if other.batch == 1 { "Without batches".to_owned() } else { format!("With batches of {}", other.batch) };
    Some(format!(
        "{alone} instead of those of {} `{}` {} would take {:.0} cycles per page instead of {:.0}.",
        row.batch,
        row.label(),
        row.protection,
        batched.cycles_per_page,
        outcome.cycles_per_page
    ))
}

/// The best strict design where all have the same batches, so that none looks good for its batches alone.
fn at_equal_batches(rows: &[Row], equal: &[Row]) -> Option<String> {
    let best_of = |batch| {
        let all: Vec<Row> = rows.iter().chain(equal).filter(|row| row.batch == batch).cloned().collect();
        let (row, outcome) = best(&all, Protection::Strict)?;
        let batches = if batch == 1 { "without batches".to_owned() } else { format!("in batches of {batch}") };
        Some(format!("`{}` {batches} ({:.1} Gb/s)", row.label(), outcome.estimate_gbps))
    };
    let differ = rows.iter().any(|row| row.batch != rows[0].batch);
    let each: Vec<String> = EQUAL_BATCHES.into_iter().filter_map(best_of).collect();
    (differ && !each.is_empty()).then(|| format!("At equal batches the best strict design is {}.", each.join(" and ")))
}

/// What a host can do whose kernel cannot be changed: Linux defers by default, and `iommu.strict=1` makes it strict.
fn linux(rows: &[Row]) -> Option<String> {
    let today =
        |protection| rows.iter().find(|row| row.label() == "magazine" && row.protection == protection)?.outcome();
    let (strict, deferred) = (today(Protection::Strict)?, today(Protection::Deferred)?);
    let loss = 100.0 * (1.0 - strict.estimate_gbps / deferred.estimate_gbps);
    Some(format!(
        "Cannot change kernels? Linux today is `magazine`, deferred unless told otherwise; iommu.strict=1 would cost it an \
         estimated {:.0} %.",
        // Never "-0 %".
        loss.max(0.0)
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
            "{:.0} % of what `{}` costs here is the search for a free address ({steps:.0} steps each).",
            100.0 * share,
            row.label()
        )
    })
}
