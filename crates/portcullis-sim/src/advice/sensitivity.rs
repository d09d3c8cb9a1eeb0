//! Which assumed constants the advice depends on. Each is tried alone, at both ends of its range.
//!
//! For a cost of a step, no run is repeated at first: the cycles of a run are linear in it, and are recomputed. If the
//! advice would then change, the runs are repeated, and they decide. For a constant that changes how hardware behaves
//! or how long cores wait, the runs are repeated. Such constants are also tried all together, at the ends that are
//! worst and best: if no share moves then, none of them is tried alone.

use super::linux;
use super::ranking::{Candidate, Effort, Ranking, TIE, is_free};
use crate::compare::{ComparePlan, CompareRow, Item};
use crate::machine::Machine;
use crate::number::{count, number, percent};
use crate::parallel;
use crate::rates::{Limit, Needs};
use crate::run::{Choice, Measured, Pace, measure, measure_steps};
use crate::traffic::{Kind, Traffic};
use portcullis::Protection;
use serde::Serialize;
use std::collections::BTreeSet;

/// The result of trying every assumed constant.
#[derive(Clone, Debug, Serialize)]
pub struct Sensitivity {
    /// How many assumed constants there are.
    pub constants: usize,
    /// Constants that would change the advice.
    pub changes: Vec<Tried>,
    /// Constants that could not be tried, because a run failed or such a machine cannot exist.
    pub untried: Vec<String>,
    /// The least and the most that strict protection with Linux as it is costs over all trials, as shares of the
    /// unprotected rate.
    pub cost_today: Option<[f64; 2]>,
}

/// An assumed constant at an end of its range, and how the advice would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// The name of the constant.
    pub key: String,
    /// The assumed value.
    pub value: f64,
    /// The value tried.
    pub at: f64,
    /// The constant set together with it, and its value, if one alone would not show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with: Option<(String, f64)>,
    /// How the advice would change.
    pub then: String,
}

/// Constants that only say how much of a resource the work needs. No run depends on them, as long as a disk stays
/// within what one disk can do.
const OF_THE_ESTIMATE: [&str; 5] = [
    "unprotected_cycles_per_byte",
    "unprotected_cycles_per_request",
    "link_gbps",
    "disk_iops",
    "disk_bytes_per_second",
];
/// Constants that make translations slower if they are smaller.
const CACHES: [&str; 5] =
    ["iotlb_entries", "ptcache_l1_entries", "ptcache_l2_entries", "ptcache_l3_entries", "walkers"];
/// Constants that make translations slower if they are larger.
const LATENCIES: [&str; 2] = ["memory_read_ps", "hit_ps"];
/// What no run of a network card depends on.
const OF_DISKS: &str = "disk_bytes_in_flight";
/// A faster disk has more of both. If only one is raised, the other remains the limit.
const TOGETHER: [&str; 2] = ["disk_iops", "disk_bytes_per_second"];
/// Costs that are not charged by step: those of waiting for other cores, and of making entries visible.
const COSTS_OF_WAITING: [&str; 7] =
    ["lock", "line_transfer", "handoff_per_waiter", "poll", "line_flush", "line_flush_next", "store_fence"];
/// How many of the best runs of each batch are tried, including one that would be named.
const TRIED_PER_BATCH: usize = 2;
/// Shares that change by less than this count as unchanged.
const UNMOVED: f64 = 0.002;

/// A strict run that the advice may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    choice: Choice,
    batch: usize,
    effort: Effort,
    /// Whether it is today's Linux.
    is_today: bool,
}

/// The share of the unprotected rate of each run, at the lower end of its range.
type Shares = Vec<f64>;

struct Trial<'p> {
    plan: &'p ComparePlan,
    item: &'p Item,
    pace: Pace,
    /// No constant changes it.
    kind: Kind,
    runs: Vec<Run>,
    measured: Vec<Measured>,
    base: Shares,
    /// Groups of constants that change no share, even all together.
    idle: Vec<&'static str>,
}

