//! A simulated run of a server, compared with the same run with no protection.

use crate::account::Account;
use crate::machine::Machine;
use crate::outcome::RunOutcome;
use crate::run::{Choice, Job, LabDesign, Measured, RunError, ServerWork, Work, measure};
use portcullis::Protection;
use portcullis::mapper::Options;
use portcullis::platform::LockClass;
use portcullis_designs::DesignId;
use portcullis_vtd::Discipline;
use serde::{Serialize, Serializer};
use serde_json::Value;
use thiserror::Error;

/// Keys of a row of `compare` for which a simulation has no value, because it has no observers.
const NOT_WATCHED: &[&str] = &[
    "over_invalidated_pages",
    "stale_window_us_mean",
    "stale_window_us_max",
    "stale_window_us_over_time",
    "stale_window_piece_us",
    "stale_bytes_us",
    "residual_bytes_us",
    "achieved_gbps",
];
/// Keys about bytes, which have no value if the workload has requests.
const OF_BYTES: &[&str] = &[
    "payload_bytes_min",
    "payload_bytes_max",
    "cpu_gbps",
    "pcie_gbps",
    "unprotected_gbps",
    "estimate_gbps",
    "estimate_operations_per_second",
    "estimate_cpu_percent",
    "limit",
    "estimate_vs_none",
    "estimate_vs_none_range",
];

/// A design does not offer a protection.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the design `{design}` does not offer the protection `{wanted}`; it offers {offered}")]
pub struct NotOffered {
    /// The design.
    pub design: &'static str,
    /// The requested protection.
    pub wanted: Protection,
    /// The protections that it offers, separated by commas.
    pub offered: String,
}

/// A run to make.
pub struct Simulate<'m> {
    machine: &'m Machine,
    work: ServerWork,
    choice: Choice,
    protection: Protection,
    /// The largest batch of unmaps under one commit. `None` stands for that of the design.
    pub batch: Option<usize>,
    /// The seed of the clients.
    pub seed: u64,
    /// Whether page-selective invalidations carry the hint that only leaves have changed, if that is true.
    pub leaf_only_hint: bool,
    /// If so many commits share a submission, one command may replace theirs; `None`: never.
    pub merge_min: Option<u8>,
    /// Whether the invalidation queue is used as Linux does.
    pub linux_wait: bool,
}

/// The results of a run. The field names are JSON keys. The keys of a row of `compare` follow them.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The rate of payload at the server, in both directions together. `None` if the workload has requests.
    pub throughput_gbps: Option<f64>,
    /// The part of it that the server receives, and the part that it sends. `None` if it sends no streams.
    pub receive_gbps: Option<f64>,
    /// See `receive_gbps`.
    pub transmit_gbps: Option<f64>,
    /// The rate as a share of the rate with no protection.
    pub throughput_vs_none: f64,
    /// The rate of requests. `None` if the workload has none.
    pub transactions_per_second: Option<f64>,
    /// The mean latency of a request, or of a group of requests that is sent at once.
    pub latency_us_mean: Option<f64>,
    /// The median of the latency. `None` if fewer than twenty latencies are longer, as with the other percentiles. The
    /// 99th is always given.
    pub latency_us_p50: Option<f64>,
    /// The 90th percentile.
    pub latency_us_p90: Option<f64>,
    /// The 99th percentile of the latency.
    pub latency_us_p99: Option<f64>,
    /// The 99.9th percentile.
    pub latency_us_p999: Option<f64>,
    /// The 99.99th percentile.
    pub latency_us_p9999: Option<f64>,
    /// The CPU time of the cores that serve, including protection.
    pub cpu_percent: f64,
    /// The share of arriving frames that the server's card dropped.
    pub drop_percent: Option<f64>,
    /// CPU cycles per full packet, including protection.
    pub cycles_per_packet: Option<f64>,
    /// Packets that the clients sent again, of all that they sent. `None` if packets have no numbers.
    pub retransmit_percent: Option<f64>,
    /// Packets that the server received before one with a smaller number.
    pub out_of_order_percent: Option<f64>,
    /// Packets that the server had received before.
    pub duplicate_percent: Option<f64>,
    /// Packets that the server sent, per packet that its applications read.
    pub acknowledgements_per_page: Option<f64>,
    /// Receive buffers that the driver took from its own released pages, which were still mapped. `None` with batches,
    /// where it keeps none.
    pub recycled_percent: Option<f64>,
    /// Pages that the driver unmapped, of those that applications read. With a cache of pages: because it was full.
    pub unmapped_percent: Option<f64>,
    /// The mean number of other regions of 2 MiB that the card writes to between two writes to the same one.
    pub reuse_distance_mean: Option<f64>,
    /// The costs of protection.
    pub outcome: RunOutcome,
}

