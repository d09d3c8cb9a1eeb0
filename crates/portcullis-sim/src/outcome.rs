//! The results of a run, in the quantities by which designs are compared.

use crate::machine::Machine;
use crate::rates::{CoreWork, Limit, Needs};
use crate::run::{Job, Measured, RunError, measure};
use crate::traffic::Traffic;
use portcullis::platform::{LockClass, Phase};
use serde::Serialize;

/// The numbers of one run. The field names are JSON keys. A number that does not apply is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunOutcome {
    /// Mappings made after warm-up.
    pub operations: u64,
    /// Pages of these mappings. All `_per_page` numbers are divided by this.
    pub pages: u64,
    /// The time from the end of warm-up to the last operation, on the clock of the run.
    pub span_us: f64,
    /// Book cycles of protection, including spins.
    pub cycles_per_page: f64,
    /// The part of these cycles spent waiting for hardware: spins, and reads of its registers.
    pub wait_cycles_per_page: f64,
    /// Cycles of an address allocation.
    pub iova_alloc_cycles_mean: Option<f64>,
    /// Tree nodes, or free segments of a list, passed in the search for an address.
    pub search_steps_mean: Option<f64>,
    /// The most tree nodes or free segments passed in one search.
    pub search_steps_max: Option<u64>,
    /// Invalidation commands.
    pub invalidations_per_page: f64,
    /// Wait descriptors.
    pub waits_per_page: f64,
    /// Submissions to the invalidation queue per wait descriptor. More than one if submissions share waits.
    pub commits_per_wait: Option<f64>,
    /// Pages that page-selective invalidations covered beyond the unmapped ones.
    pub over_invalidated_pages: u64,
    /// IOTLB entries of mapped pages that commands for more than one page have dropped, and devices must look up again.
    pub iotlb_dropped_live_per_page: f64,
    /// Lookups that started a walk.
    pub iotlb_misses_per_page: f64,
    /// Walks that missed the cache nearest the root.
    pub ptcache_l1_misses_per_page: f64,
    /// Walks that missed the cache below it.
    pub ptcache_l2_misses_per_page: f64,
    /// Walks that missed the cache of leaf tables.
    pub ptcache_l3_misses_per_page: f64,
    /// Table entries read by walks.
    pub memory_reads_per_page: f64,
    /// Most table pages in use at once.
    pub table_pages_max: u64,
    /// Table pages in use at the end.
    pub table_pages_end: u64,
    /// The time from hand-back to completed invalidation.
    pub stale_window_us_mean: Option<f64>,
    /// The longest of these times.
    pub stale_window_us_max: Option<f64>,
    /// The design's bound on how long an unmap waits until the hardware is told. `None` if there is no bound.
    pub bound_us: Option<u64>,
    /// What timers and the hardware may add to the bound. The malicious device allows for the same.
    pub grace_us: Option<f64>,
    /// The age of the oldest buffer that was handed back and still within reach: the maximum in each piece of the run.
    /// There are at most 100 pieces, from the end of warm-up to the last window.
    pub stale_window_us_over_time: Option<Vec<f64>>,
    /// The length of a piece.
    pub stale_window_piece_us: Option<f64>,
    /// Bytes of handed-back buffers, each times how long it stayed exposed.
    pub stale_bytes_us: Option<f64>,
    /// Pages that still translated when their buffer was handed back.
    pub stale_accesses: u64,
    /// Maps that found their ring full. Each was made later, when there was room.
    pub refused_maps: u64,
    /// Bytes reachable only because their page was mapped for another buffer, each times how long.
    pub residual_bytes_us: Option<f64>,
    /// Device accesses refused.
    pub faults: u64,
    /// Logged accesses that no mapping explains.
    pub unexplained_accesses: u64,
    /// Share of the cores' busy cycles spent waiting for locks.
    pub lock_wait_percent: f64,
    /// The part of this share for the locks of the address allocator.
    pub lock_wait_iova_percent: f64,
    /// The part of this share for the locks of the invalidation queue and the flush queue.
    pub lock_wait_invalidation_percent: f64,
    /// The rate of the mappings' bytes over the span, on the clock of the run. No link is modelled, so it may exceed
    /// the machine's rate.
    pub achieved_gbps: Option<f64>,
    /// What happened to the entries of rings, if there are rings.
    pub riotlb: Option<RiotlbCounts>,
    /// The results of prefetching, if there is any.
    pub prefetch: Option<PrefetchCounts>,
    /// The average number of buffers in a batch, if unmaps are batched.
    pub batch_buffers_mean: Option<f64>,
    /// The largest number of buffers in a batch.
    pub batch_buffers_max: Option<u64>,
    /// The average time that a buffer waited for the end of its batch, from its unmap to its hand-back.
    pub batch_wait_us_mean: Option<f64>,
    /// The longest time that a buffer waited.
    pub batch_wait_us_max: Option<f64>,
    /// The kind of device for which the work is.
    pub traffic: Traffic,
    /// Bytes of the buffers that the device moved, at least.
    pub payload_bytes_min: u64,
    /// Bytes of the buffers that the device moved, at most. This exceeds the minimum if the fill of buffers is not
    /// known.
    pub payload_bytes_max: u64,
    /// The rate that the CPUs could carry, with `payload_bytes_max`.
    pub cpu_gbps: f64,
    /// The rate that the bus could carry.
    pub pcie_gbps: Option<f64>,
    /// The rate that this work reaches without protection.
    pub unprotected_gbps: f64,
    /// The least of the rates that the CPUs, the bus, the link or the disks, the queue and the locks could carry. An
    /// estimate.
    pub estimate_gbps: f64,
    /// The same estimate with `payload_bytes_min`; `null` if the two payloads are equal.
    pub estimate_gbps_min: Option<f64>,
    /// Mappings per second at `estimate_gbps`. For a disk's traffic, these are requests.
    pub estimate_operations_per_second: f64,
    /// CPU time of protection at `estimate_gbps`, in percent of one core.
    pub estimate_cpu_percent: f64,
    /// The resource that limits `estimate_gbps`.
    pub limit: Limit,
    /// The resource that limits `estimate_gbps_min`.
    pub limit_min: Option<Limit>,
    /// The estimate as a share of the rate that this work reaches without protection.
    pub estimate_vs_none: f64,
    /// The same share with `payload_bytes_min`; `null` if the two payloads are equal.
    pub estimate_vs_none_min: Option<f64>,
    /// The least and the greatest share, over all that is not known: the payload and, in a capture without `dma:`
    /// events, the lengths of buffers and the kind of device.
    pub estimate_vs_none_range: [f64; 2],
    /// The share for the shortest buffers, by which the advice compares runs: the same lengths for all, while the range
    /// takes longer ones where it would be too wide.
    #[serde(skip)]
    pub share_of_shortest: f64,
    /// Whether the design, which is of another crate, has reported no step of its addresses. Their cost is then
    /// missing, and the run is compared with no other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unpriced: bool,
    /// The same work at the speed at which it was recorded. `null` if the run already has that clock, or if nothing
    /// was recorded.
    pub recorded: Option<Recorded>,
}

