//! The workloads by name.

use super::work::{BATCH, BURST, CHUNK};
use portcullis::Protection;
use serde::{Serialize, Serializer};
use thiserror::Error;

/// What is timed. A pair is the map and the unmap of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Workload {
    /// One page at a time, 1024 live, first in first out. A submission is counted and nothing else.
    Page1,
    /// The same, and each submission writes its descriptors and a wait to a ring in memory.
    Page1Queued,
    /// The same through the queue of the VT-d driver, over registers that answer at once.
    Page1Driven,
    /// The same as the first, with 64 unmaps under one commit and 64 maps after it, made together.
    Page1Batch64,
    /// Buffers of 64 contiguous pages, 256 live.
    Descriptor64,
    /// A ring of 4096 pages that the device writes and one of 1024 that it reads, served in turn.
    TwoRings,
    /// One page at a time, mapped by one thread and unmapped by another: the work of both, without waiting.
    CrossCpu,
    /// The first, and the one in batches, through the typed face: buffers are owned while the device does not have them.
    Page1Typed,
    /// See [`Page1Typed`](Self::Page1Typed).
    Page1Batch64Typed,
    /// The first again, with every entry written back from the caches.
    Page1NonCoherent,
    /// The one in batches again, with every line of entries written back from the caches.
    Page1Batch64NonCoherent,
    /// A ring of 256 descriptors, a page each, through the typed face: 16 are unmapped under one commit and mapped together.
    Ring256,
}

/// No such workload.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("no workload `{0}`; there are: {list}", list = Workload::ALL.map(Workload::id).join(", "))]
pub struct UnknownWorkload(String);

impl Workload {
    /// All of them.
    pub const ALL: [Self; 12] = [
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
    ];

    /// Its name.
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
        }
    }

    /// What it does, in a few words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Page1 => "map and unmap of one 4 KiB page, 1024 live, first in first out; invalidation counted only",
            Self::Page1Queued => "the same; each submission writes its descriptors and a wait to a ring in memory",
            Self::Page1Driven => "the same, through the queue of the VT-d driver, over registers that answer at once",
            Self::Page1Batch64 => "as page-1, 64 unmaps under one commit, then 64 maps together",
            Self::Descriptor64 => "map and unmap of 64 contiguous pages, 256 live",
            Self::TwoRings => "4096 pages that the device writes, 1024 that it reads, served in turn",
            Self::CrossCpu => "mapped by one thread, unmapped by another: both together, for even numbers of threads",
            Self::Page1Typed => "as page-1, through the face that owns its buffers; under strict protection only",
            Self::Page1Batch64Typed => "as page-1-batch-64, through the same",
            Self::Page1NonCoherent => "as page-1, every entry written back from the caches",
            Self::Page1Batch64NonCoherent => "as page-1-batch-64, every line of entries written back",
            Self::Ring256 => "256 descriptors of a page that are owned: 16 unmapped under one commit, mapped together",
        }
    }

    /// The workload called `id`.
    ///
    /// # Errors
    /// [`UnknownWorkload`].
    pub fn by_id(id: &str) -> Result<Self, UnknownWorkload> {
        Self::ALL.into_iter().find(|workload| workload.id() == id).ok_or_else(|| UnknownWorkload(id.to_owned()))
    }

    /// Whether it can be done under this protection: buffers that are owned go back only when the device has lost them.
    pub fn is_offered(self, protection: Protection) -> bool {
        protection == Protection::Strict || !matches!(self, Self::Page1Typed | Self::Page1Batch64Typed | Self::Ring256)
    }

    /// Whether several unmaps have one commit.
    pub(super) const fn is_batched(self) -> bool {
        matches!(self, Self::Page1Batch64 | Self::Page1Batch64Typed | Self::Page1Batch64NonCoherent | Self::Ring256)
    }

    /// Whether so many threads can do it.
    pub const fn takes(self, threads: usize) -> bool {
        match self {
            Self::CrossCpu => threads > 0 && threads.is_multiple_of(2),
            _ => threads > 0,
        }
    }

    /// Mappings of the ring that it has, or of its larger one.
    pub(super) const fn live(self) -> usize {
        match self {
            Self::Descriptor64 | Self::Ring256 => 256,
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

    /// Pairs after which it is where it was: what searches take may depend on where that is.
    ///
    /// # Panics
    /// If it is not made of whole batches and chunks.
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
