//! The actor for the clients at the other end of the link. Their machine has the same card and driver as the server.

mod netperf;
mod requests;

use super::frames::{Kind, Meaning};
use super::rate::Rate;
use super::tcp::{Receiver, Sender};
use super::{Host, RunError, ServerWork, ServerWorkload};
use crate::machine::NicDriver;
use crate::run::world::Wanted;
use netperf::Step;
use portcullis_model::{Frame, RingNumber, TcpSegment};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A run fails if no frame arrives at a client for this time: a second.
const PATIENCE_PS: u64 = 1_000_000_000_000;
/// A client takes all its packets as lost if nothing acknowledges them for this time: `TCP_RTO_MIN` of Linux.
const TIMEOUT_PS: u64 = 200_000_000_000;
/// A new connection acknowledges each segment at once for so many acknowledgements: `TCP_MAX_QUICKACKS` of Linux.
const QUICK: u32 = 16;

/// A client's end of a flow.
#[derive(Default)]
struct Flow {
    sender: Sender,
    receiver: Receiver,
    /// How many more segments are acknowledged at once.
    quick: u32,
    /// When the client handles packets that have arrived.
    poll_ps: Option<u64>,
    /// When the client acknowledges a single packet at the latest.
    at_latest_ps: Option<u64>,
    /// When the client began its present request.
    asked_ps: u64,
    /// When its packets in flight are taken as lost.
    timeout_ps: Option<u64>,
    /// The time by which it is listed in [`Clients::due`].
    listed_ps: Option<u64>,
    step: Step,
    /// How many runs have ended, and how many packets or requests of Netperf are left of the present one.
    runs: u32,
    left: u32,
}

impl Flow {
    /// When the client has something to do that no frame brings.
    fn due_ps(&self) -> Option<u64> {
        [self.poll_ps, self.at_latest_ps, self.timeout_ps].into_iter().flatten().min()
    }
}

/// All clients.
pub(super) struct Clients {
    flows: Vec<Flow>,
    rate: Rate,
    random: Pcg64Mcg,
    has_begun: bool,
    /// The flows that have something to do, each with the time.
    due: BTreeSet<(u64, usize)>,
    /// Frames in transit, each with the time of its arrival.
    inbox: VecDeque<(u64, Frame)>,
    /// Frames to be sent later, each with its ring, by time. Frames of the same time are in the order in which they
    /// were added.
    outbox: BTreeMap<(u64, u64), (RingNumber, Frame)>,
    added: u64,
    /// When the link to the server is free, and when the CPU of the clients is.
    link_free_ps: u64,
    cpu_free_ps: u64,
    /// When the latest frame arrived.
    heard_ps: u64,
    /// The latency of each request, in picoseconds.
    pub(super) latencies_ps: Vec<u64>,
}

impl Clients {
    pub(super) fn new(work: &ServerWork, driver: &NicDriver, seed: u64) -> Self {
        Self {
            flows: (0..work.flows).map(|_| Flow::default()).collect(),
            rate: Rate::new(driver),
            random: Pcg64Mcg::seed_from_u64(seed),
            has_begun: false,
            due: BTreeSet::new(),
            inbox: VecDeque::new(),
            outbox: BTreeMap::new(),
            added: 0,
            link_free_ps: 0,
            cpu_free_ps: 0,
            heard_ps: 0,
            latencies_ps: Vec::new(),
        }
    }

    /// Notes that a frame will arrive at `at_ps`.
    pub(super) fn arrives(&mut self, at_ps: u64, frame: Frame) {
        self.inbox.push_back((at_ps, frame));
    }

    /// When the clients have something to do next.
    fn next_ps(&self) -> u64 {
        let arrival = self.inbox.front().map(|(at_ps, _)| *at_ps);
        let departure = self.outbox.first_key_value().map(|((at_ps, _), _)| *at_ps);
        let due = self.due.first().map(|(at_ps, _)| *at_ps);
        let first = [arrival, departure, due].into_iter().flatten().min();
        first.unwrap_or(u64::MAX).min(self.heard_ps + PATIENCE_PS)
    }

