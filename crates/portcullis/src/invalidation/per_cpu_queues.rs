//! Deferred protection with a flush queue per CPU (ATC'15, §5; Linux since 4.7).
//!
//! A CPU queues its unmaps behind its own lock, and flushes when its queue is full. The flush invalidates either the
//! domain, or the range around everything that waits on any CPU. A flush serves the entries of all CPUs that were
//! queued before it began. Flushes are numbered as they begin, and an entry records how many had begun when it was
//! queued. The flushes that serve it are therefore those with that number and above, and it is enough that one of
//! them has succeeded.
//!
//! If a flush looks at the waiting entries, neighbours may wait as one entry: an [`OpenRun`] of a CPU, which single
//! unmaps join without the lock. A flush that begins closes the open runs, with the lock held, before it tells the
//! hardware. It therefore serves the unmaps that have joined by then, and later unmaps begin another run.

use super::open_run::{OPEN_RUNS, OpenRun, Run};
use super::{Revocation, Room};
use crate::address::IovaRange;
use crate::error::{CommitError, NoMemory};
use crate::iommu::{Invalidation, Iommu};
use crate::iova::IovaAllocator;
use crate::platform::memory::{push_back_within, try_reserve};
use crate::platform::{Context, Deadline, Lock, LockClass, PerCpu, Phase, Platform, Step};
use crate::proof::{Committed, Proof, Served};
use crate::space::{AddressSpace, Space};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::table::FreedTables;
use alloc::collections::VecDeque;

/// The most unmaps that wait on each CPU in Linux. The model checker uses short queues, so that it sees full ones.
pub const CPU_QUEUE_CAPACITY: usize = if cfg!(loom) { 1 } else { 256 };

/// What a flush of the per-CPU queues invalidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Flushes {
    /// The whole domain.
    Domain,
    /// The translations of the smallest range around everything that waits that one command can cover. Pointers to
    /// table pages stay cached, so tables must keep their pages. If the hardware has no such command, the whole
    /// domain.
    CoveringRange,
}

/// Unmaps whose translations are cleared but may still be cached by the hardware.
struct Waiting {
    run: Run,
    /// The number of flushes that had begun when it was queued.
    begun: u64,
}

/// The state of one CPU.
struct CpuQueue<P: Platform> {
    /// The runs that the next unmap may join. They are part of the queue, behind its waiting entries.
    open: [OpenRun; OPEN_RUNS],
    queue: P::Lock<Queue>,
    /// Every entry of the queue records a number below this. Once the flushes below it are served, nothing in the
    /// queue waits. It is changed with the lock of the queue held.
    noted_below: AtomicU64,
}

/// The unmaps of one CPU, the oldest first.
struct Queue {
    /// Never grows: it has its full capacity from the start.
    waiting: VecDeque<Waiting>,
    /// Unmaps in `waiting`.
    unmaps: usize,
    /// For each open run, the number of flushes that had begun when the run was begun. The run is served by flushes
    /// with that number and above, even for unmaps that joined later: each such flush closes the run before it tells
    /// the hardware.
    open_begun: [u64; OPEN_RUNS],
    /// The open run that is closed to make place for the next.
    next_open: usize,
    tables: FreedTables,
    /// The number of flushes that had begun when the latest of `tables` was queued.
    tables_begun: u64,
}

/// The flush queues of a domain.
pub struct PerCpuQueues<P: Platform> {
    queues: PerCpu<CpuQueue<P>>,
    /// The most unmaps that wait in each queue.
    capacity: usize,
    /// The longest that they wait, in microseconds.
    timeout_us: u64,
    flushes: Flushes,
    /// The number of flushes that have begun, and so the number of the next flush.
    begun: AtomicU64,
    /// The flushes that have succeeded. See [`PerCpuQueues::flush`] for the order of the two.
    served: Served,
    /// When the oldest entry will have waited long enough. It is none if nothing was queued since the last timed
    /// flush.
    ///
    /// A push looks at it with the lock of its queue held, after it has read how many flushes have begun. A tick
    /// clears it before its flush begins, and takes every lock after the flush has succeeded. A push that counts the
    /// tick's flush, or takes its lock after the tick, therefore finds no deadline and sets one. Any other push is
    /// served by that flush, and the tick finds it in its queue.
    due: Deadline,
}

