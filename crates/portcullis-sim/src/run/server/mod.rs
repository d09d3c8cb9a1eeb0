//! A server: applications and the driver of the network card run on its CPUs. The card with its link, and the clients
//! at the other end, are actors.
//!
//! All rates and latencies result from events. Each application has a file of its own.

mod admission;
mod application;
mod card;
mod choices;
mod clients;
mod cuts;
mod flows;
mod frames;
mod hardware;
mod iperf;
mod joined;
mod memory;
mod pages;
mod rate;
mod schedule;
mod sockets;
mod tcp;
mod work;

pub use admission::ServerError;
pub use choices::{IperfChoices, Recycling, StreamDirection};
pub use work::{SERVER_WORKLOADS, ServerWork, ServerWorkload};

use super::driver::Driver;
use super::workload::Workload;
use super::world::{Wanted, World};
use super::{Job, RunError, Start};
use crate::engine::{Actor, Body};
use crate::machine::{Machine, Server};
use crate::traffic::Payload;
use card::Card;
use clients::Clients;
use flows::Flow;
use portcullis::Segment;
use portcullis::platform::LockClass;
use portcullis_model::{Nic, NicCounters, NicParameters};
use schedule::Schedule;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The results of a server, apart from the costs of its protection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    /// Packets of streams that were received, and how many of them the server had sent. `None`: it sends no streams.
    pub(crate) packets: u64,
    pub(crate) packets_sent: Option<u64>,
    /// Requests that were answered. Of the files that were sent in part, the part counts, so that it does not matter
    /// where the measurement begins and ends.
    pub(crate) transactions: f64,
    /// Payload bytes of these packets.
    pub(crate) payload_bytes: u64,
    /// Cycles of all CPUs apart from protection.
    pub(crate) busy_cycles: u64,
    /// Frames that the server received from the start, and those that came in the measured part.
    pub(crate) received_in_all: u64,
    pub(crate) received: u64,
    /// Frames that its card dropped.
    pub(crate) dropped: u64,
    /// The latency of each request, in picoseconds, sorted.
    pub(crate) latencies_ps: Vec<u64>,
    /// What is known of streams that lose packets.
    pub(crate) stream: Option<StreamCounts>,
}

/// Counts of streams that lose packets, and of the pages that receive them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamCounts {
    /// Packets that the server sent.
    pub(crate) acknowledgements: u64,
    /// Packets that the server received before one with a smaller number, and those that it had received before.
    pub(crate) out_of_order: u64,
    pub(crate) duplicates: u64,
    /// Packets that the clients sent, and those of them that had been sent before.
    pub(crate) sent: u64,
    pub(crate) sent_again: u64,
    /// Pages that the driver used again, those that it took from the allocator, and those that it could not keep.
    pub(crate) pages_recycled: u64,
    pub(crate) pages_fresh: u64,
    pub(crate) pages_not_kept: u64,
    /// The mean number of other regions of 2 MiB that the card writes to between two writes to the same one.
    pub(crate) reuse_distance: Option<f64>,
}

/// Counters at a moment of a run.
#[derive(Clone, Default)]
struct Moment {
    busy_cycles: u64,
    packets: u64,
    transactions: u64,
    file_bytes: u64,
    nic: NicCounters,
}

/// The server and its clients.
struct Host {
    world: Rc<World>,
    server: Server,
    work: ServerWork,
    batch: usize,
    nic: RefCell<Nic>,
    card: Card,
    flows: RefCell<Vec<Flow>>,
    clients: RefCell<Clients>,
    schedule: Schedule,
    /// Flows with two packets or more that are not acknowledged.
    unacknowledged: RefCell<BTreeSet<usize>>,
    is_open: Cell<bool>,
    /// Packets of measured streams that the server received.
    packets: Cell<u64>,
    /// Bytes of files that were sent.
    file_bytes: Cell<u64>,
    start: OnceCell<(Start, Moment)>,
    end: OnceCell<Moment>,
}

impl Host {
    fn new(world: &Rc<World>, job: &Job<'_>, work: &ServerWork) -> Self {
        let server = job.machine.server.clone().expect("`ServerWork` is made for a machine with a server");
        let source = world.devices.borrow()[0].source();
        // These are values of the machine, which users may set.
        let (write_window_bytes, transaction_bytes) = (job.machine.bytes_in_flight, job.machine.transaction_bytes);
        let nic = NicParameters { write_window_bytes, transaction_bytes, ..server.nic.clone() };
        let nic = Nic::new(source, nic, world.vtd.clone());
        Self {
            card: Card::new(job.machine, &server.driver, work),
            flows: RefCell::new((0..work.flows).map(|_| Flow::new(job.seed)).collect()),
            clients: RefCell::new(Clients::new(work, &server.driver, job.seed)),
            schedule: Schedule::new(work.cores),
            unacknowledged: RefCell::default(),
            world: world.clone(),
            server,
            work: work.clone(),
            batch: job.batch,
            nic: RefCell::new(nic),
            is_open: Cell::new(false),
            packets: Cell::new(0),
            file_bytes: Cell::new(0),
            start: OnceCell::new(),
            end: OnceCell::new(),
        }
    }

    /// Whether the cores must stop.
    fn is_over(&self) -> bool {
        self.end.get().is_some() || self.world.failed()
    }

    fn moment(&self) -> Moment {
        let clients = self.clients.borrow();
        Moment {
            busy_cycles: self.world.engine.busy_cycles_by_core().iter().sum(),
            packets: self.packets.get(),
            file_bytes: self.file_bytes.get(),
            transactions: clients.latencies_ps.len() as u64,
            nic: self.nic.borrow().counters(),
        }
    }

