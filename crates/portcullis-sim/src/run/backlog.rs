//! Maps that found their ring full. A driver waits with a buffer until there is room: it maps it after a commit, when entries are free.

use super::live::{Buffer, Slot};
use portcullis::{Access, Stream};
use std::collections::BTreeMap;

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

/// Those that wait, in the order of their numbers.
#[derive(Default)]
pub(super) struct Backlog(BTreeMap<Slot, Waiting>);

impl Backlog {
    pub(super) fn add(&mut self, slot: Slot, waiting: Waiting) {
        self.0.insert(slot, waiting);
    }

    /// Whether a buffer waits.
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.0.contains_key(&slot)
    }

    /// A buffer is not wanted any more, or is mapped.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        self.0.remove(&slot).is_some()
    }

    /// The buffer of the lowest number from `slot` on, of `device`.
    pub(super) fn next(&self, slot: Slot, device: usize) -> Option<(Slot, Waiting)> {
        let of_device = |(_, waiting): &(&Slot, &Waiting)| waiting.device == device;
        self.0.range(slot..).find(of_device).map(|(slot, waiting)| (*slot, waiting.clone()))
    }
}
