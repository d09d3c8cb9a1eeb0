//! Deferred protection with a flush queue per CPU (ATC'15, §5; Linux since 4.7).
//!
//! A CPU queues its unmaps behind a lock of its own and flushes the domain when its queue is full. Any flush serves the
//! entries of all CPUs that were queued before it began. Flushes are numbered as they begin, and an entry notes how many had
//! begun when it was queued; so the flushes that serve it are those with that number and above, and one of them having
//! succeeded is enough.

use super::{Invalidated, Revocation};
use crate::address::IovaRange;
use crate::deadline::Deadline;
use crate::error::{CommitError, NoMemory};
use crate::iommu::{Invalidation, Iommu};
use crate::iova::IovaAllocator;
use crate::per_cpu::PerCpu;
use crate::platform::{Lock, LockClass, Phase, Platform, Step};
use crate::space::AddressSpace;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::table::FreedTables;
use alloc::collections::VecDeque;

/// Unmaps that wait at most on each CPU in Linux. The model checker sees short queues, so that it sees full ones.
pub const CORE_QUEUE_CAPACITY: usize = if cfg!(loom) { 1 } else { 256 };

/// An unmap whose translations are cleared but may still be cached by the hardware.
struct Waiting {
    range: IovaRange,
    /// Flushes that had begun when it was queued.
    begun: u64,
}

/// The unmaps of one CPU, the oldest first.
struct Queue {
    /// Never grows: its capacity is there from the start.
    waiting: VecDeque<Waiting>,
    tables: FreedTables,
    /// Flushes that had begun when the latest of `tables` was queued.
    tables_begun: u64,
}

/// The flush queues of a domain.
pub struct CoreQueues<P: Platform> {
    queues: PerCpu<P::Lock<Queue>>,
    /// Unmaps that wait at most in each.
    capacity: usize,
    /// How long they wait at most, in microseconds.
    timeout_us: u64,
    /// Flushes of the domain that have begun: the number of the next.
    begun: AtomicU64,
    /// One past the highest number of a flush that has succeeded: entries that note less are served. See
    /// [`CoreQueues::flush`] for the order of the two.
    served: AtomicU64,
    /// When the oldest entry will have waited long enough; none where nothing was queued since the last timed flush.
    ///
    /// A push looks at it with its queue's lock held, after it has read how many flushes have begun; a tick takes it away
    /// before its flush begins, and takes every lock after that has succeeded. So a push that counts the tick's flush, or
    /// takes its lock after the tick, finds none and sets one; any other is served by that flush, and found in its queue.
    due: Deadline,
}

impl<P: Platform> CoreQueues<P> {
    /// Empty queues, one for each CPU of `platform`, with room for `capacity` unmaps each, which wait for `timeout_us` at most.
    ///
    /// # Errors
    /// [`NoMemory`] without room for the entries.
    pub fn new(platform: &P, capacity: usize, timeout_us: u64) -> Result<Self, NoMemory> {
        let queue = || {
            let mut waiting = VecDeque::new();
            waiting.try_reserve_exact(capacity).map_err(|_| NoMemory)?;
            let queue = Queue { waiting, tables: FreedTables::new(), tables_begun: 0 };
            Ok(platform.lock(LockClass::FlushQueue, queue))
        };
        Ok(Self {
            queues: PerCpu::new(platform, queue)?,
            capacity,
            timeout_us,
            begun: AtomicU64::new(0),
            served: AtomicU64::new(0),
            due: Deadline::none(),
        })
    }

