//! A TCP sender of Linux 6.0, of a client or of the server: what is sent when, and what is taken as lost.
//!
//! Losses are found by RACK (RFC 8985) alone, as in Linux. Left out: marked packets, F-RTO, undoing a reduction that a
//! duplicate shows to be wrong, the wider reordering window after duplicates, round-trip times from timestamps (Linux
//! takes them, in milliseconds, where only packets that were sent again are acknowledged), and receivers that drop what
//! they have acknowledged selectively.

mod recovery;
mod rtt;
#[cfg(test)]
mod tests;
mod window;

use super::receiver::Acknowledgement;
use super::ticks::JIFFY_PS;
use rtt::Rtt;
use std::collections::VecDeque;
use std::ops::Range;
use window::Window;

/// The largest degree of reordering that a sender assumes: `tcp_max_reordering`.
const REORDERING_MAX: u64 = 300;

/// The constants of a sender.
#[derive(Clone, Debug)]
pub(super) struct TcpParameters {
    /// A jiffy. 4 ms: `HZ` 250.
    pub(super) jiffy_ps: u64,
    /// What a retransmission timeout adds to the smoothed round-trip time at least, and a probe's timer if a single
    /// packet is out. 200 ms: `TCP_RTO_MIN`.
    pub(super) rto_min_ps: u64,
    /// The longest retransmission timeout. 120 s: `TCP_RTO_MAX`.
    pub(super) rto_max_ps: u64,
    /// The round-trip time of the handshake. 30 µs: Fast & Safe, Fig. 9, an RPC without load.
    pub(super) handshake_ps: u64,
    /// What the timers of probes and of reordering add. 2: `TCP_TIMEOUT_MIN`.
    pub(super) timer_min_jiffies: u64,
    /// The first congestion window. 10: `TCP_INIT_CWND`, RFC 6928.
    pub(super) initial_window: u64,
    /// The receiver's window before its first acknowledgement. 16: Linux offers 65,535 bytes in the handshake, or 16
    /// packets of 3,948 bytes.
    pub(super) receive_window: u64,
    /// So many packets that arrived beyond a missing one prove its loss, unless reordering was seen. 3:
    /// `tcp_reordering`.
    pub(super) reordering: u64,
}

impl Default for TcpParameters {
    fn default() -> Self {
        Self {
            jiffy_ps: JIFFY_PS,
            rto_min_ps: 200_000_000_000,
            rto_max_ps: 120_000_000_000_000,
            handshake_ps: 30_000_000,
            timer_min_jiffies: 2,
            initial_window: 10,
            receive_window: 16,
            reordering: 3,
        }
    }
}

/// A packet that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// Its number.
    pub(super) number: u64,
    /// Whether it was sent before.
    pub(super) is_again: bool,
}

/// What a sender counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Packets, and how many of them had been sent before.
    pub(super) packets: u64,
    pub(super) again: u64,
    /// Retransmission timeouts.
    pub(super) timeouts: u64,
    /// Probes of tails and of closed windows.
    pub(super) probes: u64,
}

/// A packet that is not acknowledged in order.
#[derive(Clone, Debug, Default)]
struct Flight {
    /// When it was last sent.
    sent_ps: u64,
    is_sacked: bool,
    /// Whether it was taken as lost. It stays so while it is out again.
    is_lost: bool,
    is_out_again: bool,
    was_again: bool,
}

/// The state of the recovery. Linux's `Disorder` is `Open` with packets that were acknowledged selectively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Recovery,
    Loss,
}

/// What the timer does when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Reordering,
    Probe,
    Retransmission,
    /// Asks a receiver with a closed window.
    Window,
}

/// What is sent whatever the congestion window says.
#[derive(Clone, Copy, Debug)]
enum Forced {
    Tail,
    Window,
}

/// The latest packet, by the time it was sent, that is known to have arrived.
#[derive(Clone, Debug, Default)]
struct Rack {
    sent_ps: u64,
    number: u64,
    rtt_ps: u64,
    has_advanced: bool,
}

/// What an acknowledgement brought.
#[derive(Default)]
struct News {
    delivered: u64,
    /// When the first and the last of the packets were sent that arrived in order, and selectively.
    in_order_ps: Option<(u64, u64)>,
    sacked_ps: Option<(u64, u64)>,
    /// The lowest packet that arrived at the first attempt.
    lowest: Option<u64>,
    has_again: bool,
}

