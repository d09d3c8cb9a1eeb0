//! The server's end of its flows.

use super::Host;
use super::tcp::{Receiver, Sender};
use portcullis_model::TcpSegment;

/// A flow: one connection after the other between a client and the server.
pub(super) struct Flow {
    /// The core of its process.
    pub(super) core: usize,
    /// The number of the connection, which decides on its rings.
    connection: u32,
    /// Whether its packets are measured.
    pub(super) is_measured: bool,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// How many bytes were sent of the present response, and how many are left.
    pub(super) done_bytes: u32,
    pub(super) left_bytes: u32,
    /// How many bytes are queued in the card.
    pub(super) queued_bytes: u64,
    /// Requests that the application has not seen, by kind.
    pub(super) requests: Vec<u32>,
}

impl Flow {
    /// A flow without a connection. The seed decides on the rings of its connections.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            core: 0,
            connection: seed as u32,
            is_measured: false,
            sender: Sender::default(),
            receiver: Receiver::default(),
            done_bytes: 0,
            left_bytes: 0,
            queued_bytes: 0,
            requests: Vec::new(),
        }
    }
}

impl Host {
    /// Begins the next connection of a flow. Its process runs where its packets arrive.
    pub(super) fn connect_flow(&self, flow: usize, is_measured: bool) {
        {
            let one = &mut self.flows.borrow_mut()[flow];
            one.connection = one.connection.wrapping_add(1);
            one.is_measured = is_measured;
            (one.sender, one.receiver) = (Sender::default(), Receiver::default());
        }
        let (before, core) = (self.flows.borrow()[flow].core, self.work.core_of_ring(self.receive_ring(flow)));
        if core != before {
            self.move_to(flow, core);
            self.notify_flow(flow);
        }
    }

    /// What the headers of a packet of a stream tell the card of the server.
    pub(super) fn segment(&self, flow: usize, number: u32, is_last: bool) -> TcpSegment {
        let connection = (flow as u64) << 32 | u64::from(self.flows.borrow()[flow].connection);
        // The kernel hands its card frames of 64 KiB. Each holds the end of a write of the application, and its last
        // packet has the flag PSH (Linux's `tcp_sendmsg` and `tcp_fragment`, from memory).
        let ends = is_last || number.is_multiple_of(self.server.driver.offload_packets);
        TcpSegment { connection, number, header_bytes: self.server.software.header_bytes, ends }
    }

    /// How many payload bytes of its response a flow may send now, in one frame.
    pub(super) fn sendable(&self, flow: usize) -> u32 {
        let (flows, software) = (self.flows.borrow(), &self.server.software);
        let one = &flows[flow];
        if one.left_bytes == 0
            || software.queued_bytes_max.is_some_and(|most| one.queued_bytes >= most)
            || !self.card.has_room(self.transmit_ring_of(one, flow))
        {
            return 0;
        }
        let packets = one.sender.room(self.window_packets()).min(self.server.driver.offload_packets);
        one.left_bytes.min(packets * software.segment_bytes)
    }

    /// The most packets that may be in flight.
    pub(super) fn window_packets(&self) -> u32 {
        let software = &self.server.software;
        (software.window_bytes / u64::from(software.segment_bytes)) as u32
    }

    /// The ring of a flow for what the server sends.
    pub(super) fn transmit_ring(&self, flow: usize) -> usize {
        self.transmit_ring_of(&self.flows.borrow()[flow], flow)
    }

    fn transmit_ring_of(&self, one: &Flow, flow: usize) -> usize {
        self.work.transmit_ring_of(flow, one.core, one.connection, self.server.driver.transmit_rings as usize)
    }

    /// The ring of a flow for what the client sends.
    pub(super) fn receive_ring(&self, flow: usize) -> usize {
        let connection = self.flows.borrow()[flow].connection;
        self.work.receive_ring_of(flow, connection, self.server.driver.receive_rings as usize)
    }
}
