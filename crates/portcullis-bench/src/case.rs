//! One row after the other: a design under a protection, a workload, a number of threads.

use super::check::Checks;
use super::host::{Native, cpus};
use super::iommu::{Empty, Queued, Watched};
use super::row::{Row, Timed};
use super::team::{self, Effort, Team};
use super::verify::verify;
use super::work::{
    BATCH, Batches, Buffers, Commit, Consumer, Fifo, Interleaved, Lane, Producer, Queue, Singles, Typed, TypedFifo,
};
use super::workload::Workload;
use super::{BenchError, Plan};
use portcullis::design::Design;
use portcullis::designs::{Choice, Visitor};
use portcullis::{Access, Config, Domain, Iommu, Iova, PAGE_SIZE, PhysAddr, Platform, Protection};
use std::hint::black_box;

/// A row to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) choice: Choice,
    pub(super) protection: Protection,
    pub(super) threads: usize,
    pub(super) workload: Workload,
}

/// How many rows a plan has.
pub fn rows(plan: &Plan) -> usize {
    cases(plan).len()
}

fn cases(plan: &Plan) -> Vec<Case> {
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

/// Makes every row, one after the other; tells `progress` before each.
///
/// # Errors
/// [`BenchError::Threads`] where the machine has not as many CPUs as the plan has threads. What goes wrong in a row is in it.
pub fn execute(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Vec<Row>, BenchError> {
    let cpus = cpus::available();
    let asked = plan.threads.iter().copied().max().unwrap_or(0);
    if asked > cpus.len() {
        return Err(BenchError::Threads { asked, cpus: cpus.len() });
    }
    let row = |case: Case| {
        let Case { choice, protection, threads, workload } = case;
        progress(&format!("{} {choice} {protection} {threads}", workload.id()));
        let outcome = case.run(&cpus[..threads], plan.effort);
        Row { choice, protection, threads, workload, outcome }
    };
    Ok(cases(plan).into_iter().map(row).collect())
}

impl Case {
    fn run(self, cpus: &[usize], effort: Effort) -> Result<Timed, BenchError> {
        let design = self.choice.design;
        let team = Team { cpus, effort, period: self.workload.period() };
        design.visit(Closely(self, &Queued::new(&Native::coherent())))?;
        match self.workload {
            Workload::Page1NonCoherent => {
                let platform = Native::not_coherent().ok_or(BenchError::NoFlush)?;
                design.visit(OneByOne(Setting { case: self, team, platform, iommu: &Empty::new(false) }))
            }
            Workload::Page1Queued => {
                let platform = Native::coherent();
                design.visit(OneByOne(Setting { case: self, team, platform, iommu: &Queued::new(&platform) }))
            }
            _ => {
                let platform = Native::coherent();
                design.visit(Any(Setting { case: self, team, platform, iommu: &Empty::new(true) }))
            }
        }
    }
}

/// A look at the design before it is timed.
struct Closely<'r>(Case, &'r Queued);

impl<'r> Visitor<Native<true>, &'r Queued> for Closely<'r> {
    type Output = Result<(), BenchError>;

    fn visit<D: Design<Native<true>, &'r Queued>>(self) -> Self::Output {
        let Self(Case { choice, protection, workload, .. }, iommu) = self;
        verify::<D>(iommu, choice.options, protection, workload)
    }
}

/// Where a case is run.
pub(super) struct Setting<'r, P, I> {
    pub(super) case: Case,
    pub(super) team: Team<'r>,
    pub(super) platform: P,
    pub(super) iommu: &'r I,
}

/// Workloads of one mapping at a time.
struct OneByOne<'r, P, I>(Setting<'r, P, I>);

/// Every workload.
struct Any<'r>(Setting<'r, Native<true>, Empty>);

impl<'r, P: Platform + Copy, I: Watched + Send> Visitor<P, &'r I> for OneByOne<'r, P, I> {
    type Output = Result<Timed, BenchError>;

    fn visit<D: Design<P, &'r I>>(self) -> Self::Output {
        self.0.in_domain::<D>(singles)
    }
}

impl<'r> Visitor<Native<true>, &'r Empty> for Any<'r> {
    type Output = Result<Timed, BenchError>;

    fn visit<D: Design<Native<true>, &'r Empty>>(self) -> Self::Output {
        self.0.in_domain::<D>(match self.0.case.workload {
            Workload::Page1Batch64 => batches,
            Workload::Page1Typed | Workload::Page1Batch64Typed => typed,
            Workload::TwoRings => rings,
            Workload::CrossCpu => couples,
            _ => singles,
        })
    }
}

impl<'r, P: Platform + Copy, I: Watched + Send> Setting<'r, P, I> {
    /// Has `work` done in a domain of design `D`, and checked.
    pub(super) fn in_domain<D: Design<P, &'r I>>(&self, work: Work<D, P, &'r I>) -> Result<Timed, BenchError> {
        let Self { case, team, platform, iommu } = self;
        let memory = [Buffers::memory(2 * case.threads as u64)];
        let mut config = Config::new(case.protection);
        config.memory = &memory;
        config.options = case.choice.options;
        let domain = Domain::<D, P, &I>::with_config(iommu, *platform, &config)?;
        let checks = Checks {
            tables: iommu.tables().filter(|_| !D::INFO.physical_addresses()),
            clears: domain.usage().window_us_max.is_some(),
            submits: case.protection == Protection::Strict,
            threads: case.threads as u64,
            live_ranges: &|| domain.usage().live_ranges,
            tick: &|| Ok(domain.tick()?),
        };
        work(team, &checks, &domain, case.workload)
    }
}

