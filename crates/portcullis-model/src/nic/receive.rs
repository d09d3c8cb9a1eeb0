//! Receiving: frames wait in the receive buffer of the card until there are buffers for them in memory.

use super::posted::{Write, Written};
use super::ring::pages;
use super::{Card, Frame, RingNumber};
use crate::vtd::Requests;

impl Card {
    /// Takes a frame off the link.
    pub(super) fn buffer(&mut self, unit: &mut Requests<'_>, number: RingNumber, frame: Frame) {
        if self.buffered_bytes + u64::from(frame.bytes) > self.parameters.receive_buffer_bytes {
            self.counters.dropped += 1;
            return;
        }
        self.buffered_bytes += u64::from(frame.bytes);
        self.rings[number].arrived.push_back(frame);
        self.deliver(unit, number);
    }

    /// Writes frames that have arrived to buffers, while there are buffers.
    pub(super) fn deliver(&mut self, unit: &mut Requests<'_>, number: RingNumber) {
        loop {
            let ring = &mut self.rings[number];
            if ring.arrived.is_empty() || ring.ready.is_empty() {
                break;
            }
            let (Some(frame), Some(entry)) = (ring.arrived.pop_front(), ring.ready.pop_front()) else { break };
            let mut left = u64::from(frame.bytes);
            for piece in &entry.pieces {
                let bytes = left.min(piece.bytes.into());
                left -= bytes;
                self.writes.extend(pages(piece.iova, bytes).map(|(iova, len)| Write {
                    iova,
                    len,
                    what: Written::Data,
                }));
            }
            self.complete(number, entry.number, frame);
            self.fetch(unit, number);
        }
        self.write_on(unit);
    }
}
