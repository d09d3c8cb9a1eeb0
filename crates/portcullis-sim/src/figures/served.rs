//! A run of a server for a figure, as plain data, and its numbers.
//!
//! Figures that need the same run share it. A run can be made anywhere: its description holds everything that it
//! depends on, and its numbers can be written and read back exactly.

use super::number_or_null;
use crate::account::Account;
use crate::machine::Machine;
use crate::run::{LabDesign, ServerWork, ServerWorkload};
use crate::simulate::{Simulate, Simulation};
use portcullis::Protection;
use portcullis::platform::Phase;
use serde::{Deserialize, Serialize};

/// A run to make.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedRun {
    /// The machine.
    pub machine: String,
    /// The application, in the form of the command line.
    pub workload: String,
    /// The design, in the form of the command line.
    pub design: String,
    /// The name of the protection.
    pub protection: String,
    /// Whether walks snoop the caches. `None` stands for what the machine does.
    pub coherent: Option<bool>,
    /// CPUs that serve.
    pub cores: u32,
    /// Flows, or clients.
    pub flows: u32,
    /// Entries of each ring. `None` stands for the default of the driver.
    pub ring: Option<u32>,
    /// The largest batch. `None` stands for the default of the design.
    pub batch: Option<usize>,
    /// The seed.
    pub seed: u64,
    /// Runs since the card was opened. `None` stands for the default of the application.
    pub earlier_runs: Option<u32>,
    /// How long it is.
    pub length: Length,
    /// Whether invalidations come without the hint that only leaves have changed.
    #[serde(default)]
    pub no_hint: bool,
    /// Whether the invalidation queue is used as Linux does.
    #[serde(default)]
    pub linux_wait: bool,
    /// Whether the driver of the card commits in two halves.
    #[serde(default)]
    pub halves: bool,
    /// If so many commits share a submission, one command may replace theirs; `None`: never.
    #[serde(default)]
    pub merge_min: Option<u8>,
    /// Whether the software of the protection layer costs nothing.
    #[serde(default)]
    pub zero_costs: bool,
    /// Values of the machine that are set for this run, each with its name.
    #[serde(default)]
    pub set: Vec<(String, String)>,
}

/// How long the runs of figures are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// Half of what `simulate` makes; for requests of Apache and Memcached, after half of the earlier runs.
    Short,
    /// Five times what `simulate` makes, after as many earlier runs.
    Full,
}

/// The numbers of a run. A number that does not apply is not a number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Gb/s of payload for a stream, and thousands of requests per second for other applications.
    #[serde(with = "number_or_null")]
    pub rate: f64,
    /// The mean latency of a request, in microseconds.
    #[serde(with = "number_or_null")]
    pub latency_us: f64,
    /// The CPU time of the cores that serve, in percent.
    #[serde(with = "number_or_null")]
    pub cpu_percent: f64,
    /// Cycles per full packet.
    #[serde(with = "number_or_null")]
    pub packet: f64,
    /// Steps per search for an address.
    #[serde(with = "number_or_null")]
    pub search: f64,
    /// The most steps of a search.
    #[serde(with = "number_or_null")]
    pub search_max: f64,
    /// Cycles per map.
    pub map: MapCycles,
    /// Cycles per unmap.
    pub unmap: UnmapCycles,
    /// The lists of free addresses.
    pub lists: ListNumbers,
    /// The card and the streams that it receives.
    #[serde(default)]
    pub stream: StreamNumbers,
    /// What CPUs share.
    #[serde(default)]
    pub shared: SharedNumbers,
    /// Calls beside streams.
    #[serde(default)]
    pub calls: CallNumbers,
}