/// A run at the timestamps of its trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Recorded {
    /// Book cycles of protection.
    pub cycles_per_page: f64,
    /// CPU time of protection, in percent of one core. For one of several devices of a trace, over the whole trace.
    pub cpu_percent: f64,
    /// The longest time from hand-back to completed invalidation.
    pub stale_window_us_max: Option<f64>,
    /// The average time that a buffer waited for the end of its batch.
    pub batch_wait_us_mean: Option<f64>,
}

impl Recorded {
    /// The important numbers of a run that was made at the timestamps of its trace. Its device was at work for this
    /// share of the time of the trace.
    pub(crate) fn of(outcome: &RunOutcome, machine: &Machine, active_share: f64) -> Self {
        let cycles = outcome.cycles_per_page * outcome.pages as f64;
        Self {
            cycles_per_page: outcome.cycles_per_page,
            cpu_percent: active_share * 100.0 * cycles / (outcome.span_us.max(1.0) * 1e-6 * machine.core_hz),
            stale_window_us_max: outcome.stale_window_us_max,
            batch_wait_us_mean: outcome.batch_wait_us_mean,
        }
    }
}

/// How devices go through rings. One entry of each ring is cached, and the one behind it. All numbers except the first
/// and the last count entries that had to be read while a device waited, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RiotlbCounts {
    /// Requests for another entry of a ring than the one before.
    pub switches: u64,
    /// Requests for an entry that does not follow the one before.
    pub out_of_order: u64,
    /// First requests after an invalidation of the ring.
    pub after_invalidation: u64,
    /// Requests for an entry that was not yet mapped when it was read ahead.
    pub mapped_later: u64,
    /// Requests that came before the preceding entry had arrived.
    pub close_behind: u64,
    /// Requests on a ring of which nothing was cached: the first request, or the first since the ring was evicted.
    pub first: u64,
    /// Words of tables read ahead while no device waited. They are not included in `memory_reads_per_page`.
    pub reads_ahead: u64,
}

