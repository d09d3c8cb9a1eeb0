//! Runs the same work under every design, and collects the results.

use crate::machine::Machine;
use crate::number::exact;
use crate::outcome::{self, Recorded, RunOutcome};
use crate::parallel;
use crate::prefetch::Hints;
use crate::run::{self, Choice, Job, LabDesign, Pace, RunError, Work};
use crate::traffic::PayloadRule;
use portcullis::mapper::Options;
use portcullis::{Protection, SubPage};
use portcullis_designs::DesignId;
use portcullis_trace::{Events, Format, Statistics, Trace, TracedDevice, TracedFault};
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The batches at which all designs are compared side by side.
pub const EQUAL_BATCHES: [usize; 2] = [1, 64];

/// The largest factor for the pauses of a trace. It keeps virtual time, in picoseconds, from overflowing.
const SCALE_MAX: f64 = 1000.0;

/// The id of the design that Linux has today.
pub const LINUX: &str = "magazine";

/// How virtual time advances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClockMode {
    /// Modelled costs plus the pauses of the work. The pauses are scaled so that the unprotected run reaches the
    /// machine's rate.
    Model,
    /// The timestamps of the trace.
    Trace,
    /// Modelled costs plus the pauses of the work, scaled by this factor.
    Scale(f64),
}

impl ClockMode {
    /// Parses `model`, `trace` or `scale=K` with K from 0 to 1000.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "model" => Some(Self::Model),
            "trace" => Some(Self::Trace),
            _ => {
                let factor = text.strip_prefix("scale=")?.parse::<f64>().ok()?;
                (0.0..=SCALE_MAX).contains(&factor).then_some(Self::Scale(factor))
            }
        }
    }

    pub(crate) fn pace(self, machine: &Machine, work: &Work, payload: PayloadRule, seed: u64) -> Pace {
        match self {
            Self::Model => run::machine_pace(machine, work, payload, seed),
            Self::Trace => Pace::Timestamps,
            Self::Scale(factor) => Pace::Gaps(factor),
        }
    }
}

impl Serialize for ClockMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Model => serializer.serialize_str("model"),
            Self::Trace => serializer.serialize_str("trace"),
            Self::Scale(factor) => serializer.collect_str(&format_args!("scale={}", exact(*factor))),
        }
    }
}

/// A trace to be replayed.
#[derive(Clone, Debug, Serialize)]
pub struct Input {
    /// The name of the file.
    pub file: String,
    /// The program that printed it.
    pub format: Format,
    /// The families of events that it has.
    pub events: Events,
    /// The counts of its reader.
    #[serde(flatten)]
    pub statistics: Statistics,
    /// The accesses that the IOMMU refused during the capture.
    pub faults: Vec<InputFault>,
    /// The devices that it names, in order of appearance. The last one has an empty name if there are mappings that no
    /// event gives to a device.
    pub devices: Vec<TracedDevice>,
}

impl Input {
    /// A trace that was read from `file`.
    pub fn new(file: String, trace: &Trace) -> Self {
        let faults = trace.faults.iter().map(|fault| InputFault::new(trace, fault)).collect();
        let devices = trace.traced_devices();
        Self { file, format: trace.format, events: trace.events, statistics: trace.statistics, faults, devices }
    }
}

/// Accesses that the IOMMU refused during a capture: those of one device to pages that follow each other.
#[derive(Clone, Debug, Serialize)]
pub struct InputFault {
    /// The device, as the capture names it.
    pub device: String,
    /// The first address.
    pub first_iova: u64,
    /// The number of refused accesses.
    pub accesses: u64,
    /// The pages of the youngest mapping at that address; `null` if the capture shows none.
    pub mapped_pages: Option<u32>,
    /// How long before the first access it was unmapped, in microseconds; `null` if it was still mapped, or if the
    /// capture shows none.
    pub unmapped_us_before: Option<f64>,
}

impl InputFault {
    fn new(trace: &Trace, fault: &TracedFault) -> Self {
        let mapping = fault.mapping.map(|mapping| trace.mappings[mapping as usize]);
        let unmap = mapping.and_then(|mapping| mapping.unmap_operation);
        let unmapped_ns = unmap.map(|unmap| trace.operations[unmap.get() as usize].time_ns);
        Self {
            device: fault.device.clone(),
            first_iova: fault.first_iova,
            accesses: fault.count,
            mapped_pages: mapping.map(|mapping| mapping.pages),
            unmapped_us_before: unmapped_ns
                .and_then(|unmapped_ns| Some(fault.time_ns.checked_sub(unmapped_ns)? as f64 / 1e3)),
        }
    }
}

