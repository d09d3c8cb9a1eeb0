//! Deferred protection with a flush queue per CPU (ATC'15, §5; Linux since 4.7).
//!
//! A CPU queues its unmaps behind a lock of its own and flushes when its queue is full: the domain, or what lies around all that
//! waits, on any CPU. Any flush serves the entries of all CPUs that were queued before it began. Flushes are numbered as they
//! begin, and an entry notes how many had begun when it was queued; so the flushes that serve it are those with that number and
//! above, and one of them having succeeded is enough.

use super::{Flushes, Revoked};
use crate::address::IovaRange;
use crate::error::{CommitError, NoMemory};
use crate::iommu::{Invalidation, Iommu};
use crate::iova::IovaAllocator;
use crate::platform::{Deadline, Lock, LockClass, PerCpu, Phase, Platform, Step};
use crate::proof::{Committed, Proof, Served};
use crate::space::AddressSpace;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::table::FreedTables;
use alloc::collections::VecDeque;

/// Unmaps that wait at most on each CPU in Linux. The model checker sees short queues, so that it sees full ones.
pub const CPU_QUEUE_CAPACITY: usize = if cfg!(loom) { 1 } else { 256 };

/// An unmap whose translations are cleared but may still be cached by the hardware.
struct Waiting {
    range: IovaRange,
    /// Flushes that had begun when it was queued.
    begun: u64,
}

/// What a CPU has.
struct CpuQueue<P: Platform> {
    queue: P::Lock<Queue>,
    /// Entries of the queue note less: once as many flushes have been served, nothing in it waits. Changed with its lock held.
    noted_below: AtomicU64,
}

/// The unmaps of one CPU, the oldest first.
struct Queue {
    /// Never grows: its capacity is there from the start.
    waiting: VecDeque<Waiting>,
    /// The pages around them, those included that were served and not yet given back.
    extent: Option<IovaRange>,
    tables: FreedTables,
    /// Flushes that had begun when the latest of `tables` was queued.
    tables_begun: u64,
}

/// The flush queues of a domain.
pub struct PerCpuQueues<P: Platform> {
    queues: PerCpu<CpuQueue<P>>,
    /// Unmaps that wait at most in each.
    capacity: usize,
    /// How long they wait at most, in microseconds.
    timeout_us: u64,
    flushes: Flushes,
    /// Flushes that have begun: the number of the next.
    begun: AtomicU64,
    /// Which have succeeded. See [`PerCpuQueues::flush`] for the order of the two.
    served: Served,
    /// When the oldest entry will have waited long enough; none where nothing was queued since the last timed flush.
    ///
    /// A push looks at it with its queue's lock held, after it has read how many flushes have begun; a tick takes it away
    /// before its flush begins, and takes every lock after that has succeeded. So a push that counts the tick's flush, or
    /// takes its lock after the tick, finds none and sets one; any other is served by that flush, and found in its queue.
    due: Deadline,
}

impl<P: Platform> PerCpuQueues<P> {
    /// Empty queues, one for each CPU of `platform`, with room for `capacity` unmaps each, which wait for `timeout_us` at most.
    ///
    /// # Errors
    /// [`NoMemory`] without room for the entries.
    pub fn new(platform: &P, capacity: usize, timeout_us: u64, flushes: Flushes) -> Result<Self, NoMemory> {
        let queue = || {
            let mut waiting = VecDeque::new();
            waiting.try_reserve_exact(capacity).map_err(|_| NoMemory)?;
            let queue = Queue { waiting, extent: None, tables: FreedTables::new(), tables_begun: 0 };
            let queue = platform.lock(LockClass::FlushQueue, queue);
            Ok(CpuQueue { queue, noted_below: AtomicU64::new(0) })
        };
        Ok(Self {
            queues: PerCpu::new(platform, queue)?,
            capacity,
            timeout_us,
            flushes,
            begun: AtomicU64::new(0),
            served: Served::none(),
            due: Deadline::none(),
        })
    }

