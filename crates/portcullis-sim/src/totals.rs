//! Several pieces of work taken together: the total of each design over all of them, and the work on which it does
//! worst.

use crate::compare::{CompareRow, Comparison, Settings};
use crate::outcome::RunOutcome;
use portcullis::Protection;
use portcullis::mapper::Options;
use serde::Serialize;
use std::collections::BTreeSet;

/// A design under one protection, with its batches, over all work on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Total {
    /// The design.
    pub design: &'static str,
    /// Its parameters, if they differ from the defaults.
    pub options: Options,
    /// Whether the design needs hardware that does not exist.
    pub no_such_hardware: bool,
    /// The protection.
    pub protection: Protection,
    /// The largest batch.
    pub batch: usize,
    /// The hardware parameters that were changed.
    pub set: Settings,
    /// Pages of all work.
    pub pages: u64,
    /// The mean over all pages.
    pub cycles_per_page: f64,
    /// The longest window; `null` if one has no end.
    pub stale_window_us_max: Option<f64>,
    /// The sum over all work.
    pub stale_accesses: u64,
    /// The time that all work would take without protection, as a share of the time that it takes.
    pub estimate_vs_none: f64,
    /// The same share with the least payload; `null` if the two are equal on all work.
    pub estimate_vs_none_min: Option<f64>,
    /// The work on which its share is the least.
    pub worst: Worst,
}

/// The piece of work on which a design does worst.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// The work.
    pub trace: String,
    /// The device whose work it is; `null` if that is not known, or if it is of several.
    pub device: Option<String>,
    /// Its share there of the rate that the work reaches without protection.
    pub estimate_vs_none: f64,
    /// The same share with the least payload.
    pub estimate_vs_none_min: Option<f64>,
}

impl Total {
    /// The design with its parameters, in the form of the command line.
    pub fn label(&self) -> String {
        format!("{}{}", self.design, self.options)
    }
}

