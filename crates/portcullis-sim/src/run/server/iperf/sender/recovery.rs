//! How a sender finds losses and recovers from them: RACK, the timers, and the states of Linux.

use super::super::ticks::expires_ps;
use super::{Forced, Sender, State, Timer};

/// Time-outs double at most so often before their maximum holds.
const BACKOFF_MAX: u32 = 20;

impl Sender {
    /// Notes that a packet arrived. If it may be the first attempt that arrived so soon, it says nothing of the second.
    pub(super) fn advance(&mut self, now_ps: u64, number: u64, sent_ps: u64, was_again: bool) {
        let rtt_ps = now_ps.saturating_sub(sent_ps);
        if was_again && rtt_ps < self.rtt.min_ps() {
            return;
        }
        let rack = &mut self.rack;
        // As in Linux, and unlike RFC 8985, the round trip is that of the packet handled last, not of the last sent.
        (rack.rtt_ps, rack.has_advanced) = (rtt_ps, true);
        if (sent_ps, number) > (rack.sent_ps, rack.number) {
            (rack.sent_ps, rack.number) = (sent_ps, number);
        }
    }

    /// Takes packets as lost that were sent before one that arrived, and enters or leaves a recovery. Returns whether a
    /// timer waits for packets that may only be late.
    pub(super) fn check_state(&mut self, now_ps: u64, has_again: bool) -> bool {
        if self.state != State::Open && self.una >= self.recovers_to {
            if self.state == State::Recovery {
                self.window.end_reduction();
            }
            self.state = State::Open;
        }
        // Unless something was sent again or arrived out of order, all that is out was sent after all that arrived.
        let may_lose = self.sacked > 0 || self.out_again > 0 || has_again;
        let mut wait_ps = None;
        let mut has_lost_again = false;
        if std::mem::take(&mut self.rack.has_advanced) && may_lose {
            (wait_ps, has_lost_again) = self.detect(now_ps);
        }
        // A timeout shrank the window. If what it sent again is lost too, it shrinks once more.
        if self.state == State::Open && self.lost > 0 || self.state == State::Loss && has_lost_again {
            self.begin_recovery();
        }
        if let Some(wait_ps) = wait_ps {
            let jiffies = self.jiffies(wait_ps) + self.parameters.timer_min_jiffies;
            self.set_timer(now_ps, Timer::Reordering, jiffies);
        }
        wait_ps.is_some()
    }

    fn begin_recovery(&mut self) {
        (self.state, self.recovers_to, self.probe) = (State::Recovery, self.end(), None);
        self.window.begin_reduction();
    }

    /// For how long a packet may be later than one that was sent after it.
    fn reordering_window_ps(&self) -> u64 {
        if !self.has_reordered && (self.state != State::Open || self.sacked >= self.reordering) {
            return 0;
        }
        (self.rtt.min_ps() / 4).min(self.rtt.smoothed_ps())
    }

    /// RACK. Returns how long to wait for packets that may only be late, and whether one was lost that was sent again.
    fn detect(&mut self, now_ps: u64) -> (Option<u64>, bool) {
        let late_ps = self.rack.rtt_ps + self.reordering_window_ps();
        let (mut wait_ps, mut has_lost_again) = (None, false);
        for index in 0..self.flights.len() {
            let flight = &self.flights[index];
            let is_earlier = (flight.sent_ps, self.una + index as u64) < (self.rack.sent_ps, self.rack.number);
            if flight.is_sacked || flight.is_lost && !flight.is_out_again || !is_earlier {
                continue;
            }
            let left_ps = (flight.sent_ps + late_ps).saturating_sub(now_ps);
            if left_ps == 0 {
                has_lost_again |= flight.is_out_again;
                self.lose(index);
            } else {
                wait_ps = wait_ps.max(Some(left_ps));
            }
        }
        (wait_ps, has_lost_again)
    }

    fn lose(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        self.lost += u64::from(!flight.is_lost);
        self.out_again -= u64::from(flight.is_out_again);
        (flight.is_lost, flight.is_out_again) = (true, false);
        self.lost_in_all += 1;
        self.hint = self.hint.min(self.una + index as u64);
    }

    /// Handles a timer that has expired. What it has to send is what [`next`](Self::next) returns.
    pub(in super::super) fn expire(&mut self, now_ps: u64) {
        let Some((timer, _)) = self.timer.filter(|&(_, end_ps)| end_ps <= now_ps) else { return };
        match timer {
            Timer::Reordering => {
                let before = self.in_flight();
                self.detect(now_ps);
                if self.in_flight() != before && self.state != State::Recovery {
                    self.begin_recovery();
                    self.window.reduce(1, self.in_flight(), false);
                }
                self.arm_retransmission(now_ps);
            }
            Timer::Probe if self.probe.is_none() => {
                self.forced = Some(Forced::Tail);
                self.set_timer(now_ps, Timer::Retransmission, self.jiffies(self.rto_ps()));
            }
            Timer::Probe => self.arm_retransmission(now_ps),
            Timer::Retransmission => self.time_out(now_ps),
            Timer::Window => {
                self.forced = Some(Forced::Window);
                self.back_off();
                self.set_timer(now_ps, Timer::Window, self.jiffies(self.rto_ps()));
            }
        }
    }