/// The latencies of calls, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallNumbers {
    /// The median.
    #[serde(with = "number_or_null")]
    pub p50_us: f64,
    /// The 90th percentile.
    #[serde(with = "number_or_null")]
    pub p90_us: f64,
    /// The 99th percentile.
    #[serde(with = "number_or_null")]
    pub p99_us: f64,
    /// The 99.9th percentile.
    #[serde(with = "number_or_null")]
    pub p999_us: f64,
    /// The 99.99th percentile.
    #[serde(with = "number_or_null")]
    pub p9999_us: f64,
}

impl CallNumbers {
    const UNKNOWN: Self = {
        const NAN: f64 = f64::NAN;
        Self { p50_us: NAN, p90_us: NAN, p99_us: NAN, p999_us: NAN, p9999_us: NAN }
    };

    /// All of them, the median first.
    pub fn percentiles_us(&self) -> [f64; 5] {
        [self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.p9999_us]
    }
}

impl Default for CallNumbers {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// What CPUs wait for, in percent of all their cycles, and the tables.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedNumbers {
    /// The locks of the IOVA allocator.
    #[serde(with = "number_or_null")]
    pub iova_lock_percent: f64,
    /// The locks of invalidations and of queues of unmaps.
    #[serde(with = "number_or_null")]
    pub invalidation_lock_percent: f64,
    /// The hardware.
    #[serde(with = "number_or_null")]
    pub hardware_percent: f64,
    /// The tables: writing and clearing entries, without waits.
    #[serde(with = "number_or_null")]
    pub table_percent: f64,
    /// All of protection.
    #[serde(with = "number_or_null")]
    pub protection_percent: f64,
    /// For how much of the time the unit has performed commands and waits, one after the other.
    #[serde(default, with = "number_or_null")]
    pub unit_percent: f64,
    /// Pages of tables at the end.
    #[serde(with = "number_or_null")]
    pub table_pages: f64,
}

impl SharedNumbers {
    const UNKNOWN: Self = {
        const NAN: f64 = f64::NAN;
        Self {
            iova_lock_percent: NAN,
            invalidation_lock_percent: NAN,
            hardware_percent: NAN,
            table_percent: NAN,
            protection_percent: NAN,
            unit_percent: NAN,
            table_pages: NAN,
        }
    };
}

impl Default for SharedNumbers {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// What a card looks up, and how streams go that may lose packets. A page is one that an application has read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamNumbers {
    /// Misses of the IOTLB per page.
    #[serde(with = "number_or_null")]
    pub iotlb: f64,
    /// Misses of PTcache-L1 per page.
    #[serde(with = "number_or_null")]
    pub l1: f64,
    /// Misses of PTcache-L2 per page.
    #[serde(with = "number_or_null")]
    pub l2: f64,
    /// Misses of PTcache-L3 per page.
    #[serde(with = "number_or_null")]
    pub l3: f64,
    /// Packets that the clients sent again, in percent of all.
    #[serde(with = "number_or_null")]
    pub retransmit_percent: f64,
    /// Packets that the server sent, per page.
    #[serde(with = "number_or_null")]
    pub acknowledgements: f64,
    /// Pages that the driver could not keep mapped, in percent.
    #[serde(with = "number_or_null")]
    pub unmapped_percent: f64,
    /// Other regions of 2 MiB between two uses of the same one.
    #[serde(with = "number_or_null")]
    pub reuse_distance: f64,
    /// Gb/s of payload that the server receives and sends, if it sends streams.
    #[serde(with = "number_or_null")]
    pub receive_gbps: f64,
    /// See `receive_gbps`.
    #[serde(with = "number_or_null")]
    pub transmit_gbps: f64,
}

impl StreamNumbers {
    const UNKNOWN: Self = {
        const NAN: f64 = f64::NAN;
        Self {
            iotlb: NAN,
            l1: NAN,
            l2: NAN,
            l3: NAN,
            retransmit_percent: NAN,
            acknowledgements: NAN,
            unmapped_percent: NAN,
            reuse_distance: NAN,
            receive_gbps: NAN,
            transmit_gbps: NAN,
        }
    };
}

