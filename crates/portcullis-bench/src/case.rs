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
    BATCH, BURST, Batches, Buffers, Bursts, Consumer, Fifo, Halves, Interleaved, Producer, Queue, Singles, Typed,
    TypedFifo, Worker, raw,
};
use super::workload::Workload;
use super::{BenchError, BenchPlan};
use portcullis::mapper::{Design, Info, Mapper, Options};
use portcullis::{Access, Domain, DomainConfig, Iova, PAGE_SIZE, PhysAddr, Platform, Protection};
use portcullis_designs::{DesignId, Named, for_each_design};
use std::fmt;
use std::hint::black_box;

/// The conditions of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) options: Options,
    pub(super) protection: Protection,
    pub(super) threads: usize,
    pub(super) workload: Workload,
}

/// Samples that a row takes before the next row has its turn. Disturbances on the machine, or on a host that it is a
/// part of, last longer than a turn. With turns, the samples of every row see the same share of them. Each turn uses a
/// new domain.
const SAMPLES_PER_TURN: usize = 4;

/// A design that can be timed: one over the hosts and IOMMUs of the benchmarks. Every design over any host and IOMMU is
/// one.
pub trait TimedDesign:
    for<'r> Design<Native<true>, &'r Empty>
    + for<'r> Design<Native<false>, &'r Empty>
    + for<'r> Design<Native<true>, &'r Queued>
    + for<'r> Design<Native<true>, &'r Driven>
{
}

impl<D> TimedDesign for D where
    D: for<'r> Design<Native<true>, &'r Empty>
        + for<'r> Design<Native<false>, &'r Empty>
        + for<'r> Design<Native<true>, &'r Queued>
        + for<'r> Design<Native<true>, &'r Driven>
{
}

/// A design, as benchmarks take it: from the list ([`From<DesignId>`](DesignId)), or from another crate
/// ([`of`](Self::of)).
#[derive(Clone, Copy)]
pub struct BenchDesign {
    info: &'static Info,
    verify: fn(Case) -> Result<(), BenchError>,
    run: fn(Case, &[usize], Effort) -> Result<Samples, BenchError>,
}

/// A design with its parameters.
pub type Choice = portcullis_designs::Choice<BenchDesign>;

impl BenchDesign {
    /// The design `D`.
    pub const fn of<D: TimedDesign>() -> Self {
        Self { info: &D::INFO, verify: Case::verify::<D>, run: Case::run::<D> }
    }
}

impl Named for BenchDesign {
    fn info(self) -> &'static Info {
        self.info
    }
}

impl fmt::Debug for BenchDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.id)
    }
}

impl From<DesignId> for BenchDesign {
    fn from(design: DesignId) -> Self {
        macro_rules! by_type {
            ($($name:ident),*) => { match design { $(DesignId::$name => Self::of::<portcullis_designs::$name>(),)* } };
        }
        for_each_design!(by_type)
    }
}

/// Checks and then times a design on one CPU. The design need not be in any list.
///
/// # Errors
/// A [`BenchError`]; in particular [`BenchError::Check`] if the design does not behave as it should.
pub fn time<D: TimedDesign>(
    options: Options,
    protection: Protection,
    workload: Workload,
    effort: Effort,
) -> Result<Timed, BenchError> {
    let case = Case { options, protection, threads: 1, workload };
    let cpus = cpus::available();
    meter::warm_up();
    case.verify::<D>()?;
    Timed::of(&case.run::<D>(&cpus[..1], effort)?)
}

/// How many turns the rows of a plan take.
pub fn turns(plan: &BenchPlan) -> usize {
    cases(plan).len() * plan.effort.samples.div_ceil(SAMPLES_PER_TURN)
}