impl Sensitivity {
    /// The constants on which the advice on item `index`, run at `pace`, depends. `None` if nothing is assumed, if
    /// values are swept, if there is a prefetcher (which no hardware has), or if there is no strict run.
    pub(super) fn of(
        plan: &ComparePlan,
        index: usize,
        pace: Pace,
        rows: &[CompareRow],
        progress: &mut impl FnMut(&str),
    ) -> Option<Self> {
        let item = &plan.items[index];
        let is_same = |other: &&Item| other.name == item.name && other.device == item.device && other.set != item.set;
        let is_swept = plan.items.iter().any(|other| is_same(&other));
        if item.machine.assumed.is_empty() || is_swept || rows.iter().any(|row| row.prefetcher.is_some()) {
            return None;
        }
        let runs = candidates(plan, rows);
        if runs.is_empty() {
            return None;
        }
        let trial = Trial::new(plan, item, pace, runs)?;
        let (mut changes, mut untried, mut costs) = (Vec::new(), Vec::new(), Vec::new());
        let today = trial.runs.iter().position(|run| run.is_today);
        for (key, range) in &item.machine.assumed {
            progress(key);
            if (plan.is_stopped)() {
                return None;
            }
            for end in 0..range.len() {
                match trial.attempt(key, end) {
                    Some((shares, change)) => {
                        changes.extend(change);
                        costs.extend(today.map(|today| (1.0 - shares[today]).max(0.0)));
                    }
                    None if !untried.contains(key) => untried.push(key.clone()),
                    None => {}
                }
            }
        }
        // The trials have the lower ends of shares. Without any, the upper end is known too.
        let today = linux(rows, Protection::Strict).map(|today| 1.0 - today.outcome.estimate_vs_none_range[1]);
        costs.extend(today.map(|cost| cost.max(0.0)));
        let least = costs.iter().copied().reduce(f64::min);
        let cost_today = least.map(|least| [least, costs.iter().copied().fold(0.0, f64::max)]);
        Some(Self { constants: item.machine.assumed.len(), changes, untried, cost_today })
    }

    /// The result as a sentence.
    pub(super) fn sentence(&self) -> String {
        let tried = match self.untried.len() {
            0 => format!("Each of the {} assumed constants was tried at both ends of its range", self.constants),
            untried => format!(
                "Of the {} assumed constants {} were tried at both ends of their ranges (not: {})",
                self.constants,
                self.constants - untried,
                self.untried.join(", ")
            ),
        };
        let cost = match self.cost_today.map(|ends| ends.map(percent)) {
            Some([least, most]) if least != most => {
                format!(
                    ", and strict protection with Linux as it is costs {} to {most} over all of that",
                    least.trim_end_matches(" %")
                )
            }
            _ => String::new(),
        };
        if self.changes.is_empty() {
            return format!("{tried}: none of them would make another design better{cost}.");
        }
        // Several constants with the same effect share one clause.
        let mut thens: Vec<(&str, Vec<String>)> = Vec::new();
        for change in &self.changes {
            let also =
                change.with.as_ref().map(|(key, at)| format!(" and `{key}` at {}", plain(*at))).unwrap_or_default();
            let at = format!("`{}` at {} (assumed: {}){also}", change.key, plain(change.at), plain(change.value));
            match thens.iter_mut().find(|(then, _)| *then == change.then) {
                Some((_, all)) => all.push(at),
                None => thens.push((&change.then, vec![at])),
            }
        }
        let changes: Vec<String> =
            thens.iter().map(|(then, all)| format!("with {}, {then}", all.join(" or "))).collect();
        format!("{tried}{cost}. What would change this: {}.", changes.join("; "))
    }
}

fn plain(value: f64) -> String {
    if value >= 1000.0 { count(value.round() as u64) } else { number(value) }
}

