//! When the hardware is told, and which CPU waits for it. The hardware is told at every commit, with or without
//! waiting; later, through one queue or one per CPU; or only when an address is used again.

use super::strict::{self, At};
use super::{
    ASYNCHRONOUS_CAPACITY, AsynchronousQueue, CPU_QUEUE_CAPACITY, Commands, Departure, Due, Flights, Flushes,
    GlobalQueue, InFlight, One, PerCpuQueues, QUEUE_CAPACITY, QUEUE_TIMEOUT_US, Revocation, Revoked, Room, Runs,
    Submissions, WhenFull,
};
use crate::address::IovaRange;
use crate::error::{CommitError, MapError, NewDomainError, SyncError};
use crate::iommu::Iommu;
use crate::iova::IovaAllocator;
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::safety::{Breach, Protection};
use crate::space::AddressSpace;
use crate::table::FreedTables;

/// What happens to an unmap under deferred protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Deferral {
    /// It waits in one queue of all CPUs, for a global flush.
    Global,
    /// It waits in its CPU's queue, for a flush.
    PerCpu {
        /// The most unmaps that wait on each CPU.
        capacity: usize,
        /// The longest that they wait, in microseconds.
        timeout_us: u64,
        /// What a flush invalidates.
        flushes: Flushes,
    },
    /// Nothing happens until a map uses the address again. That map writes its translations and invalidates the old
    /// ones before it returns. This breaks S2, as the design declares here.
    AtMap(&'static Breach),
    /// Its invalidation is submitted but not waited for. Tables must keep their pages.
    Asynchronous,
}

impl Deferral {
    /// Queues per CPU as Linux has them.
    pub const PER_CPU: Self =
        Self::PerCpu { capacity: CPU_QUEUE_CAPACITY, timeout_us: QUEUE_TIMEOUT_US, flushes: Flushes::Domain };

    /// Whether addresses may be reused while the hardware still caches pointers to their table pages.
    pub(crate) const fn leaves_pointers(self) -> bool {
        matches!(self, Self::Asynchronous | Self::PerCpu { flushes: Flushes::CoveringRange, .. })
    }
}

/// The invalidation policy of a domain.
pub(crate) enum Policy<P: Platform, I: Iommu> {
    Strict(At, Flights<I::Ticket>),
    Global(GlobalQueue<P>),
    PerCpu(PerCpuQueues<P>),
    AtMap(&'static Breach),
    Asynchronous(AsynchronousQueue<P, I::Ticket>),
}

impl<P: Platform, I: Iommu> Policy<P, I> {
    pub(crate) fn new(
        platform: &P,
        protection: Protection,
        commands: Commands,
        submissions: Submissions,
        deferral: Deferral,
    ) -> Result<Self, NewDomainError> {
        Ok(match (protection, deferral) {
            (Protection::Strict, _) => Self::Strict(At { commands, submissions }, Flights::new(platform)?),
            (Protection::Deferred, Deferral::Global) => Self::Global(GlobalQueue::new(platform)?),
            (Protection::Deferred, Deferral::PerCpu { capacity, timeout_us, flushes }) => {
                Self::PerCpu(PerCpuQueues::new(platform, capacity, timeout_us, flushes)?)
            }
            (Protection::Deferred, Deferral::AtMap(breach)) => Self::AtMap(breach),
            (Protection::Deferred, Deferral::Asynchronous) => Self::Asynchronous(AsynchronousQueue::new(platform)?),
            (Protection::None, _) => return Err(NewDomainError::Protection),
        })
    }

    /// Whether unmaps leave the translations in the table and in the hardware until a map overwrites them.
    ///
    /// They do not in a poisoned domain, where nothing is mapped any more.
    pub(crate) fn leaves_translations(&self, space: &AddressSpace<P, I>) -> bool {
        matches!(self, Self::AtMap(_)) && !space.is_poisoned()
    }

    /// Whether a commit has to clear translations that its unmaps may have left.
    pub(crate) fn must_clear(&self, space: &AddressSpace<P, I>) -> bool {
        matches!(self, Self::AtMap(_)) && space.is_poisoned()
    }