/// One piece of work on one machine, with its name.
#[derive(Clone)]
pub struct Item {
    /// The file of a trace, or the name and parameters of a workload.
    pub name: String,
    /// The device whose work it is. `None` if that is not known, or if it is of several.
    pub device: Option<Device>,
    /// The work.
    pub work: Work,
    /// The machine.
    pub machine: Machine,
    /// The hardware parameters that were changed, each with its value.
    pub set: Settings,
}

/// The device of a piece of work.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    /// Its name, as the trace has it.
    pub name: String,
    /// If the trace has other devices: the part of the time of the trace in which this one was at work.
    pub active_share: Option<f64>,
}

impl Item {
    /// Whether it is the work of one of several devices.
    pub fn is_one_of_several(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.active_share.is_some())
    }
}

/// Hardware parameters by name.
pub type Settings = BTreeMap<String, Value>;

/// What to compare.
pub struct ComparePlan {
    /// The pieces of work, each with its machine.
    pub items: Vec<Item>,
    /// The designs, with their parameters.
    pub designs: Vec<Choice>,
    /// The protections to run, if a design offers them. Designs without protection always run.
    pub protections: Vec<Protection>,
    /// The largest batch, for all designs. `None`: each design's own batch, and all designs at [`EQUAL_BATCHES`] as
    /// well.
    pub batch: Option<usize>,
    /// How virtual time advances.
    pub clock: ClockMode,
    /// The seed of synthetic work.
    pub seed: u64,
    /// Whether page-selective invalidations carry the hint that only leaves have changed, if that is true.
    pub leaf_only_hint: bool,
    /// If so many commits share a submission, one command may replace theirs; `None`: never.
    pub merge_min: Option<u8>,
    /// What the driver tells the prefetcher.
    pub hints: Hints,
    /// How domains treat pages that a buffer covers only in part.
    pub sub_page: SubPage,
    /// How full buffers are taken to be.
    pub payload: PayloadRule,
    /// Whether the user wants no more runs. Those that have ended keep their results.
    pub is_stopped: fn() -> bool,
}

/// One run of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct CompareRow {
    /// Index of the item in the plan.
    #[serde(skip)]
    pub item: usize,
    /// The work.
    pub trace: String,
    /// The device whose work it is; `null` if that is not known, or if it is of several.
    pub device: Option<String>,
    /// The design.
    pub design: &'static str,
    /// Its parameters, if they differ from the defaults.
    pub options: Options,
    /// Whether the design needs hardware that does not exist.
    pub no_such_hardware: bool,
    /// The protection.
    pub protection: Protection,
    /// How the domain treats partly covered pages; `null` if this cannot be chosen.
    pub sub_page: Option<SubPage>,
    /// The largest batch.
    pub batch: usize,
    /// The prefetcher, in the form of the command line.
    pub prefetcher: Option<String>,
    /// The hardware parameters that were changed.
    pub set: Settings,
    /// What was measured, or the error.
    #[serde(flatten)]
    pub outcome: Measurement,
}

/// The outcome of a run, or why there is none.
#[derive(Clone, Debug)]
pub enum Measurement {
    /// The run ended.
    Done(Box<RunOutcome>),
    /// The run failed.
    Failed(RunError),
}

impl Serialize for Measurement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Done(outcome) => outcome.serialize(serializer),
            Self::Failed(error) => {
                // The row has every key of an outcome, with `null` as the value.
                let keys = serde_json::to_value(RunOutcome::default()).map_err(S::Error::custom)?;
                let keys = keys.as_object().into_iter().flat_map(|outcome| outcome.keys());
                let mut row: serde_json::Map<_, _> = keys.map(|key| (key.clone(), Value::Null)).collect();
                row.insert("error".to_owned(), error.to_string().into());
                row.serialize(serializer)
            }
        }
    }
}

impl CompareRow {
    /// The design with its parameters, in the form of the command line.
    pub fn label(&self) -> String {
        format!("{}{}", self.design, self.options)
    }