impl Serialize for Simulation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serde_json::Map::new();
        let own = [
            ("throughput_gbps", self.throughput_gbps),
            ("receive_gbps", self.receive_gbps),
            ("transmit_gbps", self.transmit_gbps),
            ("throughput_vs_none", Some(self.throughput_vs_none)),
            ("transactions_per_second", self.transactions_per_second),
            ("latency_us_mean", self.latency_us_mean),
            ("latency_us_p50", self.latency_us_p50),
            ("latency_us_p90", self.latency_us_p90),
            ("latency_us_p99", self.latency_us_p99),
            ("latency_us_p999", self.latency_us_p999),
            ("latency_us_p9999", self.latency_us_p9999),
            ("cpu_percent", Some(self.cpu_percent)),
            ("drop_percent", self.drop_percent),
            ("cycles_per_packet", self.cycles_per_packet),
            ("retransmit_percent", self.retransmit_percent),
            ("out_of_order_percent", self.out_of_order_percent),
            ("duplicate_percent", self.duplicate_percent),
            ("acknowledgements_per_page", self.acknowledgements_per_page),
            ("recycled_percent", self.recycled_percent),
            ("unmapped_percent", self.unmapped_percent),
            ("reuse_distance_mean", self.reuse_distance_mean),
        ];
        row.extend(own.map(|(key, value)| (key.to_owned(), value.into())));
        if let Value::Object(outcome) = serde_json::to_value(&self.outcome).map_err(serde::ser::Error::custom)? {
            row.extend(outcome);
        }
        let of_bytes = if self.throughput_gbps.is_none() { OF_BYTES } else { &[] };
        NOT_WATCHED.iter().chain(of_bytes).for_each(|key| drop(row.insert((*key).to_owned(), Value::Null)));
        row.serialize(serializer)
    }
}

impl<'m> Simulate<'m> {
    /// The run of `work`, which was made for `machine`, under a design and a protection.
    ///
    /// # Errors
    /// [`NotOffered`].
    pub fn new(
        machine: &'m Machine,
        work: ServerWork,
        choice: Choice,
        protection: Protection,
    ) -> Result<Self, NotOffered> {
        let info = choice.design.info();
        if !info.protections.contains(&protection) {
            let offered: Vec<&str> = info.protections.iter().map(|one| one.name()).collect();
            return Err(NotOffered { design: info.id, wanted: protection, offered: offered.join(", ") });
        }
        let (batch, merge_min, linux_wait) = (None, None, false);
        Ok(Self { machine, work, choice, protection, batch, seed: 1, leaf_only_hint: true, merge_min, linux_wait })
    }

    /// The largest batch of the run.
    pub fn batch(&self) -> usize {
        self.batch.unwrap_or(self.choice.design.info().batch_default)
    }