impl RiotlbCounts {
    /// Entries that had to be read while a device waited, for any reason.
    pub const fn misses(&self) -> u64 {
        let Self { out_of_order, after_invalidation, mapped_later, close_behind, first, .. } = *self;
        out_of_order + after_invalidation + mapped_later + close_behind + first
    }
}

/// What happened to prefetches. Those still in the buffer at the end are counted in `issued` only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PrefetchCounts {
    /// Walks started ahead of a request.
    pub issued: u64,
    /// Pages that had arrived when they were requested.
    pub useful: u64,
    /// Pages that were requested while their walk was in progress.
    pub late: u64,
    /// Pages that were evicted or invalidated before they were requested.
    pub useless: u64,
    /// Walks that found nothing mapped.
    pub unmapped: u64,
}

const PS_PER_US: f64 = 1e6;

/// Makes the run.
///
/// # Errors
/// Returns a [`RunError`] if the protection layer refused something. Nothing of the run is reported then.
pub fn run(job: &Job<'_>) -> Result<RunOutcome, RunError> {
    let measured = measure(job)?;
    Ok(RunOutcome::new(job, &measured))
}

impl RunOutcome {
    pub(crate) fn new(job: &Job<'_>, measured: &Measured) -> Self {
        let machine = job.machine;
        let info = job.design.info();
        let (account, counters) = (&measured.account, &measured.counters);
        let per_page = |count: u64| if measured.pages == 0 { 0.0 } else { count as f64 / measured.pages as f64 };
        let translated = (!info.physical_addresses()).then_some(());
        let mean = |sum: f64, count: u64| (count > 0).then(|| sum / count as f64);
        let kind = job.work.kind(machine);
        let traffic = kind.traffic;
        let needs = Needs::of(machine, traffic, &measured.usage);
        let (most, least) = (needs.most(), needs.least());
        let is_of_one_length = |work: &CoreWork| work.bytes.known().is_some();
        let is_range =
            measured.usage.payload.known().is_none() || !measured.usage.work_by_core.iter().all(is_of_one_length);
        let busy = needs.busy_seconds() * machine.core_hz;
        let percent = |cycles: u64| if busy == 0.0 { 0.0 } else { 100.0 * cycles as f64 / busy };
        let lock_wait = |classes: &[LockClass]| classes.iter().map(|class| account.lock_wait_cycles(*class)).sum();
        // If a single lock covers the allocator and the table, it counts as the allocator's.
        let iova_wait: u64 =
            lock_wait(&[LockClass::IovaAllocator, LockClass::Magazine, LockClass::Depot, LockClass::Domain]);
        let invalidation_wait: u64 = lock_wait(&[LockClass::InvalidationQueue, LockClass::FlushQueue]);
        let other_wait: u64 = lock_wait(&[LockClass::Attachment, LockClass::Table]);
        let invalidations = counters.invalidations_page + counters.invalidations_domain + counters.invalidations_global;
        Self {
            operations: measured.usage.operations,
            pages: measured.pages,
            span_us: measured.span_ps as f64 / PS_PER_US,
            cycles_per_page: per_page(account.cycles()),
            wait_cycles_per_page: per_page(account.hardware_wait_cycles()),
            iova_alloc_cycles_mean: translated
                .and_then(|()| mean(account.phase_cycles(Phase::IovaAllocate) as f64, account.allocations())),
            search_steps_mean: translated.and_then(|()| mean(account.search_steps() as f64, account.allocations())),
            search_steps_max: translated.map(|()| account.search_steps_max()),
            invalidations_per_page: per_page(invalidations),
            waits_per_page: per_page(measured.queue.waits),
            commits_per_wait: mean(measured.queue.commits as f64, measured.queue.waits),
            over_invalidated_pages: measured.over_invalidated_pages,
            iotlb_dropped_live_per_page: per_page(counters.iotlb_dropped_live),
            iotlb_misses_per_page: per_page(counters.iotlb_misses),
            ptcache_l1_misses_per_page: per_page(counters.ptcache_l1_misses),
            ptcache_l2_misses_per_page: per_page(counters.ptcache_l2_misses),
            ptcache_l3_misses_per_page: per_page(counters.ptcache_l3_misses),
            memory_reads_per_page: per_page(counters.memory_reads),
            table_pages_max: measured.table_pages_max as u64,
            table_pages_end: measured.table_pages_end as u64,
            stale_window_us_mean: translated
                .and_then(|()| mean(measured.window_ps_sum as f64 / PS_PER_US, measured.windows)),
            stale_window_us_max: translated.map(|()| measured.window_ps_max as f64 / PS_PER_US),
            bound_us: translated.and(measured.bound_us),
            grace_us: translated.and(measured.bound_us).map(|_| job.grace_ps() as f64 / PS_PER_US),
            stale_window_us_over_time: translated
                .map(|()| measured.oldest_stale_ps.iter().map(|age_ps| *age_ps as f64 / PS_PER_US).collect()),
            stale_window_piece_us: translated.map(|()| measured.piece_ps as f64 / PS_PER_US),
            stale_bytes_us: translated.map(|()| measured.stale_bytes_ps as f64 / PS_PER_US),
            stale_accesses: measured.stale_accesses,
            refused_maps: measured.refused_maps,
            residual_bytes_us: translated.map(|()| measured.residual_bytes_ps as f64 / PS_PER_US),
            faults: measured.faults,
            unexplained_accesses: measured.unexplained_accesses,
            lock_wait_percent: percent(iova_wait + invalidation_wait + other_wait),
            lock_wait_iova_percent: percent(iova_wait),
            lock_wait_invalidation_percent: percent(invalidation_wait),
            achieved_gbps: (measured.span_ps > 0)
                .then(|| measured.usage.payload.max as f64 * 8.0 / measured.span_ps as f64 * 1e3),
            riotlb: info.is_hypothetical().then_some(RiotlbCounts {
                switches: counters.ring_switches,
                out_of_order: counters.ring_out_of_order,
                after_invalidation: counters.ring_after_invalidation,
                mapped_later: counters.ring_mapped_later,
                close_behind: counters.ring_close_behind,
                first: counters.ring_first,
                reads_ahead: counters.prefetch_reads,
            }),
            prefetch: job.prefetching().prefetcher.and(translated).map(|()| PrefetchCounts {
                issued: counters.prefetches_issued,
                useful: counters.prefetches_useful,
                late: counters.prefetches_late,
                useless: counters.prefetches_useless,
                unmapped: counters.prefetches_unmapped,
            }),
            batch_buffers_mean: mean(measured.batches.buffers as f64, measured.batches.commits),
            batch_buffers_max: (measured.batches.commits > 0).then_some(measured.batches.buffers_max),
            batch_wait_us_mean: mean(measured.batches.wait_ps_sum as f64 / PS_PER_US, measured.batches.buffers),
            batch_wait_us_max: (measured.batches.commits > 0).then(|| measured.batches.wait_ps_max as f64 / PS_PER_US),
            traffic,
            payload_bytes_min: needs.payload_bytes_min(),
            payload_bytes_max: measured.usage.payload.max,
            cpu_gbps: needs.cpu_gbps(),
            pcie_gbps: needs.bus_gbps(),
            unprotected_gbps: needs.unprotected_gbps(),
            estimate_gbps: most.gbps,
            estimate_gbps_min: is_range.then_some(least.gbps),
            estimate_operations_per_second: most.operations_per_second,
            estimate_cpu_percent: if most.seconds > 0.0 {
                100.0 * account.cycles() as f64 / machine.core_hz / most.seconds
            } else {
                0.0
            },
            limit: most.limit,
            limit_min: is_range.then_some(least.limit),
            estimate_vs_none: most.share,
            estimate_vs_none_min: is_range.then_some(least.share),
            estimate_vs_none_range: Needs::shares(machine, kind, &measured.usage),
            share_of_shortest: Needs::share_of_shortest(machine, kind, &measured.usage),
            unpriced: !job.design.is_listed()
                && translated.is_some()
                && account.maps() > 0
                && account.address_steps() == 0,
            recorded: None,
        }
    }
}
