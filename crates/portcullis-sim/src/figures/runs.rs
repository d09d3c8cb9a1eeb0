//! The runs of a figure. Each is described by a few parameters, and several are made at a time.

use super::{FigureError, Traces};
use crate::PayloadRule;
use crate::machine::Machine;
use crate::outcome::RunOutcome;
use crate::parallel;
use crate::prefetch::Prefetching;
use crate::run::{Job, LabDesign, Pace, Replay, Work, machine_pace, measure, measure_and_log};
use portcullis::mapper::Options;
use portcullis::{Protection, SubPage};
use portcullis_model::IotlbLog;
use portcullis_vtd::Discipline;

/// The seed of all figures.
const SEED: u64 = 1;

/// The machine, the traces and the progress of a figure.
pub(super) struct Bench<'b> {
    id: &'static str,
    pub(super) machine: Machine,
    /// The designs, for figures that show all of them.
    pub(super) designs: &'b [LabDesign],
    traces: Traces<'b>,
    progress: &'b mut dyn FnMut(usize, &str),
}

/// A piece of work, and its name.
pub(super) struct Subject {
    /// The name on the command line.
    pub(super) name: &'static str,
    pub(super) work: Work,
    /// The pace at which the unprotected run reaches the machine's rate.
    pub(super) pace: Pace,
    /// The most pages that are mapped at once.
    pub(super) live_pages: u64,
}

/// A run to make.
#[derive(Clone)]
pub(super) struct Run<'s> {
    pub(super) subject: &'s Subject,
    pub(super) machine: Machine,
    pub(super) design: LabDesign,
    pub(super) protection: Protection,
    pub(super) batch: usize,
    pub(super) pace: Pace,
    /// The prefetcher, in the form of the command line.
    pub(super) prefetch: String,
}

/// The results of a run.
pub(super) struct Numbers {
    pub(super) outcome: RunOutcome,
    /// The share of the device's transactions served by the IOTLB, by the buffer of the prefetcher, or by a walk in
    /// progress.
    pub(super) hit_rate: f64,
}

impl<'b> Bench<'b> {
    pub(super) fn new(
        id: &'static str,
        machine: Machine,
        designs: &'b [LabDesign],
        traces: Traces<'b>,
        progress: &'b mut dyn FnMut(usize, &str),
    ) -> Self {
        Self { id, machine, designs, traces, progress }
    }

    /// The work of this name: a bundled trace, or a workload.
    pub(super) fn subject(&self, name: &'static str) -> Result<Subject, FigureError> {
        let work = match Work::parse(name) {
            Ok(work) => work,
            Err(_) => Work::Trace(Replay::of((self.traces)(name)?)),
        };
        let (pace, live_pages) = (machine_pace(&self.machine, &work, PayloadRule::Shown, SEED), work.live_pages_max());
        Ok(Subject { name, work, pace, live_pages })
    }

    /// A strict run of single unmaps without a prefetcher.
    pub(super) fn run<'s>(&self, subject: &'s Subject, design: impl Into<LabDesign>) -> Run<'s> {
        let design = design.into();
        let (machine, pace, prefetch) = (self.machine.clone(), subject.pace, "none".to_owned());
        Run { subject, machine, design, protection: Protection::Strict, batch: 1, pace, prefetch }
    }

    /// Makes the runs, and returns their results in order.
    pub(super) fn make(&mut self, runs: &[Run<'_>]) -> Result<Vec<Numbers>, FigureError> {
        let (id, total, progress) = (self.id, runs.len(), &mut *self.progress);
        let made = parallel::each(runs, Run::make, |run| progress(total, &format!("{id}: {}", run.label())));
        made.into_iter().collect()
    }
}