impl<P: Platform> PerCpuQueues<P> {
    /// Makes empty queues, one for each CPU of `platform`. Each has room for `capacity` unmaps, which wait for at
    /// most `timeout_us`.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no memory for the entries.
    pub fn new(platform: &P, capacity: usize, timeout_us: u64, flushes: Flushes) -> Result<Self, NoMemory> {
        // An empty queue takes an unmap in any case.
        let capacity = capacity.max(1);
        let queue = || {
            let waiting = VecDeque::from(try_reserve(platform, Context::MaySleep, capacity)?);
            let queue = Queue {
                waiting,
                unmaps: 0,
                open_begun: [0; OPEN_RUNS],
                next_open: 0,
                tables: FreedTables::new(),
                tables_begun: 0,
            };
            let queue = platform.lock(LockClass::FlushQueue, queue);
            Ok(CpuQueue { open: core::array::from_fn(|_| OpenRun::none()), queue, noted_below: AtomicU64::new(0) })
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
    /// [`CommitError`] if a flush failed. Queued entries stay until a flush succeeds. Those of these unmaps that
    /// found no room are lost for good, and the device may keep them until the domain is closed.
    #[inline(never)]
    pub(crate) fn push<I: Iommu, R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        let mut tables = core::mem::take(&mut revocation.tables);
        let mut runs = (!R::IS_NONE).then(|| revocation.revoked().map(Run::of));
        let mut next = runs.as_mut().map_or_else(|| Some(Run::of(revocation.the_run())), Iterator::next);
        let queued = self.queue_here(space, allocator, |here, queue, begun| {
            queue.begin_batch(platform, here, &mut tables, begun);
            while let Some(run) = next {
                if !self.has_room(space, allocator, queue, run.unmaps) {
                    return false;
                }
                self.put(platform, queue, run, begun);
                next = runs.as_mut().and_then(Iterator::next);
            }
            true
        });
        drop(runs);
        revocation.clear_runs();
        queued
    }

    /// Whether a flush looks into the queues, and so closes the open runs.
    #[inline]
    pub(crate) fn closes_runs(&self) -> bool {
        self.flushes == Flushes::CoveringRange
    }

    /// Joins an unmap to those that wait on this CPU. Its pages lie within an aligned run of `WITHIN` pages. Returns
    /// whether it could join.
    #[inline(always)]
    pub(crate) fn join<const WITHIN: u64, I: Iommu>(&self, space: &AddressSpace<P, I>, range: IovaRange) -> bool {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        // Unmaps do not join in a poisoned domain, where a flush has to come first.
        let open = &self.queues.here(platform).open;
        let is_joined = !space.is_poisoned() && open.iter().any(|open| open.join::<WITHIN>(range));
        if is_joined {
            platform.probe(Step::FlushQueueJoin);
        }
        is_joined
    }

    /// Queues an unmap that could not [join](Self::join) others, and lets the next ones on this CPU join it.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    #[inline(never)]
    pub(crate) fn begin_run<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        range: IovaRange,
    ) -> Result<Committed, CommitError> {
        self.queue_here(space, allocator, |here, queue, begun| {
            let next = queue.next_open;
            queue.close(&here.open, next);
            // The other runs keep the room that was left to them, unless no room remains.
            if queue.room_taken(here) >= self.capacity {
                queue.close_all(here);
                if !self.has_room(space, allocator, queue, 1) {
                    return false;
                }
            }
            space.platform().probe(Step::FlushQueuePush);
            let left = self.capacity.saturating_sub(queue.room_taken(here)).min(self.capacity / OPEN_RUNS);
            here.open[next].begin(range, left.saturating_sub(1));
            queue.open_begun[next] = begun;
            queue.next_open = (next + 1) % OPEN_RUNS;
            true
        })
    }

