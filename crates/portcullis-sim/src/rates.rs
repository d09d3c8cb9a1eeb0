//! Estimates of the rates that a run's work would reach on its machine at full speed.
//!
//! Each resource needs some time for the work: the CPUs, the bus, the link or the disks, and what all CPUs share: the
//! unit's invalidation queue, and the locks. The longest time is the limit. The CPUs of the run share the work as in
//! the capture, so the busiest CPU is full first. A machine with fewer cores spreads all work evenly over its cores.

use crate::machine::Machine;
use crate::share;
use crate::traffic::{Kind, Payload, Traffic};
use serde::Serialize;

/// The resource that limits the estimate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The CPUs.
    Cpu,
    /// The bounded number of bytes in flight on the bus.
    Pcie,
    /// The unit's invalidation queue, which executes one descriptor after the other.
    Queue,
    /// A lock of the protection layer, which one CPU holds at a time.
    Lock,
    /// The machine's link.
    #[default]
    Link,
    /// The machine's disks.
    Disk,
}

impl Limit {
    /// The word for it in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Pcie => "pcie",
            Self::Queue => "queue",
            Self::Lock => "lock",
            Self::Link => "link",
            Self::Disk => "disk",
        }
    }
}

/// The work that a core has mapped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreWork {
    /// The requests to a disk. There are more than maps if buffers are used again while they stay mapped.
    pub(crate) requests: f64,
    /// The bytes of its buffers.
    pub(crate) bytes: Payload,
}

/// The use that a run made of each resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) operations: u64,
    /// How many bytes of the buffers the device moved.
    pub(crate) payload: Payload,
    /// The work that each core mapped, and the cycles of protection charged to it.
    pub(crate) work_by_core: Vec<CoreWork>,
    pub(crate) cycles_by_core: Vec<u64>,
    pub(crate) transactions: u64,
    /// The number of transactions if buffers are as empty as they may be.
    pub(crate) transactions_min: u64,
    /// Transactions that were not made, because their pages were used before. Each is taken to last as long as the
    /// others.
    pub(crate) transactions_again: u64,
    pub(crate) latency_ps_sum: u128,
    /// For how long the invalidation queue executed descriptors.
    pub(crate) queue_ps: u64,
    /// For how long cores held the lock that was held longest.
    pub(crate) lock_ps: u64,
    /// Whether only pages were captured, so that lengths are a range.
    pub(crate) is_of_pages: bool,
}

impl Usage {
    /// The same with shortest buffers that are longer: by this part of the way to the longest ones.
    fn with_longer(&self, part: f64) -> Self {
        let between = |min: u64, max: u64| min + (max.saturating_sub(min) as f64 * part) as u64;
        let longer = |bytes: Payload| Payload { min: between(bytes.min, bytes.max), max: bytes.max };
        Self {
            payload: longer(self.payload),
            work_by_core: self
                .work_by_core
                .iter()
                .map(|work| CoreWork { bytes: longer(work.bytes), ..*work })
                .collect(),
            transactions_min: between(self.transactions_min, self.transactions),
            ..self.clone()
        }
    }
}

/// The time in seconds that each resource needs for all work of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Needs {
    /// The time of the CPUs: if buffers are as long as they may be, and if they are as short.
    cpu: f64,
    cpu_min: f64,
    /// The sum over all cores.
    busy: f64,
    /// The time of the CPUs without protection, for the same two cases.
    cpu_unprotected: f64,
    cpu_unprotected_min: f64,
    /// The time that the bus needs, because bytes in flight wait for translations: if all buffers are full, and if
    /// they are as empty as they may be.
    bus: f64,
    bus_min: f64,
    queue: f64,
    lock: f64,
    /// The time that the link or the disks need, for the same two cases.
    device: f64,
    device_min: f64,
    bits: f64,
    bits_min: f64,
    operations: f64,
    traffic: Traffic,
}

/// The rates that the work reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reached {
    pub(crate) seconds: f64,
    pub(crate) gbps: f64,
    pub(crate) operations_per_second: f64,
    pub(crate) limit: Limit,
    /// The share of the unprotected rate.
    pub(crate) share: f64,
}

/// Keeps rounding from turning an exactly full resource into the limit.
const NEARLY: f64 = 1.0 - 1e-9;

impl Needs {
    pub(crate) fn of(machine: &Machine, traffic: Traffic, usage: &Usage) -> Self {
        let needs = Self::of_lengths(machine, traffic, usage);
        if !usage.is_of_pages {
            return needs;
        }
        let with_longer = |part| Self::of_lengths(machine, traffic, &usage.with_longer(part));
        match share::narrowed(needs.most().share, |part| with_longer(part).least().share) {
            0.0 => needs,
            part => with_longer(part),
        }
    }

