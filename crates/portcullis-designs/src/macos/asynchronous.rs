//! Deferred protection as XNU has it: an unmap submits its invalidation and does not wait for it (ATC'15, §3.4).
//!
//! The buffer goes back at once, so the device keeps it until the hardware has finished. The address does not: it
//! stays here with its submission until a CPU asks and learns that the invalidation is done (S3). A question that
//! comes too early costs a read across the bus for nothing. An unmap therefore asks only about the oldest entry, and
//! only when it needs the room. By then the hardware has long finished.

use crate::sync::{AtomicUsize, Ordering};
use alloc::collections::VecDeque;
use portcullis::IovaRange;
use portcullis::error::{CommitError, MapError, NewDomainError};
use portcullis::invalidation::{DeferredPolicy, QUEUE_TIMEOUT_US, Revocation, Room};
use portcullis::iommu::{Invalidation, Iommu, QueueError};
use portcullis::iova::IovaAllocator;
use portcullis::platform::memory::{push_back_within, try_reserve};
use portcullis::platform::{Context, Deadline, Lock, LockClass, Phase, Platform, Step};
use portcullis::proof::{Committed, Proof};
use portcullis::submission::Submission;
use portcullis::table::FreedTables;
use portcullis::{AddressSpace, Space};

/// The most unmaps whose invalidation is not known to be done. The model checker uses a short queue, so that it sees
/// a full one.
pub const ASYNCHRONOUS_CAPACITY: usize = if cfg!(loom) { 1 } else { 256 };

/// An unmap whose invalidation has been submitted.
struct Told<T> {
    range: IovaRange,
    submission: Submission<T>,
}

/// The unmaps whose invalidation is not known to be done, roughly the oldest first.
///
/// Each entry is checked by itself, and the first that is not done holds back those behind it. The queue does not
/// depend on the order in which the hardware finishes.
pub struct AsynchronousQueue<P: Platform, I: Iommu> {
    /// Never grows: its capacity is [`ASYNCHRONOUS_CAPACITY`] from the start.
    told: P::Lock<VecDeque<Told<I::Ticket>>>,
    /// When a tick has to ask, unless another CPU has done so before. It is none while the queue is empty.
    ///
    /// This and `len` are written under the lock. Without the lock they are hints (Relaxed): a CPU that acts on them
    /// takes the lock and looks again.
    due: Deadline,
    len: AtomicUsize,
}

// SAFETY: an address is freed with the proof of its own submission, or of an invalidation of the whole domain.
unsafe impl<P: Platform, I: Iommu> DeferredPolicy<P, I> for AsynchronousQueue<P, I> {
    type Setting = ();

    fn leaves_pointers((): ()) -> bool {
        true
    }

    fn new(platform: &P, (): ()) -> Result<Self, NewDomainError> {
        let told = VecDeque::from(try_reserve(platform, Context::MaySleep, ASYNCHRONOUS_CAPACITY)?);
        let told = platform.lock(LockClass::CentralFlushQueue, told);
        Ok(Self { told, due: Deadline::none(), len: AtomicUsize::new(0) })
    }

    /// Tells the hardware of the unmaps. If the queue is full, waits for the oldest entry.
    ///
    /// In a poisoned domain nothing is deferred any more: everything queued is invalidated before the buffers go
    /// back.
    ///
    /// # Errors
    /// [`CommitError`] if the hardware accepts no commands, has failed the oldest entry, or does not answer in time.
    /// Queued entries stay until an invalidation succeeds. Those of these unmaps that found no room are lost for
    /// good.
    #[inline(never)]
    fn commit<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        let tables = revocation.take_tables();
        debug_assert!(tables.is_empty(), "table pages are kept");
        let queued = match space.is_poisoned() {
            false => self.submit(space, allocator, revocation),
            true => self.invalidate(space, allocator, revocation),
        };
        revocation.clear_runs();
        queued
    }

    /// Waits until the hardware has finished everything queued, and gives it back.
    ///
    /// # Errors
    /// [`MapError::Queue`] if the hardware has failed, or does not answer in time.
    fn drain(&self, space: &AddressSpace<P, I>, allocator: &impl IovaAllocator<P>) -> Result<bool, MapError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        self.told.with(|told| {
            let mut done = Ok(());
            while done.is_ok() && !told.is_empty() {
                done = Self::wait_for_oldest(space, allocator, told);
            }
            self.note(platform, told);
            Ok(done.map(|()| true)?)
        })
    }

    fn flush(&self, space: &AddressSpace<P, I>, allocator: &impl IovaAllocator<P>) -> Result<bool, MapError> {
        self.drain(space, allocator)
    }

    /// Gives back the entries that the hardware has finished, if no CPU has asked for long enough.
    ///
    /// # Errors
    /// [`CommitError`] if the hardware has failed.
    fn tick(&self, space: &AddressSpace<P, I>, allocator: &impl IovaAllocator<P>) -> Result<(), CommitError> {
        let platform = space.platform();
        if !self.due.is_due(platform) {
            return Ok(());
        }
        platform.probe(Step::Enter(Phase::Invalidate));
        self.told.with(|told| {
            if !self.due.is_due(platform) {
                return Ok(());
            }
            // If some entries are not done, or the hardware has failed, the next tick tries again, one timeout later.
            self.due.clear();
            let done = match space.is_poisoned() {
                false => Self::reap(space, allocator, told),
                true => self.flush_all(space, allocator, told).map(drop),
            };
            self.note(platform, told);
            Ok(done?)
        })
    }

    fn due_us(&self) -> Option<u64> {
        self.due.get()
    }

    fn queued(&self) -> (usize, usize) {
        (self.len.load(Ordering::Relaxed), ASYNCHRONOUS_CAPACITY)
    }

    fn window_us_max(&self) -> Option<u64> {
        Some(0)
    }

    fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) -> FreedTables {
        self.told.with(|told| told.drain(..).for_each(|told| allocator.free(platform, told.range, proof)));
        FreedTables::new()
    }
}

