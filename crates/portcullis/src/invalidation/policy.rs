//! When the hardware is told: at every commit, later through one queue or one per CPU, or only when an address is used again.

use super::{
    CoreQueues, FlushQueue, Invalidated, QUEUE_CAPACITY, QUEUE_TIMEOUT_US, Revocation, page_selective, strict,
};
use crate::address::IovaRange;
use crate::error::{CommitError, MapError, NewDomainError};
use crate::iommu::Iommu;
use crate::iova::IovaAllocator;
use crate::platform::{Phase, Platform, Step};
use crate::safety::Protection;
use crate::space::AddressSpace;
use crate::table::FreedTables;

/// What becomes of an unmap under deferred protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deferral {
    /// It waits in one queue of all CPUs, for a global flush.
    Global,
    /// It waits in its CPU's queue, for a flush of the domain.
    PerCore,
    /// Nothing, until a map uses the address again and invalidates it first.
    AtMap,
}

/// What one command of a commit covers under strict protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commands {
    /// One unmap.
    PerUnmap,
    /// All unmaps of the batch whose pages touch, within aligned runs of `within_pages` pages, a power of two.
    PerRun {
        /// Beyond such a run neighbours are so by accident.
        within_pages: u64,
    },
}

/// The invalidation policy of a domain.
pub(crate) enum Policy<P: Platform> {
    Strict(Commands),
    Global(FlushQueue<P>),
    PerCore(CoreQueues<P>),
    AtMap,
}

impl<P: Platform> Policy<P> {
    pub(crate) fn new(
        platform: &P,
        protection: Protection,
        commands: Commands,
        deferral: Deferral,
    ) -> Result<Self, NewDomainError> {
        Ok(match (protection, deferral) {
            (Protection::Strict, _) => Self::Strict(commands),
            (Protection::Deferred, Deferral::Global) => Self::Global(FlushQueue::new(platform)?),
            (Protection::Deferred, Deferral::PerCore) => Self::PerCore(CoreQueues::new(platform)?),
            (Protection::Deferred, Deferral::AtMap) => Self::AtMap,
            (Protection::None, _) => return Err(NewDomainError::Protection),
        })
    }

    /// Ends a map whose translations are written: afterwards the device sees them and no older ones.
    pub(crate) fn mapped<I: Iommu>(&self, space: &AddressSpace<P, I>, range: IovaRange) -> Result<(), MapError> {
        match self {
            // Where absent entries are cached, writing the translations has invalidated the range already.
            Self::AtMap if !space.capabilities().caches_absent => {
                space.platform().probe(Step::Enter(Phase::Invalidate));
                // No table page of such a domain ever goes.
                Ok(space.invalidate(&[page_selective(space.id(), range, true, space.capabilities())])?)
            }
            _ => Ok(()),
        }
    }

    /// Ends a batch of unmaps: invalidates them, or queues them.
    pub(crate) fn commit<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation,
    ) -> Result<(), CommitError> {
        match self {
            Self::Strict(commands) => strict::commit(space, allocator, revocation, *commands),
            Self::Global(queue) => queue.push(space, allocator, revocation),
            Self::PerCore(queues) => queues.push(space, allocator, revocation),
            Self::AtMap => {
                let platform = space.platform();
                platform.probe(Step::Enter(Phase::IovaFree));
                for revoked in revocation.revoked.drain(..) {
                    // Not invalidated yet, but it will be before anybody is given it: see `mapped`.
                    allocator.free(platform, Invalidated::new(revoked.range));
                }
                Ok(())
            }
        }
    }

    /// Flushes what has waited long enough.
    pub(crate) fn tick<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        match self {
            Self::Strict(_) | Self::AtMap => Ok(()),
            Self::Global(queue) => queue.tick(space, allocator),
            Self::PerCore(queues) => queues.tick(space, allocator),
        }
    }

    /// When the next tick has work to do.
    pub(crate) fn due_us(&self) -> Option<u64> {
        match self {
            Self::Strict(_) | Self::AtMap => None,
            Self::Global(queue) => queue.due_us(),
            Self::PerCore(queues) => queues.due_us(),
        }
    }

    /// Unmaps that wait now, and the most that can.
    pub(crate) fn queued(&self) -> (usize, usize) {
        match self {
            Self::Strict(_) | Self::AtMap => (0, 0),
            Self::Global(queue) => (queue.len(), QUEUE_CAPACITY),
            Self::PerCore(queues) => (queues.waiting(), queues.capacity()),
        }
    }

    /// The longest that an unmap waits for the hardware to be told if ticks come when due, in microseconds; `None` without
    /// bound.
    pub(crate) fn window_us_max(&self) -> Option<u64> {
        match self {
            Self::Strict(_) => Some(0),
            Self::Global(_) | Self::PerCore(_) => Some(QUEUE_TIMEOUT_US),
            Self::AtMap => None,
        }
    }

    /// Gives up the table pages that wait, after the IOMMU has forgotten the domain.
    pub(crate) fn take_tables(&self, platform: &P) -> FreedTables {
        match self {
            Self::Strict(_) | Self::AtMap => FreedTables::new(),
            Self::Global(queue) => queue.take_tables(),
            Self::PerCore(queues) => queues.take_tables(platform),
        }
    }
}
