//! What a server may be asked to do, and on which machine.

use crate::machine::{Machine, NicDriver};
use thiserror::Error;

/// An application, with its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerWorkload {
    /// One TCP stream per flow, sent as fast as the machine can.
    NetperfStream,
    /// One request of a byte per flow, answered by one of a byte, and then the next.
    NetperfRr,
}

/// Every application, by the name on the command line, and what it does.
pub const SERVER_WORKLOADS: &[(&str, ServerWorkload, &str)] = &[
    ("netperf-stream", ServerWorkload::NetperfStream, "the server sends a TCP stream per flow as fast as it can"),
    ("netperf-rr", ServerWorkload::NetperfRr, "a client per flow sends a byte, and waits for a byte"),
];

/// A piece of work that the machine can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerWork {
    /// The application.
    pub workload: ServerWorkload,
    /// CPUs that serve.
    pub cores: u32,
    /// Flows, spread over them.
    pub flows: u32,
    /// Entries of a transmit ring.
    pub transmit_entries: u32,
    /// Entries of a receive ring.
    pub receive_entries: u32,
    /// Packets or requests before what is measured begins.
    pub warm_up: u64,
    /// Packets or requests that are measured.
    pub measured: u64,
}

/// Work that the machine cannot do.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ServerError {
    /// No such application.
    #[error("no workload `{name}`; there are: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Of the machine no card is known.
    #[error("the machine `{machine}` has no network card that could be simulated; there are: {known}")]
    NoServer {
        /// The machine.
        machine: String,
        /// Those that have.
        known: String,
    },
    /// Too many cores, or none.
    #[error("--cores {cores}: expected from 1 to {most}, of which `{machine}` and its driver can make use")]
    Cores {
        /// What was asked for.
        cores: u32,
        /// The most.
        most: u32,
        /// The machine.
        machine: String,
    },
    /// Too many flows, or fewer than cores.
    #[error("--flows {flows}: expected from {least}, one for each core, to {FLOWS_MAX}")]
    Flows {
        /// What was asked for.
        flows: u32,
        /// The fewest.
        least: u32,
    },
    /// A ring that the card does not have.
    #[error("--ring {entries}: expected {}from {least} to {most} for {driver}", if *.power_of_two { "a power of two " } else { "" })]
    Ring {
        /// What was asked for.
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

/// A cookie has eight bits for the flow.
const FLOWS_MAX: u32 = 256;

impl ServerWork {
    /// The application called `name` on `machine`; `None` is the default of each.
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

    /// Which of `rings` a flow uses: no two cores share one.
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
