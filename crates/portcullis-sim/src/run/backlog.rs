//! Maps that found their ring full. A driver waits with a buffer until there is room: it maps it after a commit, when entries are free.

use super::live::{Buffer, Slot};
use portcullis::{Access, Stream};
use std::collections::{BTreeMap, HashMap};

/// A buffer that waits to be mapped.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) segments: Buffer,
    pub(super) access: Access,
    pub(super) device: usize,
    pub(super) stream: Stream,
    /// Whether the device goes over it as soon as it is mapped.
    pub(super) is_read_at_once: bool,
}

/// What has become of a buffer that was to be mapped and is not.
enum Unmapped {
    /// It waits, behind all of lower numbers.
    Waits(u64),
    /// No ring can hold it, however empty: its request is never made.
    NeverFits,
}

/// Those that wait, in the order in which they came, and those that are never mapped.
#[derive(Default)]
pub(super) struct Backlog {
    queue: BTreeMap<u64, (Slot, Waiting)>,
    by_slot: HashMap<Slot, Unmapped>,
    next: u64,
}

impl Backlog {
    /// A buffer waits from now on, as the last.
    pub(super) fn add(&mut self, slot: Slot, waiting: Waiting) {
        self.put_back(self.next, slot, waiting);
        self.next += 1;
    }

    /// A buffer waits again where it did before it was taken.
    pub(super) fn put_back(&mut self, place: u64, slot: Slot, waiting: Waiting) {
        self.queue.insert(place, (slot, waiting));
        self.by_slot.insert(slot, Unmapped::Waits(place));
    }

    /// A buffer is never mapped.
    pub(super) fn give_up(&mut self, slot: Slot) {
        self.by_slot.insert(slot, Unmapped::NeverFits);
    }

    /// How many buffers are not mapped.
    pub(super) fn len(&self) -> u64 {
        self.by_slot.len() as u64
    }

    /// Whether a buffer is not mapped: it waits, or never is.
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// A buffer is about to be mapped, or is not wanted any more. Returns whether it was here.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        let unmapped = self.by_slot.remove(&slot);
        if let Some(Unmapped::Waits(place)) = unmapped {
            self.queue.remove(&place);
        }
        unmapped.is_some()
    }

    /// The first of `device` from `place` on, with its place.
    pub(super) fn next(&self, place: u64, device: usize) -> Option<(u64, Slot, Waiting)> {
        let of_device = |(_, (_, waiting)): &(&u64, &(Slot, Waiting))| waiting.device == device;
        let found = self.queue.range(place..).find(of_device);
        found.map(|(place, (slot, waiting))| (*place, *slot, waiting.clone()))
    }
}