/// The run of today's Linux, and the best runs of each batch.
fn candidates(plan: &ComparePlan, rows: &[CompareRow]) -> Vec<Run> {
    let run = |candidate: &Candidate<'_>, is_today| {
        let row = candidate.row;
        let choice = Choice { design: plan.design(row.design)?, options: row.options };
        Some(Run { choice, batch: row.batch, effort: candidate.effort(), is_today })
    };
    let mut runs: Vec<Run> = linux(rows, Protection::Strict).and_then(|today| run(&today, true)).into_iter().collect();
    let batches: BTreeSet<usize> = rows.iter().map(|row| row.batch).collect();
    for batch in batches {
        let ranking = Ranking::of(rows, Protection::Strict, Some(batch));
        let mut all = ranking.all.clone();
        all.sort_by(|one, other| other.share().total_cmp(&one.share()));
        for candidate in ranking.best().iter().chain(all.iter().take(TRIED_PER_BATCH)) {
            let found = run(candidate, false);
            let is_there = |found: &Run| runs.iter().any(|run| (run.choice, run.batch) == (found.choice, found.batch));
            runs.extend(found.filter(|found| !is_there(found)));
        }
    }
    runs
}

impl<'p> Trial<'p> {
    fn new(plan: &'p ComparePlan, item: &'p Item, pace: Pace, runs: Vec<Run>) -> Option<Self> {
        let kind = item.work.kind(&item.machine);
        let (measured, base, idle) = (Vec::new(), Vec::new(), Vec::new());
        let mut trial = Self { plan, item, pace, kind, runs, measured, base, idle };
        trial.measured = trial.measure(&item.machine, true)?;
        trial.base = trial.shares(&item.machine, &trial.measured);
        if trial.kind.traffic == Traffic::Network && !trial.kind.is_unknown {
            trial.idle.push(OF_DISKS);
        }
        let translation = (&CACHES[..], &LATENCIES[..]);
        for (falling, rising) in [translation, (&[][..], &COSTS_OF_WAITING[..])] {
            if trial.moves_nothing(falling, rising) {
                trial.idle.extend(falling.iter().chain(rising));
            }
        }
        Some(trial)
    }

    /// Whether no share changes if all of these are at their worst, nor if all are at their best.
    fn moves_nothing(&self, falling: &[&str], rising: &[&str]) -> bool {
        let is_unmoved = |worst: bool| {
            let mut machine = self.item.machine.clone();
            for (keys, end) in [(falling, usize::from(!worst)), (rising, usize::from(worst))] {
                for key in keys {
                    if let Some(range) = self.item.machine.assumed.get(*key) {
                        set(&mut machine, key, range[end])?;
                    }
                }
            }
            let shares = self.shares(&machine, &self.measure(&machine, false)?);
            Some(shares.iter().zip(&self.base).all(|(now, then)| (now - then).abs() < UNMOVED))
        };
        is_unmoved(true) == Some(true) && is_unmoved(false) == Some(true)
    }

    /// Repeats the runs on `machine`. `None` if one of them fails, because the answer is then unknown.
    fn measure(&self, machine: &Machine, with_steps: bool) -> Option<Vec<Measured>> {
        let item = Item { machine: machine.clone(), ..self.item.clone() };
        let run = |run: &Run| {
            let job = self.plan.job(&item, self.pace, run.choice, Protection::Strict, run.batch);
            if with_steps { measure_steps(&job) } else { measure(&job) }
        };
        parallel::each(&self.runs, run, |_| {}).into_iter().collect::<Result<_, _>>().ok()
    }

    fn shares(&self, machine: &Machine, measured: &[Measured]) -> Shares {
        let least = |measured: &Measured| Needs::shares(machine, self.kind, &measured.usage)[0];
        measured.iter().map(least).collect()
    }

