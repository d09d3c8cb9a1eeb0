//! The rows: a design under a protection, a workload, and a number of threads.

use super::check::Checks;
use super::driven::Driven;
use super::group::{self, Effort, ThreadGroup};
use super::host::{Native, cpus};
use super::iommu::{Empty, Queued, Watched};
use super::meter;
use super::row::{BenchRow, Samples, Timed};
use super::verify::verify;
use super::work::{
    BATCH, BURST, Batches, Buffers, Bursts, Consumer, Fifo, Interleaved, Producer, Queue, Singles, Typed, TypedFifo,
    Worker, raw,
};
use super::workload::Workload;
use super::{BenchError, BenchPlan};
use portcullis::design::Design;
use portcullis::designs::{Choice, Visitor};
use portcullis::{Access, Domain, DomainConfig, Iommu, Iova, PAGE_SIZE, PhysAddr, Platform, Protection};
use std::hint::black_box;

/// A row to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) choice: Choice,
    pub(super) protection: Protection,
    pub(super) threads: usize,
    pub(super) workload: Workload,
}

/// Samples that a row takes before the next row has its turn. Disturbances on the machine, or on a host that it is a
/// part of, last longer than a turn. With turns, the samples of every row see the same share of them. Each turn uses a
/// new domain.
const SAMPLES_PER_TURN: usize = 4;

/// How many turns the rows of a plan take.
pub fn turns(plan: &BenchPlan) -> usize {
    cases(plan).len() * plan.effort.samples.div_ceil(SAMPLES_PER_TURN)
}

fn cases(plan: &BenchPlan) -> Vec<Case> {
    let mut cases = Vec::new();
    for &workload in &plan.workloads {
        for &choice in &plan.designs {
            let offered = choice.design.info().protections.iter();
            for &protection in offered.filter(|protection| workload.is_offered(**protection)) {
                for &threads in plan.threads.iter().filter(|threads| workload.takes(**threads)) {
                    cases.push(Case { choice, protection, threads, workload });
                }
            }
        }
    }
    cases
}

/// Measures all rows. Their samples are taken in turns. Calls `progress` before each turn.
///
/// # Errors
/// Returns [`BenchError::Threads`] if the machine has fewer CPUs than the plan has threads. The error of a row is
/// stored in the row, which then gets no more turns.
pub fn execute(plan: &BenchPlan, mut progress: impl FnMut(&str)) -> Result<Vec<BenchRow>, BenchError> {
    let cpus = cpus::available();
    let asked = plan.threads.iter().copied().max().unwrap_or(0);
    if asked > cpus.len() {
        return Err(BenchError::Threads { asked, cpus: cpus.len() });
    }
    meter::warm_up();
    let mut rows: Vec<(Case, Result<Option<Samples>, BenchError>)> =
        cases(plan).into_iter().map(|case| (case, case.verify().map(|()| None))).collect();
    let mut left = plan.effort.samples;
    while left > 0 {
        let effort = Effort { samples: left.min(SAMPLES_PER_TURN), ..plan.effort };
        left -= effort.samples;
        for (case, so_far) in &mut rows {
            let Case { choice, protection, threads, workload } = *case;
            progress(&format!("{} {choice} {protection} {threads}", workload.id()));
            let Ok(samples) = so_far else { continue };
            match (case.run(&cpus[..threads], effort), samples) {
                (Err(error), _) => *so_far = Err(error),
                (Ok(now), Some(samples)) => samples.join(now),
                (Ok(now), samples @ None) => *samples = Some(now),
            }
        }
    }
    let row = |(case, samples): (Case, Result<Option<Samples>, BenchError>)| {
        let Case { choice, protection, threads, workload } = case;
        let no_sample = || BenchError::Check("no sample was taken".to_owned());
        let outcome = samples.and_then(|samples| Timed::of(&samples.ok_or_else(no_sample)?));
        BenchRow { choice, protection, threads, workload, outcome }
    };
    Ok(rows.into_iter().map(row).collect())
}

impl Case {
    /// Checks closely what the design does, before it is timed.
    fn verify(self) -> Result<(), BenchError> {
        self.choice.design.visit(Closely(self, &Queued::new(&Native::coherent())))
    }

