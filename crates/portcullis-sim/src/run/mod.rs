//! A run of a workload under one design on one machine, in virtual time, and its measurements.
//!
//! No two of its files use each other. `world` owns virtual time and the domains. `driver` is a core that maps
//! and unmaps there. `replay`, `rings`, `churn` and `server` are the works, which tell drivers what to do. The world
//! tells `observers` and `adversary` what has happened.

mod adversary;
mod backlog;
mod captured_payloads;
mod churn;
#[allow(unsafe_code, reason = "maps memory of the model")]
mod design;
mod driver;
mod event;
mod footprint;
mod grace;
mod live;
mod mapped;
mod observers;
mod parameter;
mod ranges;
mod replay;
mod rings;
mod server;
mod work;
mod workload;
mod world;

pub use adversary::{
    Attacked, Found, PROBES_CACHED_MIN, attack, attack_on_breaking_hardware, attack_on_flawed_prefetcher,
    attack_on_flawed_rings,
};
pub use churn::Churn;
pub use design::{Choice, LabDesign, LabUnit};
pub use footprint::Replay;
pub use parameter::{ParameterInfo, WorkloadError};
pub use rings::Rings;
pub(crate) use server::Served;
pub use server::{IperfChoices, Recycling, SERVER_WORKLOADS, ServerError, ServerWork, ServerWorkload, StreamDirection};
pub use work::{WORKLOADS, Work, WorkloadInfo};

use crate::account::Account;
use crate::engine::{Engine, StepCounts, Stuck};
use crate::machine::Machine;
use crate::prefetch::{Hints, Prefetching};
use crate::rates::{Needs, Usage};
use crate::traffic::{PayloadRule, Traffic};
use event::RunEvent;
use observers::{Exposure, Residual};
use portcullis::iommu::AttachError;
use portcullis::mapper::{Info, Options};
use portcullis::{CommitError, MapError, NewDomainError, Protection, RawMapError, SubPage, UnmapError};
use portcullis_designs::DesignId;
use portcullis_model::{Counters, IotlbLog, Vtd};
use portcullis_vtd::{BringUpError, Discipline, QueueUse};
use std::iter;
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;
use world::{BatchTally, World};

/// A run to make.
#[derive(Clone)]
pub struct Job<'m> {
    /// The machine.
    pub machine: &'m Machine,
    /// The work.
    pub work: Work,
    /// The design.
    pub design: LabDesign,
    /// The parameters of the design.
    pub options: Options,
    /// The protection, one of those that the design offers.
    pub protection: Protection,
    /// How its domains treat partly covered pages. If addresses are physical, everything is exposed in any case.
    pub sub_page: SubPage,
    /// The largest batch of unmaps under one commit.
    pub batch: usize,
    /// How the pauses of the work are set.
    pub pace: Pace,
    /// The seed of synthetic work.
    pub seed: u64,
    /// Whether page-selective invalidations carry the hint that only leaves have changed, if that is true.
    pub leaf_only_hint: bool,
    /// If so many commits share a submission, one command may replace theirs; `None`: never.
    pub merge_min: Option<u8>,
    /// How commits use the invalidation queue.
    pub discipline: Discipline,
    /// What the driver announces to the hardware.
    pub hints: Hints,
    /// How full buffers are taken to be.
    pub payload: PayloadRule,
}

impl<'m> Job<'m> {
    /// A run of `work` as it comes, with the design's own parameters and batch.
    pub fn new(machine: &'m Machine, work: Work, design: impl Into<LabDesign>, protection: Protection) -> Self {
        let design = design.into();
        Self {
            machine,
            work,
            design,
            options: Options::NONE,
            protection,
            sub_page: SubPage::Expose,
            batch: design.info().batch_default,
            pace: Pace::Gaps(1.0),
            seed: 1,
            leaf_only_hint: true,
            merge_min: None,
            discipline: Discipline::Combining,
            hints: Hints::NONE,
            payload: PayloadRule::default(),
        }
    }

