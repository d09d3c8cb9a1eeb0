//! Deferred protection as Linux has it: a flush queue of all CPUs, or one for each.

use super::{
    CPU_QUEUE_CAPACITY, DeferredPolicy, Due, Flushes, GlobalQueue, One, PerCpuQueues, Policy, QUEUE_CAPACITY,
    QUEUE_TIMEOUT_US, Revocation, Revoked, Room,
};
use crate::address::IovaRange;
use crate::error::{CommitError, MapError, NewDomainError};
use crate::iommu::Iommu;
use crate::iova::IovaAllocator;
use crate::platform::Platform;
use crate::proof::{Committed, Proof};
use crate::space::AddressSpace;
use crate::table::FreedTables;

/// Which flush queue unmaps wait in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Deferral {
    /// In one queue of all CPUs, for a global flush.
    Global,
    /// In the queue of their CPU, for a flush.
    PerCpu {
        /// The most unmaps that wait on each CPU.
        capacity: usize,
        /// The longest that they wait, in microseconds.
        timeout_us: u64,
        /// What a flush invalidates.
        flushes: Flushes,
    },
}

impl Deferral {
    /// Queues per CPU as Linux has them.
    pub const PER_CPU: Self =
        Self::PerCpu { capacity: CPU_QUEUE_CAPACITY, timeout_us: QUEUE_TIMEOUT_US, flushes: Flushes::Domain };
}

/// The flush queues of a domain.
pub enum FlushQueues<P: Platform> {
    /// One of all CPUs.
    Global(GlobalQueue<P>),
    /// One for each CPU.
    PerCpu(PerCpuQueues<P>),
}

// SAFETY: a queue frees what waits with the proof of a flush that has begun after it was queued.
unsafe impl<P: Platform, I: Iommu> DeferredPolicy<P, I> for FlushQueues<P> {
    type Setting = Deferral;

    fn leaves_pointers(deferral: Deferral) -> bool {
        matches!(deferral, Deferral::PerCpu { flushes: Flushes::CoveringRange, .. })
    }

    fn new(platform: &P, deferral: Deferral) -> Result<Self, NewDomainError> {
        Ok(match deferral {
            Deferral::Global => Self::Global(GlobalQueue::new(platform)?),
            Deferral::PerCpu { capacity, timeout_us, flushes } => {
                Self::PerCpu(PerCpuQueues::new(platform, capacity, timeout_us, flushes)?)
            }
        })
    }

    #[inline(never)]
    fn commit<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        // Each of these is a tail call, which replaces this stack frame.
        match self {
            Self::Global(queue) => queue.push(space, allocator, revocation),
            Self::PerCpu(queues) => queues.push(space, allocator, revocation),
        }
    }

    fn flush(&self, space: &AddressSpace<P, I>, allocator: &impl IovaAllocator<P>) -> Result<bool, MapError> {
        let flushed = match self {
            Self::Global(queue) => queue.flush_now(space, allocator),
            Self::PerCpu(queues) => queues.flush_now(space, allocator),
        };
        flushed.map_err(|CommitError(error)| MapError::Queue(error))
    }

    fn tick(&self, space: &AddressSpace<P, I>, allocator: &impl IovaAllocator<P>) -> Result<(), CommitError> {
        match self {
            Self::Global(queue) => queue.tick(space, allocator),
            Self::PerCpu(queues) => queues.tick(space, allocator),
        }
    }

    fn due_us(&self) -> Option<u64> {
        match self {
            Self::Global(queue) => queue.due_us(),
            Self::PerCpu(queues) => queues.due_us(),
        }
    }

    fn queued(&self) -> (usize, usize) {
        match self {
            Self::Global(queue) => (queue.len(), QUEUE_CAPACITY),
            Self::PerCpu(queues) => (queues.waiting(), queues.capacity()),
        }
    }

    fn window_us_max(&self) -> Option<u64> {
        match self {
            Self::Global(_) => Some(QUEUE_TIMEOUT_US),
            Self::PerCpu(queues) => Some(queues.timeout_us()),
        }
    }

    fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) -> FreedTables {
        match self {
            Self::Global(queue) => queue.close(platform, allocator, proof),
            Self::PerCpu(queues) => queues.close(platform, allocator, proof),
        }
    }
}

impl<P: Platform, I: Iommu> Policy<P, I, FlushQueues<P>> {
    /// Lets an unmap wait with others for a flush. The unmap has cleared its translations and freed no table page. It
    /// lies within an aligned run of `WITHIN` pages, where its allocator finds by itself which mappings were there.
    /// Returns whether it could join.
    #[inline(always)]
    pub(crate) fn join<const WITHIN: u64>(&self, space: &AddressSpace<P, I>, range: IovaRange) -> bool {
        // Queues that do not close runs never open one.
        matches!(self, Self::Deferred(FlushQueues::PerCpu(queues), _) if queues.join::<WITHIN, _>(space, range))
    }

    /// Lets an unmap that could not [join](Self::join) others wait in such a way that the next ones may join it. If
    /// they may not, commits it.
    #[inline(always)]
    pub(crate) fn begin_run(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        range: IovaRange,
    ) -> Result<Committed, CommitError> {
        if let Self::Deferred(FlushQueues::PerCpu(queues), _) = self
            && queues.closes_runs()
        {
            return queues.begin_run(space, allocator, range);
        }
        let mut one = One::of_one(space.tag(), Revoked::one(range, Due::Invalidation, true));
        self.commit(space, allocator, &mut one)
    }
}
