//! The congestion window of a sender: DCTCP (RFC 8257) as Linux 6.0 runs it when no packet is marked, and proportional
//! rate reduction (RFC 6937).
//!
//! Source: Fast & Safe's set-up. Marks are left out: a server that is too slow drops packets in its card, and no switch
//! marks them before. So the share of marked packets, which DCTCP takes from the window, is zero, and what remains is
//! its answer to a loss, which is that of Reno (RFC 8257, section 3.5).

/// The smallest threshold, in packets (RFC 5681).
const THRESHOLD_MIN: u64 = 2;

/// The congestion window. Everything counts packets.
#[derive(Clone, Debug)]
pub(super) struct Window {
    packets: u64,
    threshold: u64,
    /// Acknowledged packets that have not yet let the window grow.
    credit: u64,
    reduction: Reduction,
}

/// The state of a proportional rate reduction.
#[derive(Clone, Debug, Default)]
struct Reduction {
    before: u64,
    delivered: u64,
    sent: u64,
}

impl Window {
    pub(super) fn new(packets: u64) -> Self {
        Self { packets, threshold: u64::MAX, credit: 0, reduction: Reduction::default() }
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn is_slow_start(&self) -> bool {
        self.packets < self.threshold
    }

    /// Grows after `acked` packets were acknowledged: by one for each in slow start, and by one for each window later.
    pub(super) fn grow(&mut self, mut acked: u64) {
        if self.is_slow_start() {
            let grown = acked.min(self.threshold - self.packets);
            self.packets += grown;
            acked -= grown;
        }
        if acked == 0 {
            return;
        }
        // Credit from a time of a larger window is worth a single packet.
        if self.credit >= self.packets {
            self.credit = 0;
            self.packets += 1;
        }
        self.credit += acked;
        let grown = self.credit / self.packets;
        self.credit -= grown * self.packets;
        self.packets += grown;
    }

    /// Sets the threshold after a loss.
    fn lower(&mut self) {
        self.threshold = (self.packets / 2).max(THRESHOLD_MIN);
    }

    /// Ends slow start after a loss that a probe has mended. Linux asks DCTCP for the threshold here without telling
    /// it of a recovery, so only marked packets would lower the window.
    pub(super) fn leave_slow_start(&mut self) {
        self.threshold = self.packets.max(THRESHOLD_MIN);
    }

    /// Begins a reduction that ends with [`end_reduction`](Self::end_reduction).
    pub(super) fn begin_reduction(&mut self) {
        self.reduction = Reduction { before: self.packets, ..Reduction::default() };
        self.credit = 0;
        self.lower();
    }

    /// Sets the window after an acknowledgement during a reduction. `has_progressed`: the acknowledgement covers more
    /// packets in order, and no further loss is known.
    pub(super) fn reduce(&mut self, delivered: u64, in_flight: u64, has_progressed: bool) {
        if delivered == 0 {
            return;
        }
        let reduction = &mut self.reduction;
        reduction.delivered += delivered;
        let room = if in_flight > self.threshold {
            // As many packets leave per packet that arrives as the threshold has per packet of the earlier window.
            let share = (self.threshold * reduction.delivered).div_ceil(reduction.before.max(1));
            share.saturating_sub(reduction.sent)
        } else if has_progressed {
            let owed = reduction.delivered.saturating_sub(reduction.sent).max(delivered) + 1;
            owed.min(self.threshold - in_flight)
        } else {
            delivered.min(self.threshold - in_flight)
        };
        // The first packet of a recovery always leaves.
        self.packets = in_flight + room.max(u64::from(reduction.sent == 0));
    }

    /// Notes a packet that was sent during a reduction.
    pub(super) fn note_sent(&mut self) {
        self.reduction.sent += 1;
    }

    pub(super) fn end_reduction(&mut self) {
        self.packets = self.threshold;
    }

    /// Begins again after a retransmission timeout. `is_new`: it is not part of a loss that lowered the threshold.
    pub(super) fn collapse(&mut self, in_flight: u64, is_new: bool) {
        if is_new {
            self.lower();
        }
        (self.packets, self.credit) = (in_flight + 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window after a loss at `before` packets.
    fn after_loss(before: u64) -> Window {
        let mut window = Window::new(before);
        window.begin_reduction();
        window.end_reduction();
        window
    }

    #[test]
    fn slow_start_grows_by_every_acknowledged_packet() {
        let mut window = Window::new(10);
        window.grow(7);
        assert_eq!(window.packets(), 17);
        assert_eq!(after_loss(17).packets(), 8, "half");
        assert_eq!(after_loss(2).packets(), 2, "the least");
    }

    #[test]
    fn after_a_loss_it_grows_by_a_packet_per_window() {
        let mut window = after_loss(200);
        for _ in 0..90 {
            window.grow(window.packets());
        }
        assert_eq!(window.packets(), 190);
        window.grow(189);
        assert_eq!(window.packets(), 190);
        window.grow(1);
        assert_eq!(window.packets(), 191);
    }

    #[test]
    fn a_loss_that_a_probe_has_mended_ends_slow_start_and_takes_nothing() {
        let mut window = Window::new(40);
        window.leave_slow_start();
        assert_eq!((window.packets(), window.is_slow_start()), (40, false));
    }

    #[test]
    fn a_reduction_sends_one_packet_per_two_that_arrive() {
        let mut window = Window::new(100);
        window.begin_reduction();
        let (mut in_flight, mut sent) = (99, 0);
        for _ in 0..20 {
            in_flight -= 1;
            window.reduce(1, in_flight, false);
            while in_flight < window.packets() {
                (in_flight, sent) = (in_flight + 1, sent + 1);
                window.note_sent();
            }
        }
        assert_eq!(sent, 10);
    }
}
