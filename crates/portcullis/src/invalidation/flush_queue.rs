//! Deferred protection as Linux had it before 4.7: one global queue of unmaps, emptied by one global invalidation when it is
//! full or old (facts: EiovaR §2.2 and §6.2; "Stock Linux then").

use super::{Invalidated, Revocation};
use crate::address::IovaRange;
use crate::error::{CommitError, NoMemory};
use crate::iommu::{Invalidation, Iommu};
use crate::iova::IovaAllocator;
use crate::platform::{Lock, LockClass, Phase, Platform, Step};
use crate::space::AddressSpace;
use crate::table::{self, FreedTables};
use alloc::vec::Vec;

/// Unmaps that wait at most: the high-water mark at which the queue is flushed.
pub const QUEUE_CAPACITY: usize = 250;
/// How long the oldest waits, in microseconds, before a tick flushes the queue.
pub const QUEUE_TIMEOUT_US: u64 = 10_000;

/// Unmaps whose translations are cleared but may still be cached by the hardware.
struct Queue {
    /// Never grows: its capacity is [`QUEUE_CAPACITY`] from the start.
    waiting: Vec<IovaRange>,
    tables: FreedTables,
    /// When the oldest came, meaningful while the queue is not empty.
    oldest_us: u64,
}

/// A global flush queue. One lock guards it, and it is held while the flush is waited for: nobody queues meanwhile.
pub struct FlushQueue<P: Platform> {
    queue: P::Lock<Queue>,
}

impl<P: Platform> FlushQueue<P> {
    /// An empty queue.
    ///
    /// # Errors
    /// [`NoMemory`] without room for the entries.
    pub fn new(platform: &P) -> Result<Self, NoMemory> {
        let mut waiting = Vec::new();
        waiting.try_reserve_exact(QUEUE_CAPACITY).map_err(|_| NoMemory)?;
        let queue = Queue { waiting, tables: FreedTables::new(), oldest_us: 0 };
        Ok(Self { queue: platform.lock(LockClass::FlushQueue, queue) })
    }

    /// Queues the unmaps, and flushes whenever the queue is full.
    ///
    /// # Errors
    /// [`CommitError`] where a flush failed. Unmaps that were queued then stay quarantined.
    pub(crate) fn push<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: Revocation,
    ) -> Result<(), CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        self.queue.with(|queue| {
            queue.tables.append(platform, revocation.tables);
            for revoked in revocation.revoked {
                if queue.waiting.len() == QUEUE_CAPACITY {
                    queue.flush(space, allocator)?;
                }
                platform.probe(Step::FlushQueuePush);
                if queue.waiting.is_empty() {
                    queue.oldest_us = platform.now_us();
                }
                queue.waiting.push(revoked.range);
            }
            Ok(())
        })
    }

    /// Flushes the queue if its oldest entry has waited long enough.
    ///
    /// # Errors
    /// [`CommitError`] where the flush failed.
    pub(crate) fn tick<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        self.queue.with(|queue| {
            let due = !queue.waiting.is_empty() && platform.now_us() >= queue.oldest_us + QUEUE_TIMEOUT_US;
            if due { queue.flush(space, allocator) } else { Ok(()) }
        })
    }

    /// Unmaps that wait now.
    pub fn len(&self) -> usize {
        self.queue.with(|queue| queue.waiting.len())
    }

    /// Whether no unmap waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When [`tick`](Self::tick) will flush, on the platform's clock; `None` while the queue is empty.
    pub fn due_us(&self) -> Option<u64> {
        self.queue.with(|queue| (!queue.waiting.is_empty()).then_some(queue.oldest_us + QUEUE_TIMEOUT_US))
    }

    /// Gives up the table pages that wait, after the IOMMU has forgotten the domain.
    pub(crate) fn take_tables(&self) -> FreedTables {
        self.queue.with(|queue| core::mem::take(&mut queue.tables))
    }
}

impl Queue {
    fn flush<P: Platform, I: Iommu>(
        &mut self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        // On an error the entries stay where they are: quarantined (S11).
        space.invalidate(&[Invalidation::Global])?;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::IovaFree));
        for range in self.waiting.drain(..) {
            allocator.free(platform, Invalidated::new(range));
        }
        table::release(platform, Invalidated::new(core::mem::take(&mut self.tables)));
        platform.probe(Step::Enter(Phase::Invalidate));
        Ok(())
    }
}
