//! When the hardware is told: at every commit, or later, through one queue or through one per CPU.

use super::{CoreQueues, FlushQueue, QUEUE_CAPACITY, QUEUE_TIMEOUT_US, Revocation, strict};
use crate::error::{CommitError, NewDomainError};
use crate::iommu::Iommu;
use crate::iova::IovaAllocator;
use crate::platform::Platform;
use crate::safety::Protection;
use crate::space::AddressSpace;
use crate::table::FreedTables;

/// Which flush queue a deferred domain has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// One for all CPUs, with a global flush.
    Global,
    /// One for each, with a flush of the domain.
    PerCore,
}

/// The invalidation policy of a domain.
pub(crate) enum Policy<P: Platform> {
    Strict,
    Global(FlushQueue<P>),
    PerCore(CoreQueues<P>),
}

impl<P: Platform> Policy<P> {
    pub(crate) fn new(platform: &P, protection: Protection, queue: QueueKind) -> Result<Self, NewDomainError> {
        Ok(match (protection, queue) {
            (Protection::Strict, _) => Self::Strict,
            (Protection::Deferred, QueueKind::Global) => Self::Global(FlushQueue::new(platform)?),
            (Protection::Deferred, QueueKind::PerCore) => Self::PerCore(CoreQueues::new(platform)?),
            (Protection::None, _) => return Err(NewDomainError::Protection),
        })
    }

    /// Ends a batch of unmaps: invalidates them, or queues them.
    pub(crate) fn commit<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation,
    ) -> Result<(), CommitError> {
        match self {
            Self::Strict => strict::commit(space, allocator, revocation),
            Self::Global(queue) => queue.push(space, allocator, revocation),
            Self::PerCore(queues) => queues.push(space, allocator, revocation),
        }
    }

    /// Flushes what has waited long enough.
    pub(crate) fn tick<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        match self {
            Self::Strict => Ok(()),
            Self::Global(queue) => queue.tick(space, allocator),
            Self::PerCore(queues) => queues.tick(space, allocator),
        }
    }

    /// When the next tick has work to do.
    pub(crate) fn due_us(&self) -> Option<u64> {
        match self {
            Self::Strict => None,
            Self::Global(queue) => queue.due_us(),
            Self::PerCore(queues) => queues.due_us(),
        }
    }

    /// Unmaps that wait now, and the most that can.
    pub(crate) fn queued(&self) -> (usize, usize) {
        match self {
            Self::Strict => (0, 0),
            Self::Global(queue) => (queue.len(), QUEUE_CAPACITY),
            Self::PerCore(queues) => (queues.waiting(), queues.capacity()),
        }
    }

    /// The longest that an unmap waits if ticks come when due, in microseconds.
    pub(crate) fn window_us_max(&self) -> u64 {
        match self {
            Self::Strict => 0,
            Self::Global(_) | Self::PerCore(_) => QUEUE_TIMEOUT_US,
        }
    }

    /// Gives up the table pages that wait, after the IOMMU has forgotten the domain.
    pub(crate) fn take_tables(&self, platform: &P) -> FreedTables {
        match self {
            Self::Strict => FreedTables::new(),
            Self::Global(queue) => queue.take_tables(),
            Self::PerCore(queues) => queues.take_tables(platform),
        }
    }
}