    fn of_lengths(machine: &Machine, traffic: Traffic, usage: &Usage) -> Self {
        let unprotected = |bytes: fn(Payload) -> u64| {
            let cycles = usage.work_by_core.iter().map(|work| match traffic {
                Traffic::Network => machine.unprotected_cycles_per_byte * bytes(work.bytes) as f64,
                Traffic::Disk => machine.unprotected_cycles_per_request * work.requests,
            });
            cycles.collect::<Vec<f64>>()
        };
        let (unprotected, unprotected_min) = (unprotected(|bytes| bytes.max), unprotected(|bytes| bytes.min));
        let busy = |unprotected: &[f64]| {
            unprotected.iter().zip(&usage.cycles_by_core).map(|(one, two)| one + *two as f64).collect::<Vec<f64>>()
        };
        let (busy, busy_min) = (busy(&unprotected), busy(&unprotected_min));
        let seconds = |cycles: &[f64]| {
            let busiest = cycles.iter().copied().fold(0.0, f64::max);
            busiest.max(cycles.iter().sum::<f64>() / f64::from(machine.cores)) / machine.core_hz
        };
        let requests = usage.work_by_core.iter().map(|work| work.requests).sum::<f64>();
        let device = |bytes: u64| match traffic {
            Traffic::Network => bytes as f64 * 8.0 / (machine.link_gbps.unwrap_or(f64::INFINITY) * 1e9),
            Traffic::Disk => {
                let requests = requests / machine.all_disk_iops().unwrap_or(f64::INFINITY);
                requests.max(bytes as f64 / machine.all_disk_bytes_per_second().unwrap_or(f64::INFINITY))
            }
        };
        // As many transactions as fit are in flight, full or not. Each takes the average latency.
        let in_flight = (machine.in_flight(traffic) / machine.transaction_bytes).max(1) as f64;
        let mean = usage.latency_ps_sum as f64 / usage.transactions.max(1) as f64 / 1e12;
        let bus = |transactions: u64| transactions as f64 * mean / in_flight;
        Self {
            cpu: seconds(&busy),
            cpu_min: seconds(&busy_min),
            busy: busy.iter().sum::<f64>() / machine.core_hz,
            cpu_unprotected: seconds(&unprotected),
            cpu_unprotected_min: seconds(&unprotected_min),
            bus: bus(usage.transactions + usage.transactions_again),
            bus_min: bus(usage.transactions_min.min(usage.transactions + usage.transactions_again)),
            queue: usage.queue_ps as f64 / 1e12,
            lock: usage.lock_ps as f64 / 1e12,
            device: device(usage.payload.max),
            device_min: device(usage.payload.min),
            bits: usage.payload.max as f64 * 8.0,
            bits_min: usage.payload.min as f64 * 8.0,
            operations: if traffic == Traffic::Disk { requests } else { usage.operations as f64 },
            traffic,
        }
    }

    /// The rate without protection and with full buffers, in Gb/s.
    pub(crate) fn unprotected_gbps(&self) -> f64 {
        let seconds = self.unprotected_seconds();
        if seconds > 0.0 { self.bits / seconds / 1e9 } else { 0.0 }
    }

    /// The time of all cores together, with protection, in seconds.
    pub(crate) fn busy_seconds(&self) -> f64 {
        self.busy
    }

    /// The time that the work takes without protection, in seconds.
    pub(crate) fn unprotected_seconds(&self) -> f64 {
        self.cpu_unprotected.max(self.device)
    }

    /// The rate that the CPUs could carry, in Gb/s.
    pub(crate) fn cpu_gbps(&self) -> f64 {
        if self.cpu > 0.0 { self.bits / self.cpu / 1e9 } else { 0.0 }
    }

    /// The rate that the bus could carry, in Gb/s.
    pub(crate) fn bus_gbps(&self) -> Option<f64> {
        (self.bus > 0.0).then(|| self.bits / self.bus / 1e9)
    }

    /// What the work reaches with full buffers.
    pub(crate) fn most(&self) -> Reached {
        self.reached(self.bits, self.cpu, self.cpu_unprotected, self.bus, self.device)
    }

    /// What the work reaches with buffers as short and as empty as they may be.
    pub(crate) fn least(&self) -> Reached {
        self.reached(self.bits_min, self.cpu_min, self.cpu_unprotected_min, self.bus_min, self.device_min)
    }

    /// The least and the greatest share of the unprotected rate of a run, over all that is not known.
    pub(crate) fn shares(machine: &Machine, kind: Kind, usage: &Usage) -> [f64; 2] {
        let of = |traffic| {
            let needs = Self::of(machine, traffic, usage);
            let shares = share::range([needs.least().share, needs.most().share]);
            if usage.is_of_pages { share::of_pages(shares) } else { shares }
        };
        let disk = kind.is_unknown.then(|| of(Traffic::Disk));
        share::range(of(kind.traffic).into_iter().chain(disk.into_iter().flatten()))
    }

    /// The least share for the shortest buffers that are thought possible, by which runs are compared.
    pub(crate) fn share_of_shortest(machine: &Machine, kind: Kind, usage: &Usage) -> f64 {
        let needs = Self::of_lengths(machine, kind.traffic, usage);
        needs.least().share.min(needs.most().share)
    }

    /// The bytes that the device moves at least.
    pub(crate) fn payload_bytes_min(&self) -> u64 {
        (self.bits_min / 8.0) as u64
    }

    fn reached(&self, bits: f64, cpu: f64, cpu_unprotected: f64, bus: f64, device: f64) -> Reached {
        let shared = [(bus, Limit::Pcie), (self.queue, Limit::Queue), (self.lock, Limit::Lock)];
        let longer = |one: (f64, Limit), other: (f64, Limit)| if other.0 > one.0 { other } else { one };
        let (worked, limit) = shared.into_iter().fold((cpu, Limit::Cpu), longer);
        let of_device = if self.traffic == Traffic::Disk { Limit::Disk } else { Limit::Link };
        let (seconds, limit) = if device >= worked * NEARLY { (device, of_device) } else { (worked, limit) };
        let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let unprotected = cpu_unprotected.max(device);
        Reached {
            seconds,
            gbps: rate(bits) / 1e9,
            operations_per_second: rate(self.operations),
            limit,
            share: if seconds > 0.0 { unprotected / seconds } else { 1.0 },
        }
    }
}