    /// Lists a flow by the time when it has something to do.
    fn list(&mut self, flow: usize) {
        let one = &mut self.flows[flow];
        let due_ps = one.due_ps();
        let before_ps = std::mem::replace(&mut one.listed_ps, due_ps);
        if before_ps != due_ps {
            before_ps.map(|at_ps| self.due.remove(&(at_ps, flow)));
            due_ps.map(|at_ps| self.due.insert((at_ps, flow)));
        }
    }

    /// The flows that have something to do by now, in order.
    fn due_by(&self, now_ps: u64) -> BTreeSet<usize> {
        self.due.range(..=(now_ps, usize::MAX)).map(|(_, flow)| *flow).collect()
    }

    /// A time around a mean.
    fn around(&mut self, mean_ps: u64, spread: f64) -> u64 {
        (mean_ps as f64 * self.random.random_range(1.0 - spread..1.0 + spread)) as u64
    }
}

/// Lets the clients do what is due. Returns when they have something to do next.
pub(super) fn act(host: &Host) -> Option<u64> {
    let now_ps = host.world.engine.now_ps();
    if !host.is_open.get() || host.is_over() {
        return None;
    }
    if !std::mem::replace(&mut host.clients.borrow_mut().has_begun, true) {
        host.clients.borrow_mut().heard_ps = now_ps;
        host.clients_begin(now_ps);
    }
    while let Some(frame) = host.arrived(now_ps) {
        host.client_hears(now_ps, frame);
    }
    let due = host.clients.borrow().due_by(now_ps);
    due.into_iter().for_each(|flow| host.poll(now_ps, flow));
    while let Some((ring, frame)) = host.departs(now_ps) {
        host.put_on_link(now_ps, ring, frame, None);
    }
    if now_ps >= host.clients.borrow().heard_ps + PATIENCE_PS {
        host.world.fail(RunError::NoProgress);
        return None;
    }
    Some(host.clients.borrow().next_ps())
}

impl Host {
    /// Takes the next frame that has arrived.
    fn arrived(&self, now_ps: u64) -> Option<Frame> {
        let mut clients = self.clients.borrow_mut();
        clients.inbox.front().filter(|(at_ps, _)| *at_ps <= now_ps)?;
        clients.heard_ps = now_ps;
        clients.inbox.pop_front().map(|(_, frame)| frame)
    }

    fn clients_begin(&self, now_ps: u64) {
        let flows = 0..self.work.flows as usize;
        match self.work.workload.has_runs() {
            // Without earlier runs, the first flow begins the last run of all.
            true if self.work.earlier_runs == 0 => self.begin_run(now_ps, 0),
            true => flows.for_each(|flow| self.begin_run(now_ps, flow)),
            false => flows.for_each(|flow| self.begin_request(now_ps, flow)),
        }
    }

    fn client_hears(&self, now_ps: u64, frame: Frame) {
        let Meaning { flow, kind, number } = Meaning::of(frame.cookie);
        match kind {
            Kind::Data => self.data_came(now_ps, flow, frame, number),
            Kind::Acknowledgement | Kind::Gap => self.client_acknowledged(now_ps, flow, kind, number),
            Kind::Response if self.work.workload == ServerWorkload::Memcached => self.request_ended(now_ps, flow),
            Kind::Response => self.step_ended(now_ps, flow),
            Kind::Open => self.connected(now_ps, flow),
            Kind::Close => self.closed(now_ps, flow),
            Kind::Request => {}
        }
    }

    /// Notes packets of a response. The client's card announces them as its moderation says.
    fn data_came(&self, now_ps: u64, flow: usize, frame: Frame, number: u32) {
        let mut clients = self.clients.borrow_mut();
        clients.rate.note(now_ps, frame.bytes, &self.server.driver);
        let moderation = clients.rate.moderation;
        let one = &mut clients.flows[flow];
        one.receiver.receive(self.server.nic.packets(frame.bytes), number);
        let is_full = moderation.frames.is_some_and(|frames| one.receiver.fresh() >= frames);
        let poll_ps = now_ps + if is_full { 0 } else { moderation.delay_ps };
        one.poll_ps = Some(one.poll_ps.map_or(poll_ps, |before_ps| before_ps.min(poll_ps)));
        clients.list(flow);
    }

