//! Machines: a cost book, an IOMMU, and the rates that the machine reaches unprotected.

mod explained;
mod fragments;
mod joining;
mod named;
mod server;
mod servers;
mod value;

pub use fragments::Fragments;
pub use joining::SegmentJoining;
pub use server::{Adaptation, Applications, NicDriver, Reader, Server, Software, Striding, Writer};
pub use value::MachineError;

use crate::engine::{CostBook, Frequency, Sharing};
use crate::traffic::Traffic;
use portcullis_model::Parameters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name on the command line and in JSON.
    pub id: String,
    /// What it is.
    pub description: String,
    /// Where the values come from.
    pub source: String,
    /// Clock of a core, in hertz.
    pub core_hz: f64,
    /// Cores that may serve its devices.
    pub cores: u32,
    /// What its link carries without an IOMMU, in Gb/s. `None` if it has no link, so that all traffic is that of its
    /// disks.
    pub link_gbps: Option<f64>,
    /// The work of the CPUs without protection for network traffic, in core cycles per byte of the buffers. Buffers
    /// that are not full take as much, because the work for a packet hardly depends on its length.
    pub unprotected_cycles_per_byte: f64,
    /// Disks behind a device of which a capture is: one, unless it is a controller of several.
    #[serde(default = "one")]
    pub disks: u32,
    /// Requests per second that a disk serves. `None` if the machine has no disks, so that all traffic is that of its
    /// link.
    pub disk_iops: Option<f64>,
    /// Bytes per second that a disk moves.
    pub disk_bytes_per_second: Option<f64>,
    /// Bytes that a disk keeps in flight. `None`: as many as a network card.
    #[serde(default)]
    pub disk_bytes_in_flight: Option<u64>,
    /// The work of the CPUs without protection for a request to a disk, in core cycles.
    pub unprotected_cycles_per_request: f64,
    /// Bytes that a network card keeps in flight.
    pub bytes_in_flight: u64,
    /// Bytes in a transaction on the bus.
    pub transaction_bytes: u64,
    /// What each step costs.
    pub costs: CostBook,
    /// How its CPUs share lines and locks.
    #[serde(default, skip_serializing_if = "Sharing::is_default")]
    pub sharing: Sharing,
    /// The IOMMU.
    pub iommu: Parameters,
    /// The values that are neither published nor measured, by name. Each has the range in which it is believed to lie.
    /// The advice is tried at both ends.
    pub assumed: BTreeMap<String, [f64; 2]>,
    /// What all work on it is taken to be, whatever it looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_traffic: Option<Traffic>,
    /// The rest of the server, if it is known. Only such a machine can be simulated as a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
}

/// The most that a device keeps in flight. The model has an entry for each transaction.
const IN_FLIGHT_MAX: u64 = 1 << 40;

impl Machine {
    /// Every machine.
    pub fn all() -> Vec<Self> {
        vec![
            named::r210_cx3(),
            named::r210_bcm57810(),
            named::r430_bcm57810(),
            named::cascadelake_cx5(),
            named::cascadelake_cx5_9k(),
            named::icelake_cx5(),
            named::future_800g(),
            named::xeon_16(),
        ]
    }

    /// The machine called `id`.
    pub fn by_id(id: &str) -> Option<Self> {
        Self::all().into_iter().find(|machine| machine.id == id)
    }

    /// The traffic of all work here, whatever it looks like.
    pub(crate) fn known_traffic(&self) -> Option<Traffic> {
        match (self.link_gbps, self.disk_iops) {
            _ if self.only_traffic.is_some() => self.only_traffic,
            (None, _) => Some(Traffic::Disk),
            (_, None) => Some(Traffic::Network),
            _ => None,
        }
    }

    /// Requests per second that all its disks serve together.
    pub fn all_disk_iops(&self) -> Option<f64> {
        self.disk_iops.map(|iops| iops * f64::from(self.disks))
    }

    /// Bytes per second that all its disks move together.
    pub(crate) fn all_disk_bytes_per_second(&self) -> Option<f64> {
        self.disk_bytes_per_second.map(|bytes| bytes * f64::from(self.disks))
    }

    /// Bytes that the device of some traffic keeps in flight. Each disk has its own. A disk with rates that no disk has
    /// is taken for several.
    pub(crate) fn in_flight(&self, traffic: Traffic) -> u64 {
        let of_a_disk = self.disk_bytes_in_flight.unwrap_or(self.bytes_in_flight);
        match traffic {
            Traffic::Network => self.bytes_in_flight,
            Traffic::Disk => of_a_disk.saturating_mul(self.disk_count()).min(IN_FLIGHT_MAX),
        }
    }

    /// The number of disks.
    pub(crate) fn disk_count(&self) -> u64 {
        u64::from(self.disks) * self.disks_in_one()
    }

    /// The fewest disks that have the rates of one of its disks together.
    fn disks_in_one(&self) -> u64 {
        // The upper ends of what is believed of a disk: four lanes of PCIe 5.
        const IOPS_MAX: f64 = 3e6;
        const BYTES_PER_SECOND_MAX: f64 = 14e9;
        let fewest = |rate: Option<f64>, most: f64| rate.map_or(1.0, |rate| (rate / most).ceil().max(1.0));
        fewest(self.disk_iops, IOPS_MAX).max(fewest(self.disk_bytes_per_second, BYTES_PER_SECOND_MAX)) as u64
    }

    /// The most that its link or its disks carry, in Gb/s.
    pub(crate) fn unprotected_gbps(&self, traffic: Traffic) -> f64 {
        let disks = self.all_disk_bytes_per_second().map(|bytes| bytes * 8.0 / 1e9);
        match traffic {
            Traffic::Network => self.link_gbps.or(disks),
            Traffic::Disk => disks.or(self.link_gbps),
        }
        .unwrap_or_default()
    }

    /// The same machine with protection whose software costs nothing.
    #[must_use]
    pub fn with_free_software(self) -> Self {
        Self { costs: self.costs.free(), sharing: self.sharing.free(), ..self }
    }

    /// The clock of a core.
    pub fn frequency(&self) -> Frequency {
        Frequency::new(self.core_hz)
    }
}

const fn one() -> u32 {
    1
}