    /// The kind of device for which the work is.
    pub fn traffic(&self) -> Traffic {
        self.work.traffic(self.machine)
    }

    /// How it treats partly covered pages. `None` if addresses are physical, because nothing can be done then, or if
    /// addresses name ring entries, because nothing has to be done.
    pub fn sub_page(&self) -> Option<SubPage> {
        sub_page(self.design.info(), self.sub_page)
    }

    /// The prefetching in it.
    pub fn prefetching(&self) -> Prefetching {
        // Rings have only their own prefetcher.
        match self.design.info().is_hypothetical() {
            true => Prefetching::of(None, Hints::NONE),
            false => Prefetching::of(self.machine.iommu.prefetcher, self.hints),
        }
    }
}

/// How partly covered pages are treated under the design, if `wanted` is requested.
fn sub_page(info: &Info, wanted: SubPage) -> Option<SubPage> {
    let opens_pages = !info.physical_addresses() && !info.is_hypothetical();
    opens_pages.then_some(wanted)
}

/// How the pauses between operations are set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The pauses of the work, times this factor. Each core continues where its last operation ended.
    Gaps(f64),
    /// Operations begin at the times of the trace, or as soon afterwards as their core is free.
    Timestamps,
}

impl Pace {
    /// How long `bytes` take at the machine's rate, in picoseconds, times the factor.
    fn gap_ps(self, machine: &Machine, bytes: u64) -> f64 {
        let factor = match self {
            Self::Gaps(factor) => factor,
            Self::Timestamps => 1.0,
        };
        factor * bytes as f64 * 8.0 / machine.unprotected_gbps(Traffic::Network) * 1e3
    }
}

const PS_PER_SECOND: f64 = 1e12;

/// The longest trace that is replayed, in microseconds: 30 days. The hardware's clock ends after 53 days.
const SPAN_US_MAX: u64 = 30 * 24 * 3600 * 1_000_000;

/// Why a run ended early.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The trace lasts longer than virtual time can represent. One of its times is wrong.
    #[error("the trace spans {0} µs, and no more than {SPAN_US_MAX} can be replayed")]
    Span(u64),
    /// The user stopped the program before the run began.
    #[error("it was stopped before this run")]
    Stopped,
    /// The IOMMU did not come up.
    #[error("the IOMMU did not come up: {0}")]
    BringUp(BringUpError),
    /// A domain could not be made for the device.
    #[error("no domain for the device: {0}")]
    NewDomain(NewDomainError),
    /// A device could not be attached.
    #[error("the device could not be attached: {0}")]
    Attach(AttachError),
    /// A map was refused.
    #[error("a map was refused: {0}")]
    Map(RawMapError),
    /// A ring has fewer entries than are mapped at once.
    #[error("a map was refused: {error}; {}", remedy(design, *.would_do))]
    RingFull {
        /// The refusal.
        error: MapError,
        /// The design.
        design: &'static str,
        /// Entries of a ring that is large enough, if there is such a ring.
        would_do: Option<u32>,
    },
    /// An unmap was refused.
    #[error("an unmap was refused: {0}")]
    Unmap(UnmapError),
    /// A commit failed.
    #[error("a commit failed: {0}")]
    Commit(CommitError),
    /// The run would never have ended.
    #[error("the run would never end: {0}")]
    Stuck(Stuck),
    /// No frame arrived at a client of a server for a second.
    #[error("no client made progress for a second of virtual time")]
    NoProgress,
}

fn remedy(design: &str, would_do: Option<u32>) -> String {
    match would_do {
        Some(entries) => format!("{design}:ring={entries} would do"),
        None => String::from("no ring is large enough"),
    }
}