/// What the threads of a team do in a domain.
pub(super) type Work<D, P, I> = fn(&Team<'_>, &Checks<'_>, &Domain<D, P, I>, Workload) -> Result<Timed, BenchError>;

/// Mappings for a ring of the workload, those of lane `lane`.
pub(super) fn fill<D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &Domain<D, P, I>,
    workload: Workload,
    lane: usize,
) -> Result<Fifo, BenchError> {
    Fifo::fill(domain, lane as u64, workload.live(), workload.pages(), Access::DeviceWrites)
}

pub(super) fn singles<D: Design<P, I>, P: Platform, I: Iommu>(
    team: &Team<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Timed, BenchError> {
    let lane = |thread| Ok(Box::new(Singles::new(domain, fill(domain, workload, thread)?)) as Box<dyn Lane + '_>);
    Timed::each(&team::run(team, checks, &lane)?)
}

fn batches<D: Design<P, I>, P: Platform, I: Iommu>(
    team: &Team<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Timed, BenchError> {
    let lane = |thread| Ok(Box::new(Batches::new(domain, fill(domain, workload, thread)?)) as Box<dyn Lane + '_>);
    Timed::each(&team::run(team, checks, &lane)?)
}

/// The lane of a workload through the typed face.
pub(super) fn typed_lane<'d, D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &'d Domain<D, P, I>,
    workload: Workload,
    lane: usize,
) -> Result<Typed<'d, D, P, I>, BenchError> {
    let (commit, spare) =
        if workload == Workload::Page1Typed { (Commit::Single, 1) } else { (Commit::Batch, BATCH as usize) };
    let fifo = TypedFifo::fill(domain, lane as u64, workload.live(), spare, Access::DeviceWrites)?;
    Ok(Typed::new(domain, fifo, commit))
}

fn typed<D: Design<P, I>, P: Platform, I: Iommu>(
    team: &Team<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Timed, BenchError> {
    let lane = |thread| Ok(Box::new(typed_lane(domain, workload, thread)?) as Box<dyn Lane + '_>);
    Timed::each(&team::run(team, checks, &lane)?)
}

fn rings<D: Design<P, I>, P: Platform, I: Iommu>(
    team: &Team<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    workload: Workload,
) -> Result<Timed, BenchError> {
    let lane = |thread| {
        let receive = fill(domain, workload, 2 * thread)?;
        let transmit = Fifo::fill(domain, 2 * thread as u64 + 1, workload.live() / 4, 1, Access::DeviceReads)?;
        Ok(Box::new(Interleaved::new(domain, receive, transmit)) as Box<dyn Lane + '_>)
    };
    Timed::each(&team::run(team, checks, &lane)?)
}

/// Threads in pairs: even ones map, odd ones unmap.
fn couples<D: Design<P, I>, P: Platform, I: Iommu>(
    team: &Team<'_>,
    checks: &Checks<'_>,
    domain: &Domain<D, P, I>,
    _workload: Workload,
) -> Result<Timed, BenchError> {
    let alone = Timed::couples(&team::run(team, &checks.of_nothing(), &queue_alone(&queues(team)))?, None)?;
    let queues = queues(team);
    let (len, access) = (black_box(PAGE_SIZE), black_box(Access::DeviceWrites));
    let lane = |thread: usize| {
        let queue = &queues[thread / 2];
        Ok(if thread.is_multiple_of(2) {
            let map = |phys| Ok(domain.map_raw(phys, len, access)?);
            Box::new(Producer::new(queue, thread as u64, map)?) as Box<dyn Lane + '_>
        } else {
            Box::new(Consumer::new(queue, |iova| Ok(domain.unmap_raw(iova, len)?)))
        })
    };
    Timed::couples(&team::run(team, checks, &lane)?, Some(&alone))
}

/// A queue for every two threads.
fn queues(team: &Team<'_>) -> Vec<Queue> {
    (0..team.cpus.len() / 2).map(|_| Queue::new()).collect()
}

/// What couples do, without anything that is mapped.
fn queue_alone<'q>(queues: &'q [Queue]) -> impl Fn(usize) -> Result<Box<dyn Lane + 'q>, BenchError> + Sync {
    move |thread| {
        let queue = &queues[thread / 2];
        Ok(if thread.is_multiple_of(2) {
            Box::new(Producer::new(queue, thread as u64, |phys: PhysAddr| Ok(Iova::new(phys.as_u64())))?)
                as Box<dyn Lane + 'q>
        } else {
            Box::new(Consumer::new(queue, |iova| {
                black_box(iova);
                Ok(())
            }))
        })
    }
}