    /// Queues the unmaps on this CPU, and flushes whenever its queue is full.
    ///
    /// In a poisoned domain nothing is deferred any more: a flush comes before the buffers go back.
    ///
    /// # Errors
    /// [`CommitError`] where a flush failed. What was queued stays until a flush succeeds; those of these unmaps that found
    /// no room are lost for good, and the device may keep them until the domain is closed.
    pub(crate) fn push<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        unmaps: &[Revoked],
        tables: &mut FreedTables,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        let mut rest = unmaps.iter();
        let mut is_full = || {
            let here = self.queues.here(platform);
            here.queue.with(|queue| {
                let begun = self.note(here);
                if !tables.is_empty() {
                    queue.tables_begun = begun;
                    queue.tables.append(platform, core::mem::take(tables));
                }
                while rest.len() > 0 {
                    if queue.waiting.len() == self.capacity {
                        self.release_served(space, allocator, queue);
                        if queue.waiting.len() == self.capacity {
                            return true;
                        }
                    }
                    let Some(revoked) = rest.next() else { break };
                    platform.probe(Step::FlushQueuePush);
                    queue.waiting.push_back(Waiting { range: revoked.range, begun });
                    queue.extent = queue.extent.map(|extent| extent.around(revoked.range)).or(Some(revoked.range));
                    self.due.set_if_none(platform, self.timeout_us);
                }
                false
            })
        };
        while is_full() {
            // Without the lock: the flush is waited for, and looks into all queues.
            let _ = self.flush(space)?;
        }
        if !space.is_poisoned() {
            return Ok(Committed::Deferred);
        }
        let proof = self.flush(space)?;
        self.queues.here(platform).queue.with(|queue| self.release_served(space, allocator, queue));
        Ok(Committed::Lost(proof))
    }

    /// What entries of `here` note, whose lock is held until they are queued: how many flushes have begun.
    ///
    /// A flush that begins after this looks at what it is to take out after the translations of these entries were cleared.
    #[inline]
    fn note(&self, here: &CpuQueue<P>) -> u64 {
        if self.flushes == Flushes::Domain {
            // SeqCst: the cleared entries must have left this CPU before it reads how many flushes have begun. Otherwise a flush
            // that it does not count might begin, succeed, and let the hardware read an entry that is not yet cleared. It pairs
            // with the fence in `flush`.
            fence(Ordering::SeqCst);
            return self.begun.load(Ordering::Acquire);
        }
        loop {
            // Acquire: see `due`.
            let begun = self.begun.load(Ordering::Acquire);
            // Relaxed: it was changed under this lock.
            if here.noted_below.load(Ordering::Relaxed) > begun {
                return begun;
            }
            here.noted_below.store(begun + 1, Ordering::Relaxed);
            // SeqCst, pairs with that of `flush`: either that flush finds the new bound, or the next look above finds that it
            // has begun. So each flush that an entry does not count takes this lock, and what was cleared before it was
            // released is cleared for the hardware that is told then. Once for each flush.
            fence(Ordering::SeqCst);
        }
    }

    /// Flushes if the oldest entry of the domain has waited long enough, and empties all queues.
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
        // Where it fails the entries stay, quarantined until a flush succeeds (S11). The next tick may try, but not at once.
        self.flush_and_release(space, allocator).inspect_err(|_| self.due.set(platform, self.timeout_us))
    }

    /// Flushes and empties all queues, however long their entries have waited. Returns whether there were any.
    ///
    /// # Errors
    /// [`CommitError`] where the flush failed.
    pub(super) fn flush_now<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<bool, CommitError> {
        if self.waiting() == 0 {
            return Ok(false);
        }
        space.platform().probe(Step::Enter(Phase::Invalidate));
        // The deadline stays: a tick that finds nothing any more takes it away.
        self.flush_and_release(space, allocator).map(|()| true)
    }

    /// Flushes, and gives back what was queued before, on any CPU.
    fn flush_and_release<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        let _ = self.flush(space)?;
        for cpu in self.queues.iter() {
            cpu.queue.with(|queue| self.release_served(space, allocator, queue));
        }
        Ok(())
    }

    /// Unmaps that wait now. Takes the lock of each queue.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(|cpu| cpu.queue.with(|queue| queue.waiting.len())).sum()
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
    pub(super) fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) -> FreedTables {
        let mut tables = FreedTables::new();
        for cpu in self.queues.iter() {
            cpu.queue.with(|queue| {
                for waiting in queue.waiting.drain(..) {
                    allocator.free(platform, waiting.range, proof);
                }
                tables.append(platform, core::mem::take(&mut queue.tables));
            });
        }
        tables
    }

    /// Takes what waits out of the hardware. Afterwards every entry queued before this was called is served. Not to be called
    /// with the lock of a queue held.
    fn flush<I: Iommu>(&self, space: &AddressSpace<P, I>) -> Result<Proof, CommitError> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        // SeqCst: whoever did not count this flush has fenced before, see `note`; so the hardware, told after this, reads the
        // entries cleared, and the bounds below are up to date.
        fence(Ordering::SeqCst);
        let proof = match self.command(space) {
            Some(command) => space.invalidate(&[command])?,
            None => self.served.nothing_waits(),
        };
        self.served.note(number, &proof);
        Ok(proof)
    }

    /// The command of a flush that has begun: for all that was queued before, and that no flush has served, if there is any.
    ///
    /// Each queue in which something may wait is looked into with its lock held. Who has queued before is found there; who does
    /// so later reads, after the same lock, that this flush has begun, and waits for the next.
    fn command<I: Iommu>(&self, space: &AddressSpace<P, I>) -> Option<Invalidation> {
        if self.flushes == Flushes::Domain {
            return Some(Invalidation::Domain(space.id()));
        }
        // What another flush has served needs no command of this one.
        let served = self.served.by_now();
        // Relaxed: ordered by the fence before. CPUs that are idle keep their locks to themselves.
        let may_wait = |cpu: &&CpuQueue<P>| served.leaves(cpu.noted_below.load(Ordering::Relaxed));
        let extents = self.queues.iter().filter(may_wait).filter_map(|cpu| cpu.queue.with(|queue| queue.extent));
        let extent = extents.reduce(IovaRange::around)?;
        Some(space.covering(extent, true))
    }

    /// Gives back the entries of `queue` that a flush has served.
    fn release_served<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        queue: &mut Queue,
    ) {
        let platform = space.platform();
        let served = self.served.by_now();
        platform.probe(Step::Enter(Phase::IovaFree));
        // The counts that entries note never fall from one to the next.
        while let Some(&Waiting { range, begun }) = queue.waiting.front()
            && let Some(proof) = served.proof(begun)
        {
            queue.waiting.pop_front();
            allocator.free(platform, range, &proof);
        }
        if let Some(proof) = served.proof(queue.tables_begun) {
            space.release(core::mem::take(&mut queue.tables), &proof);
        }
        queue.extent = queue.waiting.iter().map(|waiting| waiting.range).reduce(IovaRange::around);
        platform.probe(Step::Enter(Phase::Invalidate));
    }
}