    /// The shares with `key` at an end of its range, and how the advice then changes, if it does. `None` if this end
    /// cannot be tried.
    fn attempt(&self, key: &str, end: usize) -> Option<(Shares, Option<Tried>)> {
        let mut machine = self.item.machine.clone();
        let (value, at) = (machine.get(key)?, machine.assumed.get(key)?[end]);
        let partner = TOGETHER.iter().find(|other| TOGETHER.contains(&key) && **other != key);
        let with = partner.and_then(|partner| Some(((*partner).to_owned(), machine.assumed.get(*partner)?[end])));
        set(&mut machine, key, at)?;
        if let Some((partner, at)) = &with {
            set(&mut machine, partner, *at)?;
        }
        // How long a lock is held is not linear in the costs of steps.
        let is_by_step = machine.costs != self.item.machine.costs
            && !COSTS_OF_WAITING.contains(&key)
            && !self.is_limited_by_a_lock();
        let counted = || self.shares(&machine, &self.repriced(&machine));
        let shares = if OF_THE_ESTIMATE.contains(&key) {
            self.shares(&machine, &self.measured)
        } else if self.idle.contains(&key) {
            self.base.clone()
        } else if is_by_step && self.change(&counted()).is_none() {
            counted()
        } else {
            self.shares(&machine, &self.measure(&machine, false)?)
        };
        // Of two constants set together, only the first is reported.
        let then = self.change(&shares).filter(|_| TOGETHER[1] != key || with.is_none());
        let tried = then.map(|then| Tried { key: key.to_owned(), value, at, with, then });
        Some((shares, tried))
    }

    fn is_limited_by_a_lock(&self) -> bool {
        let (machine, kind) = (&self.item.machine, self.kind);
        let limit = |measured: &Measured| Needs::of(machine, kind.traffic, &measured.usage).most().limit;
        self.measured.iter().any(|measured| limit(measured) == Limit::Lock)
    }

    /// The measured runs, recomputed with the costs of `machine`.
    fn repriced(&self, machine: &Machine) -> Vec<Measured> {
        let (old, new) = (&self.item.machine.costs, &machine.costs);
        let reprice = |measured: &Measured| {
            let mut measured = measured.clone();
            for (cycles, steps) in measured.usage.cycles_by_core.iter_mut().zip(&measured.steps_by_core) {
                let (before, after) = steps.iter().fold((0, 0), |(before, after), (step, times)| {
                    (before + old.of(*step) * times, after + new.of(*step) * times)
                });
                *cycles = (*cycles + after).saturating_sub(before);
            }
            measured
        };
        self.measured.iter().map(reprice).collect()
    }

    /// How the advice changes: whether today's Linux costs anything, and which design would be named as better at each
    /// batch.
    fn change(&self, now: &Shares) -> Option<String> {
        change(&self.runs, &self.base, now)
    }
}

/// Sets a value to the end of its range, if such a machine can exist. Most values are whole numbers.
fn set(machine: &mut Machine, key: &str, at: f64) -> Option<()> {
    machine
        .set(key, &format!("{at:.0}"))
        .ok()
        .filter(|()| at.fract() == 0.0)
        .or_else(|| machine.set(key, &at.to_string()).ok())?;
    machine.check().ok()
}

/// How the advice from `now` differs from that from `base`.
fn change(runs: &[Run], base: &Shares, now: &Shares) -> Option<String> {
    let today = runs.iter().position(|run| run.is_today);
    if let Some(today) = today
        && is_free(base[today]) != is_free(now[today])
    {
        return Some(match is_free(now[today]) {
            true => "strict protection would cost next to nothing with Linux as it is".to_owned(),
            false => format!("strict protection would cost {} with Linux as it is", percent(1.0 - now[today])),
        });
    }
    // If today's Linux costs nothing, the advice names no other design.
    if today.is_some_and(|today| is_free(base[today])) {
        return None;
    }
    let batches: BTreeSet<usize> = runs.iter().map(|run| run.batch).collect();
    batches.into_iter().find_map(|batch| {
        let (was, is) = (best(runs, batch, base), best(runs, batch, now));
        let kept = was.first().is_some_and(|was| is.contains(was));
        let name = |index: usize| format!("`{}`", runs[index].choice);
        let in_batches = if batch == 1 { " without batches".to_owned() } else { format!(" in batches of {batch}") };
        match (was.first(), is.first()) {
            (None, None) => None,
            (Some(_), Some(_)) if kept => None,
            (None, Some(is)) => Some(format!("{}{in_batches} would lower the cost of strict protection", name(*is))),
            (Some(was), None) => {
                Some(format!("{}{in_batches} would not lower the cost of strict protection", name(*was)))
            }
            (Some(was), Some(is)) => {
                let in_batches = in_batches.trim_start();
                Some(format!("{in_batches} {} would be better than {}, which is the best now", name(*is), name(*was)))
            }
        }
    })
}