impl Run<'_> {
    fn label(&self) -> String {
        let Self { subject, design, protection, prefetch, .. } = self;
        format!("{} {} {protection}, {prefetch}", subject.name, design.info().id)
    }

    fn make(&self) -> Result<Numbers, FigureError> {
        self.with_job(|job| {
            let measured = measure(job)?;
            let counters = &measured.counters;
            let hit_rate = counters.iotlb_hits as f64 / counters.lookups as f64;
            Ok(Numbers { outcome: RunOutcome::new(job, &measured), hit_rate })
        })
    }

    /// Makes the run. Returns the misses of the IOTLB, and the log of all requests to it.
    pub(super) fn log(&self) -> Result<(u64, IotlbLog), FigureError> {
        self.with_job(|job| measure_and_log(job).map(|(measured, log)| (measured.counters.iotlb_misses, log)))
    }

    fn with_job<R>(&self, make: impl FnOnce(&Job<'_>) -> Result<R, crate::run::RunError>) -> Result<R, FigureError> {
        let Prefetching { prefetcher, hints } = Prefetching::parse(&self.prefetch).expect("written here");
        let mut machine = self.machine.clone();
        machine.iommu.prefetcher = prefetcher;
        let job = Job {
            machine: &machine,
            work: self.subject.work.clone(),
            design: self.design,
            options: Options::NONE,
            protection: self.protection,
            sub_page: SubPage::Expose,
            batch: self.batch,
            pace: self.pace,
            seed: SEED,
            leaf_only_hint: true,
            merge_min: None,
            discipline: Discipline::Combining,
            hints,
            payload: PayloadRule::Shown,
        };
        make(&job).map_err(|error| FigureError::Run { run: self.label(), error })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use portcullis_model::Eviction;
    use portcullis_trace::{Trace, TraceError};
    use std::path::Path;
    use std::sync::Arc;

    fn trace(name: &str) -> Result<Arc<Trace>, TraceError> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../traces/{name}.trace.xz"));
        Trace::read(&file, |_| ()).map(Arc::new)
    }

    /// Runs `run` on a bench with the traces of the repository.
    pub(in crate::figures) fn on_bench<R>(run: impl FnOnce(&mut Bench<'_>) -> R) -> R {
        let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
        run(&mut Bench::new("a figure", machine, &LabDesign::listed(), &trace, &mut |_, _| {}))
    }

    /// The log of requests reproduces the misses of the model's IOTLB, which evicts the least recently used entry.
    /// Optimal eviction misses no more often.
    #[test]
    fn the_log_of_an_iotlb_tells_its_misses() {
        on_bench(|bench| {
            let subject = bench.subject("q-e1000e-rx.strict.2cpu").expect("a trace");
            for (entries, ways) in [(8, 2), (32, 0)] {
                let mut run = Run {
                    protection: Protection::Deferred,
                    ..bench.run(&subject, portcullis_designs::DesignId::Identity)
                };
                (run.machine.iommu.iotlb_entries, run.machine.iommu.iotlb_ways) = (entries, ways);
                let (misses, log) = run.log().expect("a run");
                let of = |eviction| log.misses(entries as usize, ways as usize, eviction);
                let (least_recent, optimal) = (of(Eviction::LeastRecent), of(Eviction::Optimal));
                // Walks in progress serve requests that the log counts as hits, and complete in another order.
                assert!(misses.abs_diff(least_recent) * 100 <= misses, "{misses} and {least_recent}");
                assert!(optimal <= least_recent && optimal > 0, "{optimal} of {least_recent}");
            }
        });
    }

    #[test]
    fn live_pages_are_those_mapped_at_once() {
        on_bench(|bench| {
            assert_eq!(bench.subject("rings:count=3,ring=16,pages=2,idle=5").expect("rings").live_pages, 101);
            let subject = bench.subject("nvme-seqread128k.strict.4cpu").expect("a trace");
            // There are four jobs, each with a few requests of 32 pages.
            assert!(subject.live_pages.is_multiple_of(32) && (128..=4096).contains(&subject.live_pages));
        });
    }
}