/// The measurements of a run, before they are divided by pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) account: Account,
    pub(crate) counters: Counters,
    pub(crate) queue: QueueUse,
    pub(crate) pages: u64,
    pub(crate) usage: Usage,
    /// How often each core was charged each step, if that was requested.
    pub(crate) steps_by_core: Vec<StepCounts>,
    pub(crate) batches: BatchTally,
    pub(crate) faults: u64,
    pub(crate) unexplained_accesses: u64,
    pub(crate) stale_accesses: u64,
    pub(crate) refused_maps: u64,
    pub(crate) table_pages_max: usize,
    pub(crate) table_pages_end: usize,
    pub(crate) windows: u64,
    pub(crate) window_ps_sum: u128,
    pub(crate) window_ps_max: u64,
    /// The design's bound on how long an unmap waits until the hardware is told; `None` if there is no bound.
    pub(crate) bound_us: Option<u64>,
    pub(crate) stale_bytes_ps: u128,
    pub(crate) residual_bytes_ps: u128,
    pub(crate) over_invalidated_pages: u64,
    pub(crate) span_ps: u64,
    /// The age of the oldest stale buffer in each piece of the run, and the length of a piece.
    pub(crate) oldest_stale_ps: Vec<u64>,
    pub(crate) piece_ps: u64,
    /// The results of a server.
    pub(crate) served: Option<Served>,
}

/// The pace at which the unprotected work reaches the machine's rate: the factor for the pauses of the work.
///
/// It is found by unprotected runs. If these cannot be made, because the work has buffers whose physical addresses no
/// device can use, the pauses alone are made to last as long as the bytes would take.
pub fn machine_pace(machine: &Machine, work: &Work, payload: PayloadRule, seed: u64) -> Pace {
    measured_pace(machine, work, payload, seed).unwrap_or_else(|_| match work.replay() {
        Some(Replay { trace, .. }) => {
            let bytes: u64 = trace.segments.iter().map(|segment| segment.len).sum();
            let (bytes_us, span_us) =
                (bytes as f64 * 8.0 / machine.unprotected_gbps(work.traffic(machine)) / 1e3, trace.statistics.span_us);
            Pace::Gaps(bytes_us / (span_us as f64).max(1.0))
        }
        None => Pace::Gaps(1.0),
    })
}

fn measured_pace(machine: &Machine, work: &Work, payload: PayloadRule, seed: u64) -> Result<Pace, RunError> {
    // The address width of devices does not affect the rate without an IOMMU, but might stop the run.
    let mut wide = machine.clone();
    (wide.iommu.four_level, wide.iommu.address_bits) = (true, 48);
    let unprotected = |factor| {
        let machine = &wide;
        measure(&Job {
            machine,
            work: work.clone(),
            design: DesignId::Unprotected.into(),
            options: Options::NONE,
            protection: Protection::None,
            sub_page: SubPage::Expose,
            batch: 1,
            pace: Pace::Gaps(factor),
            seed,
            leaf_only_hint: true,
            merge_min: None,
            discipline: Discipline::Combining,
            hints: Hints::NONE,
            payload,
        })
    };
    // The duration is close to linear in the factor. Two runs give the line, and a third corrects it.
    let (still, once) = (unprotected(0.0)?, unprotected(1.0)?);
    let target_ps = Needs::of(machine, work.traffic(machine), &still.usage).unprotected_seconds() * PS_PER_SECOND;
    let solve = |f0: f64, t0: u64, f1: f64, t1: u64| {
        let slope = (t1 as f64 - t0 as f64) / (f1 - f0);
        if slope > 0.0 { (f1 + (target_ps - t1 as f64) / slope).max(0.0) } else { 0.0 }
    };
    let guess = solve(0.0, still.span_ps, 1.0, once.span_ps);
    if guess == 0.0 {
        return Ok(Pace::Gaps(0.0));
    }
    let near = unprotected(guess)?;
    Ok(Pace::Gaps(if guess == 1.0 { 1.0 } else { solve(0.0, still.span_ps, guess, near.span_ps) }))
}

pub(crate) fn measure(job: &Job<'_>) -> Result<Measured, RunError> {
    measure_on(job, |_, _| ()).map(|(measured, _)| measured)
}

/// Makes the run, and counts the charged steps.
pub(crate) fn measure_steps(job: &Job<'_>) -> Result<Measured, RunError> {
    measure_on(job, |engine, _| engine.count_steps()).map(|(measured, _)| measured)
}