fn cases(plan: &BenchPlan) -> Vec<(Choice, Case)> {
    let mut cases = Vec::new();
    for &workload in &plan.workloads {
        for &choice in &plan.designs {
            let offered = choice.design.info().protections.iter();
            for &protection in offered.filter(|protection| workload.is_offered(**protection)) {
                for &threads in plan.threads.iter().filter(|threads| workload.takes(**threads)) {
                    let options = choice.options;
                    cases.push((choice, Case { options, protection, threads, workload }));
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
    let begin =
        |(choice, case): (Choice, Case)| Row { choice, case, samples: (choice.design.verify)(case).map(|()| None) };
    let mut rows: Vec<Row> = cases(plan).into_iter().map(begin).collect();
    let mut left = plan.effort.samples;
    while left > 0 {
        let effort = Effort { samples: left.min(SAMPLES_PER_TURN), ..plan.effort };
        left -= effort.samples;
        for Row { choice, case, samples: so_far } in &mut rows {
            let Case { protection, threads, workload, .. } = *case;
            progress(&format!("{} {choice} {protection} {threads}", workload.id()));
            let Ok(samples) = so_far else { continue };
            match ((choice.design.run)(*case, &cpus[..threads], effort), samples) {
                (Err(error), _) => *so_far = Err(error),
                (Ok(now), Some(samples)) => samples.join(now),
                (Ok(now), samples @ None) => *samples = Some(now),
            }
        }
    }
    let row = |Row { choice, case, samples, .. }: Row| {
        let Case { protection, threads, workload, .. } = case;
        let no_sample = || BenchError::Check("no sample was taken".to_owned());
        let outcome = samples.and_then(|samples| Timed::of(&samples.ok_or_else(no_sample)?));
        BenchRow { info: choice.design.info, options: choice.options, protection, threads, workload, outcome }
    };
    Ok(rows.into_iter().map(row).collect())
}

/// A row that is being measured.
struct Row {
    choice: Choice,
    case: Case,
    samples: Result<Option<Samples>, BenchError>,
}

impl Case {
    /// Checks the design's behavior before it is timed.
    fn verify<D: TimedDesign>(self) -> Result<(), BenchError> {
        verify::<D>(&Queued::new(&Native::coherent()), self.options, self.protection, self.workload)
    }

    /// Takes the samples of one turn.
    fn run<D: TimedDesign>(self, cpus: &[usize], effort: Effort) -> Result<Samples, BenchError> {
        let group = ThreadGroup { cpus, effort, period: self.workload.period() };
        match self.workload {
            Workload::Page1NonCoherent | Workload::Page1Batch64NonCoherent => {
                let platform = Native::not_coherent().ok_or(BenchError::NoFlush)?;
                Setting { case: self, group, platform, iommu: &Empty::new(false) }.of_one_ring::<D>()
            }
            Workload::Page1Queued => {
                let platform = Native::coherent();
                Setting { case: self, group, platform, iommu: &Queued::new(&platform) }.of_one_ring::<D>()
            }
            Workload::Page1Driven => {
                let platform = Native::coherent();
                let iommu = Driven::new(&platform)?;
                Setting { case: self, group, platform, iommu: &iommu }.of_one_ring::<D>()
            }
            _ => {
                let platform = Native::coherent();
                let setting = Setting { case: self, group, platform, iommu: &Empty::new(true) };
                setting.in_domain::<D>(match self.workload {
                    Workload::Page1Batch64 => batches,
                    Workload::Page1Batch64Typed | Workload::Ring256 => bursts,
                    Workload::Ring256Halves => halves,
                    Workload::Page1Typed => typed,
                    Workload::TwoRings => rings,
                    Workload::CrossCpu => hand_offs,
                    _ => singles,
                })
            }
        }
    }
}

/// The surroundings in which a case runs.
pub(super) struct Setting<'r, P, I> {
    pub(super) case: Case,
    pub(super) group: ThreadGroup<'r>,
    pub(super) platform: P,
    pub(super) iommu: &'r I,
}

impl<'r, P: Platform + Copy, I: Watched + Send> Setting<'r, P, I> {
    /// Runs a workload of single rings through the raw interface.
    fn of_one_ring<D: Design<P, &'r I>>(&self) -> Result<Samples, BenchError> {
        self.in_domain::<D>(match self.case.workload {
            Workload::Page1Batch64NonCoherent => batches,
            _ => singles,
        })
    }

    /// Runs `work` in a domain of design `D`, with checks.
    pub(super) fn in_domain<D: Design<P, &'r I>>(&self, work: Work<D::Mapper>) -> Result<Samples, BenchError> {
        let Self { case, group, platform, iommu } = self;
        let memory = [Buffers::memory(2 * case.threads as u64)];
        let mut config = DomainConfig::new(case.protection);
        config.memory = &memory;
        config.options = case.options;
        let domain = raw::domain::<D, P, &I>(iommu, *platform, &config)?;
        let checks = Checks {
            tables: iommu.tables().filter(|_| !D::INFO.physical_addresses()),
            clears: domain.usage().window_us_max.is_some(),
            submits: case.protection == Protection::Strict,
            in_halves: case.workload == Workload::Ring256Halves,
            threads: case.threads as u64,
            live_ranges: &|| domain.usage().live_ranges,
            tick: &|| Ok(domain.tick()?),
        };
        work(group, &checks, &domain, case.workload)
    }
}

/// The work of a group's threads in a domain.
pub(super) type Work<M> = fn(&ThreadGroup<'_>, &Checks<'_>, &Domain<M>, Workload) -> Result<Samples, BenchError>;

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
pub(super) fn fill<M: Mapper>(domain: &Domain<M>, workload: Workload, worker: usize) -> Result<Fifo, BenchError> {
    Fifo::fill(domain, worker as u64, workload.live(), workload.pages(), Access::DeviceWrites)
}

pub(super) fn singles<M: Mapper>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<M>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| Ok(Singles::new(domain, fill(domain, workload, thread)?)))
}

