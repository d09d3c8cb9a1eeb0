//! The clients at the other end of the link: for each flow, a TCP sender or a TCP receiver. Nothing limits their CPUs.

use super::Iperf;
use super::answers::Answers;
use super::exchange::Dialogue;
use super::receiver::{Acknowledgement, Receiver};
use super::sender::Sender;
use super::sending::FRAME_BYTES;
use crate::run::RunError;
use crate::run::server::frames::{Kind, Meaning};
use crate::run::world::Wanted;
use portcullis_model::Frame;
use std::collections::VecDeque;

/// A run fails if no acknowledgement arrives for this time. Retransmission timeouts double from 200 ms.
const PATIENCE_PS: u64 = 5_000_000_000_000;

/// All clients.
pub(super) struct Clients {
    pub(super) senders: Vec<Sender>,
    /// Of the streams that the server sends.
    receivers: Vec<Receiver<()>>,
    /// Bytes that their applications have read.
    pub(super) read_bytes: u64,
    /// Whether those that ask have begun.
    has_asked: bool,
    /// The flow whose turn it is.
    turn: usize,
    /// Frames of the server in transit: when they arrive, what they are, and how many packets they are.
    inbox: VecDeque<(u64, Meaning, u32)>,
    /// Acknowledgements on their way to the server, by flow, and the frames that carry those that wait for the link.
    pub(super) answers: Vec<Answers>,
    outbox: VecDeque<Meaning>,
    link_free_ps: u64,
    heard_ps: u64,
}

impl Clients {
    pub(super) fn new(senders: Vec<Sender>, receivers: Vec<Receiver<()>>) -> Self {
        Self {
            answers: senders.iter().map(|_| Answers::default()).collect(),
            senders,
            receivers,
            read_bytes: 0,
            has_asked: false,
            turn: 0,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            link_free_ps: 0,
            heard_ps: 0,
        }
    }

    /// Notes that a frame of so many packets will arrive at `at_ps`.
    pub(super) fn arrives(&mut self, at_ps: u64, meaning: Meaning, packets: u32) {
        self.inbox.push_back((at_ps, meaning, packets));
    }

    /// Receives the packets of a frame. The application reads them at once, and answers or asks again.
    fn receive(
        &mut self,
        now_ps: u64,
        meaning: Meaning,
        packets: u32,
        segment_bytes: u32,
        dialogue: Option<&mut Dialogue>,
    ) {
        let receiver = &mut self.receivers[meaning.flow];
        let first = meaning.number_near(receiver.next());
        for number in first..first + u64::from(packets) {
            receiver.receive(now_ps, number, ());
        }
        let due = receiver.poll_ended(now_ps);
        let read = receiver.read(usize::MAX).count() as u64;
        self.read_bytes += match dialogue {
            Some(dialogue) if read > 0 => {
                let (bytes, messages) = dialogue.written().read(read);
                let writes = dialogue.client_read(now_ps, messages);
                writes.into_iter().for_each(|packets| self.senders[meaning.flow].write(packets));
                bytes
            }
            _ => read * u64::from(segment_bytes),
        };
        let due = due.into_iter().chain(receiver.read_ended());
        due.for_each(|due| self.answer(meaning.flow, due));
    }

    fn answer(&mut self, flow: usize, acknowledgement: Acknowledgement) {
        let meaning = self.answers[flow].add(flow, acknowledgement);
        self.outbox.push_back(meaning);
    }

    /// When the first timer expires.
    fn timer_ps(&self) -> Option<u64> {
        let of_senders = self.senders.iter().filter_map(Sender::timer_ps);
        of_senders.chain(self.receivers.iter().filter_map(Receiver::timer_ps)).min()
    }

    /// Handles the timers that have expired.
    fn expire(&mut self, now_ps: u64) {
        for flow in 0..self.senders.len() {
            if self.senders[flow].timer_ps().is_some_and(|due_ps| due_ps <= now_ps) {
                self.senders[flow].expire(now_ps);
            }
            if let Some(due) = self.receivers[flow].expire(now_ps) {
                self.answer(flow, due);
            }
        }
    }
}

