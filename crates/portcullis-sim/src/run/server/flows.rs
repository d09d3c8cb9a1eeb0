//! The server's end of its flows.

use super::{Host, ServerWork};

/// A flow. TCP is reduced to a window and acknowledgements. No packet is lost on the way to the client, and a lost
/// acknowledgement is covered by the next one.
pub(super) struct Flow {
    pub(super) core: usize,
    /// How many packets were sent, and how many were acknowledged.
    pub(super) sent: u32,
    acknowledged: u32,
    /// How many packets are queued in the card.
    pub(super) queued: u32,
    /// How many requests are not answered.
    pub(super) requests: u32,
}

/// Bits of a cookie for the number of a packet. The bits above are for the flow.
const NUMBER_BITS: u32 = 24;

/// The cookie of a frame.
pub(super) fn cookie(flow: usize, number: u32) -> u32 {
    (flow as u32) << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1)
}

/// The flow of a frame.
pub(super) fn flow_of(cookie: u32) -> usize {
    (cookie >> NUMBER_BITS) as usize
}

impl Flow {
    pub(super) fn new(flow: usize, work: &ServerWork) -> Self {
        Self { core: work.core_of(flow), sent: 0, acknowledged: 0, queued: 0, requests: 0 }
    }

    /// Handles an acknowledgement of all packets up to the one with this cookie.
    pub(super) fn acknowledge(&mut self, cookie: u32) {
        let ahead = (cookie << 8).wrapping_sub(self.acknowledged << 8) >> 8;
        // An older number seems to be far ahead.
        if ahead <= self.sent - self.acknowledged {
            self.acknowledged += ahead;
        }
    }
}

impl Host {
    /// Whether the window, the limit of the kernel and the ring allow a flow to send a packet.
    pub(super) fn may_send(&self, flow: usize) -> bool {
        let (flows, software) = (self.flows.borrow(), &self.server.software);
        let one = &flows[flow];
        let bytes = |packets: u32| u64::from(packets) * u64::from(software.segment_bytes);
        bytes(one.sent - one.acknowledged) < software.window_bytes
            && software.queued_bytes_max.is_none_or(|most| bytes(one.queued) < most)
            && self.card.has_room(self.transmit_ring(flow))
    }

    /// The transmit ring of a flow.
    pub(super) fn transmit_ring(&self, flow: usize) -> usize {
        self.work.ring_of(flow, self.server.driver.transmit_rings as usize)
    }

    /// The receive ring of a flow.
    pub(super) fn receive_ring(&self, flow: usize) -> usize {
        self.work.ring_of(flow, self.server.driver.receive_rings as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_go_forward_only_and_numbers_go_round() {
        let mut flow = Flow { core: 0, sent: 100, acknowledged: 0, queued: 0, requests: 0 };
        flow.acknowledge(cookie(7, 40));
        flow.acknowledge(cookie(7, 30));
        assert_eq!(flow.acknowledged, 40);
        let round = 1 << NUMBER_BITS;
        (flow.sent, flow.acknowledged) = (round + 50, round - 10);
        flow.acknowledge(cookie(7, round + 20));
        assert_eq!((flow.acknowledged, flow_of(cookie(7, round + 20))), (round + 20, 7));
    }
}