    fn is_same_but_for_batch(&self, other: &Self) -> bool {
        (self.item, self.design, self.options, self.protection)
            == (other.item, other.design, other.options, other.protection)
    }

    /// Whether it is Linux as it is: its design, each unmap by itself.
    pub fn is_linux(&self) -> bool {
        self.batch == 1 && self.label() == LINUX
    }

    /// Whether the user stopped the program before this run.
    pub fn is_stopped(&self) -> bool {
        matches!(self.outcome, Measurement::Failed(RunError::Stopped))
    }

    /// What was measured, if the run ended.
    pub fn outcome(&self) -> Option<&RunOutcome> {
        match &self.outcome {
            Measurement::Done(outcome) => Some(outcome),
            Measurement::Failed(_) => None,
        }
    }

    /// What is wrong with the design here, beyond what it declares: a fault on a mapped buffer, or a stale access under
    /// strict protection.
    pub fn violation(&self) -> Option<String> {
        let (design, trace) = (self.label(), &self.trace);
        let outcome = self.outcome()?;
        if outcome.faults > 0 {
            return Some(format!("{design}: {} accesses to mapped buffers were refused ({trace})", outcome.faults));
        }
        let strict = self.protection == Protection::Strict && outcome.stale_accesses > 0;
        strict.then(|| format!("{design} strict: {} stale accesses (S2, {trace})", outcome.stale_accesses))
    }
}

/// The results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// One run for each work, design and protection, at the design's own batch.
    pub results: Vec<CompareRow>,
    /// The same designs at [`EQUAL_BATCHES`], except for their own batch.
    pub equal_batch: Vec<CompareRow>,
    /// The pace at which each item was run.
    #[serde(skip)]
    pub(crate) paces: Vec<Pace>,
}

impl Comparison {
    /// The runs of an item by batch. Each batch has all designs in the order of the plan. Designs without protection
    /// have no batches, and are listed with the smallest.
    pub fn at_equal_batches(&self, item: usize) -> Vec<(usize, Vec<&CompareRow>)> {
        let own: Vec<&CompareRow> = self.results.iter().filter(|row| row.item == item).collect();
        let equal: Vec<&CompareRow> = self.equal_batch.iter().filter(|row| row.item == item).collect();
        let all = || own.iter().chain(&equal);
        let is_protected = |row: &&&CompareRow| row.protection != Protection::None;
        let mut batches: BTreeSet<usize> = all().filter(is_protected).map(|row| row.batch).collect();
        if batches.is_empty() {
            batches = all().map(|row| row.batch).collect();
        }
        let first = batches.first().copied();
        let runs_at = |batch| {
            let runs = own.iter().copied().filter_map(|row| match row.protection {
                Protection::None => (Some(batch) == first).then_some(row),
                _ => all().copied().find(|other| other.is_same_but_for_batch(row) && other.batch == batch),
            });
            runs.collect()
        };
        batches.iter().map(|batch| (*batch, runs_at(*batch))).collect()
    }
}

impl ComparePlan {
    /// The design that was chosen by this id.
    pub(crate) fn design(&self, id: &str) -> Option<LabDesign> {
        self.designs.iter().map(|choice| choice.design).find(|design| design.info().id == id)
    }

    /// Each design with each of its requested protections, at its own batch.
    pub(crate) fn own_jobs(&self) -> Vec<(Choice, Protection, usize)> {
        let mut jobs = Vec::new();
        for &choice in &self.designs {
            let info = choice.design.info();
            let wanted = |protection| protection == Protection::None || self.protections.contains(&protection);
            let batch = self.batch.unwrap_or(info.batch_default);
            jobs.extend(info.protections.iter().filter(|one| wanted(**one)).map(|one| (choice, *one, batch)));
        }
        jobs
    }

    /// The runs of one piece of work: design, protection, batch, and whether the batch is the design's own.
    fn jobs(&self) -> Vec<(Choice, Protection, usize, bool)> {
        let mut jobs = Vec::new();
        for (choice, protection, own) in self.own_jobs() {
            jobs.push((choice, protection, own, true));
            if self.batch.is_none() && protection != Protection::None {
                jobs.extend(EQUAL_BATCHES.iter().filter(|b| **b != own).map(|b| (choice, protection, *b, false)));
            }
        }
        jobs
    }