    /// Queues the unmaps on this CPU, and flushes whenever its queue is full.
    ///
    /// In a poisoned domain nothing is deferred any more: a flush comes before the buffers go back.
    ///
    /// # Errors
    /// [`CommitError`] where a flush failed. What was queued stays until a flush succeeds; those of these unmaps that found
    /// no room are lost for good.
    pub(crate) fn push<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation,
    ) -> Result<(), CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        // SeqCst: the cleared entries must have left this CPU before it reads how many flushes have begun. Otherwise a flush
        // that it does not count might begin, succeed, and let the hardware read an entry that is not yet cleared. It pairs
        // with the fence in `flush`.
        fence(Ordering::SeqCst);
        self.queues.here(platform).with(|queue| {
            if !revocation.tables.is_empty() {
                queue.tables_begun = self.begun.load(Ordering::Acquire);
                queue.tables.append(platform, core::mem::take(&mut revocation.tables));
            }
            for revoked in revocation.revoked.drain(..) {
                if queue.waiting.len() == self.capacity {
                    self.release_served(space, allocator, queue);
                }
                if queue.waiting.len() == self.capacity {
                    self.flush_here(space, allocator, queue)?;
                }
                platform.probe(Step::FlushQueuePush);
                // Acquire: see `due`.
                let begun = self.begun.load(Ordering::Acquire);
                queue.waiting.push_back(Waiting { range: revoked.range, begun });
                self.due.set_if_none(platform, self.timeout_us);
            }
            if space.check().is_err() { self.flush_here(space, allocator, queue) } else { Ok(()) }
        })
    }

    /// Flushes the domain if its oldest entry has waited long enough, and empties all queues.
    ///
    /// # Errors
    /// [`CommitError`] where the flush failed.
    pub(crate) fn tick<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        let platform = space.platform();
        if !self.due.take_if_due(platform) {
            return Ok(());
        }
        platform.probe(Step::Enter(Phase::Invalidate));
        if let Err(error) = self.flush(space) {
            // The entries stay, quarantined until a flush succeeds (S11). The next tick may try, but not at once.
            self.due.set(platform, self.timeout_us);
            return Err(error);
        }
        for queue in self.queues.iter() {
            queue.with(|queue| self.release_served(space, allocator, queue));
        }
        Ok(())
    }

    /// Unmaps that wait now. Takes the lock of each queue.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.with(|queue| queue.waiting.len())).sum()
    }

    /// The most unmaps that can wait, on all CPUs together.
    pub fn capacity(&self) -> usize {
        self.queues.len() * self.capacity
    }

    /// How long an unmap waits at most if `tick` is called when due, in microseconds.
    pub fn timeout_us(&self) -> u64 {
        self.timeout_us
    }

    /// When `tick` will flush, on the platform's clock; `None` while nothing was queued since it last did.
    pub fn due_us(&self) -> Option<u64> {
        self.due.get()
    }

    /// Frees what waits, now that the IOMMU has forgotten the domain, but for the table pages: these it returns.
    pub(super) fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>) -> FreedTables {
        let mut tables = FreedTables::new();
        for queue in self.queues.iter() {
            queue.with(|queue| {
                for waiting in queue.waiting.drain(..) {
                    allocator.free(platform, Invalidated::new(waiting.range));
                }
                tables.append(platform, core::mem::take(&mut queue.tables));
            });
        }
        tables
    }

    /// Takes everything of the domain out of the hardware. Afterwards every entry queued before this was called is served.
    fn flush<I: Iommu>(&self, space: &AddressSpace<P, I>) -> Result<(), CommitError> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        // SeqCst: whoever did not count this flush has fenced its cleared entries before, see `push`; so the hardware, told
        // after this, reads them cleared.
        fence(Ordering::SeqCst);
        space.invalidate(&[Invalidation::Domain(space.id())])?;
        // Release: who finds its entries served knows that the flush is over.
        self.served.fetch_max(number + 1, Ordering::Release);
        Ok(())
    }

    /// Flushes the domain and empties `queue`, which stays locked meanwhile: all of it was queued before.
    fn flush_here<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        queue: &mut Queue,
    ) -> Result<(), CommitError> {
        self.flush(space)?;
        self.release_served(space, allocator, queue);
        debug_assert!(queue.waiting.is_empty(), "the flush began after all of it");
        Ok(())
    }

    /// Gives back the entries of `queue` that a flush has served.
    fn release_served<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        queue: &mut Queue,
    ) {
        let platform = space.platform();
        // Acquire: pairs with the end of `flush`.
        let served = self.served.load(Ordering::Acquire);
        platform.probe(Step::Enter(Phase::IovaFree));
        // The counts that entries note never fall from one to the next.
        while queue.waiting.front().is_some_and(|waiting| waiting.begun < served) {
            let Some(waiting) = queue.waiting.pop_front() else { break };
            allocator.free(platform, Invalidated::new(waiting.range));
        }
        if queue.tables_begun < served {
            space.release(Invalidated::new(core::mem::take(&mut queue.tables)));
        }
        platform.probe(Step::Enter(Phase::Invalidate));
    }
}
