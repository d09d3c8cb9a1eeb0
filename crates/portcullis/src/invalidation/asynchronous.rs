//! Deferred protection as XNU has it: an unmap submits its invalidation and does not wait for it (ATC'15, §3.4).
//!
//! The buffer goes back at once, so that the device keeps it for as long as the hardware takes. The address does not: it stays
//! here with what was submitted, until somebody asks and is told that it is done (S3). To ask in vain costs a read across the
//! bus; so an unmap asks only about the oldest, and only when it needs the room. By then the hardware is long done.

use super::{QUEUE_TIMEOUT_US, Revocation, Revoked, TakenDown};
use crate::address::IovaRange;
use crate::error::{CommitError, NoMemory};
use crate::iommu::{Invalidation, Iommu, QueueError};
use crate::iova::IovaAllocator;
use crate::platform::memory::{push_back_within, try_reserve};
use crate::platform::{Context, Deadline, Lock, LockClass, Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::space::AddressSpace;
use crate::submission::Submission;
use crate::sync::{AtomicUsize, Ordering};
use alloc::collections::VecDeque;

/// Unmaps at most whose invalidation is not known to be done. The model checker sees a short queue, so that it sees a full one.
pub const ASYNCHRONOUS_CAPACITY: usize = if cfg!(loom) { 1 } else { 256 };

/// An unmap that the hardware has been told of.
struct Told<T> {
    range: IovaRange,
    submission: Submission<T>,
}

/// The unmaps whose invalidation is not known to be done, roughly the oldest first. `T` is the IOMMU's ticket.
///
/// Each is asked about by itself, and the first that is not done keeps those behind it: nothing rests on the order in which
/// hardware finishes.
pub struct AsynchronousQueue<P: Platform, T: Copy + Send> {
    /// Never grows: its capacity is [`ASYNCHRONOUS_CAPACITY`] from the start.
    told: P::Lock<VecDeque<Told<T>>>,
    /// When to ask, if nobody has done so before; none while the queue is empty.
    ///
    /// This and `len` are written under the lock. Without it they are advice (Relaxed): whoever acts on them takes the lock
    /// and looks again.
    due: Deadline,
    len: AtomicUsize,
}

impl<P: Platform, T: Copy + Send> AsynchronousQueue<P, T> {
    /// An empty queue.
    ///
    /// # Errors
    /// [`NoMemory`] without room for the entries.
    pub fn new(platform: &P) -> Result<Self, NoMemory> {
        let told = VecDeque::from(try_reserve(platform, Context::MaySleep, ASYNCHRONOUS_CAPACITY)?);
        let told = platform.lock(LockClass::CentralFlushQueue, told);
        Ok(Self { told, due: Deadline::none(), len: AtomicUsize::new(0) })
    }

    /// Tells the hardware of the unmaps. Where the queue is full, waits for the oldest.
    ///
    /// In a poisoned domain nothing is deferred any more: all that is queued is invalidated before the buffers go back.
    ///
    /// # Errors
    /// [`CommitError`] where the hardware takes nothing, has failed the oldest, or does not answer in time. What was queued
    /// stays until an invalidation succeeds; those of these unmaps that found no room are lost for good.
    #[inline(never)]
    pub(crate) fn push_all<I: Iommu<Ticket = T>>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation,
    ) -> Result<Committed, CommitError> {
        debug_assert!(revocation.tables.is_empty(), "table pages are kept");
        let queued = match space.is_poisoned() {
            false => self.submit(space, allocator, || revocation.counted()),
            true => self.invalidate(space, allocator, || revocation.counted()),
        };
        revocation.clear_runs();
        queued
    }

    /// The same for one.
    ///
    /// # Errors
    /// The same.
    #[inline(never)]
    pub(crate) fn push_alone<I: Iommu<Ticket = T>>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        taken: &mut TakenDown,
    ) -> Result<Committed, CommitError> {
        debug_assert!(taken.tables.is_empty(), "table pages are kept");
        let revoked = taken.revoked;
        match space.is_poisoned() {
            false => self.submit(space, allocator, || core::iter::once(revoked)),
            true => self.invalidate(space, allocator, || core::iter::once(revoked)),
        }
    }

    /// Tells the hardware, and queues the unmaps.
    #[inline(never)]
    fn submit<I: Iommu<Ticket = T>, R: ExactSizeIterator<Item = Revoked>>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        runs: impl Fn() -> R,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        // Without the lock: the hardware is told even while another CPU waits for room.
        let commands = || runs().map(|revoked| space.covering(revoked.range, revoked.leaf_only));
        let submission = space.submit_each(&commands)?;
        self.told.with(|told| {
            let mut done = Ok(());
            for revoked in runs() {
                if told.len() == ASYNCHRONOUS_CAPACITY {
                    done = Self::wait_for_oldest(space, allocator, told);
                }
                if done.is_err() {
                    break;
                }
                platform.probe(Step::FlushQueuePush);
                push_back_within(told, Told { range: revoked.range, submission });
            }
            self.note(platform, told);
            done
        })?;
        Ok(Committed::Deferred)
    }

    /// In a poisoned domain: invalidates all that is queued and the unmaps, waits, and gives all of it back.
    #[inline(never)]
    fn invalidate<I: Iommu<Ticket = T>, R: Iterator<Item = Revoked>>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        runs: impl Fn() -> R,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        let proof = self.told.with(|told| self.flush(space, allocator, told))?;
        platform.probe(Step::Enter(Phase::IovaFree));
        // Cleared before the flush, as what was queued.
        runs().for_each(|revoked| allocator.free(platform, revoked.range, &proof));
        Ok(Committed::Lost(proof))
    }

    /// Gives back what the hardware has done, if nobody has asked for long enough.
    ///
    /// # Errors
    /// [`CommitError`] where the hardware has failed.
    pub(crate) fn tick<I: Iommu<Ticket = T>>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        let platform = space.platform();
        if !self.due.is_due(platform) {
            return Ok(());
        }
        platform.probe(Step::Enter(Phase::Invalidate));
        self.told.with(|told| {
            if !self.due.is_due(platform) {
                return Ok(());
            }
            // Where not all is done, or the hardware has failed, the next tick may try, but not at once.
            self.due.clear();
            let done = match space.is_poisoned() {
                false => Self::reap(space, allocator, told),
                true => self.flush(space, allocator, told).map(drop),
            };
            self.note(platform, told);
            Ok(done?)
        })
    }

    /// Waits until the hardware has done all that is queued, and gives it back.
    ///
    /// # Errors
    /// A [`QueueError`] where it has failed, or does not answer in time.
    pub(crate) fn drain<I: Iommu<Ticket = T>>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), QueueError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        self.told.with(|told| {
            let mut done = Ok(());
            while done.is_ok() && !told.is_empty() {
                done = Self::wait_for_oldest(space, allocator, told);
            }
            self.note(platform, told);
            done
        })
    }

    /// Frees what is queued, now that the IOMMU has forgotten the domain.
    pub(super) fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) {
        self.told.with(|told| told.drain(..).for_each(|told| allocator.free(platform, told.range, proof)));
    }

    /// Unmaps whose invalidation is not known to be done.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When `tick` will ask, on the platform's clock; `None` while the queue is empty.
    pub fn due_us(&self) -> Option<u64> {
        self.due.get()
    }

    /// Gives back what is done, up to the first that is not.
    fn reap<I: Iommu<Ticket = T>>(
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<T>>,
    ) -> Result<(), QueueError> {
        while let Some(oldest) = told.front() {
            let Some(proof) = space.is_done(oldest.submission)? else { break };
            Self::free_oldest(space, allocator, told, &proof);
        }
        Ok(())
    }

    /// Waits for the oldest, and gives it back.
    fn wait_for_oldest<I: Iommu<Ticket = T>>(
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<T>>,
    ) -> Result<(), QueueError> {
        let Some(oldest) = told.front() else { return Ok(()) };
        let proof = space.wait(oldest.submission)?;
        Self::free_oldest(space, allocator, told, &proof);
        Ok(())
    }

    /// Invalidates the whole domain, whatever has become of what was submitted, and gives everything back. All of it was
    /// cleared before it was queued, and so before this.
    fn flush<I: Iommu<Ticket = T>>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<T>>,
    ) -> Result<Proof, QueueError> {
        let proof = space.invalidate(&[Invalidation::Domain(space.id())])?;
        while !told.is_empty() {
            Self::free_oldest(space, allocator, told, &proof);
        }
        self.note(space.platform(), told);
        Ok(proof)
    }

    /// Gives the oldest back: the hardware has done it.
    fn free_oldest<I: Iommu<Ticket = T>>(
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<T>>,
        proof: &Proof,
    ) {
        let platform = space.platform();
        if let Some(done) = told.pop_front() {
            platform.probe(Step::Enter(Phase::IovaFree));
            allocator.free(platform, done.range, proof);
            platform.probe(Step::Enter(Phase::Invalidate));
        }
    }

    /// Notes, under the lock, how many there are now, and sees to it that somebody asks about them.
    fn note(&self, platform: &P, told: &VecDeque<Told<T>>) {
        self.len.store(told.len(), Ordering::Relaxed);
        match told.len() {
            0 => self.due.clear(),
            _ => self.due.set_if_none(platform, QUEUE_TIMEOUT_US),
        }
    }
}
