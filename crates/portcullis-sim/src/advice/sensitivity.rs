//! Which assumed constants the advice hangs on: each is tried at both ends of its range, by itself.
//!
//! What a step costs is counted, not run again: a run's cycles are linear in it. Where that says that the advice would be another, the
//! runs are made, and they decide. What changes how hardware behaves is always run.

use super::linux;
use super::ranking::{Candidate, Ranking, TIE};
use crate::compare::{ComparePlan, CompareRow, EQUAL_BATCHES, Item};
use crate::machine::Machine;
use crate::number::{count, number, percent};
use crate::parallel;
use crate::rates::Needs;
use crate::run::{Measured, Pace, measure, measure_steps};
use portcullis::Protection;
use portcullis::designs::{Choice, DesignId};
use serde::Serialize;
use std::collections::BTreeSet;

/// What came of trying every assumed constant.
#[derive(Clone, Debug, Serialize)]
pub struct Sensitivity {
    /// How many there are.
    pub constants: usize,
    /// Those with which the advice would be another.
    pub changes: Vec<Tried>,
}

/// An assumed constant at an end of its range, and what would come of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Its name.
    pub key: String,
    /// What is assumed.
    pub value: f64,
    /// What was tried.
    pub at: f64,
    /// What would then be so.
    pub then: String,
}

/// Costs that are not charged by step: of waiting, and of making entries visible.
const COSTS_OF_WAITING: [&str; 7] =
    ["lock", "line_transfer", "handoff_per_waiter", "poll", "line_flush", "line_flush_next", "store_fence"];
/// What acts on the rate by the time that translations take, and by nothing else.
const TRANSLATION: [&str; 7] = [
    "iotlb_entries",
    "iotlb_ways",
    "ptcache_l1_entries",
    "ptcache_l2_entries",
    "ptcache_l3_entries",
    "memory_read_ps",
    "walkers",
];
/// The most that a translation can take, in terms of one that reads memory once: a read for each level.
const READS_MAX: f64 = 4.0;
/// How many of the best of each batch are tried.
const TRIED_PER_BATCH: usize = 2;

/// A strict run that the advice may speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    choice: Choice,
    batch: usize,
    /// Whether it is today's Linux.
    is_today: bool,
}

/// Its share of the unprotected rate, at worst.
type Shares = Vec<f64>;

struct Trial<'p> {
    plan: &'p ComparePlan,
    item: &'p Item,
    pace: Pace,
    runs: Vec<Run>,
    measured: Vec<Measured>,
}

impl Sensitivity {
    /// What the advice on item `index` hangs on. `None` where nothing is assumed, where parameters are swept or hardware is
    /// hypothetical, and where there is no strict run.
    pub(super) fn of(
        plan: &ComparePlan,
        index: usize,
        rows: &[CompareRow],
        progress: &mut impl FnMut(&str),
    ) -> Option<Self> {
        let item = &plan.items[index];
        let is_swept = plan.items.iter().filter(|other| other.name == item.name).count() > 1;
        if item.machine.assumed.is_empty() || is_swept || rows.iter().any(|row| row.prefetcher.is_some()) {
            return None;
        }
        let runs = candidates(rows);
        if runs.is_empty() {
            return None;
        }
        let pace = plan.clock.pace(&item.machine, &item.work, plan.seed);
        let mut trial = Trial { plan, item, pace, runs, measured: Vec::new() };
        trial.measured = trial.measure(&item.machine, true)?;
        let base = trial.shares(&item.machine, &trial.measured);
        let mut changes = Vec::new();
        for (key, range) in &item.machine.assumed {
            progress(key);
            changes.extend(range.iter().filter_map(|at| trial.attempt(key, *at, &base)));
        }
        Some(Self { constants: item.machine.assumed.len(), changes })
    }

    /// In words.
    pub(super) fn sentence(&self) -> String {
        let tried = format!("Each of the {} assumed constants was tried at both ends of its range", self.constants);
        if self.changes.is_empty() {
            return format!("{tried}: none changes this.");
        }
        let change = |tried: &Tried| {
            format!("with `{}` at {} instead of {}, {}", tried.key, plain(tried.at), plain(tried.value), tried.then)
        };
        let changes: Vec<String> = self.changes.iter().map(change).collect();
        format!("{tried}. What would change this: {}.", changes.join("; "))
    }
}

fn plain(value: f64) -> String {
    if value >= 1000.0 { count(value.round() as u64) } else { number(value) }
}