/// Makes the run. Returns the measurements and all requests to the IOTLB, including warm-up.
pub(crate) fn measure_and_log(job: &Job<'_>) -> Result<(Measured, IotlbLog), RunError> {
    let (measured, vtd) = measure_on(job, |_, vtd| vtd.record_iotlb())?;
    Ok((measured, vtd.take_iotlb_log()))
}

/// Makes the run on hardware that `prepare` sets up first.
fn measure_on(job: &Job<'_>, prepare: impl FnOnce(&Engine, &Vtd)) -> Result<(Measured, Arc<Vtd>), RunError> {
    let mut world = World::new(job, None)?;
    prepare(&world.engine, &world.vtd);
    let (exposure, residual) = match job.work.workload().has_windows() {
        true => (world.subscribe(Exposure::of(&world, job.protection)), world.subscribe(Residual::default())),
        false => Default::default(),
    };
    let world = world.ready();
    let (start, served) = perform(&world, job);
    if let Some(error) = world.failure.borrow_mut().take() {
        return Err(error);
    }
    let (exposure, tally) = (exposure.borrow(), world.tally.borrow().clone());
    // The run ends with its last operation. A wait for a timer after it is not part of the work.
    let worked_ps = world.worked_ps.get().max(start.now_ps);
    let windows = exposure.windows(worked_ps);
    let over_time = exposure.over_time(worked_ps);
    let residual_bytes_ps = residual.borrow().since_warm_up(worked_ps);
    let cycles_by_core = world.engine.cycles_by_core();
    let cycles_since = cycles_by_core.iter().zip(&start.cycles_by_core).map(|(now, then)| now - then);
    let counters = since(&world.vtd.counters(), &start.counters);
    let measured = Measured {
        account: world.engine.account().since(&start.account),
        counters,
        queue: queue_use_since(world.unit.queue_use(), start.queue),
        pages: tally.pages,
        usage: Usage {
            operations: tally.operations,
            payload: tally.payload,
            work_by_core: tally.work_by_core,
            cycles_by_core: cycles_since.collect(),
            transactions: tally.transactions,
            transactions_min: tally.transactions_min,
            transactions_again: tally.transactions_again,
            latency_ps_sum: tally.latency_ps_sum,
            queue_ps: counters.queue_busy_ps,
            lock_ps: start.longest_held_ps(&world.engine.locks_held_ps()),
            is_of_pages: job.work.is_of_pages_alone(),
        },
        batches: tally.batches,
        steps_by_core: world.engine.steps_by_core(),
        faults: tally.faults,
        unexplained_accesses: job.work.replay().map_or(0, Replay::unexplained_accesses),
        stale_accesses: tally.stale_accesses,
        refused_maps: tally.refused_maps,
        table_pages_max: tally.table_pages_max,
        table_pages_end: world.table_pages(),
        windows: windows.count,
        window_ps_sum: windows.sum_ps,
        window_ps_max: windows.max_ps,
        bound_us: world.bound_us(),
        stale_bytes_ps: windows.bytes_ps,
        residual_bytes_ps,
        over_invalidated_pages: windows.over_invalidated_pages,
        span_ps: worked_ps - start.now_ps,
        oldest_stale_ps: over_time.ages_ps().to_vec(),
        piece_ps: over_time.piece_ps(),
        served,
    };
    Ok((measured, world.vtd.clone()))
}

/// Does the work of `job`. Returns where its measured part began, and the results of a server.
fn perform(world: &Rc<World>, job: &Job<'_>) -> (Start, Option<Served>) {
    let start = match &job.work {
        Work::Trace(replay) => {
            replay::prepare(world, replay);
            let start = Start::of(world);
            replay::run(world, replay, job.batch, job.pace);
            start
        }
        Work::Rings(rings) => {
            let rings = rings::Service::new(world, rings, job.batch, job.pace, job.seed);
            rings.warm_up(job.machine);
            let start = Start::of(world);
            rings.serve(job.machine);
            start
        }
        Work::Churn(churn) => {
            let churn = churn::Service::new(world, churn, job.batch, job.pace, job.seed);
            churn.warm_up(job.machine);
            let start = Start::of(world);
            churn.serve(job.machine);
            start
        }
        Work::Server(work) => {
            let (start, served) = server::serve(world, job, work);
            return (start, Some(served));
        }
    };
    (start, None)
}

