//! Whether a machine can run a workload of a server, and the work as it is done there.

use super::choices::{IperfChoices, StreamDirection};
use super::frames::FLOWS_MAX;
use super::iperf::rings;
use super::memory::{RingShape, ring_memory};
use super::work::{IPERF, RR, SERVER_WORKLOADS, STREAM, ServerWork, ServerWorkload};
use crate::machine::{Machine, NicDriver, Server};
use portcullis::PAGE_SIZE;
use std::ops::RangeInclusive;
use thiserror::Error;

/// The parameter of [`STREAM`]: the bytes of a message.
const MESSAGE: &str = "message=";
/// Netperf's default there, EiovaR §7.
const MESSAGE_BYTES: u32 = 16 << 10;
const MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// The parameter of [`RR`]: how much other programs do beside it.
const BACKGROUND: &str = "background=";
const BACKGROUND_MAX: u32 = 1000;
/// The concurrent requests of ApacheBench and Memslap: rIOMMU §5, to which the unprotected rates belong.
const CONCURRENT: u32 = 32;

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
    /// A parameter that the application does not have, or a value out of its range.
    #[error(
        "the workload `{workload}` has no parameter `{parameter}`; there are: {STREAM}:{MESSAGE}BYTES, with 1 to \
         {MESSAGE_BYTES_MAX}; {RR}:{BACKGROUND}N, with 0 to {BACKGROUND_MAX}; {IPERF}:recycle=driver|never|always, hold=yes|no, ack=linux|each, regions=0 to 1024, direction=receive|send|both; the same without the direction for \
         redis:value=BYTES, with 256 to 1048576, nginx:page=BYTES, with 4096 to 16777216, spdk:block=BYTES, with 4096 to \
         1048576, and rpc-tail:bytes=BYTES, with 1 to 65536"
    )]
    Parameter {
        /// The application.
        workload: String,
        /// The parameter.
        parameter: String,
    },
    /// The driver of the card does not serve the application.
    #[error("the workload `{workload}` does not run under {driver}, the driver of the machine `{machine}`")]
    Driver {
        /// The application.
        workload: String,
        /// The machine.
        machine: String,
        /// The driver.
        driver: String,
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
    /// Rings that do not fit the memory for them.
    #[error("rings of {entries} entries under {driver} take {needed_mib} MiB; a run has {most_mib} MiB for them")]
    RingMemory {
        /// The entries of a ring.
        entries: u32,
        /// The driver.
        driver: String,
        /// What they take.
        needed_mib: u64,
        /// What there is.
        most_mib: u64,
    },
    /// Fewer regions than the rings fill.
    #[error("regions={regions}: rings of {entries} entries fill {least}; expected at least as many, or 0")]
    Regions {
        /// The value given.
        regions: u32,
        /// The entries of a ring.
        entries: u32,
        /// The fewest.
        least: u32,
    },
}

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
        let (id, parameter) = name.split_once(':').map_or((name, None), |(id, parameter)| (id, Some(parameter)));
        let workload =
            SERVER_WORKLOADS.iter().find(|(known, ..)| *known == id).ok_or_else(|| ServerError::Unknown {
                name: name.to_owned(),
                known: names(SERVER_WORKLOADS.iter().map(|(id, ..)| *id).collect()),
            })?;
        let workload = workload.1;
        let (mut bytes, mut background, mut iperf) = (MESSAGE_BYTES, 0, IperfChoices::default());
        let mut size = workload.size().map_or(0, |(_, size, _)| size);
        match parameter {
            Some(parameters) if workload.loses_packets() => {
                (iperf, size) = choices(workload, parameters, size).ok_or_else(|| refused(id, parameters))?;
            }
            Some(parameter) if workload == ServerWorkload::NetperfRr => {
                background = within(id, parameter, BACKGROUND, 0..=BACKGROUND_MAX)?;
            }
            Some(parameter) if workload == ServerWorkload::NetperfStream => {
                bytes = within(id, parameter, MESSAGE, 1..=MESSAGE_BYTES_MAX)?;
            }
            Some(parameter) => return Err(refused(id, parameter)),
            None => {}
        }
        let server = machine.server.as_ref().ok_or_else(|| no_server(machine))?;
        let driver = &server.driver;
        // What a request costs is not known of every server.
        let is_known = match workload {
            ServerWorkload::Iperf => iperf.direction == StreamDirection::Receive || server.software.writer.is_some(),
            _ if workload.loses_packets() => server.software.applications.is_some(),
            _ => server.software.cycles_of(workload) > 0,
        };
        if workload.loses_packets() && driver.striding.is_none() || !is_known {
            return Err(ServerError::Driver {
                workload: if is_known { id } else { name }.to_owned(),
                machine: machine.id.clone(),
                driver: driver.name.clone(),
            });
        }
        // As published: five are the fewest that fill the link. Calls have a core of their own, and applications eight.
        let cores_default = match workload {
            ServerWorkload::Iperf => 5,
            ServerWorkload::RpcTail => 6,
            _ if workload.loses_packets() => 8,
            _ => 1,
        };
        let rings = driver.receive_rings.min(driver.transmit_rings);
        // Under the driver with striding rings, each core has a ring.
        let most = if workload.loses_packets() { machine.cores.min(rings) } else { machine.cores };
        let cores = cores.unwrap_or(cores_default);
        if !(1..=most).contains(&cores) {
            return Err(ServerError::Cores { cores, most, machine: machine.id.clone() });
        }
        let flows = flows.unwrap_or(if workload.has_runs() { cores } else { cores.max(CONCURRENT) });
        if !(cores..=FLOWS_MAX).contains(&flows) {
            return Err(ServerError::Flows { flows, least: cores });
        }
        if let Some(entries) = ring {
            check_ring(driver, entries)?;
        }
        let receive_entries = ring.unwrap_or(driver.receive_entries);
        // What the paper varies for this work is the receive ring.
        let of_transmit = ring.filter(|_| !workload.loses_packets());
        let transmit_entries = of_transmit.unwrap_or(driver.transmit_entries);
        let (warm_up, measured) = match workload {
            ServerWorkload::NetperfStream | ServerWorkload::NetperfRr => (20_000, 40_000),
            ServerWorkload::Apache1m => (64, 256),
            ServerWorkload::Apache1k => (2_000, 6_000),
            ServerWorkload::Memcached => (10_000, 30_000),
            ServerWorkload::Iperf => (200_000, 600_000),
            // Packets of 9,000 bytes: as long as iperf.
            ServerWorkload::Redis | ServerWorkload::Nginx | ServerWorkload::Spdk => (40_000, 200_000),
            // Calls: of five times as many, twenty take longer than the 99.99th percentile.
            ServerWorkload::RpcTail => (1_000, 40_040),
        };
        let work = Self {
            workload,
            cores,
            flows,
            transmit_entries,
            receive_entries,
            message_bytes: bytes,
            background,
            iperf,
            size,
            earlier_runs: if workload.loses_packets() { 0 } else { server.software.earlier_runs },
            earlier_packets: earlier_packets(workload, server, flows, receive_entries),
            warm_up,
            measured,
            halves: false,
        };
        let (needed, most) = (work.ring_bytes(driver), ring_memory(machine).len);
        if needed > most {
            let [needed_mib, most_mib] = [needed.div_ceil(1 << 20), most >> 20];
            let (entries, driver) = (work.receive_entries.max(work.transmit_entries), driver.name.clone());
            return Err(ServerError::RingMemory { entries, driver, needed_mib, most_mib });
        }
        if let Some(regions) = iperf.regions {
            check_regions(driver, receive_entries, regions)?;
        }
        Ok(work)
    }

    /// The bytes that all rings take.
    fn ring_bytes(&self, driver: &NicDriver) -> u64 {
        if self.workload.loses_packets() {
            return rings::bytes(driver, self);
        }
        let pages = driver.joins().map_or(0, |joining| RingShape::of_pages(driver, joining, 0).bytes());
        let receive = u64::from(driver.receive_rings) * (RingShape::to_receive(driver, self, 0).bytes() + pages);
        receive + u64::from(driver.transmit_rings) * RingShape::to_transmit(driver, self, 0).bytes()
    }
}