impl Default for StreamNumbers {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// The parts of a map.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapCycles {
    /// Taking an address.
    #[serde(with = "number_or_null")]
    pub allocate: f64,
    /// Writing the table.
    #[serde(with = "number_or_null")]
    pub table: f64,
    /// The rest.
    #[serde(with = "number_or_null")]
    pub other: f64,
}

/// The parts of an unmap.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnmapCycles {
    /// Finding the address.
    #[serde(with = "number_or_null")]
    pub find: f64,
    /// Giving the address back.
    #[serde(with = "number_or_null")]
    pub free: f64,
    /// Clearing the table.
    #[serde(with = "number_or_null")]
    pub table: f64,
    /// Invalidating, and waiting for it, but not queueing.
    #[serde(with = "number_or_null")]
    pub invalidate: f64,
    /// The rest.
    #[serde(with = "number_or_null")]
    pub other: f64,
}

/// The lists of free addresses.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListNumbers {
    /// The share of allocations that they satisfied.
    #[serde(with = "number_or_null")]
    pub satisfied: f64,
    /// Their average length.
    #[serde(with = "number_or_null")]
    pub mean: f64,
    /// Their greatest length.
    #[serde(with = "number_or_null")]
    pub longest: f64,
}

impl MapCycles {
    /// All of it.
    pub fn sum(&self) -> f64 {
        self.allocate + self.table + self.other
    }
}

impl UnmapCycles {
    /// All of it.
    pub fn sum(&self) -> f64 {
        self.find + self.free + self.table + self.invalidate + self.other
    }
}

impl ServedRun {
    /// A few words for a progress bar.
    pub(super) fn label(&self) -> String {
        let Self { machine, workload, design, protection, .. } = self;
        format!("{machine} {workload} {design} {protection}")
    }

    /// Makes the run. Fails with a message if the machine, the workload and the design do not fit together, or if the
    /// run ends early.
    pub(super) fn make(&self) -> Result<Numbers, String> {
        let mut machine = Machine::by_id(&self.machine).ok_or_else(|| format!("no machine `{}`", self.machine))?;
        machine.iommu.coherent = self.coherent.unwrap_or(machine.iommu.coherent);
        for (key, value) in &self.set {
            machine.set(key, value).map_err(|error| error.to_string())?;
        }
        machine.check().map_err(|error| error.to_string())?;
        if self.zero_costs {
            machine = machine.with_free_software();
        }
        let work = ServerWork::new(&machine, &self.workload, Some(self.cores), Some(self.flows), self.ring);
        let mut work = work.map_err(|error| error.to_string())?;
        match self.length {
            // Timeouts last for 200 ms, so a shorter run would have none.
            Length::Short if work.workload.loses_packets() => {}
            Length::Short => {
                (work.warm_up, work.measured) = (work.warm_up / 2, work.measured / 2);
                // The earlier runs of Netperf are short. All of those of the others would take most of the time.
                if !matches!(work.workload, ServerWorkload::NetperfStream | ServerWorkload::NetperfRr) {
                    work.earlier_runs /= 2;
                }
            }
            Length::Full => (work.warm_up, work.measured) = (5 * work.warm_up, 5 * work.measured),
        }
        work.earlier_runs = self.earlier_runs.unwrap_or(work.earlier_runs);
        work.halves = self.halves;
        let choice = LabDesign::choice(&self.design).map_err(|error| error.to_string())?;
        let protection = [Protection::None, Protection::Strict, Protection::Deferred];
        let protection = protection.into_iter().find(|one| one.name() == self.protection);
        let protection = protection.ok_or_else(|| format!("no protection `{}`", self.protection))?;
        let mut simulate = Simulate::new(&machine, work, choice, protection).map_err(|error| error.to_string())?;
        (simulate.batch, simulate.seed, simulate.leaf_only_hint) = (self.batch, self.seed, !self.no_hint);
        (simulate.linux_wait, simulate.merge_min) = (self.linux_wait, self.merge_min);
        let (simulation, account, busy) = simulate.alone().map_err(|error| error.to_string())?;
        match simulation.outcome.faults {
            0 => Ok(Numbers::new(&machine, &simulation, &account, busy)),
            faults => Err(format!("{faults} accesses of the card were refused")),
        }
    }
}