    /// Completes a map whose translations are written: afterwards the device sees them and no older ones.
    ///
    /// # Errors
    /// [`SyncError`] if an invalidation was needed and failed: the domain is poisoned, and neither range nor memory
    /// must be used again.
    pub(crate) fn sync_map(&self, space: &AddressSpace<P, I>, range: IovaRange) -> Result<(), SyncError> {
        match self {
            // If absent entries are cached, `AddressSpace::sync_map` has already invalidated the range.
            Self::AtMap(_) if !space.capabilities().caches_absent => {
                space.platform().probe(Step::Enter(Phase::Invalidate));
                // Leaf only: existing directory entries do not change.
                let command = space.covering(range, true);
                Ok(space.invalidate(&[command]).map(drop)?)
            }
            _ => Ok(()),
        }
    }

    /// For a map that found no free address: waits for addresses that come back without a flush. Returns whether
    /// there may be any.
    pub(crate) fn drain(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<bool, MapError> {
        match self {
            Self::Strict(..) | Self::AtMap(_) | Self::Global(_) | Self::PerCpu(_) => Ok(false),
            Self::Asynchronous(queue) => Ok(queue.drain(space, allocator).map(|()| true)?),
        }
    }

    /// For a map that did not get the one address that it must have: invalidates everything that waits, and gives its
    /// addresses back. Returns whether anything waited.
    pub(crate) fn flush(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<bool, MapError> {
        let flushed = match self {
            Self::Strict(..) | Self::AtMap(_) => return Ok(false),
            Self::Global(queue) => queue.flush_now(space, allocator),
            Self::PerCpu(queues) => queues.flush_now(space, allocator),
            Self::Asynchronous(queue) => return Ok(queue.drain(space, allocator).map(|()| true)?),
        };
        flushed.map_err(|CommitError(error)| MapError::Queue(error))
    }

    /// Commits a batch of unmaps, at least one, that are all due for invalidation: invalidates them, or queues them.
    pub(crate) fn commit<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        match self {
            Self::Strict(at, _) => strict::commit(space, allocator, revocation, at),
            // No map will invalidate these later, so it is done now.
            Self::AtMap(_) if space.is_poisoned() => strict::commit(
                space,
                allocator,
                revocation,
                &At { commands: Commands::PerUnmap, submissions: Submissions::Alone },
            ),
            _ => self.queue(space, allocator, revocation),
        }
    }

    /// Submits such a batch without waiting for it, under strict protection. What finds no room and may wait is
    /// committed at once.
    ///
    /// # Panics
    /// Under another policy, which has no [flights](Self::flights).
    pub(crate) fn submit(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Runs,
        when_full: WhenFull,
    ) -> Result<Departure, CommitError> {
        let Self::Strict(at, flights) = self else { unreachable!("only strict commits have two halves") };
        let Some(place) = flights.begin(space.platform()) else {
            return match when_full {
                WhenFull::Wait => strict::commit(space, allocator, revocation, at).map(Departure::Over),
                WhenFull::Refuse => Ok(Departure::Full),
            };
        };
        let submitted = strict::submit(space, revocation, at, when_full == WhenFull::Wait);
        if let Ok(Some(ticket)) = submitted {
            return Ok(Departure::InFlight(place.submitted(space.tag(), ticket)));
        }
        place.end();
        match submitted {
            // The whole commit submits once more, with what it takes to recover.
            Err(_) => strict::commit(space, allocator, revocation, at).map(Departure::Over),
            Ok(_) => Ok(Departure::Full),
        }
    }

    /// Takes back what [`submit`](Self::submit) has left in flight, as [`Mapper::take_back`] says.
    ///
    /// # Safety
    /// That of [`Mapper::take_back`].
    ///
    /// [`Mapper::take_back`]: crate::mapper::Mapper::take_back
    pub(crate) unsafe fn take_back(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Runs,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        let Self::Strict(at, flights) = self else { unreachable!("only strict commits are in flight") };
        let place = flights.place(in_flight, space.tag());
        // SAFETY: the caller's promise: the batch is in flight.
        let taken = unsafe { strict::take_back(space, allocator, revocation, (at, &place), in_flight, waits) };
        if !matches!(taken, Ok(None)) {
            place.end();
        }
        taken
    }

    /// The part of [`commit`](Self::commit) that is not strict.
    #[inline(never)]
    fn queue<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        // Each of these is a tail call, which replaces this stack frame.
        match self {
            Self::Global(queue) => queue.push(space, allocator, revocation),
            Self::PerCpu(queues) => queues.push(space, allocator, revocation),
            Self::Asynchronous(queue) => queue.push(space, allocator, revocation),
            Self::AtMap(breach) => leave(breach, space, allocator, revocation),
            Self::Strict(..) => unreachable!("a strict commit leaves nothing for later"),
        }
    }

