//! Taking translations away: what an unmap leaves to be invalidated, who is told of it, and when.
//!
//! What goes back afterwards goes back against a [`Proof`](crate::proof::Proof).

mod asynchronous;
mod global_queue;
mod per_cpu_queues;
mod policy;
mod strict;

pub use asynchronous::{ASYNCHRONOUS_CAPACITY, AsynchronousQueue};
pub use global_queue::{GlobalQueue, QUEUE_CAPACITY, QUEUE_TIMEOUT_US};
pub use per_cpu_queues::{CPU_QUEUE_CAPACITY, PerCpuQueues};
pub(crate) use policy::Policy;
pub use policy::{Commands, Deferral, Flushes, Submissions};

use crate::address::IovaRange;
use crate::error::UnmapError;
use crate::sub_page::Chain;
use crate::table::FreedTables;
use arrayvec::ArrayVec;

/// Unmaps that one commit takes at most.
pub const BATCH_MAX: usize = 64;

/// What a commit has to do about a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// To have its pages invalidated, now or later, and to give them back to their allocator.
    Invalidation,
    /// The same, at once, and to put them back where they were set aside: for mappings that were placed.
    InvalidationAtOnce,
    /// Nothing: every page has other mappings at the same address, so that no translation went.
    Nothing,
}

/// A mapping that was unmapped, and whose translations may still be cached.
#[derive(Clone, Copy, Debug)]
pub struct Revoked {
    /// Its pages.
    pub range: IovaRange,
    /// What is to be done about them.
    pub due: Due,
    /// Whether no table page went with it, so that the invalidation may leave cached table pointers alone.
    pub leaf_only: bool,
}

/// What a batch of unmaps leaves to be invalidated, up to [`BATCH_MAX`] of them.
///
/// Dropping it leaks addresses and table pages, which is safe; [`Mapper::commit`](crate::design::Mapper::commit) is what
/// should happen to it.
#[must_use = "addresses and buffers come back only through a commit"]
#[derive(Debug, Default)]
pub struct Revocation {
    pub(crate) revoked: ArrayVec<Revoked, BATCH_MAX>,
    pub(crate) tables: FreedTables,
    /// The bounce pages of its mappings.
    pub(crate) bounced: Chain,
    /// The address space that its unmaps belong to, once there is one.
    owner: Option<u64>,
}

impl Revocation {
    /// Nothing to invalidate.
    pub const fn new() -> Self {
        Self { revoked: ArrayVec::new_const(), tables: FreedTables::new(), bounced: Chain::EMPTY, owner: None }
    }

    /// Nothing to invalidate yet, in the space `tag`.
    pub(crate) const fn of(tag: u64) -> Self {
        Self { revoked: ArrayVec::new_const(), tables: FreedTables::new(), bounced: Chain::EMPTY, owner: Some(tag) }
    }

    /// Lets another unmap of the space `tag` in.
    ///
    /// # Errors
    /// [`UnmapError::WrongDomain`] while it holds another's unmaps, [`UnmapError::BatchFull`].
    #[inline(always)]
    pub(crate) fn admit_unmap_of(&mut self, tag: u64) -> Result<(), UnmapError> {
        if self.revoked.is_empty() {
            self.owner = Some(tag);
        }
        if self.owner != Some(tag) {
            return Err(UnmapError::WrongDomain);
        }
        if self.revoked.is_full() { Err(UnmapError::BatchFull) } else { Ok(()) }
    }

    /// Whether its unmaps, if there are any, are those of the space `tag`.
    pub(crate) fn is_of(&self, tag: u64) -> bool {
        self.revoked.is_empty() || self.owner == Some(tag)
    }

    /// Whether there is nothing to invalidate.
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty()
    }

    /// Whether another unmap fits.
    pub fn is_full(&self) -> bool {
        self.revoked.is_full()
    }

    /// The mappings, in the order of their unmaps.
    pub fn revoked(&self) -> &[Revoked] {
        &self.revoked
    }
}
