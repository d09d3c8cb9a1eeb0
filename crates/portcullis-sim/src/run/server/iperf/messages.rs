//! The messages of one direction of a flow, and the packets that carry them. A packet carries bytes of one write.

use std::collections::VecDeque;

/// Messages of the same length that were written one after the other.
#[derive(Clone, Debug)]
struct Write {
    /// The number of the packet after its last one, and the bytes of that one.
    end: u64,
    tail_bytes: u64,
}

/// The messages that one side writes and the other reads.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    message_bytes: u64,
    segment_bytes: u64,
    /// Packets ever written, and those ever read.
    written: u64,
    read: u64,
    /// Bytes ever read.
    read_bytes: u64,
    /// What was written and is not read.
    writes: VecDeque<Write>,
}

impl Messages {
    pub(super) fn new(message_bytes: u64, segment_bytes: u64) -> Self {
        Self { message_bytes, segment_bytes, written: 0, read: 0, read_bytes: 0, writes: VecDeque::new() }
    }

    /// Whether a message takes one packet.
    pub(super) fn is_short(&self) -> bool {
        self.message_bytes <= self.segment_bytes
    }

    /// Writes so many messages at once. Returns the number of packets that carry them.
    pub(super) fn write(&mut self, messages: u64) -> u64 {
        let bytes = messages * self.message_bytes;
        let packets = bytes.div_ceil(self.segment_bytes);
        self.written += packets;
        self.writes.push_back(Write { end: self.written, tail_bytes: bytes - (packets - 1) * self.segment_bytes });
        packets
    }

    /// The write that a packet belongs to. `None` if it was read, or is not written.
    fn write_of(&self, packet: u64) -> Option<&Write> {
        let index = self.writes.partition_point(|write| write.end <= packet);
        self.writes.get(index).filter(|_| packet >= self.read)
    }

    /// The payload of a packet. One that was read, and is sent again nevertheless, counts as full.
    pub(super) fn bytes_of(&self, packet: u64) -> u64 {
        let tail = self.write_of(packet).filter(|write| write.end == packet + 1);
        tail.map_or(self.segment_bytes, |write| write.tail_bytes)
    }

    /// How many packets from this one on belong to its write.
    pub(super) fn left_from(&self, packet: u64) -> u64 {
        self.write_of(packet).map_or(1, |write| write.end - packet)
    }

    /// Reads the next packets. Returns their bytes, and how many messages are complete with them.
    pub(super) fn read(&mut self, packets: u64) -> (u64, u64) {
        let bytes: u64 = (self.read..self.read + packets).map(|packet| self.bytes_of(packet)).sum();
        let before = self.read_bytes / self.message_bytes;
        (self.read, self.read_bytes) = (self.read + packets, self.read_bytes + bytes);
        while self.writes.front().is_some_and(|write| write.end <= self.read) {
            self.writes.pop_front();
        }
        (bytes, self.read_bytes / self.message_bytes - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_carry_the_bytes_of_one_write_and_messages_are_complete_with_their_last() {
        let mut messages = Messages::new(3000, 4000);
        assert_eq!((messages.write(3), messages.write(1), messages.write(4)), (3, 1, 3));
        let bytes: Vec<u64> = (0..7).map(|packet| messages.bytes_of(packet)).collect();
        assert_eq!(bytes, [4000, 4000, 1000, 3000, 4000, 4000, 4000]);
        assert_eq!([0, 2, 3, 4].map(|packet| messages.left_from(packet)), [3, 1, 1, 3]);
        assert_eq!([1, 2, 3, 1].map(|packets| messages.read(packets)), [(4000, 1), (5000, 2), (11_000, 3), (4000, 2)]);
        assert!(messages.writes.is_empty());
        assert_eq!((messages.bytes_of(3), messages.left_from(3)), (4000, 1), "it was read");
    }
}
