//! The workloads by name.

use super::work::{BATCH, BURST, CHUNK};
use portcullis::Protection;
use serde::{Serialize, Serializer};
use thiserror::Error;

/// A timed workload. A pair is the map and the unmap of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Workload {
    /// One page at a time, 1024 live, first in first out. A submission is only counted.
    Page1,
    /// Like [`Page1`](Self::Page1), and each submission writes its descriptors and a wait to a ring in memory.
    Page1Queued,
    /// Like [`Page1`](Self::Page1), through the queue of the VT-d driver, over registers that answer at once.
    Page1Driven,
    /// Like [`Page1`](Self::Page1), with 64 unmaps under one commit, and then 64 maps made together.
    Page1Batch64,
    /// Buffers of 64 contiguous pages, 256 live.
    Descriptor64,
    /// A ring of 4096 pages that the device writes and a ring of 1024 that it reads, served in turn.
    TwoRings,
    /// One page at a time, mapped by one thread and unmapped by another. The work of both counts, without waiting.
    CrossCpu,
    /// Like [`Page1`](Self::Page1), through the typed interface: buffers are owned while the device does not have
    /// them.
    Page1Typed,
    /// Like [`Page1Batch64`](Self::Page1Batch64), through the typed interface.
    Page1Batch64Typed,
    /// Like [`Page1`](Self::Page1), with every entry written back from the caches.
    Page1NonCoherent,
    /// Like [`Page1Batch64`](Self::Page1Batch64), with every line of entries written back from the caches.
    Page1Batch64NonCoherent,
    /// A ring of 256 descriptors of a page each, through the typed interface: 16 are unmapped under one commit and
    /// mapped together.
    Ring256,
    /// Like [`Ring256`](Self::Ring256), with commits in two halves: 16 are submitted, and the 16 of the poll before
    /// come back and are mapped in their place.
    Ring256Halves,
}

/// There is no such workload.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("no workload `{0}`; there are: {list}", list = Workload::ALL.map(Workload::id).join(", "))]
pub struct UnknownWorkload(String);

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 13] = [
        Self::Page1,
        Self::Page1Queued,
        Self::Page1Driven,
        Self::Page1Batch64,
        Self::Descriptor64,
        Self::TwoRings,
        Self::CrossCpu,
        Self::Page1Typed,
        Self::Page1Batch64Typed,
        Self::Page1NonCoherent,
        Self::Page1Batch64NonCoherent,
        Self::Ring256,
        Self::Ring256Halves,
    ];

    /// The name of the workload.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Page1 => "page-1",
            Self::Page1Queued => "page-1-queued",
            Self::Page1Driven => "page-1-driven",
            Self::Page1Batch64 => "page-1-batch-64",
            Self::Descriptor64 => "descriptor-64",
            Self::TwoRings => "two-rings",
            Self::CrossCpu => "cross-cpu",
            Self::Page1Typed => "page-1-typed",
            Self::Page1Batch64Typed => "page-1-batch-64-typed",
            Self::Page1NonCoherent => "page-1-noncoherent",
            Self::Page1Batch64NonCoherent => "page-1-batch-64-noncoherent",
            Self::Ring256 => "ring-256",
            Self::Ring256Halves => "ring-256-halves",
        }
    }

    /// A short description of the workload.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Page1 => "map and unmap of one 4 KiB page, 1024 live, first in first out; invalidation counted only",
            Self::Page1Queued => "as page-1; each submission writes its descriptors and a wait to a ring in memory",
            Self::Page1Driven => "as page-1, through the queue of the VT-d driver, over registers that answer at once",
            Self::Page1Batch64 => "as page-1, with 64 unmaps under one commit, then 64 maps together",
            Self::Descriptor64 => "map and unmap of 64 contiguous pages, 256 live",
            Self::TwoRings => "a ring of 4096 pages that the device writes and one of 1024 that it reads, in turn",
            Self::CrossCpu => "mapped by one thread and unmapped by another; time of both; even thread counts only",
            Self::Page1Typed => "as page-1, through the typed interface, which owns buffers; strict protection only",
            Self::Page1Batch64Typed => "as page-1-batch-64, through the typed interface",
            Self::Page1NonCoherent => "as page-1, with every entry written back from the caches",
            Self::Page1Batch64NonCoherent => "as page-1-batch-64, with every line of entries written back",
            Self::Ring256 => "a ring of 256 one-page descriptors, typed: 16 unmapped under one commit, mapped together",
            Self::Ring256Halves => {
                "as ring-256, in two halves: 16 submitted, and those of the poll before mapped in their place"
            }
        }
    }

    /// The workload called `id`.
    ///
    /// # Errors
    /// Returns [`UnknownWorkload`] if there is none.
    pub fn by_id(id: &str) -> Result<Self, UnknownWorkload> {
        Self::ALL.into_iter().find(|workload| workload.id() == id).ok_or_else(|| UnknownWorkload(id.to_owned()))
    }

    /// Whether it can be done under this protection. Owned buffers are returned only after the device has lost access
    /// to them.
    pub fn is_offered(self, protection: Protection) -> bool {
        let is_typed = matches!(self, Self::Page1Typed | Self::Page1Batch64Typed | Self::Ring256 | Self::Ring256Halves);
        protection == Protection::Strict || !is_typed
    }

    /// Whether several unmaps share one commit.
    pub(super) const fn is_batched(self) -> bool {
        matches!(
            self,
            Self::Page1Batch64
                | Self::Page1Batch64Typed
                | Self::Page1Batch64NonCoherent
                | Self::Ring256
                | Self::Ring256Halves
        )
    }

    /// Whether it can be done by `threads` threads.
    pub const fn takes(self, threads: usize) -> bool {
        match self {
            Self::CrossCpu => threads > 0 && threads.is_multiple_of(2),
            _ => threads > 0,
        }
    }

    /// Mappings of its ring, or of its larger ring.
    pub(super) const fn live(self) -> usize {
        match self {
            Self::Descriptor64 | Self::Ring256 | Self::Ring256Halves => 256,
            Self::TwoRings => 4096,
            _ => 1024,
        }
    }

    /// Pages of a buffer.
    pub(super) const fn pages(self) -> u64 {
        match self {
            Self::Descriptor64 => 64,
            _ => 1,
        }
    }

    /// The number of pairs after which it is in its initial state again. The cost of searches may depend on that
    /// state.
    ///
    /// # Panics
    /// Panics if it does not consist of whole batches and chunks.
    pub const fn period(self) -> u64 {
        let period = match self {
            Self::TwoRings => 2 * self.live() as u64,
            _ => self.live() as u64,
        };
        assert!(period.is_multiple_of(BATCH) && period.is_multiple_of(BURST) && period.is_multiple_of(CHUNK));
        period
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}
