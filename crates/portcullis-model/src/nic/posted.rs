//! Posted writes: parts of frames, completions and events, in order.

use super::format::{Completion, Direction, EVENT_BYTES, Event, Joined};
use super::{Card, Due, RingNumber};
use crate::vtd::Requests;
use portcullis::{Iova, PhysAddr};

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
    /// The end of a segment that was joined to others. Its frame has so many bytes.
    Segment(u32),
    Completion(RingNumber, Completion),
    Event(RingNumber, Event),
}

impl Card {
    /// Queues a completion after all writes so far, as the next of its ring.
    pub(super) fn complete(&mut self, number: RingNumber, completion: Completion) {
        let ring = &mut self.rings[number];
        let at = ring.config.completions.as_u64() + ring.config.completion_offset(ring.completed);
        ring.completed = ring.completed.wrapping_add(1);
        let what = Written::Completion(number, Completion { serial: ring.completed, ..completion });
        self.writes.push_back(Write { iova: Iova::new(at), len: ring.config.format.completion_bytes, what });
    }

    /// Announces completions of a ring: now, or when an event has landed that is queued after all writes so far.
    pub(super) fn interrupt(&mut self, unit: &mut Requests<'_>, number: RingNumber) {
        let Some(events) = self.rings[number].events else { return self.raise(number) };
        let (queue, written) = &mut self.event_queues[events];
        let at = queue.base.as_u64().wrapping_add(queue.offset(*written));
        *written = written.wrapping_add(1);
        let what = Written::Event(number, Event { ring: number as u32, serial: *written });
        self.writes.push_back(Write { iova: Iova::new(at), len: EVENT_BYTES, what });
        self.write_on(unit);
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
            let phys = write.phys.filter(|phys| unit.ram().contains(*phys, len as usize));
            let mut post = |phys: PhysAddr, words: &[[u8; 8]]| unit.post(write.done_ps, phys, words.as_flattened());
            match what {
                Written::Data => {}
                Written::Segment(bytes) => self.set_due(write.done_ps, Due::Drained(bytes)),
                Written::Completion(number, completion) => {
                    let config = &self.rings[number].config;
                    let words = config.format.completion_words();
                    if let Some(phys) = phys {
                        post(phys, &completion.words().map(u64::to_le_bytes)[..words]);
                    }
                    // The last segment of a packet has left the receive buffer before the packet ends.
                    let has_frame = !completion.is_filler && !matches!(completion.joined, Joined::End { .. });
                    let is_received = config.direction == Direction::Receive && has_frame;
                    let drained_bytes = is_received.then_some(completion.bytes);
                    let completed = Completed { drained_bytes, has_landed: phys.is_some() };
                    self.set_due(write.done_ps, Due::Completed(number, completed));
                }
                Written::Event(number, event) => {
                    if let Some(phys) = phys {
                        post(phys, &[event.word().to_le_bytes()]);
                        self.set_due(write.done_ps, Due::Raise(number));
                    }
                }
            }
        }
    }
}