    /// Lets the client of a flow handle what has arrived. It acknowledges two or more packets at once, and delays the
    /// acknowledgement of a single packet. Then it looks whether it has waited for long enough.
    fn poll(&self, now_ps: u64, flow: usize) {
        self.poll_due(now_ps, flow);
        self.clients.borrow_mut().list(flow);
    }

    fn poll_due(&self, now_ps: u64, flow: usize) {
        let mut clients = self.clients.borrow_mut();
        let one = &mut clients.flows[flow];
        if one.due_ps().is_none_or(|due_ps| due_ps > now_ps) {
            return;
        }
        let polls = one.poll_ps.take_if(|at_ps| *at_ps <= now_ps).is_some();
        let is_late = one.at_latest_ps.is_some_and(|at_ps| at_ps <= now_ps);
        let fresh = one.receiver.fresh();
        if polls && fresh == 1 && one.quick == 0 && one.at_latest_ps.is_none() {
            one.at_latest_ps = Some(now_ps + self.server.software.delayed_acknowledgement_ps);
        } else if fresh > 0 && (polls && (fresh >= 2 || one.quick > 0) || is_late) {
            one.at_latest_ps = None;
            one.quick = one.quick.saturating_sub(1);
            let (number, _) = one.receiver.acknowledge();
            let after_ps = clients.around(self.server.software.client_ps, 0.5);
            drop(clients);
            let bytes = self.server.software.header_bytes;
            return self.client_sends(now_ps + after_ps, flow, bytes, Kind::Acknowledgement, number);
        }
        if one.timeout_ps.take_if(|at_ps| *at_ps <= now_ps).is_some() {
            one.sender.give_up();
            drop(clients);
            self.go_on(now_ps, flow);
        }
    }

    /// Begins a connection of a flow.
    fn connect(&self, flow: usize, is_measured: bool) {
        self.connect_flow(flow, is_measured);
        let clients = &mut *self.clients.borrow_mut();
        let one = &mut clients.flows[flow];
        (one.sender, one.receiver, one.quick) = (Sender::default(), Receiver::default(), QUICK);
        (one.poll_ps, one.at_latest_ps, one.timeout_ps) = (None, None, None);
        clients.list(flow);
    }

    /// Takes the next frame that a client sends by now.
    fn departs(&self, now_ps: u64) -> Option<(RingNumber, Frame)> {
        let mut clients = self.clients.borrow_mut();
        Some(clients.outbox.first_entry().filter(|first| first.key().0 <= now_ps)?.remove())
    }

    /// Sends a frame of a client at `at_ps`.
    fn client_sends(&self, at_ps: u64, flow: usize, bytes: u32, kind: Kind, number: u32) {
        let frame = Frame { bytes, cookie: Meaning::new(flow, kind, number).cookie() };
        // That of the present connection, even if the frame leaves after the next one has begun.
        let ring = self.card.receive_ring_number(self.receive_ring(flow));
        let clients = &mut *self.clients.borrow_mut();
        clients.added += 1;
        clients.outbox.insert((at_ps, clients.added), (ring, frame));
    }

    /// Puts a frame on the link to the server at `at_ps`, or when the link is free. If it is a segment of a stream, the
    /// card may join it to others.
    fn put_on_link(&self, at_ps: u64, ring: RingNumber, frame: Frame, segment: Option<TcpSegment>) {
        let mut clients = self.clients.borrow_mut();
        clients.link_free_ps = clients.link_free_ps.max(at_ps) + self.server.nic.wire_ps(frame.bytes);
        let arrival_ps = clients.link_free_ps + self.server.software.propagation_ps;
        let mut nic = self.nic.borrow_mut();
        match segment {
            Some(segment) => nic.receive_segment(arrival_ps, ring, frame, segment),
            None => nic.receive(arrival_ps, ring, frame),
        }
        drop(nic);
        self.world.engine.notify(Wanted::Link.into());
    }
}