    /// Lets `put` queue something on this CPU, and tells it how many flushes have begun. Flushes and tries again each
    /// time `put` returns that it had no room for everything.
    #[inline(always)]
    fn queue_here<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        mut put: impl FnMut(&CpuQueue<P>, &mut Queue, u64) -> bool,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        loop {
            let here = self.queues.here(platform);
            let is_done = here.queue.with(|queue| {
                let begun = self.note(here);
                let is_done = put(here, queue, begun);
                if is_done || queue.unmaps > 0 {
                    self.due.set_if_none(platform, self.timeout_us);
                }
                is_done
            });
            if is_done {
                break;
            }
            // The lock is not held here: the flush waits for the hardware, and looks into all queues.
            let _ = self.flush(space)?;
        }
        if !space.is_poisoned() {
            return Ok(Committed::Deferred);
        }
        let proof = self.flush(space)?;
        self.queues.here(platform).queue.with(|queue| self.release_served(space, allocator, queue));
        Ok(Committed::Proven(proof))
    }

    /// Whether there is room for `unmaps` more unmaps. If not at first, gives back what was served and looks again.
    /// An empty queue takes a whole batch in any case.
    fn has_room<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        queue: &mut Queue,
        unmaps: usize,
    ) -> bool {
        let fits = |queue: &Queue| queue.unmaps == 0 || queue.unmaps + unmaps <= self.capacity;
        if !fits(queue) {
            self.release_served(space, allocator, queue);
        }
        fits(queue)
    }

    /// Puts the unmaps of a run into the queue of a CPU.
    fn put(&self, platform: &P, queue: &mut Queue, run: Run, begun: u64) {
        platform.probe(Step::FlushQueuePush);
        for _ in 1..run.unmaps {
            platform.probe(Step::FlushQueueJoin);
        }
        queue.put(run, begun);
    }

    /// Returns what new entries of `here` have to record: how many flushes have begun. The lock of `here` is held
    /// until the entries are queued.
    ///
    /// A flush that begins after this looks at its work only after the translations of these entries were cleared.
    #[inline]
    fn note(&self, here: &CpuQueue<P>) -> u64 {
        if self.flushes == Flushes::Domain {
            // SeqCst: the cleared entries must have left this CPU before it reads how many flushes have begun.
            // Otherwise a flush that it does not count might begin, succeed, and let the hardware read an entry that
            // is not yet cleared. This pairs with the fence in `flush`.
            fence(Ordering::SeqCst);
            return self.begun.load(Ordering::Acquire);
        }
        loop {
            // Acquire: see `due`.
            let begun = self.begun.load(Ordering::Acquire);
            // Relaxed: the bound is changed under this lock.
            if here.noted_below.load(Ordering::Relaxed) > begun {
                return begun;
            }
            here.noted_below.store(begun + 1, Ordering::Relaxed);
            // SeqCst, pairs with the fence in `flush`: either that flush sees the new bound, or the next look above
            // sees that the flush has begun. Each flush that an entry does not count therefore takes this lock, and
            // what was cleared before the lock was released is clear for the hardware that the flush then tells. This
            // fence runs once per flush.
            fence(Ordering::SeqCst);
        }
    }

    /// Flushes if the oldest entry of the domain has waited long enough, and empties all queues.
    ///
    /// # Errors
    /// [`CommitError`] if the flush failed.
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
        // If the flush fails, the entries stay in quarantine until a flush succeeds (S11). The next tick tries again,
        // one timeout later.
        self.flush_and_release(space, allocator).inspect_err(|_| self.due.set(platform, self.timeout_us))
    }

    /// Flushes and empties all queues, however long their entries have waited. Returns whether there were any.
    ///
    /// # Errors
    /// [`CommitError`] if the flush failed.
    pub(super) fn flush_now<I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<bool, CommitError> {
        if self.waiting() == 0 {
            return Ok(false);
        }
        space.platform().probe(Step::Enter(Phase::Invalidate));
        // The deadline stays. A tick that then finds nothing waiting clears it.
        self.flush_and_release(space, allocator).map(|()| true)
    }

    /// Flushes, and gives back what was queued before on any CPU.
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
        self.queues
            .iter()
            .map(|cpu| {
                cpu.queue.with(|queue| {
                    queue.unmaps + cpu.open.iter().filter_map(OpenRun::get).map(|run| run.unmaps).sum::<usize>()
                })
            })
            .sum()
    }

    /// The most unmaps that can wait, on all CPUs together.
    pub fn capacity(&self) -> usize {
        self.queues.len() * self.capacity
    }

    /// The longest that an unmap waits if `tick` is called when due, in microseconds.
    pub fn timeout_us(&self) -> u64 {
        self.timeout_us
    }

    /// When `tick` will flush, on the platform's clock; `None` if nothing was queued since it last did.
    pub fn due_us(&self) -> Option<u64> {
        self.due.get()
    }

    /// Frees all waiting entries, after the IOMMU has forgotten the domain. It does not free their table pages, but
    /// returns them.
    pub(super) fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) -> FreedTables {
        let mut tables = FreedTables::new();
        for cpu in self.queues.iter() {
            cpu.queue.with(|queue| {
                queue.close_all(cpu);
                for waiting in queue.waiting.drain(..) {
                    allocator.free(platform, waiting.run.range, proof);
                }
                queue.unmaps = 0;
                tables.append(platform, core::mem::take(&mut queue.tables));
            });
        }
        tables
    }

    /// Removes the waiting translations from the hardware. Afterwards every entry queued before this call is served.
    /// The caller must not hold the lock of a queue.
    fn flush<I: Iommu>(&self, space: &AddressSpace<P, I>) -> Result<Proof, CommitError> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        // SeqCst: a push that did not count this flush has fenced before, see `note`. The hardware, told after this,
        // therefore reads the entries cleared, and the bounds below are up to date.
        fence(Ordering::SeqCst);
        let proof = match &self.command(space) {
            Some(command) => space.invalidate(core::slice::from_ref(command))?,
            None => self.served.nothing_waits(),
        };
        self.served.note(number, &proof);
        Ok(proof)
    }

    /// The command of a flush that has begun. It covers everything that was queued before and that no flush has
    /// served. `None` if there is no such entry.
    ///
    /// Each queue in which something may wait is searched with its lock held. An entry queued before is found there.
    /// A CPU that queues later reads, after the same lock, that this flush has begun, and its entry waits for the
    /// next.
    #[inline(never)]
    fn command<I: Iommu>(&self, space: &AddressSpace<P, I>) -> Option<Invalidation> {
        if self.flushes == Flushes::Domain {
            return Some(Invalidation::Domain(space.id()));
        }
        // Entries that another flush has served need no command of this one.
        let served = self.served.by_now();
        // Relaxed: ordered by the fence before. The locks of idle CPUs are not touched.
        let may_wait = |cpu: &&CpuQueue<P>| served.leaves(cpu.noted_below.load(Ordering::Relaxed));
        let extents = self.queues.iter().filter(may_wait).filter_map(|cpu| {
            cpu.queue.with(|queue| {
                queue.close_all(cpu);
                queue.waiting.iter().map(|waiting| waiting.run.range).reduce(IovaRange::around)
            })
        });
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
        // The counts that entries record never decrease from one entry to the next.
        while let Some(&Waiting { run, begun }) = queue.waiting.front()
            && let Some(proof) = served.proof(begun)
        {
            queue.waiting.pop_front();
            queue.unmaps -= run.unmaps;
            allocator.free(platform, run.range, &proof);
        }
        if let Some(proof) = served.proof(queue.tables_begun) {
            space.release(core::mem::take(&mut queue.tables), &proof);
        }
        platform.probe(Step::Enter(Phase::Invalidate));
    }
}

