//! The actor for the clients at the other end of the link. Their machine has the same card and driver as the server.

use super::flows::{cookie, flow_of};
use super::rate::Rate;
use super::{Host, RunError, ServerWork, ServerWorkload};
use crate::machine::NicDriver;
use crate::run::world::Wanted;
use portcullis_model::Frame;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;

/// A run fails if no frame arrives at a client for this time: a second.
const PATIENCE_PS: u64 = 1_000_000_000_000;

/// A client's end of a flow.
#[derive(Default)]
struct Flow {
    /// How many packets have arrived, and how many of them were not acknowledged.
    received: u32,
    fresh: u32,
    /// When the client handles them.
    poll_ps: Option<u64>,
    /// When the client acknowledges a single packet at the latest.
    at_latest_ps: Option<u64>,
    /// When the client began its present request.
    asked_ps: u64,
}

/// All clients.
pub(super) struct Clients {
    flows: Vec<Flow>,
    rate: Rate,
    random: Pcg64Mcg,
    /// Frames in transit, each with the time of its arrival.
    inbox: VecDeque<(u64, Frame)>,
    /// When the link to the server is free.
    link_free_ps: u64,
    /// When the latest frame arrived.
    heard_ps: u64,
    /// How many full packets have arrived.
    pub(super) packets: u64,
    /// The latency of each request, in picoseconds.
    pub(super) latencies_ps: Vec<u64>,
}

impl Clients {
    pub(super) fn new(work: &ServerWork, driver: &NicDriver, seed: u64) -> Self {
        Self {
            flows: (0..work.flows).map(|_| Flow::default()).collect(),
            rate: Rate::new(driver),
            random: Pcg64Mcg::seed_from_u64(seed),
            inbox: VecDeque::new(),
            link_free_ps: 0,
            heard_ps: 0,
            packets: 0,
            latencies_ps: Vec::new(),
        }
    }

    /// Notes that a frame will arrive at `at_ps`.
    pub(super) fn arrives(&mut self, at_ps: u64, frame: Frame) {
        self.inbox.push_back((at_ps, frame));
    }

    /// When the clients have something to do next.
    fn next_ps(&self) -> u64 {
        let flows = self.flows.iter().flat_map(|flow| flow.poll_ps.into_iter().chain(flow.at_latest_ps));
        let arrival = self.inbox.front().map(|(at_ps, _)| *at_ps);
        flows.chain(arrival).min().unwrap_or(u64::MAX).min(self.heard_ps + PATIENCE_PS)
    }
}

pub(super) fn run(host: &Host, _: usize) {
    let engine = &host.world.engine;
    engine.wait_until(Wanted::Clients.into(), || host.is_open.get());
    host.clients.borrow_mut().heard_ps = engine.now_ps();
    while !host.is_over() {
        let now_ps = engine.now_ps();
        while let Some(frame) = host.arrived(now_ps) {
            match host.work.workload {
                ServerWorkload::NetperfStream => host.packet_came(now_ps, frame),
                ServerWorkload::NetperfRr => host.response_came(now_ps, flow_of(frame.cookie)),
            }
        }
        (0..host.work.flows as usize).for_each(|flow| host.poll(now_ps, flow));
        if now_ps >= host.clients.borrow().heard_ps + PATIENCE_PS {
            return host.world.fail(RunError::NoProgress);
        }
        let next_ps = host.clients.borrow().next_ps();
        engine.wait_for(Wanted::Clients.into(), Some(next_ps));
    }
}

impl Host {
    /// Takes the next frame that has arrived.
    fn arrived(&self, now_ps: u64) -> Option<Frame> {
        let mut clients = self.clients.borrow_mut();
        clients.inbox.front().filter(|(at_ps, _)| *at_ps <= now_ps)?;
        clients.heard_ps = now_ps;
        clients.inbox.pop_front().map(|(_, frame)| frame)
    }

    /// Handles the arrival of a packet of a stream. The client's card announces it as its moderation says.
    fn packet_came(&self, now_ps: u64, frame: Frame) {
        let mut clients = self.clients.borrow_mut();
        clients.packets += 1;
        clients.rate.note(now_ps, frame.bytes, &self.server.driver);
        let moderation = clients.rate.moderation;
        let flow = &mut clients.flows[flow_of(frame.cookie)];
        flow.received = flow.received.wrapping_add(1);
        flow.fresh += 1;
        let is_full = moderation.frames.is_some_and(|frames| flow.fresh >= frames);
        let poll_ps = now_ps + if is_full { 0 } else { moderation.delay_ps };
        flow.poll_ps = Some(flow.poll_ps.map_or(poll_ps, |before_ps| before_ps.min(poll_ps)));
    }

    /// Lets the client of a flow handle what has arrived. It acknowledges two or more packets at once, and delays the
    /// acknowledgement of a single packet.
    fn poll(&self, now_ps: u64, flow: usize) {
        let mut clients = self.clients.borrow_mut();
        let one = &mut clients.flows[flow];
        let polls = one.poll_ps.take_if(|at_ps| *at_ps <= now_ps).is_some();
        let is_late = one.at_latest_ps.is_some_and(|at_ps| at_ps <= now_ps);
        if polls && one.fresh == 1 && one.at_latest_ps.is_none() {
            one.at_latest_ps = Some(now_ps + self.server.software.delayed_acknowledgement_ps);
        } else if polls && one.fresh >= 2 || is_late {
            (one.fresh, one.at_latest_ps) = (0, None);
            let number = one.received;
            let after_ps = self.server.software.client_ps as f64 * clients.random.random_range(0.5..1.5);
            drop(clients);
            self.client_sends(now_ps + after_ps as u64, flow, self.server.software.header_bytes, number);
        }
    }

    /// Lets every client send its first request.
    pub(super) fn begin_requests(&self) {
        let now_ps = self.world.engine.now_ps();
        (0..self.work.flows as usize).for_each(|flow| self.ask(now_ps, flow));
    }

    fn response_came(&self, now_ps: u64, flow: usize) {
        let mut clients = self.clients.borrow_mut();
        let latency_ps = now_ps - clients.flows[flow].asked_ps;
        clients.latencies_ps.push(latency_ps);
        drop(clients);
        self.ask(now_ps, flow);
    }

    /// Sends the next request of a client.
    fn ask(&self, now_ps: u64, flow: usize) {
        let mut clients = self.clients.borrow_mut();
        clients.flows[flow].asked_ps = now_ps;
        let after_ps = self.server.software.client_transaction_ps as f64 * clients.random.random_range(0.9..1.1);
        drop(clients);
        self.client_sends(now_ps + after_ps as u64, flow, self.server.software.small_frame_bytes, 0);
    }

    /// Sends a frame of a client at `at_ps`, or when the link is free.
    fn client_sends(&self, at_ps: u64, flow: usize, bytes: u32, number: u32) {
        let mut clients = self.clients.borrow_mut();
        clients.link_free_ps = clients.link_free_ps.max(at_ps) + self.server.nic.wire_ps(bytes);
        let arrival_ps = clients.link_free_ps + self.server.software.propagation_ps;
        let frame = Frame { bytes, cookie: cookie(flow, number) };
        let ring = self.card.receive_ring_number(self.receive_ring(flow));
        self.nic.borrow_mut().receive(arrival_ps, ring, frame);
        self.world.engine.notify(Wanted::Link.into());
    }
}