/// The sender of a flow.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    parameters: TcpParameters,
    /// How many packets its application has written.
    written: u64,
    /// The first packet that is not acknowledged, and those from it on.
    una: u64,
    flights: VecDeque<Flight>,
    /// How many packets from `una` on the receiver takes.
    receive_window: u64,
    window: Window,
    /// Whether the congestion window was full, the most packets that were out, and until when this holds.
    is_limited: bool,
    out_max: u64,
    usage_ends: u64,
    state: State,
    /// The recovery ends when all packets before this one have arrived.
    recovers_to: u64,
    /// Numbers of packets that are out, by their flags.
    sacked: u64,
    lost: u64,
    out_again: u64,
    /// How often a packet was taken as lost.
    lost_in_all: u64,
    /// No packet before this one waits to be sent again.
    hint: u64,
    /// The first packet beyond all that arrived.
    beyond: u64,
    rtt: Rtt,
    backoff: u32,
    rack: Rack,
    reordering: u64,
    has_reordered: bool,
    /// A probe that is out: what the acknowledgement of all packets says, and whether the probe had been sent before.
    probe: Option<(u64, bool)>,
    forced: Option<Forced>,
    timer: Option<(Timer, u64)>,
    sent: Sent,
}

impl Sender {
    /// A sender that begins with packet 0, and whose application has written so many packets. `u64::MAX`: it always has
    /// something to send.
    pub(super) fn new(parameters: &TcpParameters, written: u64) -> Self {
        Self {
            parameters: parameters.clone(),
            written,
            una: 0,
            flights: VecDeque::new(),
            receive_window: parameters.receive_window,
            window: Window::new(parameters.initial_window),
            is_limited: false,
            out_max: 0,
            usage_ends: 0,
            state: State::Open,
            recovers_to: 0,
            sacked: 0,
            lost: 0,
            out_again: 0,
            lost_in_all: 0,
            hint: 0,
            beyond: 0,
            rtt: Rtt::new(parameters.handshake_ps),
            backoff: 0,
            rack: Rack::default(),
            reordering: parameters.reordering,
            has_reordered: false,
            probe: None,
            forced: None,
            timer: None,
            sent: Sent::default(),
        }
    }

    /// What it counted.
    pub(super) fn sent(&self) -> Sent {
        self.sent
    }

    /// The congestion window, in packets.
    #[cfg(test)]
    pub(super) fn congestion_window(&self) -> u64 {
        self.window.packets()
    }

