//! Iperf at 100 Gb/s: a server that receives and sends streams under mlx5's driver, and clients.
//!
//! Source: the set-up of Fast & Safe (SOSP'24, §2–§5). Each core has a receive ring and a transmit ring, and serves the
//! flows that are steered to it. Applications read what the kernel has received; until then the kernel holds the pages.
//! Packets are lost if the server is too slow to receive them. None is lost on the way to a client.

mod answers;
mod chunks;
mod clients;
mod exchange;
mod kernel;
#[cfg(test)]
mod link;
mod messages;
mod opening;
mod pages;
mod receive;
mod receiver;
mod result;
mod reuse;
pub(super) mod rings;
mod sender;
mod sending;
mod ticks;
mod transmit;

use super::choices::{REGION_PAGES, REGIONS};
use super::frames::Meaning;
use super::memory::{Packets, behind};
use super::{ACTORS, Served, ServerWork};
use crate::engine::{Actor, Body};
use crate::machine::{Reader, Server, Striding};
use crate::run::live::Slot;
use crate::run::world::{Wanted, World};
use crate::run::{Job, RunError, Start};
use answers::Answers;
use chunks::Chunks;
use clients::Clients;
use exchange::{Dialogue, Exchange};
use pages::{Cache, Pages};
use portcullis_model::{Nic, NicParameters, Output, RingNumber};
use receive::{Held, Receive};
use receiver::{Receiver, ReceiverParameters};
use result::Moment;
use reuse::Reuse;
use sender::{Sender, TcpParameters};
use sending::FRAME_BYTES;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use transmit::Transmit;

const _: () = assert!(ACTORS == 2, "the card and the clients");

/// The receive rings of a server that runs this work.
fn striding(server: &Server) -> Striding {
    server.driver.striding.expect("`ServerWork` gives this work to drivers with striding rings alone")
}

/// The pages of memory that the work takes.
fn slots(server: &Server, work: &ServerWork) -> Slot {
    let (driver, striding) = (&server.driver, striding(server));
    let ring = striding.entry_pages * striding.entries(work.receive_entries) + striding.cached_pages;
    let window = (server.software.window_bytes / u64::from(server.software.segment_bytes)) as u32;
    let held = work.flows * 2 * window * striding.frame_pages(&server.software);
    let transmit = work.cores * work.transmit_entries;
    2 * driver.receive_rings * ring + held + transmit + work.iperf.regions.unwrap_or(REGIONS) * REGION_PAGES
}

/// The parts of chunks that the streams of the server take: as many as its rings hold.
fn parts(work: &ServerWork) -> Slot {
    if work.sends() { work.cores * work.transmit_entries * (transmit::pieces(work) - 1) } else { 0 }
}

/// The end of the memory for packets: behind the pages lie these chunks.
pub(super) fn memory_end(server: &Server, work: &ServerWork) -> u64 {
    let chunks = chunks::chunks(parts(work), work.flows);
    behind(slots(server, work)) + u64::from(chunks) * transmit::chunk_bytes(work)
}

/// The server and its clients.
struct Iperf {
    world: Rc<World>,
    server: Server,
    striding: Striding,
    reader: Reader,
    work: ServerWork,
    batch: usize,
    seed: u64,
    nic: RefCell<Nic>,
    receive: Vec<Receive>,
    transmit: Vec<Transmit>,
    pages: Pages,
    chunks: Chunks,
    /// By flow. Those of the other direction are idle, at both ends.
    receivers: RefCell<Vec<Receiver<Held>>>,
    senders: RefCell<Vec<Sender>>,
    /// By flow, of those on which messages are exchanged.
    dialogues: RefCell<Vec<Option<Dialogue>>>,
    /// Flows whose packets or acknowledgements the present poll of a core has received.
    polled: RefCell<Vec<Vec<usize>>>,
    /// Whether a core has to poll on in place of an interrupt.
    polls_on: Vec<Cell<bool>>,
    /// Acknowledgements that were sent and have not arrived, by flow.
    answers: RefCell<Vec<Answers>>,
    reuse: RefCell<Reuse>,
    /// Bytes that applications have read.
    read_bytes: Cell<u64>,
    clients: RefCell<Clients>,
    is_open: Cell<bool>,
    start: OnceCell<(Start, Moment)>,
    end: OnceCell<Moment>,
}

