//! The workloads of servers, and whether a machine can run them.

use crate::machine::{Machine, NicDriver};
use thiserror::Error;

/// An application and its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerWorkload {
    /// The server sends one TCP stream per flow, as fast as it can.
    NetperfStream,
    /// One client per flow sends a request of one byte, and the next one after a response of one byte.
    NetperfRr,
}

/// Every application: its name on the command line, and what it does.
pub const SERVER_WORKLOADS: &[(&str, ServerWorkload, &str)] = &[
    ("netperf-stream", ServerWorkload::NetperfStream, "the server sends a TCP stream per flow as fast as it can"),
    ("netperf-rr", ServerWorkload::NetperfRr, "a client per flow sends a byte, and waits for a byte"),
];

/// Work that the machine can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerWork {
    /// The application.
    pub workload: ServerWorkload,
    /// The number of CPUs that serve.
    pub cores: u32,
    /// The number of flows, which are spread over the CPUs.
    pub flows: u32,
    /// The entries of a transmit ring.
    pub transmit_entries: u32,
    /// The entries of a receive ring.
    pub receive_entries: u32,
    /// The number of packets or requests before the measurement.
    pub warm_up: u64,
    /// The number of packets or requests in the measurement.
    pub measured: u64,
}

/// Work that the machine cannot do.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ServerError {
    /// No such application.
    #[error("no workload `{name}`; there are: {known}")]
    Unknown {
        /// The value given.
        name: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// The network card of the machine is not known.
    #[error(
        "the network card of the machine `{machine}` is not known, so it cannot be simulated; known are those of: {known}"
    )]
    NoServer {
        /// The machine.
        machine: String,
        /// The machines whose card is known, separated by commas.
        known: String,
    },
    /// Too many cores, or none.
    #[error("--cores {cores}: expected from 1 to {most}, the most that `{machine}` and its driver use")]
    Cores {
        /// The value given.
        cores: u32,
        /// The most.
        most: u32,
        /// The machine.
        machine: String,
    },
    /// Too many flows, or fewer than cores.
    #[error("--flows {flows}: expected from {least}, one for each core, to {FLOWS_MAX}")]
    Flows {
        /// The value given.
        flows: u32,
        /// The fewest.
        least: u32,
    },
    /// A ring size that the card does not support.
    #[error("--ring {entries}: expected {}from {least} to {most} for {driver}", if *.power_of_two { "a power of two " } else { "" })]
    Ring {
        /// The value given.
        entries: u32,
        /// The fewest.
        least: u32,
        /// The most.
        most: u32,
        /// Whether it must be a power of two.
        power_of_two: bool,
        /// The driver.
        driver: String,
    },
}

/// The cookie of a frame has eight bits for the flow.
const FLOWS_MAX: u32 = 256;

impl ServerWork {
    /// The application called `name` on `machine`. `None` stands for the default.
    ///
    /// # Errors
    /// A [`ServerError`].
    pub fn new(
        machine: &Machine,
        name: &str,
        cores: Option<u32>,
        flows: Option<u32>,
        ring: Option<u32>,
    ) -> Result<Self, ServerError> {
        let names = |all: Vec<&str>| all.join(", ");
        let workload = SERVER_WORKLOADS.iter().find(|(id, ..)| *id == name).ok_or_else(|| ServerError::Unknown {
            name: name.to_owned(),
            known: names(SERVER_WORKLOADS.iter().map(|(id, ..)| *id).collect()),
        })?;
        let driver = &machine.server.as_ref().ok_or_else(|| no_server(machine))?.driver;
        let (cores, most) = (cores.unwrap_or(1), machine.cores.min(driver.transmit_rings).min(driver.receive_rings));
        if !(1..=most).contains(&cores) {
            return Err(ServerError::Cores { cores, most, machine: machine.id.clone() });
        }
        let flows = flows.unwrap_or(cores);
        if !(cores..=FLOWS_MAX).contains(&flows) {
            return Err(ServerError::Flows { flows, least: cores });
        }
        if let Some(entries) = ring {
            check_ring(driver, entries)?;
        }
        Ok(Self {
            workload: workload.1,
            cores,
            flows,
            transmit_entries: ring.unwrap_or(driver.transmit_entries),
            receive_entries: ring.unwrap_or(driver.receive_entries),
            warm_up: 20_000,
            measured: 40_000,
        })
    }

    /// The core that serves a flow.
    pub(super) fn core_of(&self, flow: usize) -> usize {
        flow % self.cores as usize
    }

    /// The ring of a flow, of `rings` rings. Cores share no ring.
    pub(super) fn ring_of(&self, flow: usize, rings: usize) -> usize {
        let cores = self.cores as usize;
        self.core_of(flow) + cores * (flow / cores % (rings / cores))
    }
}

fn no_server(machine: &Machine) -> ServerError {
    let all = Machine::all();
    let known: Vec<&str> = all.iter().filter(|one| one.server.is_some()).map(|one| one.id.as_str()).collect();
    ServerError::NoServer { machine: machine.id.clone(), known: known.join(", ") }
}

fn check_ring(driver: &NicDriver, entries: u32) -> Result<(), ServerError> {
    let ([least, most], power_of_two) = (driver.entries_range, driver.entries_power_of_two);
    if (least..=most).contains(&entries) && (!power_of_two || entries.is_power_of_two()) {
        return Ok(());
    }
    Err(ServerError::Ring { entries, least, most, power_of_two, driver: driver.name.clone() })
}