    /// Lets an unmap wait with others for a flush. The unmap has cleared its translations and freed no table page. It
    /// lies within an aligned run of `WITHIN` pages, where its allocator finds by itself which mappings were there.
    /// Returns whether it could join.
    #[inline(always)]
    pub(crate) fn join<const WITHIN: u64>(&self, space: &AddressSpace<P, I>, range: IovaRange) -> bool {
        // Queues that do not close runs never open one.
        matches!(self, Self::PerCpu(queues) if queues.join::<WITHIN, _>(space, range))
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
        if let Self::PerCpu(queues) = self
            && queues.closes_runs()
        {
            return queues.begin_run(space, allocator, range);
        }
        let mut one = One::of_one(space.tag(), Revoked::one(range, Due::Invalidation, true));
        self.commit(space, allocator, &mut one)
    }

    /// Flushes what has waited long enough.
    pub(crate) fn tick(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        match self {
            Self::Strict(..) | Self::AtMap(_) => Ok(()),
            Self::Global(queue) => queue.tick(space, allocator),
            Self::PerCpu(queues) => queues.tick(space, allocator),
            Self::Asynchronous(queue) => queue.tick(space, allocator),
        }
    }

    /// When the next tick has work to do.
    pub(crate) fn due_us(&self) -> Option<u64> {
        match self {
            Self::Strict(..) | Self::AtMap(_) => None,
            Self::Global(queue) => queue.due_us(),
            Self::PerCpu(queues) => queues.due_us(),
            Self::Asynchronous(queue) => queue.due_us(),
        }
    }

    /// The batches in flight, under strict protection.
    #[inline(always)]
    pub(crate) fn flights(&self) -> Option<&Flights<I::Ticket>> {
        match self {
            Self::Strict(_, flights) => Some(flights),
            _ => None,
        }
    }

    /// The unmaps that wait now, and the most that can wait.
    pub(crate) fn queued(&self) -> (usize, usize) {
        match self {
            Self::Strict(..) | Self::AtMap(_) => (0, 0),
            Self::Global(queue) => (queue.len(), QUEUE_CAPACITY),
            Self::PerCpu(queues) => (queues.waiting(), queues.capacity()),
            Self::Asynchronous(queue) => (queue.len(), ASYNCHRONOUS_CAPACITY),
        }
    }

    /// The longest time until the hardware is told of an unmap, in microseconds, if ticks come when due; `None` if
    /// there is no bound.
    pub(crate) fn window_us_max(&self) -> Option<u64> {
        match self {
            Self::Strict(..) | Self::Asynchronous(_) => Some(0),
            Self::Global(_) => Some(QUEUE_TIMEOUT_US),
            Self::PerCpu(queues) => Some(queues.timeout_us()),
            Self::AtMap(_) => None,
        }
    }

    /// Frees all waiting entries, after the IOMMU has forgotten the domain. It does not free their table pages, but
    /// returns them.
    pub(crate) fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) -> FreedTables {
        match self {
            Self::Strict(..) | Self::AtMap(_) => FreedTables::new(),
            Self::Global(queue) => queue.close(platform, allocator, proof),
            Self::PerCpu(queues) => queues.close(platform, allocator, proof),
            Self::Asynchronous(queue) => {
                queue.close(platform, allocator, proof);
                FreedTables::new()
            }
        }
    }
}

/// Gives addresses back whose translations stay as they are, until a map overwrites and invalidates them.
#[inline(never)]
fn leave<P: Platform, I: Iommu, R: Room + ?Sized>(
    breach: &'static Breach,
    space: &AddressSpace<P, I>,
    allocator: &impl IovaAllocator<P>,
    revocation: &mut Revocation<R>,
) -> Result<Committed, CommitError> {
    let platform = space.platform();
    platform.probe(Step::Enter(Phase::IovaFree));
    let proof = Proof::by_next_map(breach);
    revocation.revoked().for_each(|revoked| allocator.free(platform, revoked.range, &proof));
    revocation.clear_runs();
    Ok(Committed::Deferred)
}
