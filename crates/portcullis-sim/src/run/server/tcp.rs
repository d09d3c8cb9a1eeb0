//! TCP, reduced to a congestion window, acknowledgements and losses. Packets have no bytes, so that a packet that is
//! sent again is a new one.
//!
//! The window grows and shrinks as in RFC 5681. As in Linux, a first acknowledgement of any number of packets lets it
//! grow by one packet.

use super::frames::ahead;

/// The window of a new connection, in packets (RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// The smallest window, in packets.
const WINDOW_MIN: u32 = 2;

/// The end that sends.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// How many packets were sent, and how many of them were acknowledged or are lost.
    sent: u32,
    over: u32,
    window: u32,
    /// Packets that were acknowledged since the window last grew, beyond the threshold.
    grown: u32,
    threshold: u32,
    /// Further losses among the packets up to this one do not shrink the window again.
    recovers_up_to: u32,
    /// Whether the other end will miss packets that were given up already.
    expects_gap: bool,
}

impl Default for Sender {
    fn default() -> Self {
        Self {
            sent: 0,
            over: 0,
            window: INITIAL_WINDOW,
            grown: 0,
            threshold: u32::MAX,
            recovers_up_to: 0,
            expects_gap: false,
        }
    }
}

impl Sender {
    /// How many packets it may send, if the other end has room for `most`.
    pub(super) fn room(&self, most: u32) -> u32 {
        self.window.min(most).saturating_sub(self.in_flight())
    }

    /// How many packets are not acknowledged.
    pub(super) fn in_flight(&self) -> u32 {
        self.sent - self.over
    }

    /// Sends packets. Returns the number of the last one.
    pub(super) fn send(&mut self, packets: u32) -> u32 {
        self.sent += packets;
        self.sent
    }

    /// Handles an acknowledgement of all packets up to this number.
    pub(super) fn acknowledge(&mut self, number: u32) {
        let packets = ahead(number, self.over);
        if packets == 0 || packets > self.in_flight() {
            return;
        }
        self.over += packets;
        if self.window < self.threshold {
            self.window += 1;
        } else {
            self.grown += packets;
            if self.grown >= self.window {
                self.grown = 0;
                self.window += 1;
            }
        }
    }

    /// Handles an acknowledgement that says that packets are missing.
    pub(super) fn lose(&mut self, number: u32) {
        let is_new = self.over >= self.recovers_up_to && !std::mem::take(&mut self.expects_gap);
        self.acknowledge(number);
        if is_new {
            self.shrink((self.window / 2).max(WINDOW_MIN));
        }
    }

    /// Takes all packets as lost, because nothing was heard for long.
    pub(super) fn give_up(&mut self) {
        self.over = self.sent;
        self.expects_gap = true;
        self.shrink(WINDOW_MIN);
    }

    fn shrink(&mut self, window: u32) {
        (self.threshold, self.window, self.grown) = ((self.window / 2).max(WINDOW_MIN), window, 0);
        self.recovers_up_to = self.sent;
    }
}

/// The end that receives.
#[derive(Clone, Default, Debug)]
pub(super) struct Receiver {
    /// The number of the latest packet.
    latest: u32,
    /// How many packets arrived since the last acknowledgement, and whether some before them did not.
    fresh: u32,
    has_gap: bool,
}

impl Receiver {
    /// Notes `packets` packets, the last of which has this number.
    pub(super) fn receive(&mut self, packets: u32, number: u32) {
        let further = ahead(number, self.latest);
        self.has_gap |= further > packets;
        self.latest += further;
        self.fresh += packets;
    }

    /// How many packets are not acknowledged.
    pub(super) fn fresh(&self) -> u32 {
        self.fresh
    }

    /// Acknowledges all packets. Returns the number of the latest, and whether some are missing.
    pub(super) fn acknowledge(&mut self) -> (u32, bool) {
        self.fresh = 0;
        (self.latest, std::mem::take(&mut self.has_gap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_by_acknowledgements_and_halves_once_per_window_of_losses() {
        let mut sender = Sender::default();
        assert_eq!(sender.send(sender.room(100)), INITIAL_WINDOW);
        assert_eq!(sender.room(100), 0);
        sender.acknowledge(4);
        sender.acknowledge(4);
        assert_eq!((sender.in_flight(), sender.room(100), sender.room(8)), (6, 5, 2), "one acknowledgement counts");
        sender.send(5);
        sender.lose(8);
        assert_eq!((sender.window, sender.threshold), (6, 6));
        sender.lose(9);
        assert_eq!(sender.window, 6, "packets of the same window");
        sender.acknowledge(15);
        assert_eq!((sender.window, sender.in_flight()), (7, 0), "one packet more for a window of them");
        sender.send(4);
        sender.lose(16);
        assert_eq!((sender.window, sender.in_flight()), (3, 3), "packets behind that window");
        sender.give_up();
        assert_eq!((sender.in_flight(), sender.room(100)), (0, WINDOW_MIN));
        sender.send(2);
        sender.lose(21);
        assert_eq!(sender.window, WINDOW_MIN + 1, "the gap is known");
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_sent_changes_nothing() {
        let mut sender = Sender::default();
        sender.send(3);
        sender.acknowledge(7);
        assert_eq!(sender.in_flight(), 3);
    }

    #[test]
    fn a_gap_is_told_once() {
        let mut receiver = Receiver::default();
        receiver.receive(1, 1);
        receiver.receive(3, 4);
        assert_eq!((receiver.fresh(), receiver.acknowledge()), (4, (4, false)));
        receiver.receive(1, 7);
        assert_eq!((receiver.acknowledge(), receiver.acknowledge()), ((7, true), (7, false)));
    }
}