/// A total for each design, protection and batch, in the order of the runs, and for each setting of the hardware.
/// There is no total if there is only one piece of work. A design with a failed run has none either, because it could
/// not be compared with the others.
pub fn totals(comparison: &Comparison) -> Vec<Total> {
    let rows: Vec<&CompareRow> = comparison.results.iter().chain(&comparison.equal_batch).collect();
    let items = |set: &Settings| {
        let of_set = rows.iter().filter(|row| row.set == *set);
        of_set.map(|row| row.item).collect::<BTreeSet<usize>>().len()
    };
    let mut groups: Vec<Vec<&CompareRow>> = Vec::new();
    for row in &rows {
        match groups.iter_mut().find(|group| is_same(group[0], row)) {
            Some(group) if group.iter().any(|other| other.item == row.item) => {}
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.sort_by_key(|group| {
        let design = |row: &CompareRow| (row.design, row.options, row.protection);
        (comparison.results.iter().position(|row| design(row) == design(group[0])), group[0].batch)
    });
    let several = groups.into_iter().filter(|group| group.len() > 1 && group.len() == items(&group[0].set));
    several.filter_map(|group| total(&group)).collect()
}

/// Whether two runs differ only in their work.
fn is_same(one: &CompareRow, other: &CompareRow) -> bool {
    let design = |row: &CompareRow| (row.design, row.options, row.protection, row.batch);
    design(one) == design(other) && one.set == other.set
}

fn total(group: &[&CompareRow]) -> Option<Total> {
    let first = *group.first()?;
    let runs: Vec<(&CompareRow, &RunOutcome)> =
        group.iter().map(|row| row.outcome().map(|outcome| (*row, outcome))).collect::<Option<_>>()?;
    let outcomes = || runs.iter().map(|(_, outcome)| *outcome);
    let pages = outcomes().map(|outcome| outcome.pages).sum::<u64>();
    let cycles = outcomes().map(|outcome| outcome.cycles_per_page * outcome.pages as f64).sum::<f64>();
    let windows: Option<Vec<f64>> = outcomes().map(|outcome| outcome.stale_window_us_max).collect();
    let share = |times: fn(&RunOutcome) -> Times| {
        let (unprotected, all) =
            outcomes().map(times).fold((0.0, 0.0), |sum, one| (sum.0 + one.unprotected, sum.1 + one.all));
        if all > 0.0 { unprotected / all } else { 1.0 }
    };
    let at_worst = |outcome: &RunOutcome| outcome.estimate_vs_none_min.unwrap_or(outcome.estimate_vs_none);
    let (row, worst) = runs.iter().min_by(|(_, one), (_, other)| at_worst(one).total_cmp(&at_worst(other)))?;
    let is_range = outcomes().any(|outcome| outcome.estimate_vs_none_min.is_some());
    Some(Total {
        design: first.design,
        options: first.options,
        no_such_hardware: first.no_such_hardware,
        protection: first.protection,
        batch: first.batch,
        set: first.set.clone(),
        pages,
        cycles_per_page: if pages > 0 { cycles / pages as f64 } else { 0.0 },
        stale_window_us_max: windows.map(|windows| windows.into_iter().fold(0.0, f64::max)),
        stale_accesses: outcomes().map(|outcome| outcome.stale_accesses).sum(),
        estimate_vs_none: share(Times::most),
        estimate_vs_none_min: is_range.then(|| share(Times::least)),
        worst: Worst {
            trace: row.trace.clone(),
            device: row.device.clone(),
            estimate_vs_none: worst.estimate_vs_none,
            estimate_vs_none_min: worst.estimate_vs_none_min,
        },
    })
}

/// How long the work of a run takes at full speed, in seconds.
struct Times {
    all: f64,
    unprotected: f64,
}

impl Times {
    fn most(outcome: &RunOutcome) -> Self {
        let rate = outcome.estimate_operations_per_second;
        let all = if rate > 0.0 { outcome.operations as f64 / rate } else { 0.0 };
        Self { all, unprotected: all * outcome.estimate_vs_none }
    }

    /// The times with the least payload.
    fn least(outcome: &RunOutcome) -> Self {
        match (outcome.estimate_gbps_min, outcome.estimate_vs_none_min) {
            (Some(gbps), Some(share)) if gbps > 0.0 => {
                let all = outcome.payload_bytes_min as f64 * 8.0 / (gbps * 1e9);
                Self { all, unprotected: all * share }
            }
            _ => Self::most(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Measurement;
    use crate::run::RunError;

    /// A run of `operations` at `rate` per second.
    fn row(item: usize, operations: u64, rate: f64, share: f64) -> CompareRow {
        let outcome = RunOutcome {
            operations,
            pages: 2 * operations,
            cycles_per_page: 100.0 * (item + 1) as f64,
            stale_window_us_max: Some(item as f64),
            stale_accesses: 3,
            estimate_operations_per_second: rate,
            estimate_vs_none: share,
            ..RunOutcome::default()
        };
        CompareRow {
            item,
            trace: format!("{item}.trace"),
            device: None,
            design: "stock",
            options: Options::default(),
            no_such_hardware: false,
            protection: Protection::Strict,
            sub_page: None,
            batch: 1,
            prefetcher: None,
            set: Settings::new(),
            outcome: Measurement::Done(Box::new(outcome)),
        }
    }

    fn of(results: Vec<CompareRow>) -> Vec<Total> {
        totals(&Comparison { results, equal_batch: Vec::new(), paces: Vec::new() })
    }

    #[test]
    fn the_longer_work_counts_for_more() {
        // The work takes 1 s and 3 s. Without protection it would take 0.5 s and 3 s.
        let all = of(vec![row(0, 1000, 1000.0, 0.5), row(1, 3000, 1000.0, 1.0)]);
        assert_eq!(all.len(), 1);
        let total = &all[0];
        assert_eq!((total.estimate_vs_none, total.estimate_vs_none_min), (3.5 / 4.0, None));
        assert_eq!((total.pages, total.cycles_per_page), (8000, (100.0 * 2000.0 + 200.0 * 6000.0) / 8000.0));
        assert_eq!((total.stale_window_us_max, total.stale_accesses), (Some(1.0), 6));
        assert_eq!((&*total.worst.trace, total.worst.estimate_vs_none), ("0.trace", 0.5));
    }

    #[test]
    fn what_may_be_empty_is_judged_by_its_worse_end() {
        let mut range = row(0, 1000, 1000.0, 1.0);
        let Measurement::Done(outcome) = &mut range.outcome else { panic!("a run that ended") };
        // With the least payload it also takes one second, and a quarter of that without protection.
        outcome.payload_bytes_min = 125_000_000;
        (outcome.estimate_gbps_min, outcome.estimate_vs_none_min) = (Some(1.0), Some(0.25));
        let all = of(vec![range, row(1, 1000, 1000.0, 0.75)]);
        assert_eq!((all[0].estimate_vs_none, all[0].estimate_vs_none_min), (1.75 / 2.0, Some(1.0 / 2.0)));
        assert_eq!((&*all[0].worst.trace, all[0].worst.estimate_vs_none_min), ("0.trace", Some(0.25)));
    }

    #[test]
    fn one_piece_of_work_has_no_total_and_neither_has_what_failed() {
        let (one, other) = (row(0, 1, 1.0, 1.0), row(1, 1, 1.0, 1.0));
        assert_eq!(of(vec![one.clone(), one.clone()]), []);
        let mut failed = other.clone();
        failed.outcome = Measurement::Failed(RunError::Span(1));
        assert_eq!(of(vec![one.clone(), failed]), []);
        let mut swept = other;
        swept.set.insert("iotlb_entries".to_owned(), 8.into());
        assert_eq!(of(vec![one, swept]), [], "on another machine");
    }

    #[test]
    fn what_has_no_end_on_one_has_none_on_all() {
        let mut endless = row(1, 1, 1.0, 1.0);
        let Measurement::Done(outcome) = &mut endless.outcome else { panic!("a run that ended") };
        outcome.stale_window_us_max = None;
        assert_eq!(of(vec![row(0, 1, 1.0, 1.0), endless])[0].stale_window_us_max, None);
    }
}
