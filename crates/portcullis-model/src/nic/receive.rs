//! Receiving: frames wait in the receive buffer of the card until there are buffers for them in memory.

use super::format::Completion;
use super::joining::{Arrived, Joining};
use super::posted::{Write, Written};
use super::{Card, RingNumber};
use crate::vtd::Requests;

impl Card {
    /// Takes a frame off the link.
    pub(super) fn buffer(&mut self, unit: &mut Requests<'_>, number: RingNumber, arrived: Arrived) {
        let Arrived { frame, .. } = arrived;
        // When a frame begins, the card does not know how long it will be.
        let longest = self.parameters.header_bytes + self.parameters.segment_bytes;
        if self.buffered_bytes + u64::from(frame.bytes.max(longest)) > self.parameters.receive_buffer_bytes {
            self.counters.dropped += 1;
            return;
        }
        self.buffered_bytes += u64::from(frame.bytes);
        self.rings[number].arrived.push_back(arrived);
        self.deliver(unit, number);
    }

    /// A frame is in memory, and leaves the receive buffer.
    pub(super) fn drain(&mut self, bytes: u32) {
        self.buffered_bytes -= u64::from(bytes);
        self.counters.received += 1;
    }

    /// Writes frames that have arrived to buffers, while there are buffers.
    pub(super) fn deliver(&mut self, unit: &mut Requests<'_>, number: RingNumber) {
        loop {
            let ring = &self.rings[number];
            let Some(&arrived) = ring.arrived.front() else { break };
            if let Some(joins) = ring.config.format.joins {
                match self.join(unit, number, joins, arrived) {
                    Joining::Done => continue,
                    Joining::Waits => break,
                    Joining::Alone => {}
                }
            }
            let ring = &self.rings[number];
            if ring.ready.is_empty() {
                break;
            }
            match ring.config.format.stride_bytes {
                None => self.deliver_alone(unit, number),
                Some(stride_bytes) => self.deliver_striding(unit, number, stride_bytes),
            }
        }
        self.drop_unposted(number);
        self.write_on(unit);
    }

    /// Writes the first frame that waits to the first entry, which is used up.
    fn deliver_alone(&mut self, unit: &mut Requests<'_>, number: RingNumber) {
        let ring = &mut self.rings[number];
        let (Some(arrived), Some(entry)) = (ring.arrived.pop_front(), ring.ready.pop_front()) else { return };
        let Arrived { frame, .. } = arrived;
        let parts = entry.parts(0, frame.bytes.into());
        self.writes.extend(parts.map(|(iova, len)| Write { iova, len, what: Written::Data }));
        self.complete(number, Completion::of_frame(entry.number, frame));
        self.fetch(unit, number);
    }

    /// Writes the first frame that waits to the next strides of the first entry, or gives up what is left of the entry.
    fn deliver_striding(&mut self, unit: &mut Requests<'_>, number: RingNumber, stride_bytes: u32) {
        let ring = &mut self.rings[number];
        let (Some(&arrived), Some(entry)) = (ring.arrived.front(), ring.ready.front_mut()) else { return };
        let Arrived { frame, .. } = arrived;
        let (first_stride, left) = (entry.used_strides, entry.strides - entry.used_strides);
        let needed = frame.bytes.div_ceil(stride_bytes).max(1);
        let is_filler = needed > left && first_stride > 0;
        // A frame that does not fit in an unused entry fits in none. It is cut off, so that it does not wait for ever.
        let strides = if is_filler { left } else { needed.min(left) };
        entry.used_strides += strides;
        let is_used_up = entry.used_strides == entry.strides;
        let of = if is_filler {
            Completion { entry: entry.number, ..Completion::default() }
        } else {
            let in_strides = |strides: u32| u64::from(strides) * u64::from(stride_bytes);
            let parts = entry.parts(in_strides(first_stride), in_strides(strides).min(frame.bytes.into()));
            self.writes.extend(parts.map(|(iova, len)| Write { iova, len, what: Written::Data }));
            ring.arrived.pop_front();
            Completion::of_frame(entry.number, frame)
        };
        if is_used_up {
            ring.ready.pop_front();
        }
        self.complete(number, Completion { first_stride, strides, is_filler, ..of });
        if is_used_up {
            self.fetch(unit, number);
        }
    }

    /// Drops the frames that wait for entries if the card knows of none and the ring does not let them wait.
    fn drop_unposted(&mut self, number: RingNumber) {
        let ring = &mut self.rings[number];
        if ring.config.format.drops_without_buffer && ring.ready.is_empty() && ring.filled == ring.fetched {
            for Arrived { frame, .. } in ring.arrived.drain(..) {
                self.buffered_bytes -= u64::from(frame.bytes);
                self.counters.out_of_buffer += 1;
            }
        }
    }
}