impl Numbers {
    /// What is known of a run that was not made.
    pub(super) const UNKNOWN: Self = {
        const NAN: f64 = f64::NAN;
        Self {
            rate: NAN,
            latency_us: NAN,
            cpu_percent: NAN,
            packet: NAN,
            search: NAN,
            search_max: NAN,
            map: MapCycles { allocate: NAN, table: NAN, other: NAN },
            unmap: UnmapCycles { find: NAN, free: NAN, table: NAN, invalidate: NAN, other: NAN },
            lists: ListNumbers { satisfied: NAN, mean: NAN, longest: NAN },
            stream: StreamNumbers::UNKNOWN,
            shared: SharedNumbers::UNKNOWN,
            calls: CallNumbers::UNKNOWN,
        }
    };

    fn new(machine: &Machine, simulation: &Simulation, account: &Account, busy_cycles: u64) -> Self {
        let outcome = &simulation.outcome;
        let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
        let (maps, unmaps, lists) = (account.maps() as f64, account.unmaps() as f64, account.lists());
        let of_unmaps = |phase| (account.phase_cycles(phase) - account.map_cycles(phase)) as f64 / unmaps;
        // The layer queues a deferred unmap in the phase of invalidations. The papers count it among the rest.
        let queueing = account.queued() as f64 / unmaps * (machine.costs.flush_queue_push + machine.costs.lock) as f64;
        let of_maps = |phase| account.map_cycles(phase) as f64 / maps;
        let unit_ps = outcome.invalidations_per_page * machine.iommu.invalidation_ps as f64
            + outcome.waits_per_page * machine.iommu.wait_ps as f64;
        let percent = |cycles: u64| 100.0 * cycles as f64 / (account.cycles() + busy_cycles).max(1) as f64;
        Self {
            rate: known(simulation.throughput_gbps.or(simulation.transactions_per_second.map(|rate| rate / 1e3))),
            latency_us: known(simulation.latency_us_mean),
            cpu_percent: simulation.cpu_percent,
            packet: known(simulation.cycles_per_packet),
            search: known(outcome.search_steps_mean),
            search_max: known(outcome.search_steps_max.map(|steps| steps as f64)),
            // Only a map allocates, and only unmaps do what has a phase of its own below. A timer may do that too.
            map: MapCycles {
                allocate: account.phase_cycles(Phase::IovaAllocate) as f64 / maps,
                table: of_maps(Phase::Table),
                other: of_maps(Phase::Other),
            },
            unmap: UnmapCycles {
                find: account.phase_cycles(Phase::IovaFind) as f64 / unmaps,
                free: account.phase_cycles(Phase::IovaFree) as f64 / unmaps,
                table: of_unmaps(Phase::Table),
                invalidate: account.phase_cycles(Phase::Invalidate) as f64 / unmaps - queueing,
                other: of_unmaps(Phase::Other) + queueing,
            },
            lists: ListNumbers { satisfied: lists.satisfied(), mean: lists.mean(), longest: lists.longest() as f64 },
            stream: StreamNumbers {
                iotlb: outcome.iotlb_misses_per_page,
                l1: outcome.ptcache_l1_misses_per_page,
                l2: outcome.ptcache_l2_misses_per_page,
                l3: outcome.ptcache_l3_misses_per_page,
                retransmit_percent: known(simulation.retransmit_percent),
                acknowledgements: known(simulation.acknowledgements_per_page),
                unmapped_percent: known(simulation.unmapped_percent),
                reuse_distance: known(simulation.reuse_distance_mean),
                receive_gbps: known(simulation.receive_gbps),
                transmit_gbps: known(simulation.transmit_gbps),
            },
            shared: SharedNumbers {
                iova_lock_percent: outcome.lock_wait_iova_percent,
                invalidation_lock_percent: outcome.lock_wait_invalidation_percent,
                hardware_percent: percent(account.hardware_wait_cycles()),
                table_percent: percent(account.phase_cycles(Phase::Table)),
                protection_percent: percent(account.cycles()),
                unit_percent: 100.0 * unit_ps * outcome.pages as f64 / (outcome.span_us * 1e6),
                table_pages: outcome.table_pages_end as f64,
            },
            calls: CallNumbers {
                p50_us: known(simulation.latency_us_p50),
                p90_us: known(simulation.latency_us_p90),
                p99_us: known(simulation.latency_us_p99),
                p999_us: known(simulation.latency_us_p999),
                p9999_us: known(simulation.latency_us_p9999),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(workload: &str, design: &str) -> ServedRun {
        ServedRun {
            machine: "r210-bcm57810".to_owned(),
            workload: workload.to_owned(),
            design: design.to_owned(),
            protection: "strict".to_owned(),
            coherent: None,
            cores: 1,
            flows: 1,
            ring: None,
            batch: None,
            seed: 1,
            earlier_runs: Some(0),
            length: Length::Short,
            no_hint: false,
            linux_wait: false,
            halves: false,
            merge_min: None,
            zero_costs: false,
            set: Vec::new(),
        }
    }

    #[test]
    fn a_run_and_its_numbers_are_read_back_exactly() {
        // Buffers that cross pages would take more steps.
        let set = vec![("fragment_bytes".to_owned(), "0".to_owned())];
        let run = ServedRun { set, ..run("netperf-stream", "eiovar:k=512") };
        let numbers = run.make().expect("a run");
        assert!(numbers.latency_us.is_nan() && numbers.search == 0.0, "{numbers:?}");
        // The steps of the cost book.
        assert_eq!((numbers.map.table, numbers.map.other, numbers.unmap.table), (588.0, 44.0, 438.0));
        assert!(numbers.unmap.invalidate > 2000.0 && numbers.unmap.other == 26.0, "{numbers:?}");
        assert!(numbers.lists.satisfied > 0.99 && (1.0..=512.0).contains(&numbers.lists.longest), "{numbers:?}");

        let text = serde_json::to_string(&(&run, &numbers)).expect("JSON");
        let (run_again, numbers_again): (ServedRun, Numbers) = serde_json::from_str(&text).expect("what was written");
        assert_eq!((run_again, format!("{numbers_again:?}")), (run, format!("{numbers:?}")));
        assert_eq!(serde_json::to_string(&numbers_again).ok(), serde_json::to_string(&numbers).ok());
    }

    #[test]
    fn queueing_is_not_invalidating() {
        let numbers = ServedRun { protection: "deferred".to_owned(), ..run("netperf-stream", "eiovar") }.make();
        let unmap = numbers.expect("a run").unmap;
        assert!(unmap.invalidate < 50.0 && (205.0..=300.0).contains(&unmap.other), "{unmap:?}");
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        let said = |run: ServedRun| run.make().expect_err("not a run");
        assert!(said(run("netperf-nothing", "stock")).contains("`netperf-nothing`"));
        assert!(said(run("netperf-stream", "stick")).contains("`stick`"));
        assert!(said(ServedRun { machine: "pdp-11".to_owned(), ..run("netperf-rr", "stock") }).contains("`pdp-11`"));
        assert!(said(ServedRun { protection: "lax".to_owned(), ..run("netperf-rr", "stock") }).contains("`lax`"));
        assert!(
            said(ServedRun { protection: "deferred".to_owned(), ..run("netperf-rr", "freebsd") }).contains("freebsd")
        );
    }
}
