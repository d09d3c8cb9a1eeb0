//! What a run's work would come to on its machine at full speed: estimates.
//!
//! Each resource needs some time for the work: the CPUs, the bus, the link or the disks. The longest is the limit. The CPUs that the
//! run has do the work as the capture spreads it, so that the busiest is full first; a machine with fewer cores spreads all of it over
//! those that it has.

use crate::machine::Machine;
use crate::outcome::Limit;
use crate::run::Measured;
use crate::traffic::Traffic;

/// What needs how long for all of a run's work, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Needs {
    cpu: f64,
    /// Of all cores together.
    busy: f64,
    /// Without protection.
    cpu_unprotected: f64,
    /// What is in flight on the bus waits for translations. `None` where nothing is accessed.
    bus: Option<f64>,
    /// The link or the disks, where all buffers are full, and where they are as empty as they may be.
    device: f64,
    device_min: f64,
    bits: f64,
    bits_min: f64,
    operations: f64,
    traffic: Traffic,
}

/// What the work reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reached {
    pub(crate) seconds: f64,
    pub(crate) gbps: f64,
    pub(crate) operations_per_second: f64,
    pub(crate) limit: Limit,
    /// As a share of what it reaches unprotected.
    pub(crate) share: f64,
}

/// Rounding must not make a limit of what is exactly full.
const NEARLY: f64 = 1.0 - 1e-9;

impl Needs {
    pub(crate) fn of(machine: &Machine, traffic: Traffic, measured: &Measured) -> Self {
        let unprotected = measured.work_by_core.iter().map(|work| match traffic {
            Traffic::Network => machine.unprotected_cycles_per_byte * work.bytes as f64,
            Traffic::Disk => machine.unprotected_cycles_per_request * work.operations as f64,
        });
        let unprotected: Vec<f64> = unprotected.collect();
        let busy: Vec<f64> =
            unprotected.iter().zip(&measured.cycles_by_core).map(|(one, two)| one + *two as f64).collect();
        let seconds = |cycles: &[f64]| {
            let busiest = cycles.iter().copied().fold(0.0, f64::max);
            busiest.max(cycles.iter().sum::<f64>() / f64::from(machine.cores)) / machine.core_hz
        };
        let device = |bytes: u64| match traffic {
            Traffic::Network => bytes as f64 * 8.0 / (machine.link_gbps.unwrap_or(f64::INFINITY) * 1e9),
            Traffic::Disk => {
                let requests = measured.operations as f64 / machine.disk_iops.unwrap_or(f64::INFINITY);
                requests.max(bytes as f64 / machine.disk_bytes_per_second.unwrap_or(f64::INFINITY))
            }
        };
        let bus = (measured.transactions > 0).then(|| {
            let mean = measured.latency_ps_sum as f64 / measured.transactions as f64 / 1e12;
            measured.payload.max as f64 / machine.bytes_in_flight as f64 * mean
        });
        Self {
            cpu: seconds(&busy),
            busy: busy.iter().sum::<f64>() / machine.core_hz,
            cpu_unprotected: seconds(&unprotected),
            bus,
            device: device(measured.payload.max),
            device_min: device(measured.payload.min),
            bits: measured.payload.max as f64 * 8.0,
            bits_min: measured.payload.min as f64 * 8.0,
            operations: measured.operations as f64,
            traffic,
        }
    }

    /// What it reaches with no protection and full buffers, in Gb/s.
    pub(crate) fn unprotected_gbps(&self) -> f64 {
        let seconds = self.unprotected_seconds();
        if seconds > 0.0 { self.bits / seconds / 1e9 } else { 0.0 }
    }

    /// Time of all cores together, with protection.
    pub(crate) fn busy_seconds(&self) -> f64 {
        self.busy
    }

    /// How long the work takes with no protection.
    pub(crate) fn unprotected_seconds(&self) -> f64 {
        self.cpu_unprotected.max(self.device)
    }

    /// What the CPUs could carry, in Gb/s.
    pub(crate) fn cpu_gbps(&self) -> f64 {
        if self.cpu > 0.0 { self.bits / self.cpu / 1e9 } else { 0.0 }
    }

    /// How long the bus is needed.
    pub(crate) fn bus_seconds(&self) -> f64 {
        self.bus.unwrap_or(0.0)
    }

    /// What the bus could carry.
    pub(crate) fn bus_gbps(&self) -> Option<f64> {
        self.bus.filter(|seconds| *seconds > 0.0).map(|seconds| self.bits / seconds / 1e9)
    }

    /// With full buffers.
    pub(crate) fn most(&self) -> Reached {
        self.reached(self.bits, self.device)
    }

    /// With buffers as empty as they may be.
    pub(crate) fn least(&self) -> Reached {
        self.reached(self.bits_min, self.device_min)
    }

    fn reached(&self, bits: f64, device: f64) -> Reached {
        let bus = self.bus.unwrap_or(0.0);
        let (worked, limit) = if bus > self.cpu { (bus, Limit::Pcie) } else { (self.cpu, Limit::Cpu) };
        let of_device = if self.traffic == Traffic::Disk { Limit::Disk } else { Limit::Link };
        let (seconds, limit) = if device >= worked * NEARLY { (device, of_device) } else { (worked, limit) };
        let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let unprotected = self.cpu_unprotected.max(device);
        Reached {
            seconds,
            gbps: rate(bits) / 1e9,
            operations_per_second: rate(self.operations),
            limit,
            share: if seconds > 0.0 { unprotected / seconds } else { 1.0 },
        }
    }
}
