//! When the hardware is told, and which CPU waits for it: at every commit, with or without waiting; or as the deferred
//! policy of the design says.

use super::strict::{self, At};
use super::{Commands, DeferredPolicy, Departure, Flights, InFlight, Revocation, Room, Runs, Submissions, WhenFull};
use crate::address::IovaRange;
use crate::error::{CommitError, MapError, NewDomainError, SyncError};
use crate::iommu::Iommu;
use crate::iova::IovaAllocator;
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::safety::Protection;
use crate::space::AddressSpace;
use crate::table::FreedTables;
use core::marker::PhantomData;

/// The invalidation policy of a domain.
pub(crate) enum Policy<P: Platform, I: Iommu, D: DeferredPolicy<P, I>> {
    Strict(At, Flights<I::Ticket>),
    Deferred(D, PhantomData<P>),
}

impl<P: Platform, I: Iommu, D: DeferredPolicy<P, I>> Policy<P, I, D> {
    pub(crate) fn new(
        platform: &P,
        protection: Protection,
        commands: Commands,
        submissions: Submissions,
        deferral: D::Setting,
    ) -> Result<Self, NewDomainError> {
        Ok(match protection {
            Protection::Strict => Self::Strict(At { commands, submissions }, Flights::new(platform)?),
            Protection::Deferred => Self::Deferred(D::new(platform, deferral)?, PhantomData),
            Protection::None => return Err(NewDomainError::Protection),
        })
    }

    /// Whether it leaves translations to the map that uses the address again.
    #[inline(always)]
    pub(crate) fn is_left_to_maps(&self) -> bool {
        D::LEAVES_TRANSLATIONS && matches!(self, Self::Deferred(..))
    }

    /// Whether unmaps leave the translations in the table and in the hardware until a map overwrites them.
    ///
    /// They do not in a poisoned domain, where nothing is mapped any more.
    pub(crate) fn leaves_translations(&self, space: &AddressSpace<P, I>) -> bool {
        self.is_left_to_maps() && !space.is_poisoned()
    }

    /// Whether a commit has to clear translations that its unmaps may have left.
    pub(crate) fn must_clear(&self, space: &AddressSpace<P, I>) -> bool {
        self.is_left_to_maps() && space.is_poisoned()
    }

    /// Completes a map whose translations are written: afterwards the device sees them and no older ones.
    ///
    /// # Errors
    /// [`SyncError`] if an invalidation was needed and failed: the domain is poisoned, and neither range nor memory
    /// must be used again.
    pub(crate) fn sync_map(&self, space: &AddressSpace<P, I>, range: IovaRange) -> Result<(), SyncError> {
        // If absent entries are cached, `AddressSpace::sync_map` has already invalidated the range.
        if self.is_left_to_maps() && !space.capabilities().caches_absent {
            space.platform().probe(Step::Enter(Phase::Invalidate));
            // Leaf only: existing directory entries do not change.
            let command = space.covering(range, true);
            let _ = space.invalidate(&[command])?;
        }
        Ok(())
    }

    /// For a map that found no free address: waits for addresses that come back without a flush. Returns whether
    /// there may be any.
    pub(crate) fn drain(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<bool, MapError> {
        match self {
            Self::Deferred(deferred, _) => deferred.drain(space, allocator),
            Self::Strict(..) => Ok(false),
        }
    }

    /// For a map that did not get the one address that it must have: invalidates everything that waits, and gives its
    /// addresses back. Returns whether anything waited.
    pub(crate) fn flush(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<bool, MapError> {
        match self {
            Self::Deferred(deferred, _) => deferred.flush(space, allocator),
            Self::Strict(..) => Ok(false),
        }
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
            Self::Deferred(..) if self.must_clear(space) => strict::commit(
                space,
                allocator,
                revocation,
                &At { commands: Commands::PerUnmap, submissions: Submissions::Alone },
            ),
            Self::Deferred(deferred, _) => deferred.commit(space, allocator, revocation),
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

    /// Flushes what has waited long enough.
    pub(crate) fn tick(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
    ) -> Result<(), CommitError> {
        match self {
            Self::Deferred(deferred, _) => deferred.tick(space, allocator),
            Self::Strict(..) => Ok(()),
        }
    }

    /// When the next tick has work to do.
    pub(crate) fn due_us(&self) -> Option<u64> {
        match self {
            Self::Deferred(deferred, _) => deferred.due_us(),
            Self::Strict(..) => None,
        }
    }

    /// The batches in flight, under strict protection.
    #[inline(always)]
    pub(crate) fn flights(&self) -> Option<&Flights<I::Ticket>> {
        match self {
            Self::Strict(_, flights) => Some(flights),
            Self::Deferred(..) => None,
        }
    }

    /// The unmaps that wait now, and the most that can wait.
    pub(crate) fn queued(&self) -> (usize, usize) {
        match self {
            Self::Deferred(deferred, _) => deferred.queued(),
            Self::Strict(..) => (0, 0),
        }
    }

    /// The longest time until the hardware is told of an unmap, in microseconds, if ticks come when due; `None` if
    /// there is no bound.
    pub(crate) fn window_us_max(&self) -> Option<u64> {
        match self {
            Self::Deferred(deferred, _) => deferred.window_us_max(),
            Self::Strict(..) => Some(0),
        }
    }

    /// Gives back all that waits, after the IOMMU has forgotten the domain. It does not free the table pages, but
    /// returns them.
    pub(crate) fn close(&self, platform: &P, allocator: &impl IovaAllocator<P>, proof: &Proof) -> FreedTables {
        match self {
            Self::Deferred(deferred, _) => deferred.close(platform, allocator, proof),
            Self::Strict(..) => FreedTables::new(),
        }
    }
}