/// The state at the beginning of the measured part of a run.
struct Start {
    account: Account,
    cycles_by_core: Vec<u64>,
    counters: Counters,
    queue: QueueUse,
    locks_held_ps: Vec<u64>,
    now_ps: u64,
}

impl Start {
    /// For how long the lock was held that was held longest since then. Later locks were not there.
    fn longest_held_ps(&self, now_ps: &[u64]) -> u64 {
        let then_ps = self.locks_held_ps.iter().copied().chain(iter::repeat(0));
        now_ps.iter().zip(then_ps).map(|(now_ps, then_ps)| now_ps - then_ps).max().unwrap_or(0)
    }

    fn of(world: &World) -> Self {
        world.warm.set(false);
        world.engine.forget_longest();
        world.engine.forget_steps();
        world.tally.borrow_mut().table_pages_max = world.table_pages();
        world.tell(&RunEvent::WarmedUp);
        Self {
            account: world.engine.account(),
            cycles_by_core: world.engine.cycles_by_core(),
            counters: world.vtd.counters(),
            queue: world.unit.queue_use(),
            locks_held_ps: world.engine.locks_held_ps(),
            now_ps: world.engine.now_ps(),
        }
    }
}

fn queue_use_since(mut now: QueueUse, then: QueueUse) -> QueueUse {
    now.commits -= then.commits;
    now.waits -= then.waits;
    now
}

fn since(now: &Counters, then: &Counters) -> Counters {
    Counters {
        lookups: now.lookups - then.lookups,
        iotlb_hits: now.iotlb_hits - then.iotlb_hits,
        iotlb_joined: now.iotlb_joined - then.iotlb_joined,
        iotlb_misses: now.iotlb_misses - then.iotlb_misses,
        ptcache_l1_misses: now.ptcache_l1_misses - then.ptcache_l1_misses,
        ptcache_l2_misses: now.ptcache_l2_misses - then.ptcache_l2_misses,
        ptcache_l3_misses: now.ptcache_l3_misses - then.ptcache_l3_misses,
        memory_reads: now.memory_reads - then.memory_reads,
        prefetches_issued: now.prefetches_issued - then.prefetches_issued,
        prefetches_useful: now.prefetches_useful - then.prefetches_useful,
        prefetches_late: now.prefetches_late - then.prefetches_late,
        prefetches_useless: now.prefetches_useless - then.prefetches_useless,
        prefetches_unmapped: now.prefetches_unmapped - then.prefetches_unmapped,
        prefetch_reads: now.prefetch_reads - then.prefetch_reads,
        walks_into_freed: now.walks_into_freed - then.walks_into_freed,
        context_misses: now.context_misses - then.context_misses,
        ring_switches: now.ring_switches - then.ring_switches,
        ring_out_of_order: now.ring_out_of_order - then.ring_out_of_order,
        ring_after_invalidation: now.ring_after_invalidation - then.ring_after_invalidation,
        ring_mapped_later: now.ring_mapped_later - then.ring_mapped_later,
        ring_close_behind: now.ring_close_behind - then.ring_close_behind,
        ring_first: now.ring_first - then.ring_first,
        faults: now.faults - then.faults,
        invalidations_page: now.invalidations_page - then.invalidations_page,
        invalidations_domain: now.invalidations_domain - then.invalidations_domain,
        invalidations_global: now.invalidations_global - then.invalidations_global,
        iotlb_dropped_live: now.iotlb_dropped_live - then.iotlb_dropped_live,
        invalidations_context: now.invalidations_context - then.invalidations_context,
        waits: now.waits - then.waits,
        descriptors: now.descriptors - then.descriptors,
        queue_busy_ps: now.queue_busy_ps - then.queue_busy_ps,
    }
}