impl Iperf {
    fn new(world: &Rc<World>, job: &Job<'_>, work: &ServerWork) -> Self {
        let server = job.machine.server.clone().expect("`ServerWork` is made for a machine with a server");
        let (striding, reader) = (striding(&server), server.software.reader.expect("there with `striding`"));
        let source = world.devices.borrow()[0].source();
        // These are values of the machine, which users may set.
        let (write_window_bytes, transaction_bytes) = (job.machine.bytes_in_flight, job.machine.transaction_bytes);
        let nic = NicParameters { write_window_bytes, transaction_bytes, ..server.nic.clone() };
        let slots = slots(&server, work);
        let (driver, window) =
            (&server.driver, (server.software.window_bytes / u64::from(server.software.segment_bytes)));
        let receive = |index: u32| {
            let cache = Cache::new(work.iperf.recycling, striding.cached_pages as usize);
            Receive::new(rings::receive(driver, work.receive_entries, index), 2 * index, cache)
        };
        let transmit = |index: u32| Transmit::new(rings::transmit(driver, work, index), 2 * index + 1);
        let flows = 0..work.flows as usize;
        let receiver = ReceiverParameters {
            window_packets: window,
            run_packets: (FRAME_BYTES / server.software.segment_bytes).into(),
            acknowledges_each: work.iperf.acknowledges_each,
            ..ReceiverParameters::default()
        };
        let direction = work.iperf.direction;
        // Linux offers 65,535 bytes in the handshake.
        let receive_window = u64::from(u16::MAX) / u64::from(server.software.segment_bytes);
        let sender = |written| Sender::new(&TcpParameters { receive_window, ..TcpParameters::default() }, written);
        let of_client = |flow| sender(if direction.sends(flow) || work.exchanges(flow) { 0 } else { u64::MAX });
        let costs = server.software.applications;
        let exchange = costs.and_then(|costs| Exchange::of(work.workload, work.size, &costs));
        let dialogue = |flow| {
            let exchange = exchange.filter(|_| work.exchanges(flow))?;
            Some(Dialogue::new(exchange, server.software.segment_bytes.into()))
        };
        let clients = Clients::new(
            flows.clone().map(of_client).collect(),
            flows.clone().map(|_| Receiver::new(&receiver)).collect(),
        );
        Self {
            nic: RefCell::new(Nic::new(source, nic, world.vtd.clone())),
            receive: (0..driver.receive_rings).map(receive).collect(),
            transmit: (0..driver.transmit_rings).map(transmit).collect(),
            pages: Pages::new(Packets::of(job.machine, slots, parts(work)), slots, work.iperf.holds),
            chunks: Chunks::new(behind(slots), transmit::chunk_bytes(work), slots, parts(work), work.flows),
            dialogues: RefCell::new(flows.clone().map(dialogue).collect()),
            receivers: RefCell::new(flows.clone().map(|_| Receiver::new(&receiver)).collect()),
            senders: RefCell::new(flows.clone().map(|_| sender(0)).collect()),
            polled: RefCell::new(vec![Vec::new(); work.cores as usize]),
            polls_on: vec![Cell::new(false); work.cores as usize],
            answers: RefCell::new(flows.map(|_| Answers::default()).collect()),
            reuse: RefCell::default(),
            read_bytes: Cell::new(0),
            clients: RefCell::new(clients),
            world: world.clone(),
            server,
            striding,
            reader,
            work: work.clone(),
            batch: job.batch,
            seed: job.seed,
            is_open: Cell::new(false),
            start: OnceCell::new(),
            end: OnceCell::new(),
        }
    }

    /// Whether the cores must stop.
    fn is_over(&self) -> bool {
        self.end.get().is_some() || self.world.failed()
    }

    fn notify_link(&self) {
        self.world.engine.notify(Wanted::Link.into());
    }

    /// The ring of a flow in the card.
    fn ring_of(&self, flow: usize) -> RingNumber {
        self.receive[self.work.core_of(flow)].open.get().expect("the card is open").0
    }
}

/// Lets the card do what is due. Returns when its next event is.
fn card_acts(host: &Iperf) -> Option<u64> {
    let (engine, software) = (&host.world.engine, &host.server.software);
    let mut nic = host.nic.borrow_mut();
    nic.advance(engine.now_ps());
    while let Some((at_ps, output)) = nic.take_output() {
        match output {
            Output::Interrupt(vector) => engine.raise(usize::from(vector) % host.work.cores as usize, at_ps, vector),
            Output::Sent(frame) => {
                let at_ps = at_ps + software.propagation_ps + software.client_ps;
                let packets = host.server.nic.packets(frame.bytes);
                host.clients.borrow_mut().arrives(at_ps, Meaning::of(frame.cookie), packets);
                engine.notify(Wanted::Clients.into());
            }
        }
    }
    nic.next_event_ps()
}

/// Makes the run. Returns where its measured part began, and the results.
pub(super) fn serve(world: &Rc<World>, job: &Job<'_>, work: &ServerWork) -> (Start, Served) {
    let host = Rc::new(Iperf::new(world, job, work));
    let engine = &world.engine;
    let weak = Rc::downgrade(&host);
    engine.on_interrupt(Some(Rc::new(move |vector| {
        if let Some(host) = weak.upgrade() {
            host.interrupt(vector);
        }
    })));
    let body = |core: usize| {
        let host = host.clone();
        Box::new(move || host.core(core)) as Body
    };
    let actor = |wanted: Wanted, act: fn(&Iperf) -> Option<u64>| {
        let host = host.clone();
        Actor { event: wanted.into(), act: Box::new(move || act(&host)) }
    };
    let cores = (0..work.cores as usize).map(body).collect();
    let actors = vec![actor(Wanted::Link, card_acts), actor(Wanted::Clients, clients::act)];
    if let Err(stuck) = engine.run_beside(cores, actors) {
        world.fail(if stuck.is_endless { RunError::Stuck(stuck) } else { RunError::NoProgress });
    }
    engine.on_interrupt(None);
    let Ok(host) = Rc::try_unwrap(host) else { panic!("the bodies, which share the host, have ended") };
    host.result()
}
