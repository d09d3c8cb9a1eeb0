//! A sender and a receiver at the ends of a link that keeps the order and loses packets.

use super::receiver::{Acknowledgement, Receiver, ReceiverParameters};
use super::sender::{Sender, TcpParameters};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;

/// A packet on the wire, the way in one direction, and the delay of the driver's poll.
const PACKET_PS: u64 = 330_000;
const WAY_PS: u64 = 10_000_000;
const POLL_PS: u64 = 5_000_000;

struct Link<L> {
    now_ps: u64,
    sender: Sender,
    receiver: Receiver<u64>,
    free_ps: u64,
    packets: VecDeque<(u64, u64)>,
    acknowledgements: VecDeque<(u64, Acknowledgement)>,
    /// Whether the packet with this number, or an acknowledgement (none), is lost.
    loses: L,
    reads: bool,
    delivered: u64,
    /// The first number that the receiver has not allowed.
    edge: u64,
}

impl<L: FnMut(Option<u64>) -> bool> Link<L> {
    fn new(loses: L) -> Self {
        let parameters = TcpParameters::default();
        Self {
            now_ps: 0,
            sender: Sender::new(&parameters, u64::MAX),
            receiver: Receiver::new(&ReceiverParameters::default()),
            free_ps: 0,
            packets: VecDeque::new(),
            acknowledgements: VecDeque::new(),
            loses,
            reads: true,
            delivered: 0,
            edge: parameters.receive_window,
        }
    }

    /// Runs until so many packets were read, or until a time. Returns whether they were read.
    fn run(&mut self, packets: u64, until_ps: u64) -> bool {
        while self.delivered < packets {
            self.send();
            let events_ps = [
                (self.free_ps > self.now_ps).then_some(self.free_ps),
                self.packets.front().map(|&(ps, _)| ps + POLL_PS),
                self.acknowledgements.front().map(|&(ps, _)| ps),
                self.sender.timer_ps(),
                self.receiver.timer_ps(),
            ];
            let Some(next_ps) = events_ps.into_iter().flatten().min().filter(|&ps| ps <= until_ps) else {
                return false;
            };
            self.now_ps = self.now_ps.max(next_ps);
            self.sender.expire(self.now_ps);
            let late = self.receiver.expire(self.now_ps);
            self.answer(late);
            while let Some((_, answer)) = self.acknowledgements.pop_front_if(|&mut (ps, _)| ps <= self.now_ps) {
                self.edge = self.edge.max(answer.next + answer.window);
                self.sender.acknowledge(self.now_ps, &answer);
            }
            if self.packets.front().is_some_and(|&(ps, _)| ps + POLL_PS <= self.now_ps) {
                self.poll();
            }
        }
        true
    }

    fn send(&mut self) {
        if self.free_ps > self.now_ps {
            return;
        }
        if let Some(packet) = self.sender.next(self.now_ps) {
            assert!(packet.number < self.edge, "beyond the window");
            self.free_ps = self.now_ps + PACKET_PS;
            if !(self.loses)(Some(packet.number)) {
                self.packets.push_back((self.free_ps + WAY_PS, packet.number));
            }
        }
    }

    fn poll(&mut self) {
        while let Some((_, number)) = self.packets.pop_front_if(|&mut (ps, _)| ps <= self.now_ps) {
            self.receiver.receive(self.now_ps, number, number);
        }
        let answers = self.receiver.poll_ended(self.now_ps);
        self.answer(answers);
        if self.reads {
            self.read();
        }
    }

    fn read(&mut self) {
        for number in self.receiver.read(usize::MAX) {
            assert_eq!(number, self.delivered, "in order, and once");
            self.delivered += 1;
        }
        let answer = self.receiver.read_ended();
        self.answer(answer);
    }

    fn answer(&mut self, answers: impl IntoIterator<Item = Acknowledgement>) {
        for answer in answers {
            if !(self.loses)(None) {
                self.acknowledgements.push_back((self.now_ps + WAY_PS, answer));
            }
        }
    }
}

const SECOND_PS: u64 = 1_000_000_000_000;

#[test]
fn without_loss_every_packet_is_sent_once_and_the_window_fills_the_link() {
    let mut link = Link::new(|_| false);
    assert!(link.run(100_000, SECOND_PS));
    let sent = link.sender.sent();
    assert_eq!((sent.again, sent.timeouts, sent.probes), (0, 0, 0));
    let rate = 100_000.0 * PACKET_PS as f64 / link.now_ps as f64;
    assert!(rate > 0.95, "{rate}");
}

#[test]
fn a_single_loss_costs_one_packet_and_no_timer() {
    let mut was_lost = false;
    let mut link = Link::new(|packet| packet == Some(200) && !std::mem::replace(&mut was_lost, true));
    assert!(link.run(10_000, SECOND_PS));
    let sent = link.sender.sent();
    assert_eq!((sent.again, sent.timeouts, sent.probes), (1, 0, 0));
    assert!(link.now_ps < SECOND_PS / 200, "no timer was needed: {}", link.now_ps);
}

#[test]
fn what_is_lost_again_and_again_arrives_in_order_and_once() {
    for seed in 0..40 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let loss = [0.001, 0.01, 0.05, 0.2][seed as usize % 4];
        let mut link = Link::new(|_| random.random_bool(loss));
        // A fifth of what is sent again is lost too, and then the timeout doubles.
        let done = link.run(5_000, 6_000 * SECOND_PS);
        assert!(done, "seed {seed}: {} of 5000", link.delivered);
        assert!(link.sender.sent().again > 0);
    }
}

#[test]
fn what_is_lost_in_bursts_needs_few_timeouts() {
    // Every 3 ms a buffer overflows and loses half of what arrives for 10 µs.
    let (mut random, mut lost, mut packets) = (Pcg64Mcg::seed_from_u64(1), 0, 0);
    let mut link = Link::new(|packet| {
        packets += u64::from(packet.is_some());
        let is_lost = packet.is_some() && packets % 9_000 >= 8_970 && random.random_bool(0.5);
        lost += u64::from(is_lost);
        is_lost
    });
    assert!(link.run(100_000, 60 * SECOND_PS));
    let sent = link.sender.sent();
    drop(link);
    assert!(lost > 50 && sent.again >= lost && sent.again < lost + lost / 4 + sent.probes, "{lost} {sent:?}");
    assert!(sent.timeouts <= 2, "{sent:?}");
}

#[test]
fn a_reader_that_stops_stops_the_sender_until_it_reads_again() {
    let mut link = Link::new(|_| false);
    assert!(link.run(1_000, SECOND_PS));
    link.reads = false;
    assert!(!link.run(u64::MAX, link.now_ps + SECOND_PS));
    assert!((235..=250).contains(&link.receiver.held()), "{}", link.receiver.held());
    let (again, probes) = (link.sender.sent().again, link.sender.sent().probes);
    assert!((1..=6).contains(&probes) && again <= probes, "it asks for the window: {again} {probes}");
    assert_eq!(link.sender.sent().timeouts, 0);
    link.read();
    link.reads = true;
    assert!(link.run(link.delivered + 10_000, link.now_ps + SECOND_PS));
    assert_eq!(link.sender.sent().again, again);
}