/// The packets or requests of an earlier run: of each flow where there are runs, otherwise of all. All entries of a
/// ring are used, so that each of its addresses is given back and taken again. Several flows of a ring do so together.
fn earlier_packets(workload: ServerWorkload, server: &Server, flows: u32, receive_entries: u32) -> u32 {
    // A request for a long file takes many entries.
    if workload == ServerWorkload::Apache1m {
        return 40;
    }
    let driver = &server.driver;
    let of_ring = match driver.joins() {
        // The card writes nearly all of a stream to the ring of pages.
        Some(joining) if workload == ServerWorkload::NetperfStream => {
            joining.pages * PAGE_SIZE as u32 / server.software.segment_bytes
        }
        _ => receive_entries,
    };
    let of_ring = of_ring + of_ring / 4;
    let sharers = if workload.has_runs() { flows.div_ceil(driver.receive_rings) } else { 1 };
    of_ring.div_ceil(sharers)
}

fn refused(workload: &str, parameter: &str) -> ServerError {
    ServerError::Parameter { workload: workload.to_owned(), parameter: parameter.to_owned() }
}

/// The choices of work that loses packets, and the size of its messages, if it has one. `None` if a parameter is
/// unknown.
fn choices(workload: ServerWorkload, text: &str, usual: u32) -> Option<(IperfChoices, u32)> {
    let (mut choices, mut size) = (IperfChoices::default(), usual);
    for parameter in text.split(',') {
        let (key, value) = parameter.split_once('=')?;
        match workload.size() {
            Some((name, _, range)) if name == key => {
                size = value.parse().ok().filter(|size| range.contains(size))?;
            }
            Some(_) if key == "direction" => return None,
            _ => choices.set(key, value)?,
        }
    }
    Some((choices, size))
}

/// The parameter of a workload, which begins with `key`.
fn within(workload: &str, parameter: &str, key: &str, range: RangeInclusive<u32>) -> Result<u32, ServerError> {
    let value = parameter.strip_prefix(key).and_then(|value| value.parse().ok());
    value.filter(|value| range.contains(value)).ok_or_else(|| refused(workload, parameter))
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

fn check_regions(driver: &NicDriver, entries: u32, regions: u32) -> Result<(), ServerError> {
    let least = rings::regions(driver, entries);
    match (1..least).contains(&regions) {
        true => Err(ServerError::Regions { regions, entries, least }),
        false => Ok(()),
    }
}
