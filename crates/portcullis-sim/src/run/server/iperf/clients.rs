//! The clients at the other end of the link: one TCP sender for each flow.

use super::Iperf;
use super::sender::Sender;
use crate::run::RunError;
use crate::run::server::frames::{Kind, Meaning};
use crate::run::world::Wanted;
use portcullis_model::Frame;
use std::collections::VecDeque;

/// The most packets of a flow that follow each other on the link: what the kernel hands to its card at once (TSO),
/// 64 KiB.
const BURST_PACKETS: u32 = 16;
/// A run fails if no acknowledgement arrives for this time. Retransmission timeouts double from 200 ms.
const PATIENCE_PS: u64 = 5_000_000_000_000;

/// All clients.
pub(super) struct Clients {
    pub(super) senders: Vec<Sender>,
    /// The flow whose turn it is.
    turn: usize,
    /// Acknowledgements in transit: when they arrive, and for which flow. Each flow has its own in order.
    inbox: VecDeque<(u64, usize)>,
    link_free_ps: u64,
    heard_ps: u64,
}

impl Clients {
    pub(super) fn new(senders: Vec<Sender>) -> Self {
        Self { senders, turn: 0, inbox: VecDeque::new(), link_free_ps: 0, heard_ps: 0 }
    }

    /// Notes that an acknowledgement will arrive at `at_ps`.
    pub(super) fn arrives(&mut self, at_ps: u64, flow: usize) {
        self.inbox.push_back((at_ps, flow));
    }
}

/// Lets the clients do what is due. Returns when they have something to do next.
pub(super) fn act(host: &Iperf) -> Option<u64> {
    let now_ps = host.world.engine.now_ps();
    if !host.is_open.get() || host.is_over() {
        return None;
    }
    let mut clients = host.clients.borrow_mut();
    while let Some((_, flow)) = clients.inbox.front().copied().filter(|(at_ps, _)| *at_ps <= now_ps) {
        clients.inbox.pop_front();
        clients.heard_ps = now_ps;
        let acknowledgement = host.acknowledgements.borrow_mut()[flow].pop_front();
        if let Some(acknowledgement) = acknowledgement {
            clients.senders[flow].acknowledge(now_ps, &acknowledgement);
        }
    }
    for sender in &mut clients.senders {
        if sender.timer_ps().is_some_and(|due_ps| due_ps <= now_ps) {
            sender.expire(now_ps);
        }
    }
    let sends = host.fill_link(&mut clients, now_ps);
    if now_ps >= clients.heard_ps + PATIENCE_PS {
        host.world.fail(RunError::NoProgress);
        return None;
    }
    let receivers = host.receivers.borrow();
    for (flow, receiver) in receivers.iter().enumerate() {
        if receiver.timer_ps().is_some_and(|due_ps| due_ps <= now_ps) {
            host.world.engine.notify(Wanted::Flows(host.work.core_of(flow)).into());
        }
    }
    // A timer of the server that is due waits for its core.
    let of_server = receivers.iter().filter_map(|receiver| receiver.timer_ps()).filter(|due_ps| *due_ps > now_ps);
    let timers = clients.senders.iter().filter_map(Sender::timer_ps).chain(of_server);
    let arrival = clients.inbox.front().map(|(at_ps, _)| *at_ps);
    let link = sends.then_some(clients.link_free_ps);
    let next_ps = timers.chain(arrival).chain(link).min().unwrap_or(u64::MAX);
    Some(next_ps.min(clients.heard_ps + PATIENCE_PS).max(now_ps + 1))
}

impl Iperf {
    /// Puts one burst on the link, if it is free. Returns whether there was one to send.
    fn fill_link(&self, clients: &mut Clients, now_ps: u64) -> bool {
        if clients.link_free_ps > now_ps {
            return true;
        }
        let software = &self.server.software;
        let bytes = software.header_bytes + software.segment_bytes;
        let wire_ps = self.server.nic.wire_ps(bytes);
        let flows = clients.senders.len();
        for step in 0..flows {
            let flow = (clients.turn + step) % flows;
            let ring = self.ring_of(flow);
            let mut sent = 0;
            while sent < BURST_PACKETS {
                let Some(packet) = clients.senders[flow].next(now_ps) else { break };
                clients.link_free_ps = clients.link_free_ps.max(now_ps) + wire_ps;
                let cookie = Meaning::new(flow, Kind::Data, packet.number as u32).cookie();
                let arrival_ps = clients.link_free_ps + software.propagation_ps;
                self.nic.borrow_mut().receive(arrival_ps, ring, Frame { bytes, cookie });
                sent += 1;
            }
            if sent > 0 {
                clients.turn = flow + 1;
                self.notify_link();
                return true;
            }
        }
        false
    }
}
