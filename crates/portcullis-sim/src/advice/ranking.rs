//! Which run is best, and which runs are as good.
//!
//! The rules: a run is judged by its share of the unprotected rate. If buffers may be nearly empty, the lower end of
//! the range counts. Shares within [`TIE`] of the best are a tie, and the simplest run wins it. What Linux can do
//! today is simpler than another kernel, and another kernel is simpler than one with drivers that unmap in batches.
//! Runs on hardware that does not exist, runs that failed a check, runs whose design bounds no stale window, and runs
//! of a design that reports no steps, so that its cost is not known, are never ranked.

use crate::compare::{CompareRow, LINUX};
use crate::outcome::RunOutcome;
use portcullis::Protection;

/// Shares of the unprotected rate that differ by at most this count as equal, because the model's prices are no more
/// exact.
pub(crate) const TIE: f64 = 0.02;

/// Whether a share of the unprotected rate counts as the full rate.
pub(super) fn is_free(share: f64) -> bool {
    share >= 1.0 - TIE
}

/// A run that has a result.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'r> {
    pub(super) row: &'r CompareRow,
    pub(super) outcome: &'r RunOutcome,
}

/// What has to change before a run's design can be used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Effort {
    /// An option of today's Linux.
    Option,
    /// Another kernel.
    Kernel,
    /// Another kernel, and drivers that unmap in batches.
    Drivers,
}

impl<'r> Candidate<'r> {
    pub(super) fn of(row: &'r CompareRow) -> Option<Self> {
        row.outcome().map(|outcome| Self { row, outcome })
    }

    pub(super) fn effort(&self) -> Effort {
        match (self.row.batch, self.row.label() == LINUX) {
            (1, true) => Effort::Option,
            (1, false) => Effort::Kernel,
            _ => Effort::Drivers,
        }
    }

    /// Its share of the unprotected rate. If that is a range, the share for the shortest and emptiest buffers.
    pub(super) fn share(&self) -> f64 {
        self.outcome.share_of_shortest
    }

    /// Whether its protection costs next to nothing.
    pub(super) fn is_free(&self) -> bool {
        is_free(self.share())
    }
}

/// The best runs: those within [`TIE`] of the best share, simplest first. Among equally simple runs, the cheapest
/// comes first.
pub(super) struct Ranking<'r> {
    pub(super) tied: Vec<Candidate<'r>>,
    /// All ranked runs, simplest first.
    pub(super) all: Vec<Candidate<'r>>,
}

impl<'r> Ranking<'r> {
    /// Ranks the runs under `protection`. If `batch` is given, ranks only runs with this batch.
    pub(super) fn of(rows: &'r [CompareRow], protection: Protection, batch: Option<usize>) -> Self {
        let may_win = |row: &&CompareRow| {
            let is_asked_for = row.protection == protection && batch.is_none_or(|batch| row.batch == batch);
            is_asked_for && !row.no_such_hardware && row.violation().is_none()
        };
        // Without a bound, nothing says when the device loses a buffer. That is never advised.
        let is_bounded = |run: &Candidate<'_>| protection != Protection::Deferred || run.outcome.bound_us.is_some();
        let ranked = rows.iter().filter(may_win).filter_map(Candidate::of).filter(|run| !run.outcome.unpriced);
        let mut all: Vec<Candidate<'_>> = ranked.filter(is_bounded).collect();
        let best = all.iter().map(Candidate::share).fold(0.0, f64::max);
        all.sort_by(|one, other| {
            let cycles = one.outcome.cycles_per_page.total_cmp(&other.outcome.cycles_per_page);
            one.effort().cmp(&other.effort()).then(cycles)
        });
        let tied = all.iter().copied().filter(|one| one.share() >= best - TIE).collect();
        Self { tied, all }
    }

    /// Whether all runs tie.
    pub(super) fn is_all_tied(&self) -> bool {
        self.tied.len() == self.all.len()
    }

    /// Those of the best runs that are better than `floor` by more than a tie, simplest first.
    pub(super) fn better_than(&self, floor: f64) -> Vec<&Candidate<'r>> {
        self.tied.iter().filter(|one| one.share() > floor + TIE).collect()
    }

    /// The simplest of the best runs.
    pub(super) fn best(&self) -> Option<Candidate<'r>> {
        self.tied.first().copied()
    }
}
