//! Advises what to choose and why, from the numbers of one comparison. The rules are in `ranking`, and in
//! `docs/advice.md` for users.

mod answer;
mod pages;
mod ranking;
mod sensitivity;
#[cfg(test)]
mod tests;
mod text;

pub use answer::{Answer, Host, Line, Today, hosts};
pub use sensitivity::{Sensitivity, Tried};

use crate::compare::{ComparePlan, CompareRow, Comparison};
use portcullis::Protection;
use portcullis::mapper::Options;
use ranking::{Candidate, Ranking};
use serde::Serialize;

/// The advice on one piece of work.
#[derive(Clone, Debug)]
pub struct Advice {
    /// What stands before the tables; `None` if Linux as it is was not run.
    pub answer: Option<Answer>,
    /// One paragraph.
    pub text: String,
    /// The best run of each protection.
    pub best: Best,
    /// The assumptions on which the advice depends; `None` if they were not tried.
    pub sensitivity: Option<Sensitivity>,
}

/// The best run of each protection for one piece of work, by the rules of the advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Best {
    /// The best strict run.
    pub strict: Option<Choice>,
    /// The best deferred run.
    pub deferred: Option<Choice>,
}

/// A design, its parameters, and its batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The design.
    pub design: &'static str,
    /// Its parameters, if they differ from the defaults.
    pub options: Options,
    /// The largest batch of unmaps.
    pub batch: usize,
}

impl Choice {
    fn of(candidate: Candidate<'_>) -> Self {
        let row = candidate.row;
        Self { design: row.design, options: row.options, batch: row.batch }
    }
}

impl Best {
    fn of(rows: &[CompareRow]) -> Self {
        let choice = |protection| Ranking::of(rows, protection, None).best().map(Choice::of);
        Self { strict: choice(Protection::Strict), deferred: choice(Protection::Deferred) }
    }
}

/// The run of today's Linux under `protection`.
fn linux(rows: &[CompareRow], protection: Protection) -> Option<Candidate<'_>> {
    let is_it = |row: &&CompareRow| row.is_linux() && row.protection == protection;
    rows.iter().find(is_it).filter(|row| row.violation().is_none()).and_then(Candidate::of)
}

/// Advice on each of the plan's pieces of work, in order. Also tries the assumptions on which the advice depends, and
/// tells `progress` of each constant.
pub fn advise(
    plan: &ComparePlan,
    comparison: &Comparison,
    today: Today,
    mut progress: impl FnMut(&str),
) -> Vec<Advice> {
    let of_item = |item| {
        let all = comparison.results.iter().chain(&comparison.equal_batch);
        all.filter(|row| row.item == item).cloned().collect::<Vec<_>>()
    };
    let advise_item = |index: usize| {
        let rows = of_item(index);
        if rows.iter().any(CompareRow::is_stopped) {
            let text = "There is no advice, because some runs were not made.".to_owned();
            return Advice { answer: None, text, best: Best { strict: None, deferred: None }, sensitivity: None };
        }
        let sensitivity = Sensitivity::of(plan, index, comparison.paces[index], &rows, &mut progress);
        let item = &plan.items[index];
        let text = text::of(&rows, item, sensitivity.as_ref());
        Advice {
            answer: Answer::of(&rows, item, today, sensitivity.as_ref()),
            text,
            best: Best::of(&rows),
            sensitivity,
        }
    };
    (0..plan.items.len()).map(advise_item).collect()
}