    /// How many packets are on their way, as far as it knows.
    pub(super) fn in_flight(&self) -> u64 {
        self.flights.len() as u64 + self.out_again - self.sacked - self.lost
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(super) fn timer_ps(&self) -> Option<u64> {
        self.timer.map(|(_, end_ps)| end_ps)
    }

    /// The application writes so many packets.
    pub(super) fn write(&mut self, packets: u64) {
        self.written += packets;
    }

    /// How many packets were written and are not acknowledged.
    pub(super) fn queued(&self) -> u64 {
        self.written - self.una
    }

    /// The numbers of the next packets that may leave in one frame, at most `most`: new ones that follow each other, or
    /// a single one.
    pub(super) fn next_frame(&mut self, now_ps: u64, most: u64) -> Option<Range<u64>> {
        let is_probe = self.forced.is_some();
        let first = self.next(now_ps)?;
        let mut end = first.number + 1;
        // A new packet is only sent if none waits to be sent again.
        while !is_probe && !first.is_again && end - first.number < most && self.next(now_ps).is_some() {
            end += 1;
        }
        Some(first.number..end)
    }

    /// The next packet, if one may be sent now.
    pub(super) fn next(&mut self, now_ps: u64) -> Option<Packet> {
        let can_send_new = self.end() < self.written.min(self.una + self.receive_window);
        match self.forced.take() {
            Some(Forced::Tail) if !self.flights.is_empty() => return Some(self.send_probe(now_ps, can_send_new)),
            Some(Forced::Window) if self.flights.is_empty() => {
                // A packet that arrived long ago makes the receiver say its window.
                let number = self.una.checked_sub(1)?;
                self.sent.packets += 1;
                self.sent.again += 1;
                self.sent.probes += 1;
                return Some(Packet { number, is_again: true });
            }
            _ => {}
        }
        let waiting = self.next_lost();
        if waiting.is_none() && !can_send_new {
            return None;
        }
        if self.in_flight() >= self.window.packets() {
            self.note_usage(true);
            return None;
        }
        if self.state == State::Recovery {
            self.window.note_sent();
        }
        let Some(index) = waiting else { return Some(self.send_new(now_ps)) };
        if index == 0 && !self.has_timer(Timer::Reordering) {
            self.set_timer(now_ps, Timer::Retransmission, self.jiffies(self.rto_ps()));
        }
        Some(self.send_again(now_ps, index))
    }

    fn send_new(&mut self, now_ps: u64) -> Packet {
        let (number, was_idle) = (self.end(), self.flights.is_empty());
        self.flights.push_back(Flight { sent_ps: now_ps, ..Flight::default() });
        self.sent.packets += 1;
        self.note_usage(self.in_flight() >= self.window.packets());
        if !self.arm_probe(now_ps, false) && (was_idle || self.has_timer(Timer::Probe)) {
            self.arm_retransmission(now_ps);
        }
        Packet { number, is_again: false }
    }

    fn send_again(&mut self, now_ps: u64, index: usize) -> Packet {
        let flight = &mut self.flights[index];
        self.out_again += u64::from(!flight.is_out_again);
        (flight.sent_ps, flight.is_out_again, flight.was_again) = (now_ps, true, true);
        self.sent.packets += 1;
        self.sent.again += 1;
        Packet { number: self.una + index as u64, is_again: true }
    }

    /// Sends a packet whose acknowledgement tells whether the last ones arrived.
    fn send_probe(&mut self, now_ps: u64, can_send_new: bool) -> Packet {
        let timer = self.timer;
        let packet = if can_send_new { self.send_new(now_ps) } else { self.send_again(now_ps, self.flights.len() - 1) };
        // A probe does not arm another one.
        self.timer = timer;
        self.sent.probes += 1;
        self.probe = Some((self.end(), packet.is_again));
        packet
    }

    /// The index of the first lost packet that was not sent again.
    fn next_lost(&mut self) -> Option<usize> {
        if self.lost == 0 {
            return None;
        }
        let first = self.hint.saturating_sub(self.una) as usize;
        let found = self.flights.iter().skip(first).position(|flight| flight.is_lost && !flight.is_out_again);
        self.hint = self.una + (first + found.unwrap_or(self.flights.len().saturating_sub(first))) as u64;
        found.map(|index| first + index)
    }

    /// The first packet that was not sent.
    pub(super) fn end(&self) -> u64 {
        self.una + self.flights.len() as u64
    }

    /// Notes whether the congestion window limits the sender. It grows only if so (RFC 7661 has the reason).
    fn note_usage(&mut self, is_limited: bool) {
        let out = self.flights.len() as u64;
        if self.una >= self.usage_ends || is_limited || !self.is_limited && out > self.out_max {
            (self.is_limited, self.out_max, self.usage_ends) = (is_limited, out, self.end());
        }
    }

    /// Handles an acknowledgement. One of packets that were not sent is ignored.
    pub(super) fn acknowledge(&mut self, now_ps: u64, acknowledgement: &Acknowledgement) {
        let &Acknowledgement { next, ref sacked, window } = acknowledgement;
        if next > self.end() {
            return;
        }
        let (before, beyond) = (self.una, self.beyond);
        let head_sent_ps = self.flights.front().map(|head| head.sent_ps);
        let mut news = News::default();
        for block in sacked {
            for number in block.start.max(before)..block.end.min(self.end()) {
                self.take_sacked(now_ps, number, beyond, &mut news);
            }
        }
        self.check_order(&mut news);
        while self.una < next {
            self.take_in_order(now_ps, &mut news);
        }
        (self.hint, self.beyond) = (self.hint.max(self.una), self.beyond.max(self.una));
        news.lowest = news.lowest.filter(|&lowest| lowest < beyond);
        self.check_order(&mut news);
        let has_advanced = self.una > before;
        if has_advanced || next == self.una && window > self.receive_window {
            self.receive_window = window;
        }
        let in_order_ps = news.in_order_ps.filter(|_| !news.has_again);
        if let Some((first_ps, last_ps)) = in_order_ps.or(news.sacked_ps) {
            self.rtt.note(now_ps - first_ps, now_ps - last_ps);
        }
        if has_advanced || news.sacked_ps.is_some() {
            self.backoff = 0;
        }
        // A packet that was sent before the first one was sent again says nothing about that one, which gets its full
        // time. Later ones do not prolong the timer.
        let sets_timer =
            has_advanced || news.sacked_ps.zip(head_sent_ps).is_some_and(|((first_ps, _), head_ps)| first_ps < head_ps);
        self.check_probe(next, sacked.first(), has_advanced || news.delivered > 0);
        let lost_before = self.lost_in_all;
        let waits = self.check_state(now_ps, news.has_again);
        if sets_timer && !waits && !self.arm_probe(now_ps, true) {
            self.arm_retransmission(now_ps);
        }
        let has_lost = self.lost_in_all > lost_before;
        if self.state == State::Recovery {
            self.window.reduce(news.delivered, self.in_flight(), has_advanced && !has_lost);
        } else if has_advanced || news.delivered > 0 && self.reordering > self.parameters.reordering {
            self.grow(news.delivered);
        }
        self.check_window(now_ps);
    }

    fn take_sacked(&mut self, now_ps: u64, number: u64, beyond: u64, news: &mut News) {
        let flight = &mut self.flights[(number - self.una) as usize];
        if flight.is_sacked {
            return;
        }
        self.lost -= u64::from(flight.is_lost);
        self.out_again -= u64::from(flight.is_out_again);
        (flight.is_sacked, flight.is_lost, flight.is_out_again) = (true, false, false);
        let Flight { sent_ps, was_again, .. } = *flight;
        self.sacked += 1;
        self.beyond = self.beyond.max(number + 1);
        news.delivered += 1;
        if was_again {
            news.has_again = true;
        } else {
            news.sacked_ps = Some(widened(news.sacked_ps, sent_ps));
            if number < beyond {
                news.lowest = Some(news.lowest.map_or(number, |lowest| lowest.min(number)));
            }
        }
        self.advance(now_ps, number, sent_ps, was_again);
    }

    fn take_in_order(&mut self, now_ps: u64, news: &mut News) {
        let Some(flight) = self.flights.pop_front() else { return };
        let number = self.una;
        self.una += 1;
        self.lost -= u64::from(flight.is_lost);
        self.out_again -= u64::from(flight.is_out_again);
        self.sacked -= u64::from(flight.is_sacked);
        news.has_again |= flight.was_again;
        if flight.is_sacked {
            return;
        }
        news.delivered += 1;
        if !flight.was_again {
            news.in_order_ps = Some(widened(news.in_order_ps, flight.sent_ps));
            news.lowest = Some(news.lowest.map_or(number, |lowest| lowest.min(number)));
        }
        self.advance(now_ps, number, flight.sent_ps, flight.was_again);
    }

    /// Notes that a packet arrived at the first attempt after later ones.
    fn check_order(&mut self, news: &mut News) {
        let Some(lowest) = news.lowest.take().filter(|&lowest| lowest < self.beyond) else { return };
        self.reordering = self.reordering.max((self.beyond - lowest).min(REORDERING_MAX));
        self.has_reordered = true;
    }

    /// Ends a probe that was acknowledged. If a packet had to be sent again and did not arrive twice, it was lost.
    fn check_probe(&mut self, next: u64, first: Option<&Range<u64>>, is_new: bool) {
        let Some((end, is_again)) = self.probe.filter(|&(end, _)| next >= end) else { return };
        let is_duplicate = first.is_some_and(|block| block.end == end);
        if is_again && !is_duplicate && next > end {
            self.window.leave_slow_start();
        }
        if !is_again || is_duplicate || next > end || !is_new {
            self.probe = None;
        }
    }

    /// Lets the congestion window grow if it limits the sender.
    fn grow(&mut self, acked: u64) {
        let is_slow_start = self.window.is_slow_start();
        if self.is_limited || is_slow_start && self.window.packets() < 2 * self.out_max {
            self.window.grow(acked);
        }
    }
}

/// The first and the last time, with another one.
fn widened(times_ps: Option<(u64, u64)>, ps: u64) -> (u64, u64) {
    times_ps.map_or((ps, ps), |(first_ps, last_ps)| (first_ps.min(ps), last_ps.max(ps)))
}
