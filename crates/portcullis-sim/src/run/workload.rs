//! What a run has to know of its work before it begins.

use crate::machine::Machine;
use crate::traffic::Traffic;
use portcullis::{Segment, SourceId};
use serde_json::Value;

/// The device of synthetic work.
pub(super) const DEVICE: SourceId = SourceId::new(0, 4, 0);

/// A kind of work. What it does not say is as for synthetic work with one network card.
pub(super) trait Workload {
    /// The number of virtual cores that it takes.
    fn cores(&self) -> usize;

    /// The most pages that it has mapped at once, including warm-up.
    fn live_pages_max(&self) -> u64;

    /// One past the last byte of its buffers.
    fn memory_end(&self, machine: &Machine) -> u64;

    /// The number of actors beside its cores.
    fn actors(&self) -> usize {
        0
    }

    /// The kind of device for which it looks to be; `None` if nothing shows.
    fn looks(&self) -> Option<Traffic> {
        Some(Traffic::Network)
    }

    fn devices(&self) -> Vec<SourceId> {
        vec![DEVICE]
    }

    /// The memory of the rings of a network card, if it has any.
    fn ring_memory(&self, _machine: &Machine) -> Option<Segment> {
        None
    }

    /// Whether buffers may wait for room. The replay of a trace has no driver that waits, and neither has a server, so
    /// their runs fail.
    fn waits_for_room(&self) -> bool {
        true
    }

    /// Entries of a ring that is large enough for it, if its batches have `batch` buffers. It may look through all of
    /// a trace.
    fn ring_entries(&self, _batch: usize) -> Option<u32> {
        None
    }

    /// Whether its driver commits in two halves.
    fn commits_in_halves(&self) -> bool {
        false
    }

    /// Whether the windows of its buffers are measured.
    fn has_windows(&self) -> bool {
        true
    }

    /// The parameters of synthetic work; otherwise `null`.
    fn parameters(&self) -> Value {
        Value::Null
    }
}
