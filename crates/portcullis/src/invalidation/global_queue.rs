//! Deferred protection as Linux had it before 4.7: one global queue of unmaps, emptied by one global invalidation
//! when it is full or its oldest entry is old (facts: EiovaR §2.2 and §6.2; "Stock Linux then").

use super::{Revocation, Room};
use crate::address::IovaRange;
use crate::error::{CommitError, NoMemory};
use crate::iommu::{Invalidation, Iommu};
use crate::iova::IovaAllocator;
use crate::platform::memory::{push_within, try_reserve};
use crate::platform::{Context, Deadline, Lock, LockClass, Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::space::AddressSpace;
use crate::sync::{AtomicUsize, Ordering};
use crate::table::FreedTables;
use alloc::vec::Vec;

/// The most unmaps that wait: the high-water mark at which the queue is flushed.
pub const QUEUE_CAPACITY: usize = 250;
/// How long the oldest unmap waits, in microseconds, before a tick flushes the queue.
pub const QUEUE_TIMEOUT_US: u64 = 10_000;

/// Unmaps whose translations are cleared but may still be cached by the hardware.
struct Queue {
    /// Never grows: its capacity is [`QUEUE_CAPACITY`] from the start.
    waiting: Vec<IovaRange>,
    tables: FreedTables,
}

/// A global flush queue. One lock guards it, and is held while the flush waits for the hardware. No CPU can queue
/// meanwhile.
pub struct GlobalQueue<P: Platform> {
    queue: P::Lock<Queue>,
    /// When the oldest entry will have waited long enough. It is none while the queue is empty.
    ///
    /// This and `len` are written under the lock. Without the lock they are hints (Relaxed): a CPU that acts on them
    /// takes the lock and looks again.
    due: Deadline,
    len: AtomicUsize,
}

impl<P: Platform> GlobalQueue<P> {
    /// Makes an empty queue.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no memory for the entries.
    pub fn new(platform: &P) -> Result<Self, NoMemory> {
        let waiting = try_reserve(platform, Context::MaySleep, QUEUE_CAPACITY)?;
        let queue = platform.lock(LockClass::CentralFlushQueue, Queue { waiting, tables: FreedTables::new() });
        Ok(Self { queue, due: Deadline::none(), len: AtomicUsize::new(0) })
    }

    /// Queues the unmaps, and flushes whenever the queue is full.
    ///
    /// In a poisoned domain nothing is deferred any more: the queue is flushed before the buffers go back.
    ///
    /// # Errors
    /// [`CommitError`] if a flush failed. Queued entries stay until a flush succeeds. Those of these unmaps that
    /// found no room are lost for good.
    #[inline(never)]
    pub(crate) fn push<I: Iommu, R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        let tables = core::mem::take(&mut revocation.tables);
        let queued = self.queue.with(|queue| {
            queue.tables.append(platform, tables);
            for revoked in revocation.revoked() {
                if queue.waiting.len() == QUEUE_CAPACITY {
                    let _ = self.flush(queue, space, allocator)?;
                }
                platform.probe(Step::FlushQueuePush);
                if queue.waiting.is_empty() {
                    self.due.set(platform, QUEUE_TIMEOUT_US);
                }
                push_within(&mut queue.waiting, revoked.range);
                self.len.store(queue.waiting.len(), Ordering::Relaxed);
            }
            if !space.is_poisoned() {
                return Ok(Committed::Deferred);
            }
            self.flush(queue, space, allocator).map(Committed::Proven)
        });
        revocation.clear_runs();
        queued
    }

    /// Flushes the queue if its oldest entry has waited long enough.
    ///
    /// # Errors
    /// [`CommitError`] if the flush failed.
    pub(crate) fn tick<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        let platform = space.platform();
        if !self.due.is_due(platform) {
            return Ok(());
        }
        platform.probe(Step::Enter(Phase::Invalidate));
        self.queue.with(
            |queue| {
                if self.due.is_due(platform) { self.flush(queue, space, allocator).map(drop) } else { Ok(()) }
            },
        )
    }

    /// Flushes the queue, however long its entries have waited. Returns whether there were any.
    ///
    /// # Errors
    /// [`CommitError`] if the flush failed.
    pub(super) fn flush_now<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<bool, CommitError> {
        space.platform().probe(Step::Enter(Phase::Invalidate));
        self.queue.with(|queue| match queue.waiting.is_empty() {
            true => Ok(false),
            false => self.flush(queue, space, allocator).map(|_| true),
        })
    }

    /// Unmaps that wait now.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether no unmap waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When `tick` will flush, on the platform's clock; `None` while the queue is empty.
    pub fn due_us(&self) -> Option<u64> {
        self.due.get()
    }

    /// Frees all waiting entries, after the IOMMU has forgotten the domain. It does not free their table pages, but
    /// returns them.
    pub(super) fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) -> FreedTables {
        self.queue.with(|queue| {
            for range in queue.waiting.drain(..) {
                allocator.free(platform, range, proof);
            }
            core::mem::take(&mut queue.tables)
        })
    }

    fn flush<I: Iommu>(
        &self,
        queue: &mut Queue,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<Proof, CommitError> {
        let platform = space.platform();
        // If the flush fails, the entries stay in quarantine until a flush succeeds (S11). The next tick tries again,
        // one timeout later.
        let flushed = space.invalidate(&[Invalidation::Global]);
        let proof = flushed.inspect_err(|_| self.due.set(platform, QUEUE_TIMEOUT_US))?;
        self.free_waiting(queue, space, allocator, &proof);
        Ok(proof)
    }

    /// Frees all entries. By itself, so that its frame does not lie above that of the invalidation, which is deep.
    #[inline(never)]
    fn free_waiting<I: Iommu>(
        &self,
        queue: &mut Queue,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        proof: &Proof,
    ) {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::IovaFree));
        for range in queue.waiting.drain(..) {
            allocator.free(platform, range, proof);
        }
        space.release(core::mem::take(&mut queue.tables), proof);
        self.due.clear();
        self.len.store(0, Ordering::Relaxed);
        platform.probe(Step::Enter(Phase::Invalidate));
    }
}