impl Queue {
    /// Begins to take a batch, whose unmaps took `tables` out of the table.
    fn begin_batch<P: Platform>(&mut self, platform: &P, cpu: &CpuQueue<P>, tables: &mut FreedTables, begun: u64) {
        // From now on the unmaps of the open runs count as waiting.
        self.close_all(cpu);
        if !tables.is_empty() {
            self.tables_begun = begun;
            self.tables.append(platform, core::mem::take(tables));
        }
    }

    fn put(&mut self, run: Run, begun: u64) {
        self.unmaps += run.unmaps;
        push_back_within(&mut self.waiting, Waiting { run, begun });
    }

    /// Closes the open runs of a CPU. The lock must be held.
    fn close_all<P: Platform>(&mut self, cpu: &CpuQueue<P>) {
        (0..OPEN_RUNS).for_each(|which| self.close(&cpu.open, which));
    }

    fn close(&mut self, open: &[OpenRun; OPEN_RUNS], which: usize) {
        if let Some(run) = open[which].close() {
            // The entry in front may wait for a later flush. Then this one waits for it too.
            let begun = self.open_begun[which];
            self.put(run, self.waiting.back().map_or(begun, |last| last.begun.max(begun)));
        }
    }

    /// Unmaps that wait, are in open runs, or may still join one.
    fn room_taken<P: Platform>(&self, cpu: &CpuQueue<P>) -> usize {
        self.unmaps + cpu.open.iter().map(OpenRun::room).sum::<usize>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;
    use alloc::vec::Vec;

    /// S3: a flush that began before a run, and closes it late, does not serve the run by its own number.
    #[test]
    fn a_run_waits_for_flushes_that_began_after_it() {
        let host = FakeHost::default();
        let queues = PerCpuQueues::new(&&host, 128, 500, Flushes::CoveringRange).expect("memory");
        let here = queues.queues.here(&&host);
        here.queue.with(|queue| {
            here.open[1].begin(IovaRange::of(64, 1), 3);
            queue.open_begun[1] = 8;
            assert!(here.open[1].join::<512>(IovaRange::of(65, 1)));
            queue.close_all(here);
            let waiting: Vec<_> = queue.waiting.iter().map(|waiting| (waiting.run, waiting.begun)).collect();
            assert_eq!(waiting, [(Run { range: IovaRange::of(64, 2), unmaps: 2 }, 8)]);
            // Behind an entry that waits for a later flush.
            queue.put(Run { range: IovaRange::of(1, 1), unmaps: 1 }, 12);
            here.open[0].begin(IovaRange::of(128, 1), 0);
            queue.open_begun[0] = 9;
            queue.close_all(here);
            assert_eq!(queue.waiting.back().map(|last| last.begun), Some(12));
            assert_eq!(queue.unmaps, 4);
        });
    }
}