    fn job(&self, design: LabDesign, options: Options, protection: Protection) -> Job<'m> {
        let batch = self.batch();
        let Self { seed, leaf_only_hint, merge_min, linux_wait, .. } = *self;
        let discipline = if linux_wait { Discipline::Linux } else { Discipline::Combining };
        let job = Job::new(self.machine, Work::Server(self.work.clone()), design, protection);
        Job { options, batch, seed, leaf_only_hint, merge_min, discipline, ..job }
    }

    /// Makes the run without the one with no protection, so `throughput_vs_none` is not a number.
    /// Also returns the costs, and the cycles of the CPUs apart from them.
    pub(crate) fn alone(&self) -> Result<(Simulation, Account, u64), RunError> {
        let job = self.job(self.choice.design, self.choice.options, self.protection);
        let measured = measure(&job)?;
        let busy = measured.served.as_ref().map_or(0, |served| served.busy_cycles);
        Ok((self.result(&job, &measured, f64::NAN), measured.account, busy))
    }

    /// Makes the run, after the one with no protection. `progress` is called before each.
    ///
    /// # Errors
    /// A [`RunError`].
    pub fn run(&self, mut progress: impl FnMut(&str)) -> Result<Simulation, RunError> {
        progress("none");
        let none = self.job(DesignId::Unprotected.into(), Options::NONE, Protection::None);
        let unprotected = measure(&none)?;
        let Choice { design, options } = self.choice;
        if design == DesignId::Unprotected.into() {
            return Ok(self.result(&none, &unprotected, 1.0));
        }
        progress(design.info().id);
        let job = self.job(design, options, self.protection);
        let measured = measure(&job)?;
        Ok(self.result(&job, &measured, Self::rate(&measured) / Self::rate(&unprotected)))
    }

    /// Makes only the run itself. Returns how many frames the server has received from the start.
    ///
    /// # Errors
    /// A [`RunError`].
    pub fn received(&self) -> Result<u64, RunError> {
        let Choice { design, options } = self.choice;
        let measured = measure(&self.job(design, options, self.protection))?;
        Ok(measured.served.map_or(0, |served| served.received_in_all))
    }

    /// Packets or requests per second.
    fn rate(measured: &Measured) -> f64 {
        let done = measured.served.as_ref().map_or(0.0, |served| match served.packets {
            0 => served.transactions,
            packets => packets as f64,
        });
        done * 1e12 / measured.span_ps.max(1) as f64
    }

    fn result(&self, job: &Job<'_>, measured: &Measured, throughput_vs_none: f64) -> Simulation {
        let served = measured.served.clone().unwrap_or_default();
        let (account, seconds) = (&measured.account, measured.span_ps.max(1) as f64 / 1e12);
        let cycles = served.busy_cycles + account.cycles();
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let wait =
            |classes: &[LockClass]| -> u64 { classes.iter().map(|class| account.lock_wait_cycles(*class)).sum() };
        let iova = wait(&[LockClass::IovaAllocator, LockClass::Magazine, LockClass::Depot, LockClass::Domain]);
        let invalidation = wait(&[LockClass::InvalidationQueue, LockClass::FlushQueue]);
        let other = wait(&[LockClass::Attachment, LockClass::Table]);
        let outcome = RunOutcome {
            lock_wait_percent: percent(iova + invalidation + other, cycles),
            lock_wait_iova_percent: percent(iova, cycles),
            lock_wait_invalidation_percent: percent(invalidation, cycles),
            ..RunOutcome::new(job, measured)
        };
        let streams = self.work.workload.has_streams();
        let latencies = &served.latencies_ps;
        let latency_us = |at: usize| latencies.get(at).map(|latency_ps| *latency_ps as f64 / 1e6);
        let sum_ps: u64 = latencies.iter().sum();
        let arrived = served.received + served.dropped;
        let throughput_gbps = streams.then(|| served.payload_bytes as f64 * 8.0 / seconds / 1e9);
        let part_gbps = |packets: u64| throughput_gbps.map(|gbps| gbps * packets as f64 / served.packets.max(1) as f64);
        Simulation {
            throughput_gbps,
            receive_gbps: served.packets_sent.and_then(|sent| part_gbps(served.packets - sent)),
            transmit_gbps: served.packets_sent.and_then(part_gbps),
            throughput_vs_none,
            transactions_per_second: (!streams || served.transactions > 0.0).then(|| served.transactions / seconds),
            latency_us_mean: (!latencies.is_empty()).then(|| sum_ps as f64 / 1e6 / latencies.len() as f64),
            latency_us_p50: percentile(latencies, 5_000),
            latency_us_p90: percentile(latencies, 9_000),
            latency_us_p99: latency_us(rank(latencies.len(), 9_900)),
            latency_us_p999: percentile(latencies, 9_990),
            latency_us_p9999: percentile(latencies, 9_999),
            cpu_percent: 100.0 * cycles as f64 / (seconds * self.machine.core_hz * f64::from(self.work.cores)),
            drop_percent: (arrived > 0).then(|| percent(served.dropped, arrived)),
            cycles_per_packet: (served.packets > 0).then(|| cycles as f64 / served.packets as f64),
            retransmit_percent: served.stream.map(|stream| percent(stream.sent_again, stream.sent)),
            out_of_order_percent: served.stream.map(|stream| percent(stream.out_of_order, served.received)),
            duplicate_percent: served.stream.map(|stream| percent(stream.duplicates, served.received)),
            acknowledgements_per_page: served
                .stream
                .map(|stream| stream.acknowledgements as f64 / outcome.pages.max(1) as f64),
            recycled_percent: served.stream.and_then(|stream| {
                let taken = stream.pages_recycled + stream.pages_fresh;
                (taken > 0).then(|| percent(stream.pages_recycled, taken))
            }),
            unmapped_percent: served.stream.map(|stream| percent(stream.pages_not_kept, outcome.pages)),
            reuse_distance_mean: served.stream.and_then(|stream| stream.reuse_distance),
            outcome,
        }
    }
}

/// The place of a percentile, in hundredths of a percent, among so many sorted latencies.
fn rank(latencies: usize, hundredths: usize) -> usize {
    (latencies * hundredths).div_ceil(10_000).saturating_sub(1)
}

/// A percentile of sorted latencies in picoseconds, in microseconds, if at least twenty are longer.
fn percentile(latencies_ps: &[u64], hundredths: usize) -> Option<f64> {
    const LONGER_MIN: usize = 20;
    let at = rank(latencies_ps.len(), hundredths);
    let is_known = at + LONGER_MIN < latencies_ps.len();
    is_known.then(|| latencies_ps[at] as f64 / 1e6)
}