    /// Takes everything as lost but what was sent within the last round trip.
    fn time_out(&mut self, now_ps: u64) {
        if self.flights.is_empty() {
            self.timer = None;
            return;
        }
        for index in 0..self.flights.len() {
            let flight = &self.flights[index];
            let is_recent = flight.sent_ps + self.rack.rtt_ps > now_ps;
            let waits = flight.is_lost && !flight.is_out_again;
            if !flight.is_sacked && !waits && (index == 0 || !is_recent) {
                self.lose(index);
            }
        }
        if self.state == State::Open && self.sacked >= self.parameters.reordering {
            self.reordering = self.reordering.min(self.parameters.reordering);
        }
        let is_new = match self.state {
            State::Open => true,
            State::Recovery => self.una >= self.recovers_to,
            State::Loss => self.una >= self.recovers_to || self.backoff == 0,
        };
        self.window.collapse(self.in_flight(), is_new);
        (self.state, self.recovers_to, self.probe, self.forced) = (State::Loss, self.end(), None, None);
        self.sent.timeouts += 1;
        self.back_off();
        self.set_timer(now_ps, Timer::Retransmission, self.jiffies(self.rto_ps()));
    }

    fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    pub(super) fn rto_ps(&self) -> u64 {
        let once_ps = self.rtt.timeout_ps(&self.parameters);
        once_ps.saturating_mul(1 << self.backoff).min(self.parameters.rto_max_ps)
    }

    pub(super) fn jiffies(&self, ps: u64) -> u64 {
        ps.div_ceil(self.parameters.jiffy_ps)
    }

    pub(super) fn set_timer(&mut self, now_ps: u64, timer: Timer, jiffies: u64) {
        self.timer = Some((timer, expires_ps(now_ps, jiffies, self.parameters.jiffy_ps)));
    }

    pub(super) fn has_timer(&self, timer: Timer) -> bool {
        self.timer.is_some_and(|(kind, _)| kind == timer)
    }

    /// How long the retransmission timeout of the first packet lasts.
    fn left_ps(&self, now_ps: u64) -> u64 {
        self.flights.front().map_or(0, |head| (head.sent_ps + self.rto_ps()).saturating_sub(now_ps))
    }

    /// Sets the retransmission timeout. The time that another timer took in its place counts.
    pub(super) fn arm_retransmission(&mut self, now_ps: u64) {
        if self.flights.is_empty() {
            self.timer = None;
            return;
        }
        let is_late = self.has_timer(Timer::Reordering) || self.has_timer(Timer::Probe);
        let wait_ps = if is_late { self.left_ps(now_ps).max(1) } else { self.rto_ps() };
        self.set_timer(now_ps, Timer::Retransmission, self.jiffies(wait_ps));
    }

    /// Sets the timer of a probe, if nothing is known to be missing. `restarts`: so does the retransmission timeout.
    pub(super) fn arm_probe(&mut self, now_ps: u64, restarts: bool) -> bool {
        let is_calm = self.state == State::Open && self.sacked + self.lost + self.out_again == 0;
        if !is_calm || self.flights.is_empty() {
            return false;
        }
        let parameters = &self.parameters;
        // A receiver may delay the acknowledgement of a single packet.
        let is_single = self.flights.len() == 1;
        let more = if is_single { self.jiffies(parameters.rto_min_ps) } else { parameters.timer_min_jiffies };
        let mut jiffies = self.jiffies(2 * self.rtt.smoothed_ps()) + more;
        let left_ps = if restarts { self.rto_ps() } else { self.left_ps(now_ps) };
        if left_ps > 0 {
            jiffies = jiffies.min(self.jiffies(left_ps));
        }
        self.set_timer(now_ps, Timer::Probe, jiffies);
        true
    }

    /// Sets the timer that asks a receiver for its window, or stops it.
    pub(super) fn check_window(&mut self, now_ps: u64) {
        let is_closed = self.flights.is_empty() && self.receive_window == 0;
        if is_closed && !self.has_timer(Timer::Window) {
            self.set_timer(now_ps, Timer::Window, self.jiffies(self.rto_ps()));
        } else if !is_closed && self.has_timer(Timer::Window) {
            self.timer = None;
        }
    }
}