    /// Begins and ends the measurement when enough packets or requests are done.
    fn look_at_progress(&self) {
        let moment = self.moment();
        let done = moment.packets + moment.transactions;
        // The start reads a counter that a lock protects. Clients that find it taken begin with their next request.
        let can_start = || self.world.engine.can_take(LockClass::InvalidationQueue);
        if self.start.get().is_none() && done >= self.work.unmeasured() && can_start() {
            let _ = self.start.set((Start::of(&self.world), moment));
        } else if self
            .start
            .get()
            .is_some_and(|(_, start)| done >= start.packets + start.transactions + self.work.measured)
            && self.end.set(moment).is_ok()
        {
            self.world.worked();
            self.world.engine.notify_all();
        }
    }

    /// The body of a core. The first core opens the card, and then every core runs the application.
    fn core(&self, core: usize) {
        let (world, engine) = (&self.world, &self.world.engine);
        let mut driver = Driver::new(world, core, self.batch);
        if core == 0 {
            self.card.open(self, &mut driver);
            self.is_open.set(true);
            engine.notify_all();
        }
        engine.wait_until(Wanted::Flows(core).into(), || self.is_open.get() || self.is_over());
        application::run(self, &mut driver, core);
    }
}

/// The end of the memory for packets.
fn buffers_end(server: &Server, work: &ServerWork) -> u64 {
    match work.workload.loses_packets() {
        true => iperf::memory_end(server, work),
        false => memory::end(&server.driver, work),
    }
}

/// Makes the run. Returns where its measured part began, and the results.
pub(super) fn serve(world: &Rc<World>, job: &Job<'_>, work: &ServerWork) -> (Start, Served) {
    if work.workload.loses_packets() {
        return iperf::serve(world, job, work);
    }
    let host = Rc::new(Host::new(world, job, work));
    let engine = &world.engine;
    let weak = Rc::downgrade(&host);
    engine.on_interrupt(Some(Rc::new(move |vector| {
        if let Some(host) = weak.upgrade() {
            host.card.interrupt(&host, vector);
        }
    })));
    let body = |core: usize| {
        let host = host.clone();
        Box::new(move || host.core(core)) as Body
    };
    let actor = |wanted: Wanted, act: fn(&Host) -> Option<u64>| {
        let host = host.clone();
        Actor { event: wanted.into(), act: Box::new(move || act(&host)) }
    };
    let cores = (0..work.cores as usize).map(body).collect();
    let actors = vec![actor(Wanted::Link, hardware::act), actor(Wanted::Clients, clients::act)];
    if let Err(stuck) = engine.run_beside(cores, actors) {
        world.fail(if stuck.is_endless { RunError::Stuck(stuck) } else { RunError::NoProgress });
    }
    engine.on_interrupt(None);
    let Ok(host) = Rc::try_unwrap(host) else { panic!("the bodies, which share the host, have ended") };
    host.result()
}

/// The number of actors: the card, and the clients.
const ACTORS: usize = 2;

impl Workload for ServerWork {
    fn cores(&self) -> usize {
        self.cores as usize
    }

    fn actors(&self) -> usize {
        ACTORS
    }

    fn live_pages_max(&self) -> u64 {
        u64::from(self.receive_entries) + u64::from(self.transmit_entries)
    }

    fn memory_end(&self, machine: &Machine) -> u64 {
        machine.server.as_ref().map_or(0, |server| buffers_end(server, self))
    }

    fn ring_memory(&self, machine: &Machine) -> Option<Segment> {
        Some(memory::ring_memory(machine))
    }

    fn waits_for_room(&self) -> bool {
        false
    }

    fn ring_entries(&self, _batch: usize) -> Option<u32> {
        Some((4 * self.transmit_entries.max(self.receive_entries)).next_power_of_two())
    }

    fn commits_in_halves(&self) -> bool {
        self.halves
    }

    fn has_windows(&self) -> bool {
        false
    }
}

impl Host {
    fn result(self) -> (Start, Served) {
        let world = self.world;
        // Only a failed run has no start or no end.
        let (start, begun) = self.start.into_inner().unwrap_or_else(|| (Start::of(&world), Moment::default()));
        let end = self.end.into_inner().unwrap_or_else(|| begun.clone());
        let (mut latencies_ps, skipped) = (self.clients.into_inner().latencies_ps, begun.transactions as usize);
        latencies_ps.truncate(end.transactions as usize);
        latencies_ps.drain(..skipped.min(latencies_ps.len()));
        latencies_ps.sort_unstable();
        let packets = end.packets - begun.packets;
        let served = Served {
            packets,
            packets_sent: None,
            transactions: match self.work.workload.file_bytes() {
                Some(bytes) => (end.file_bytes - begun.file_bytes) as f64 / f64::from(bytes),
                None => (end.transactions - begun.transactions) as f64,
            },
            payload_bytes: packets * u64::from(self.server.software.segment_bytes),
            busy_cycles: end.busy_cycles - begun.busy_cycles,
            received_in_all: end.nic.received,
            received: end.nic.received - begun.nic.received,
            dropped: end.nic.dropped - begun.nic.dropped,
            latencies_ps,
            stream: None,
        };
        let mut tally = world.tally.borrow_mut();
        tally.faults += end.nic.bus.faults;
        tally.transactions = end.nic.bus.transactions - begun.nic.bus.transactions;
        tally.transactions_min = tally.transactions;
        tally.latency_ps_sum = end.nic.bus.latency_ps_sum - begun.nic.bus.latency_ps_sum;
        // The estimate is of the payload, without headers and without the unused bytes of buffers.
        tally.payload = Payload::exactly(served.payload_bytes);
        let cores = tally.work_by_core.len() as u64;
        tally.work_by_core.iter_mut().for_each(|work| work.bytes = Payload::exactly(served.payload_bytes / cores));
        drop(tally);
        (start, served)
    }
}