/// Lets the clients do what is due. Returns when they have something to do next.
pub(super) fn act(host: &Iperf) -> Option<u64> {
    let now_ps = host.world.engine.now_ps();
    if !host.is_open.get() || host.is_over() {
        return None;
    }
    let mut clients = host.clients.borrow_mut();
    if !std::mem::replace(&mut clients.has_asked, true) {
        host.clients_ask(&mut clients, now_ps);
    }
    while let Some((_, meaning, packets)) = clients.inbox.front().copied().filter(|(at_ps, ..)| *at_ps <= now_ps) {
        clients.inbox.pop_front();
        clients.heard_ps = now_ps;
        if meaning.kind == Kind::Data {
            let segment_bytes = host.server.software.segment_bytes;
            let dialogue = &mut host.dialogues.borrow_mut()[meaning.flow];
            clients.receive(now_ps, meaning, packets, segment_bytes, dialogue.as_mut());
            continue;
        }
        let acknowledgement = host.answers.borrow_mut()[meaning.flow].take(meaning);
        if let Some(acknowledgement) = acknowledgement {
            clients.senders[meaning.flow].acknowledge(now_ps, &acknowledgement);
        }
    }
    clients.expire(now_ps);
    let sends = host.fill_link(&mut clients, now_ps);
    if now_ps >= clients.heard_ps + PATIENCE_PS {
        host.world.fail(RunError::NoProgress);
        return None;
    }
    let (receivers, senders) = (host.receivers.borrow(), host.senders.borrow());
    let mut next_of_server_ps = None;
    for (flow, (receiver, sender)) in receivers.iter().zip(&*senders).enumerate() {
        let timers = [receiver.timer_ps(), sender.timer_ps()];
        // A timer of the server that is due waits for its core.
        if timers.into_iter().flatten().any(|due_ps| due_ps <= now_ps) {
            host.world.engine.notify(Wanted::Flows(host.work.core_of(flow)).into());
        }
        let later = timers.into_iter().flatten().filter(|due_ps| *due_ps > now_ps);
        next_of_server_ps = later.chain(next_of_server_ps).min();
    }
    let arrival = clients.inbox.front().map(|(at_ps, ..)| *at_ps);
    let link = sends.then_some(clients.link_free_ps);
    let timers = [clients.timer_ps(), next_of_server_ps, arrival, link];
    let next_ps = timers.into_iter().flatten().min().unwrap_or(u64::MAX);
    Some(next_ps.min(clients.heard_ps + PATIENCE_PS).max(now_ps + 1))
}

impl Iperf {
    fn clients_ask(&self, clients: &mut Clients, now_ps: u64) {
        for (sender, dialogue) in clients.senders.iter_mut().zip(self.dialogues.borrow_mut().iter_mut()) {
            let Some(dialogue) = dialogue.as_mut().filter(|dialogue| !dialogue.exchange.server_asks) else { continue };
            dialogue.ask(now_ps).into_iter().for_each(|packets| sender.write(packets));
        }
    }

    /// Puts one burst on the link, if it is free: at most what a kernel hands to its card at once (TSO, 64 KiB).
    /// Returns whether there was one to send. A call does not wait for the turn of streams: its core has a ring of its
    /// own, and cards take packets from their rings in turn (assumed).
    fn fill_link(&self, clients: &mut Clients, now_ps: u64) -> bool {
        if clients.link_free_ps > now_ps {
            return true;
        }
        let software = &self.server.software;
        let has_answers = self.send_answers(clients, now_ps);
        let burst_packets = FRAME_BYTES / software.segment_bytes;
        let flows = clients.senders.len();
        let turn = clients.turn;
        let in_turn = (0..flows).map(|step| (turn + step) % flows);
        for flow in self.work.call().into_iter().chain(in_turn) {
            let ring = self.ring_of(flow);
            let mut sent = 0;
            let mut dialogues = self.dialogues.borrow_mut();
            let dialogue = &mut dialogues[flow];
            while sent < burst_packets {
                let Some(packet) = clients.senders[flow].next(now_ps) else { break };
                let payload = dialogue.as_mut().map(|dialogue| dialogue.read().bytes_of(packet.number) as u32);
                let bytes = software.header_bytes + payload.unwrap_or(software.segment_bytes);
                clients.link_free_ps = clients.link_free_ps.max(now_ps) + self.server.nic.wire_ps(bytes);
                let cookie = Meaning::new(flow, Kind::Data, packet.number as u32).cookie();
                let arrival_ps = clients.link_free_ps + software.propagation_ps;
                self.nic.borrow_mut().receive(arrival_ps, ring, Frame { bytes, cookie });
                sent += 1;
            }
            if sent > 0 {
                // A call takes no turn.
                if self.work.call() != Some(flow) {
                    clients.turn = flow + 1;
                }
                self.notify_link();
                return true;
            }
        }
        has_answers
    }

    /// Puts all acknowledgements that wait on the link. Returns whether there were any.
    fn send_answers(&self, clients: &mut Clients, now_ps: u64) -> bool {
        let software = &self.server.software;
        let (bytes, has_answers) = (software.header_bytes, !clients.outbox.is_empty());
        for meaning in std::mem::take(&mut clients.outbox) {
            clients.link_free_ps = clients.link_free_ps.max(now_ps) + self.server.nic.wire_ps(bytes);
            let arrival_ps = clients.link_free_ps + software.propagation_ps;
            let frame = Frame { bytes, cookie: meaning.cookie() };
            self.nic.borrow_mut().receive(arrival_ps, self.ring_of(meaning.flow), frame);
        }
        if has_answers {
            self.notify_link();
        }
        has_answers
    }
}