    /// Makes one turn of the row.
    fn run(self, cpus: &[usize], effort: Effort) -> Result<Samples, BenchError> {
        let design = self.choice.design;
        let group = ThreadGroup { cpus, effort, period: self.workload.period() };
        match self.workload {
            Workload::Page1NonCoherent | Workload::Page1Batch64NonCoherent => {
                let platform = Native::not_coherent().ok_or(BenchError::NoFlush)?;
                design.visit(OneRing(Setting { case: self, group, platform, iommu: &Empty::new(false) }))
            }
            Workload::Page1Queued => {
                let platform = Native::coherent();
                design.visit(OneRing(Setting { case: self, group, platform, iommu: &Queued::new(&platform) }))
            }
            Workload::Page1Driven => {
                let platform = Native::coherent();
                let iommu = Driven::new(&platform)?;
                design.visit(OneRing(Setting { case: self, group, platform, iommu: &iommu }))
            }
            _ => {
                let platform = Native::coherent();
                design.visit(Any(Setting { case: self, group, platform, iommu: &Empty::new(true) }))
            }
        }
    }
}

/// Checks the design of a case closely.
struct Closely<'r>(Case, &'r Queued);

impl<'r> Visitor<Native<true>, &'r Queued> for Closely<'r> {
    type Output = Result<(), BenchError>;

    fn visit<D: Design<Native<true>, &'r Queued>>(self) -> Self::Output {
        let Self(Case { choice, protection, workload, .. }, iommu) = self;
        verify::<D>(iommu, choice.options, protection, workload)
    }
}

/// The surroundings in which a case runs.
pub(super) struct Setting<'r, P, I> {
    pub(super) case: Case,
    pub(super) group: ThreadGroup<'r>,
    pub(super) platform: P,
    pub(super) iommu: &'r I,
}

/// Workloads of one ring through the raw interface.
struct OneRing<'r, P, I>(Setting<'r, P, I>);

/// Every workload.
struct Any<'r>(Setting<'r, Native<true>, Empty>);

impl<'r, P: Platform + Copy, I: Watched + Send> Visitor<P, &'r I> for OneRing<'r, P, I> {
    type Output = Result<Samples, BenchError>;

    fn visit<D: Design<P, &'r I>>(self) -> Self::Output {
        self.0.in_domain::<D>(match self.0.case.workload {
            Workload::Page1Batch64NonCoherent => batches,
            _ => singles,
        })
    }
}

impl<'r> Visitor<Native<true>, &'r Empty> for Any<'r> {
    type Output = Result<Samples, BenchError>;

    fn visit<D: Design<Native<true>, &'r Empty>>(self) -> Self::Output {
        self.0.in_domain::<D>(match self.0.case.workload {
            Workload::Page1Batch64 => batches,
            Workload::Page1Batch64Typed | Workload::Ring256 => bursts,
            Workload::Page1Typed => typed,
            Workload::TwoRings => rings,
            Workload::CrossCpu => hand_offs,
            _ => singles,
        })
    }
}

impl<'r, P: Platform + Copy, I: Watched + Send> Setting<'r, P, I> {
    /// Does `work` in a domain of design `D`, and checks it.
    pub(super) fn in_domain<D: Design<P, &'r I>>(&self, work: Work<D, P, &'r I>) -> Result<Samples, BenchError> {
        let Self { case, group, platform, iommu } = self;
        let memory = [Buffers::memory(2 * case.threads as u64)];
        let mut config = DomainConfig::new(case.protection);
        config.memory = &memory;
        config.options = case.choice.options;
        let domain = raw::domain::<D, P, &I>(iommu, *platform, &config)?;
        let checks = Checks {
            tables: iommu.tables().filter(|_| !D::INFO.physical_addresses()),
            clears: domain.usage().window_us_max.is_some(),
            submits: case.protection == Protection::Strict,
            threads: case.threads as u64,
            live_ranges: &|| domain.usage().live_ranges,
            tick: &|| Ok(domain.tick()?),
        };
        work(group, &checks, &domain, case.workload)
    }
}

/// The work of a group's threads in a domain.
pub(super) type Work<D, P, I> =
    fn(&ThreadGroup<'_>, &Checks<'_>, &Domain<D, P, I>, Workload) -> Result<Samples, BenchError>;

