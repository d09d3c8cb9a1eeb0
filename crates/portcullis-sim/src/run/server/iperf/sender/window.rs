//! The congestion window of a sender: CUBIC (RFC 9438) as Linux 6.0 runs it, and proportional rate reduction
//! (RFC 6937).
//!
//! HyStart is left out: slow start ends at the first loss, or when the window no longer limits the sender.

/// The smallest threshold, in packets (RFC 5681).
const THRESHOLD_MIN: u64 = 2;
/// While no loss is known, CUBIC of Linux grows by a packet for at most so many acknowledged ones.
const WAIT_WITHOUT_LOSS: u64 = 20;
/// CUBIC of Linux grows by at most a packet for so many acknowledged ones: 1.5 windows for each, as RFC 9438 has it.
const WAIT_MIN: u64 = 2;
/// The longest time from the plateau of the curve, in milliseconds: its cube times four fits 64 bits.
const FAR_MS: u64 = 1 << 20;
const PS_PER_MS: u64 = 1_000_000_000;

/// The congestion window. Everything counts packets.
#[derive(Clone, Debug)]
pub(super) struct Window {
    packets: u64,
    threshold: u64,
    /// Acknowledged packets that have not yet let the window grow.
    credit: u64,
    /// The window at the last loss, less if flows make room for each other. Zero: unknown.
    plateau: u64,
    epoch: Option<Epoch>,
    reduction: Reduction,
}

/// The time from the first growth after a loss.
#[derive(Clone, Debug)]
struct Epoch {
    since_ps: u64,
    /// The window where the curve is flat, and when it gets there.
    origin: u64,
    flat_ms: u64,
    /// The window that Reno would have, and the acknowledged packets that have not yet let it grow.
    reno: u64,
    reno_credit: u64,
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
        let reduction = Reduction::default();
        Self { packets, threshold: u64::MAX, credit: 0, plateau: 0, epoch: None, reduction }
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn is_slow_start(&self) -> bool {
        self.packets < self.threshold
    }

    /// Grows after `acked` packets were acknowledged.
    pub(super) fn grow(&mut self, now_ps: u64, mut acked: u64, min_rtt_ps: u64) {
        if self.is_slow_start() {
            let grown = acked.min(self.threshold - self.packets);
            self.packets += grown;
            acked -= grown;
        }
        if acked == 0 {
            return;
        }
        let wait = self.wait(now_ps, acked, min_rtt_ps);
        // Credit from a time of longer waits is worth a single packet.
        if self.credit >= wait {
            self.credit = 0;
            self.packets += 1;
        }
        self.credit += acked;
        self.packets += self.credit / wait;
        self.credit %= wait;
    }

    /// For how many acknowledged packets the window grows by one.
    fn wait(&mut self, now_ps: u64, acked: u64, min_rtt_ps: u64) -> u64 {
        let (packets, plateau) = (self.packets, self.plateau);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            since_ps: now_ps,
            origin: plateau.max(packets),
            flat_ms: cube_root(plateau.saturating_sub(packets) * 5 / 2 * 1_000_000_000),
            reno: packets,
            reno_credit: 0,
        });
        let at_ms = (now_ps - epoch.since_ps).saturating_add(min_rtt_ps) / PS_PER_MS;
        let away_ms = at_ms.abs_diff(epoch.flat_ms).min(FAR_MS);
        // C = 0.4 packets per cubic second.
        let away = away_ms.pow(3) * 4 / 10_000_000_000;
        let target = if at_ms < epoch.flat_ms { epoch.origin.saturating_sub(away) } else { epoch.origin + away };
        let mut wait = packets.checked_div(target.saturating_sub(packets)).unwrap_or(100 * packets);
        if plateau == 0 {
            wait = wait.min(WAIT_WITHOUT_LOSS);
        }
        // Reno with a decrease of 0.7 takes as much as standard Reno if it grows by 9/17 of a packet per window.
        epoch.reno_credit += acked;
        let step = (packets * 17 / 9).max(1);
        epoch.reno += epoch.reno_credit / step;
        epoch.reno_credit %= step;
        if let Some(reno) = packets.checked_div(epoch.reno.saturating_sub(packets)) {
            wait = wait.min(reno);
        }
        wait.max(WAIT_MIN)
    }

    /// Sets the threshold after a loss.
    fn lower(&mut self) {
        let is_less = self.packets < self.plateau;
        self.plateau = if is_less { self.packets * 17 / 20 } else { self.packets };
        self.threshold = (self.packets * 7 / 10).max(THRESHOLD_MIN);
        self.epoch = None;
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
        (self.packets, self.credit, self.plateau, self.epoch) = (in_flight + 1, 0, 0, None);
    }
}

/// The largest number whose cube is at most `cube`.
fn cube_root(cube: u64) -> u64 {
    // 2^21 is the largest power of two whose cube fits 64 bits.
    (0..=20).rev().map(|bit| 1_u64 << bit).fold(0, |root: u64, bit| {
        let larger = root | bit;
        if larger.pow(3) <= cube { larger } else { root }
    })
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
        window.grow(0, 7, 0);
        assert_eq!(window.packets(), 17);
        assert_eq!(after_loss(17).packets(), 11, "seven tenths");
    }

    #[test]
    fn the_curve_reaches_the_plateau_when_the_rfc_says() {
        // K is the cube root of 300 / 0.4 seconds: 9.08 s. One acknowledged packet per 100 ms is too few for Reno.
        let mut window = after_loss(1000);
        for tenth in 0..90 {
            window.grow(tenth * 100 * PS_PER_MS, 700, 0);
        }
        assert!((985..=1000).contains(&window.packets()), "{}", window.packets());
        assert_eq!(cube_root(750_000_000_000), 9085);
    }

    #[test]
    fn with_short_round_trips_it_grows_as_reno() {
        // 9/17 of a packet per window: 90 windows are 47 packets, and the curve has hardly begun.
        let mut window = after_loss(200);
        for trip in 0..90 {
            window.grow(trip * PS_PER_MS / 10, window.packets(), 0);
        }
        assert!((140 + 40..=140 + 48).contains(&window.packets()), "{}", window.packets());
    }

    #[test]
    fn a_second_loss_below_the_plateau_lowers_it_further() {
        let mut window = after_loss(100);
        window.begin_reduction();
        assert_eq!((window.plateau, window.threshold), (59, 49));
    }

    #[test]
    fn a_reduction_sends_seven_packets_per_ten_that_arrive() {
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
        assert_eq!(sent, 14);
    }
}