fn batches<M: Mapper>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<M>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| Ok(Batches::new(domain, fill(domain, workload, thread)?)))
}

fn bursts<M: Mapper>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<M>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| bursts_worker(domain, workload, thread))
}

fn halves<M: Mapper>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<M>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| halves_worker(domain, workload, thread))
}

/// The worker of a workload whose commits have two halves.
pub(super) fn halves_worker<'d, M: Mapper>(
    domain: &'d Domain<M>,
    workload: Workload,
    worker: usize,
) -> Result<Halves<'d, M>, BenchError> {
    Halves::new(domain, worker as u64, workload.live(), Access::DeviceWrites)
}

/// The worker of a workload in bursts.
pub(super) fn bursts_worker<'d, M: Mapper>(
    domain: &'d Domain<M>,
    workload: Workload,
    worker: usize,
) -> Result<Bursts<'d, M>, BenchError> {
    let burst = if workload == Workload::Ring256 { BURST } else { BATCH };
    Bursts::new(domain, worker as u64, workload.live(), burst, Access::DeviceWrites)
}

/// The worker of a workload through the typed interface, one mapping at a time.
pub(super) fn typed_worker<'d, M: Mapper>(
    domain: &'d Domain<M>,
    workload: Workload,
    worker: usize,
) -> Result<Typed<'d, M>, BenchError> {
    Ok(Typed::new(domain, TypedFifo::fill(domain, worker as u64, workload.live(), 1, Access::DeviceWrites)?))
}

fn typed<M: Mapper>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<M>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| typed_worker(domain, workload, thread))
}

fn rings<M: Mapper>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<M>,
    workload: Workload,
) -> Result<Samples, BenchError> {
    each(group, checks, |thread| {
        let receive = fill(domain, workload, 2 * thread)?;
        let transmit = Fifo::fill(domain, 2 * thread as u64 + 1, workload.live() / 4, 1, Access::DeviceReads)?;
        Ok(Interleaved::new(domain, receive, transmit))
    })
}

/// Threads in pairs: even ones map, and odd ones unmap.
fn hand_offs<M: Mapper>(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    domain: &Domain<M>,
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