/// Today's Linux, and the best of each batch.
fn candidates(rows: &[CompareRow]) -> Vec<Run> {
    let run = |candidate: &Candidate<'_>, is_today| {
        let row = candidate.row;
        let design = DesignId::ALL.iter().find(|design| design.info().id == row.design)?;
        Some(Run { choice: Choice { design: *design, options: row.options }, batch: row.batch, is_today })
    };
    let mut runs: Vec<Run> = linux(rows, Protection::Strict).and_then(|today| run(&today, true)).into_iter().collect();
    let batches: BTreeSet<usize> = rows.iter().map(|row| row.batch).collect();
    for batch in batches {
        let ranking = Ranking::of(rows, Protection::Strict, Some(batch));
        for candidate in ranking.tied.iter().take(TRIED_PER_BATCH) {
            let there = |run: &Run| {
                (run.choice.design.info().id, run.choice.options, run.batch)
                    == (candidate.row.design, candidate.row.options, candidate.row.batch)
            };
            if !runs.iter().any(there) {
                runs.extend(run(candidate, false));
            }
        }
    }
    runs
}

impl Trial<'_> {
    /// Makes the runs on `machine`. `None` where one of them fails: then nothing is known.
    fn measure(&self, machine: &Machine, with_steps: bool) -> Option<Vec<Measured>> {
        let item = Item { machine: machine.clone(), ..self.item.clone() };
        let run = |run: &Run| {
            let job = self.plan.job(&item, self.pace, run.choice, Protection::Strict, run.batch);
            if with_steps { measure_steps(&job) } else { measure(&job) }
        };
        parallel::each(&self.runs, run, |_| {}).into_iter().collect::<Result<_, _>>().ok()
    }

    fn shares(&self, machine: &Machine, measured: &[Measured]) -> Shares {
        let traffic = crate::Traffic::of(&self.item.work, &self.item.machine);
        let share = |measured: &Measured| {
            let needs = Needs::of(machine, traffic, measured);
            needs.least().share.min(needs.most().share)
        };
        measured.iter().map(share).collect()
    }

    /// What would be so with `key` at `at`, if that is not what is so now.
    fn attempt(&self, key: &str, at: f64, base: &Shares) -> Option<Tried> {
        let mut machine = self.item.machine.clone();
        let value = machine.get(key)?;
        // Whole numbers are written as such, for most values are.
        machine.set(key, &if at.fract() == 0.0 { format!("{at:.0}") } else { at.to_string() }).ok()?;
        machine.check().ok()?;
        if TRANSLATION.contains(&key) && self.translations_do_not_matter() {
            return None;
        }
        let is_of_machine = machine.costs == self.item.machine.costs && machine.iommu == self.item.machine.iommu;
        let is_by_step = machine.iommu == self.item.machine.iommu && !COSTS_OF_WAITING.contains(&key);
        let changed = |measured: &[Measured]| self.change(base, &self.shares(&machine, measured));
        let then = if is_of_machine {
            changed(&self.measured)
        } else if is_by_step {
            changed(&self.repriced(&machine)).and_then(|_| changed(&self.measure(&machine, false)?))
        } else {
            changed(&self.measure(&machine, false)?)
        };
        Some(Tried { key: key.to_owned(), value, at, then: then? })
    }

    /// What was measured, with the prices of `machine`.
    fn repriced(&self, machine: &Machine) -> Vec<Measured> {
        let (old, new) = (&self.item.machine.costs, &machine.costs);
        let reprice = |measured: &Measured| {
            let mut measured = measured.clone();
            for (cycles, steps) in measured.cycles_by_core.iter_mut().zip(&measured.steps_by_core) {
                let (before, after) = steps.iter().fold((0, 0), |(before, after), (step, times)| {
                    (before + old.of(*step) * times, after + new.of(*step) * times)
                });
                *cycles = (*cycles + after).saturating_sub(before);
            }
            measured
        };
        self.measured.iter().map(reprice).collect()
    }

    /// Whether the bus is not the limit, however long translations take.
    fn translations_do_not_matter(&self) -> bool {
        let traffic = crate::Traffic::of(&self.item.work, &self.item.machine);
        self.measured.iter().all(|measured| {
            let needs = Needs::of(&self.item.machine, traffic, measured);
            needs.bus_seconds() * READS_MAX < needs.most().seconds
        })
    }

    /// How the answer differs: whether today's Linux costs anything, and whether what was best at some batch still is.
    fn change(&self, base: &Shares, now: &Shares) -> Option<String> {
        let is_free = |share: f64| share >= 1.0 - TIE;
        if let Some(today) = self.runs.iter().position(|run| run.is_today)
            && is_free(base[today]) != is_free(now[today])
        {
            return Some(match is_free(now[today]) {
                true => "strict protection would cost next to nothing with Linux as it is".to_owned(),
                false => format!("strict protection would cost {} with Linux as it is", percent(1.0 - now[today])),
            });
        }
        let of_batch = |batch| (0..self.runs.len()).filter(move |index| self.runs[*index].batch == batch);
        let best =
            |batch, shares: &Shares| of_batch(batch).max_by(|one, other| shares[*one].total_cmp(&shares[*other]));
        EQUAL_BATCHES.into_iter().find_map(|batch| {
            let (was, is) = (best(batch, base)?, best(batch, now)?);
            (now[is] > now[was] + TIE)
                .then(|| format!("`{}` would be better than `{}`", self.runs[is].choice, self.runs[was].choice))
        })
    }
}