    /// The run of `item` at `pace` under one design.
    pub(crate) fn job<'i>(
        &self,
        item: &'i Item,
        pace: Pace,
        choice: Choice,
        protection: Protection,
        batch: usize,
    ) -> Job<'i> {
        Job {
            machine: &item.machine,
            work: item.work.clone(),
            design: choice.design,
            options: choice.options,
            protection,
            sub_page: self.sub_page,
            batch,
            pace,
            seed: self.seed,
            leaf_only_hint: self.leaf_only_hint,
            merge_min: self.merge_min,
            discipline: portcullis_vtd::Discipline::Combining,
            hints: self.hints,
            payload: self.payload,
        }
    }

    /// Makes the run at `pace`. If the work is a trace, also makes it at the speed at which the trace was recorded.
    fn measure(&self, item: &Item, pace: Pace, choice: Choice, protection: Protection, batch: usize) -> Measurement {
        if (self.is_stopped)() {
            return Measurement::Failed(RunError::Stopped);
        }
        let run = |pace| outcome::run(&self.job(item, pace, choice, protection, batch));
        let recorded = || match (&item.work, pace) {
            (Work::Trace(..), Pace::Gaps(_)) => {
                // The load of a device is that over the whole capture, so that those of several add up.
                let active_share = item.device.as_ref().and_then(|device| device.active_share);
                run(Pace::Timestamps)
                    .map(|outcome| Some(Recorded::of(&outcome, &item.machine, active_share.unwrap_or(1.0))))
            }
            _ => Ok(None),
        };
        match run(pace).and_then(|outcome| Ok(RunOutcome { recorded: recorded()?, ..outcome })) {
            Ok(outcome) => Measurement::Done(Box::new(outcome)),
            Err(error) => Measurement::Failed(error),
        }
    }

    /// The number of runs.
    pub fn runs(&self) -> usize {
        self.items.len() * self.jobs().len()
    }

    /// The pace of each item, in order.
    pub(crate) fn paces(&self) -> Vec<Pace> {
        parallel::each(&self.items, |item| self.clock.pace(&item.machine, &item.work, self.payload, self.seed), |_| {})
    }

    /// Makes the runs, several at a time. Calls `progress` when a run begins. The error of a run is reported in its
    /// row.
    pub fn execute(&self, mut progress: impl FnMut(&str)) -> Comparison {
        let mut jobs = Vec::new();
        let paces = self.paces();
        for (index, pace) in paces.iter().enumerate() {
            jobs.extend(self.jobs().into_iter().map(|job| (index, *pace, job)));
        }
        let run = |&(index, pace, (choice, protection, batch, _)): &_| {
            let item: &Item = &self.items[index];
            let job = self.job(item, pace, choice, protection, batch);
            let outcome = self.measure(item, pace, choice, protection, batch);
            let (trace, device) = (item.name.clone(), item.device.as_ref().map(|device| device.name.clone()));
            let (set, prefetcher) = (item.set.clone(), job.prefetching().spec());
            let (info, options, sub_page) = (choice.design.info(), choice.options, job.sub_page());
            let (design, no_such_hardware, item) = (info.id, info.is_hypothetical(), index);
            CompareRow {
                item,
                trace,
                device,
                design,
                options,
                no_such_hardware,
                protection,
                sub_page,
                batch,
                prefetcher,
                set,
                outcome,
            }
        };
        // Linux as it is comes first: it is what users want most if they stop before the last run.
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        let first = [DesignId::Unprotected, DesignId::Magazine].map(LabDesign::from);
        let is_first = |choice: &Choice| first.contains(&choice.design);
        order.sort_by_key(|at| !is_first(&jobs[*at].2.0));
        let rows = parallel::each(
            &order,
            |at| run(&jobs[*at]),
            |at| {
                let (choice, protection, ..) = &jobs[*at].2;
                progress(&format!("{choice} {protection}"));
            },
        );
        let mut rows: Vec<(usize, CompareRow)> = order.into_iter().zip(rows).collect();
        rows.sort_by_key(|(at, _)| *at);
        let mut comparison = Comparison { results: Vec::new(), equal_batch: Vec::new(), paces };
        for ((_, _, (.., own)), (_, row)) in jobs.into_iter().zip(rows) {
            if own { comparison.results.push(row) } else { comparison.equal_batch.push(row) }
        }
        comparison
    }
}
