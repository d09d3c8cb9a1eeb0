//! Maps that found their ring full. A driver keeps such a buffer until there is room: it maps the buffer after a
//! commit, when entries are free.

use super::live::{Buffer, Slot};
use portcullis::{Access, Stream};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A buffer that waits to be mapped.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) segments: Buffer,
    pub(super) access: Access,
    pub(super) device: usize,
    pub(super) stream: Stream,
    /// Whether the device accesses it as soon as it is mapped.
    pub(super) is_read_at_once: bool,
}

/// The state of a buffer that should be mapped and is not.
enum Unmapped {
    /// It waits, behind all buffers with lower numbers.
    Waits(u64),
    /// It does not fit even an empty ring, so its request is never made.
    NeverFits,
}

/// The waiting buffers in their order, and those that are never mapped.
#[derive(Default)]
pub(super) struct Backlog {
    queue: BTreeMap<u64, (Slot, Waiting)>,
    by_slot: FxHashMap<Slot, Unmapped>,
    next: u64,
}

impl Backlog {
    /// Adds a buffer at the end of the queue.
    pub(super) fn add(&mut self, slot: Slot, waiting: Waiting) {
        self.put_back(self.next, slot, waiting);
        self.next += 1;
    }

    /// Puts a buffer back at the place from which it was taken.
    pub(super) fn put_back(&mut self, place: u64, slot: Slot, waiting: Waiting) {
        self.queue.insert(place, (slot, waiting));
        self.by_slot.insert(slot, Unmapped::Waits(place));
    }

    /// Marks a buffer as never mapped.
    pub(super) fn give_up(&mut self, slot: Slot) {
        self.by_slot.insert(slot, Unmapped::NeverFits);
    }

    /// The number of buffers that are not mapped.
    pub(super) fn len(&self) -> u64 {
        self.by_slot.len() as u64
    }

    /// Whether a buffer is not mapped: it waits, or it is never mapped.
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// Removes a buffer that is about to be mapped or is no longer wanted. Returns whether it was here.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        if self.by_slot.is_empty() {
            return false;
        }
        let unmapped = self.by_slot.remove(&slot);
        if let Some(Unmapped::Waits(place)) = unmapped {
            self.queue.remove(&place);
        }
        unmapped.is_some()
    }

    /// The first waiting buffer of `device` from `place` on, with its place.
    pub(super) fn next(&self, place: u64, device: usize) -> Option<(u64, Slot, Waiting)> {
        let of_device = |(_, (_, waiting)): &(&u64, &(Slot, Waiting))| waiting.device == device;
        let found = self.queue.range(place..).find(of_device);
        found.map(|(place, (slot, waiting))| (*place, *slot, waiting.clone()))
    }
}