impl<P: Platform, I: Iommu> AsynchronousQueue<P, I> {
    /// Tells the hardware, and queues the unmaps.
    #[inline(never)]
    fn submit<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &Revocation<R>,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        // The lock is not held here, so the hardware is told even while another CPU waits for room.
        let commands = || revocation.counted().map(|revoked| space.covering(revoked.range, revoked.leaf_only));
        let submission = space.submit_each(&commands)?;
        self.told.with(|told| {
            let mut done = Ok(());
            for revoked in revocation.revoked() {
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

    /// Used in a poisoned domain: invalidates the queued unmaps and these, waits, and gives all of them back.
    #[inline(never)]
    fn invalidate<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &Revocation<R>,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        let proof = self.told.with(|told| self.flush_all(space, allocator, told))?;
        platform.probe(Step::Enter(Phase::IovaFree));
        // These unmaps were cleared before the flush, as were the queued ones.
        revocation.revoked().for_each(|revoked| allocator.free(platform, revoked.range, &proof));
        Ok(Committed::Proven(proof))
    }

    /// Gives back the entries that are done, up to the first that is not.
    fn reap(
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<I::Ticket>>,
    ) -> Result<(), QueueError> {
        while let Some(oldest) = told.front() {
            let Some(proof) = space.is_done(oldest.submission)? else { break };
            Self::free_oldest(space, allocator, told, &proof);
        }
        Ok(())
    }

    /// Waits for the oldest entry, and gives it back. By itself: callers have large frames, and it needs little more.
    #[inline(never)]
    fn wait_for_oldest(
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<I::Ticket>>,
    ) -> Result<(), QueueError> {
        let Some(oldest) = told.front() else { return Ok(()) };
        let proof = space.wait(oldest.submission)?;
        Self::free_oldest(space, allocator, told, &proof);
        Ok(())
    }

    /// Invalidates the whole domain, whatever happened to the earlier submissions, and gives everything back. All
    /// entries were cleared before they were queued, and so before this invalidation.
    fn flush_all(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<I::Ticket>>,
    ) -> Result<Proof, QueueError> {
        let proof = space.invalidate(&[Invalidation::Domain(space.id())])?;
        self.free_all(space, allocator, told, &proof);
        Ok(proof)
    }

    /// Gives all entries back. By itself, so that its frame does not lie above that of the invalidation, which is deep.
    #[inline(never)]
    fn free_all(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<I::Ticket>>,
        proof: &Proof,
    ) {
        while !told.is_empty() {
            Self::free_oldest(space, allocator, told, proof);
        }
        self.note(space.platform(), told);
    }

    /// Gives back the oldest entry, whose invalidation is done.
    fn free_oldest(
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        told: &mut VecDeque<Told<I::Ticket>>,
        proof: &Proof,
    ) {
        let platform = space.platform();
        if let Some(done) = told.pop_front() {
            platform.probe(Step::Enter(Phase::IovaFree));
            allocator.free(platform, done.range, proof);
            platform.probe(Step::Enter(Phase::Invalidate));
        }
    }

    /// Records how many entries there are now, and sets a deadline for the next check. The lock is held.
    fn note(&self, platform: &P, told: &VecDeque<Told<I::Ticket>>) {
        self.len.store(told.len(), Ordering::Relaxed);
        match told.len() {
            0 => self.due.clear(),
            _ => self.due.set_if_none(platform, QUEUE_TIMEOUT_US),
        }
    }
}