/// The runs of `batch` that tie with the best, simplest first. If today's Linux was run, they must be better than it
/// by more than a tie.
fn best(runs: &[Run], batch: usize, shares: &Shares) -> Vec<usize> {
    let floor = runs.iter().position(|run| run.is_today).map_or(f64::NEG_INFINITY, |today| shares[today] + TIE);
    let of_batch = || (0..runs.len()).filter(|index| runs[*index].batch == batch && shares[*index] > floor);
    let most = of_batch().map(|index| shares[index]).fold(f64::NEG_INFINITY, f64::max);
    let mut tied: Vec<usize> = of_batch().filter(|index| shares[*index] >= most - TIE).collect();
    tied.sort_by_key(|index| runs[*index].effort);
    let simplest = tied.first().map(|index| runs[*index].effort);
    tied.retain(|index| Some(runs[*index].effort) == simplest);
    tied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::LabDesign;
    use portcullis_designs::DesignId;

    fn batched() -> Run {
        Run { batch: 64, effort: Effort::Drivers, ..run(DesignId::Portcullis) }
    }

    fn run(design: DesignId) -> Run {
        Run { choice: LabDesign::from(design).into(), batch: 1, effort: Effort::Kernel, is_today: false }
    }

    fn changed(base: [f64; 3], now: [f64; 3]) -> Option<String> {
        let today = Run { is_today: true, effort: Effort::Option, ..run(DesignId::Magazine) };
        change(&[today, run(DesignId::Identity), batched()], &base.to_vec(), &now.to_vec())
    }

    #[test]
    fn whether_strict_costs_anything_comes_first() {
        assert!(changed([1.0, 1.0, 1.0], [0.9, 1.0, 1.0]).is_some_and(|then| then.contains("would cost 10 %")));
        assert!(changed([0.9, 1.0, 1.0], [0.99, 1.0, 1.0]).is_some_and(|then| then.contains("next to nothing")));
        assert_eq!(changed([1.0, 1.0, 1.0], [1.0, 0.5, 0.5]), None, "then no other is spoken of");
    }

    #[test]
    fn crossing_a_tie_is_a_change() {
        let then = changed([0.9, 0.915, 0.5], [0.88, 0.915, 0.5]).expect("identity lowers the cost now");
        assert!(then.contains("`identity` without batches would lower the cost"), "{then}");
        let then = changed([0.5, 0.4, 0.8], [0.5, 0.4, 0.51]).expect("batches are of no use now");
        assert!(then.contains("`portcullis` in batches of 64 would not lower"), "{then}");
        assert_eq!(changed([0.5, 0.6, 0.8], [0.55, 0.65, 0.7]), None);
    }

    #[test]
    fn another_that_is_better_by_more_than_a_tie_is_a_change() {
        let runs = [run(DesignId::Identity), run(DesignId::Portcullis)];
        let of = |now: [f64; 2]| change(&runs, &vec![0.8, 0.7], &now.to_vec());
        assert_eq!(of([0.8, 0.81]), None, "a tie");
        assert_eq!(
            of([0.7, 0.8]).as_deref(),
            Some("without batches `portcullis` would be better than `identity`, which is the best now")
        );
    }
}
