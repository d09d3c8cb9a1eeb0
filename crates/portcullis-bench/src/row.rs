//! A row of the result.

use super::BenchError;
use super::group::Measured;
use super::meter::{CyclesFrom, Spent};
use super::statistics::Spread;
use super::workload::Workload;
use portcullis::Protection;
use portcullis::mapper::{Info, Options};
use serde::{Serialize, Serializer};

/// What was measured, or why nothing was.
#[derive(Debug)]
pub struct BenchRow {
    /// The description of the design.
    pub info: &'static Info,
    /// Its parameters.
    pub options: Options,
    /// The protection.
    pub protection: Protection,
    /// The threads.
    pub threads: usize,
    /// The workload.
    pub workload: Workload,
    /// The measurements, or the error.
    pub outcome: Result<Timed, BenchError>,
}

impl BenchRow {
    /// The design with its parameters.
    pub fn design(&self) -> String {
        format!("{}{}", self.info.id, self.options)
    }
}

/// The cost of a pair for each thread, or for both threads together if one maps and another unmaps.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Samples taken.
    pub samples: usize,
    /// Pairs of a sample, by each thread. This is the smallest number over all turns, each of which determines how
    /// many fit into the time.
    pub pairs_per_sample: u64,
    /// Nanoseconds.
    pub ns: Spread,
    /// Cycles, if they can be measured.
    pub cycles: Option<Spread>,
    /// Where the cycles come from.
    pub cycles_from: Option<CyclesFrom>,
    /// Instructions, if the machine counts them.
    pub instructions: Option<f64>,
    /// Nanoseconds and cycles of the hand-over between threads alone. They are included above.
    pub queue: Option<(f64, Option<f64>)>,
    /// Whether the samples were taken with real-time priority.
    pub undisturbed: bool,
}

/// What the samples of a row have taken so far, per pair.
#[derive(Debug)]
pub(super) struct Samples {
    taken: Vec<Spent>,
    /// Samples of the hand-over between threads alone.
    queue: Vec<Spent>,
    pairs_per_sample: u64,
    cycles_from: Option<CyclesFrom>,
    undisturbed: bool,
}

impl Samples {
    /// The samples of each thread.
    pub(super) fn each(measured: &Measured) -> Self {
        Self::of(measured, 1.0 / measured.spent.len() as f64)
    }

    /// The samples of both threads of a hand-off together. `alone` is their queue alone.
    pub(super) fn hand_offs(measured: &Measured, alone: &Measured) -> Self {
        let share = |measured: &Measured| 2.0 / measured.spent.len() as f64;
        let queue = Self::of(alone, share(alone)).taken;
        Self { queue, ..Self::of(measured, share(measured)) }
    }

    /// The sum over the threads, times `share`, for each sample.
    fn of(measured: &Measured, share: f64) -> Self {
        let samples = measured.spent.iter().map(Vec::len).min().unwrap_or(0);
        let share = share / measured.pairs as f64;
        let taken = |sample: usize| {
            let sum = |what: &dyn Fn(&Spent) -> Option<f64>| {
                measured.spent.iter().map(|thread| what(&thread[sample])).sum::<Option<f64>>().map(|sum| sum * share)
            };
            Some(Spent {
                ns: sum(&|spent| Some(spent.ns))?,
                cycles: sum(&|spent| spent.cycles),
                instructions: sum(&|spent| spent.instructions),
            })
        };
        Self {
            taken: (0..samples).filter_map(taken).collect(),
            queue: Vec::new(),
            pairs_per_sample: measured.pairs,
            cycles_from: measured.cycles_from,
            undisturbed: measured.undisturbed,
        }
    }

    /// Adds the samples of a later round.
    pub(super) fn join(&mut self, later: Self) {
        let Self { taken, queue, pairs_per_sample, undisturbed, .. } = later;
        self.taken.extend(taken);
        self.queue.extend(queue);
        self.pairs_per_sample = self.pairs_per_sample.min(pairs_per_sample);
        self.undisturbed &= undisturbed;
    }
}

/// The spread of `what` over the samples. `None` if one of them lacks it, or if there is no sample.
fn spread(samples: &[Spent], what: impl Fn(&Spent) -> Option<f64>) -> Option<Spread> {
    samples.iter().map(what).collect::<Option<Vec<f64>>>().and_then(Spread::of)
}

impl Timed {
    /// The median of the samples, and their spread.
    pub(super) fn of(samples: &Samples) -> Result<Self, BenchError> {
        let Samples { taken, queue, pairs_per_sample, cycles_from, undisturbed } = samples;
        let ns = |samples| spread(samples, |spent| Some(spent.ns));
        let cycles = |samples| spread(samples, |spent| spent.cycles);
        Ok(Self {
            samples: taken.len(),
            pairs_per_sample: *pairs_per_sample,
            ns: ns(taken).ok_or_else(|| BenchError::Check("no sample was taken".to_owned()))?,
            cycles: cycles(taken),
            cycles_from: *cycles_from,
            instructions: spread(taken, |spent| spent.instructions).map(|instructions| instructions.median),
            queue: ns(queue).map(|ns| (ns.median, cycles(queue).map(|cycles| cycles.median))),
            undisturbed: *undisturbed,
        })
    }
}

/// A row in JSON. Every key is always there; it is `null` if it has no value.
#[derive(Serialize)]
struct Entry {
    design: &'static str,
    options: Options,
    protection: Protection,
    threads: usize,
    workload: Workload,
    ns_per_pair: Option<f64>,
    ns_per_pair_min: Option<f64>,
    ns_per_pair_p90: Option<f64>,
    cycles_per_pair: Option<f64>,
    cycles_per_pair_min: Option<f64>,
    cycles_per_pair_p90: Option<f64>,
    instructions_per_pair: Option<f64>,
    queue_ns_per_pair: Option<f64>,
    queue_cycles_per_pair: Option<f64>,
    samples: Option<usize>,
    pairs_per_sample: Option<u64>,
    error: Option<String>,
}

impl Serialize for BenchRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let timed = self.outcome.as_ref().ok();
        let (ns, cycles) = (timed.map(|timed| timed.ns), timed.and_then(|timed| timed.cycles));
        let queue = timed.and_then(|timed| timed.queue);
        let entry = Entry {
            design: self.info.id,
            options: self.options,
            protection: self.protection,
            threads: self.threads,
            workload: self.workload,
            ns_per_pair: ns.map(|ns| ns.median),
            ns_per_pair_min: ns.map(|ns| ns.min),
            ns_per_pair_p90: ns.map(|ns| ns.p90),
            cycles_per_pair: cycles.map(|cycles| cycles.median),
            cycles_per_pair_min: cycles.map(|cycles| cycles.min),
            cycles_per_pair_p90: cycles.map(|cycles| cycles.p90),
            instructions_per_pair: timed.and_then(|timed| timed.instructions),
            queue_ns_per_pair: queue.map(|(ns, _)| ns),
            queue_cycles_per_pair: queue.and_then(|(_, cycles)| cycles),
            samples: timed.map(|timed| timed.samples),
            pairs_per_sample: timed.map(|timed| timed.pairs_per_sample),
            error: self.outcome.as_ref().err().map(ToString::to_string),
        };
        entry.serialize(serializer)
    }
}
