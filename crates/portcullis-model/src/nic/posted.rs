//! Posted writes: parts of frames and completions, in order.

use super::format::{COMPLETION_BYTES, Completion, Direction};
use super::{Card, Due, Frame, RingNumber};
use crate::vtd::Requests;
use portcullis::Iova;

/// What the end of the write of a completion means.
pub(super) struct Completed {
    /// A frame of so many bytes has left the receive buffer.
    pub(super) drained_bytes: Option<u32>,
    /// Whether the completion has landed in memory.
    pub(super) has_landed: bool,
}

/// A posted write that was not issued yet.
pub(super) struct Write {
    pub(super) iova: Iova,
    pub(super) len: u64,
    pub(super) what: Written,
}

pub(super) enum Written {
    /// Part of a frame.
    Data,
    Completion(RingNumber, Completion),
}

impl Card {
    /// Queues a completion after all writes so far.
    pub(super) fn complete(&mut self, number: RingNumber, entry: u32, frame: Frame) {
        let ring = &mut self.rings[number];
        let at = ring.config.completions.as_u64() + ring.config.completion_offset(ring.completed);
        ring.completed = ring.completed.wrapping_add(1);
        let completion = Completion { entry, bytes: frame.bytes, cookie: frame.cookie, serial: ring.completed };
        let what = Written::Completion(number, completion);
        self.writes.push_back(Write { iova: Iova::new(at), len: COMPLETION_BYTES, what });
    }

    /// Issues posted writes while the bus has room.
    pub(super) fn write_on(&mut self, unit: &mut Requests<'_>) {
        while !self.writes_on {
            let Some(&Write { iova, len, .. }) = self.writes.front() else { return };
            let room_ps = self.bus.write_room_ps(self.now_ps, len);
            if room_ps > self.now_ps {
                self.writes_on = true;
                return self.set_due(room_ps, Due::WriteOn);
            }
            let Some(Write { what, .. }) = self.writes.pop_front() else { return };
            let write = self.bus.write(unit, self.now_ps, iova, len);
            let Written::Completion(number, completion) = what else { continue };
            let is_received = self.rings[number].config.direction == Direction::Receive;
            let phys = write.phys.filter(|phys| unit.ram().contains(*phys, COMPLETION_BYTES as usize));
            if let Some(phys) = phys {
                let bytes = completion.words().map(u64::to_le_bytes);
                unit.post(write.done_ps, phys, bytes.as_flattened());
            }
            let completed =
                Completed { drained_bytes: is_received.then_some(completion.bytes), has_landed: phys.is_some() };
            self.set_due(write.done_ps, Due::Completed(number, completed));
        }
    }
}
