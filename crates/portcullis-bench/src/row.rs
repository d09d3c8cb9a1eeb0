//! A row of the result.

use super::BenchError;
use super::group::Measured;
use super::meter::{CyclesFrom, Spent};
use super::statistics::Spread;
use super::workload::Workload;
use portcullis::Protection;
use portcullis::design::Options;
use portcullis::designs::Choice;
use serde::{Serialize, Serializer};

/// What was measured, or why nothing was.
#[derive(Debug)]
pub struct BenchRow {
    /// The design.
    pub choice: Choice,
    /// The protection.
    pub protection: Protection,
    /// The threads.
    pub threads: usize,
    /// The workload.
    pub workload: Workload,
    /// What came of it.
    pub outcome: Result<Timed, BenchError>,
}

/// What a pair takes, of each thread; of both together where one maps and another unmaps.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Samples taken.
    pub samples: usize,
    /// Pairs of each, by each thread.
    pub pairs_per_sample: u64,
    /// Nanoseconds.
    pub ns: Spread,
    /// Cycles, where they can be had.
    pub cycles: Option<Spread>,
    /// Where they come from.
    pub cycles_from: Option<CyclesFrom>,
    /// Instructions, where the machine counts them.
    pub instructions: Option<f64>,
    /// Nanoseconds and cycles that the hand-over from thread to thread takes by itself. They are part of those above.
    pub queue: Option<(f64, Option<f64>)>,
    /// Whether the samples were taken with real-time priority.
    pub undisturbed: bool,
}

impl Timed {
    /// What each thread spent.
    pub(super) fn each(measured: &Measured) -> Result<Self, BenchError> {
        Self::of(measured, 1.0 / measured.spent.len() as f64, None)
    }

    /// What both threads of a hand-off spent together; `alone` is their queue by itself.
    pub(super) fn hand_offs(measured: &Measured, alone: Option<&Self>) -> Result<Self, BenchError> {
        let queue = alone.map(|alone| (alone.ns.median, alone.cycles.map(|cycles| cycles.median)));
        Self::of(measured, 2.0 / measured.spent.len() as f64, queue)
    }

    /// The sum over the threads times `share`, for each sample.
    fn of(measured: &Measured, share: f64, queue: Option<(f64, Option<f64>)>) -> Result<Self, BenchError> {
        let samples = measured.spent.iter().map(Vec::len).min().unwrap_or(0);
        let per_pair = |what: &dyn Fn(&Spent) -> Option<f64>| {
            let sample = |number: usize| {
                let sum: Option<f64> = measured.spent.iter().map(|thread| what(&thread[number])).sum();
                sum.map(|sum| sum * share / measured.pairs as f64)
            };
            (0..samples).map(sample).collect::<Option<Vec<f64>>>().and_then(Spread::of)
        };
        Ok(Self {
            samples,
            pairs_per_sample: measured.pairs,
            ns: per_pair(&|spent| Some(spent.ns)).ok_or_else(|| BenchError::Check("no sample was taken".to_owned()))?,
            cycles: per_pair(&|spent| spent.cycles),
            cycles_from: measured.cycles_from,
            instructions: per_pair(&|spent| spent.instructions).map(|instructions| instructions.median),
            queue,
            undisturbed: measured.undisturbed,
        })
    }
}

/// A row in JSON: every key is always there, `null` where it has no value.
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
            design: self.choice.design.info().id,
            options: self.choice.options,
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