/// Times the threads of a group. `make` makes the worker of each.
fn each<'l, W: Worker + 'l>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    make: impl Fn(usize) -> Result<W, BenchError> + Sync + 'l,
) -> Result<Samples, BenchError> {
    let worker = move |thread| Ok(Box::new(make(thread)?) as Box<dyn Worker + 'l>);
    Ok(Samples::each(&group::run(group, checks, &worker)?))
}

/// The mappings for a ring of the workload, for worker `worker`.
pub(super) fn fill<D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &Domain<D, P, I>,
    workload: Workload,
    worker: usize,
) -> Result<Fifo, BenchError> {
    Fifo::fill(domain, worker as u64, workload.live(), workload.pages(), Access::DeviceWrites)
}

pub(super) fn singles<D: Design<P, I>, P: Platform, I: Iommu>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| Ok(Singles::new(domain, fill(domain, workload, thread)?)))
}

fn batches<D: Design<P, I>, P: Platform, I: Iommu>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| Ok(Batches::new(domain, fill(domain, workload, thread)?)))
}

fn bursts<D: Design<P, I>, P: Platform, I: Iommu>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| bursts_worker(domain, workload, thread))
}

/// The worker of a workload in bursts.
pub(super) fn bursts_worker<'d, D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &'d Domain<D, P, I>,
    workload: Workload,
    worker: usize,
) -> Result<Bursts<'d, D, P, I>, BenchError> {
    let burst = if workload == Workload::Ring256 { BURST } else { BATCH };
    Bursts::new(domain, worker as u64, workload.live(), burst, Access::DeviceWrites)
}

/// The worker of a workload through the typed interface, one mapping at a time.
pub(super) fn typed_worker<'d, D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &'d Domain<D, P, I>,
    workload: Workload,
    worker: usize,
) -> Result<Typed<'d, D, P, I>, BenchError> {
    Ok(Typed::new(domain, TypedFifo::fill(domain, worker as u64, workload.live(), 1, Access::DeviceWrites)?))
}

fn typed<D: Design<P, I>, P: Platform, I: Iommu>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| typed_worker(domain, workload, thread))
}

fn rings<D: Design<P, I>, P: Platform, I: Iommu>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| {
        let receive = fill(domain, workload, 2 * thread)?;
        let transmit = Fifo::fill(domain, 2 * thread as u64 + 1, workload.live() / 4, 1, Access::DeviceReads)?;
        Ok(Interleaved::new(domain, receive, transmit))
    })
}

/// Threads in pairs: even ones map, and odd ones unmap.
fn hand_offs<D: Design<P, I>, P: Platform, I: Iommu>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    _workload: Workload,
) -> Result<Samples, BenchError> {
    let alone = group::run(group, &checks.of_nothing(), &queue_alone(&queues(group)))?;
    let queues = queues(group);
    let (len, access) = (black_box(PAGE_SIZE), black_box(Access::DeviceWrites));
    let worker = |thread: usize| {
        let queue = &queues[thread / 2];
        Ok(if thread.is_multiple_of(2) {
            let map = |phys| Ok(raw::map(domain, phys, len, access)?);
            Box::new(Producer::new(queue, thread as u64, map)?) as Box<dyn Worker + '_>
        } else {
            Box::new(Consumer::new(queue, |iova| Ok(domain.unmap_raw(iova, len)?)))
        })
    };
    Ok(Samples::hand_offs(&group::run(group, checks, &worker)?, &alone))
}

/// A queue for every two threads.
fn queues(group: &ThreadGroup<'_>) -> Vec<Queue> {
    (0..group.cpus.len() / 2).map(|_| Queue::new()).collect()
}

/// The work of the threads of a hand-off, without mapping anything.
fn queue_alone<'q>(queues: &'q [Queue]) -> impl Fn(usize) -> Result<Box<dyn Worker + 'q>, BenchError> + Sync {
    move |thread| {
        let queue = &queues[thread / 2];
        Ok(if thread.is_multiple_of(2) {
            Box::new(Producer::new(queue, thread as u64, |phys: PhysAddr| Ok(Iova::new(phys.as_u64())))?)
                as Box<dyn Worker + 'q>
        } else {
            Box::new(Consumer::new(queue, |iova| {
                black_box(iova);
                Ok(())
            }))
        })
    }
}
