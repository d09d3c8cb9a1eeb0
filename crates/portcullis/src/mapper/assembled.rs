//! The mapper of most designs: an allocator, a table with its rule and its locks, and strict or deferred
//! invalidation.
//!
//! Mappers that treat some requests specially use one of these for all the others: `identity`, and the mapper of
//! `chunk`.

use crate::address::IovaRange;
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, SyncError, UnmapError};
use crate::invalidation::{
    DeferredPolicy, Departure, Due, Flights, FlushQueues, InFlight, One, Policy, Revocation, Revoked, Room, Runs,
    WhenFull,
};
use crate::iommu::{Iommu, QueueError};
use crate::iova::{Claim, IovaAllocator, IovaRequest, PlacedRanges};
use crate::mapper::{LockFree, Locking, Mapper, Usage};
use crate::placement::Placement;
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::Request;
use crate::space::{AddressSpace, Space};
use crate::sub_page::BOUNCE_PAGES_MAX;
use crate::table::FreedTables;

/// How often a map that needs memory under a lock asks the host for it. More than one try is needed, because other
/// CPUs may take the memory first.
const MEMORY_TRIES: usize = 8;

/// Table pages that such a map asks for at first. Each time they are not enough, it asks for twice as many. This
/// number is enough for all but the largest maps; a map that finds too few takes its address again.
const TABLES_FIRST: usize = 16;

/// A mapper assembled from its parts.
pub struct AssembledMapper<
    A: IovaAllocator<P>,
    P: Platform,
    I: Iommu,
    L: Locking = LockFree,
    D: DeferredPolicy<P, I> = FlushQueues<P>,
> {
    pub(crate) allocator: A,
    pub(crate) policy: Policy<P, I, D>,
    pub(super) locking: L,
    pub(crate) space: AddressSpace<P, I>,
    pub(super) placed: PlacedRanges<P>,
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking, D: DeferredPolicy<P, I>> AssembledMapper<A, P, I, L, D> {
    /// The space that it maps in.
    #[inline(always)]
    pub const fn address_space(&self) -> &AddressSpace<P, I> {
        &self.space
    }

    /// The allocator.
    #[inline(always)]
    pub const fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Makes a mapping at an address that the allocator chooses, as [`Mapper::map`] does, for a mapper around this one
    /// that has reported the map.
    ///
    /// # Errors
    /// Those of [`Mapper::map`].
    ///
    /// # Safety
    /// That of [`Mapper::map`].
    #[inline(never)]
    pub unsafe fn map_by_allocator(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        self.space.refuse_if_poisoned()?;
        self.space.poison_on_panic(
            #[inline(always)]
            || self.map_and_sync(request),
        )
    }

    #[inline(always)]
    fn map_and_sync(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let mut is_drained = false;
        let range = loop {
            match self.allocate_with_memory(request) {
                // No lock may be held here: draining waits for the hardware.
                Err(MapError::Exhausted { .. })
                    if !is_drained && self.policy.drain(&self.space, &self.allocator)? =>
                {
                    is_drained = true;
                }
                written => break written?,
            }
        };
        self.sync(range).inspect_err(|_| self.quarantine(range))?;
        Ok(range)
    }

    #[inline(always)]
    fn allocate_with_memory(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        self.with_memory(
            request.pages(),
            #[inline(always)]
            || {
                self.locking.whole(
                    request.pages(),
                    #[inline(always)]
                    || self.allocate_and_write(request),
                )
            },
        )
    }

    /// Runs a part of a map of `pages` pages that may hold a lock. The memory that it needs is taken from the host
    /// beforehand, while no lock is held. If that was not enough, the part runs again.
    #[inline(always)]
    pub(super) fn with_memory<R>(&self, pages: u64, map: impl Fn() -> Result<R, MapError>) -> Result<R, MapError> {
        // Start with few: a mapping with large leaves needs few, and one that is refused needs none.
        let tables_max = self.space.tables_max(pages);
        let (mut tables, mut tries) = (tables_max.min(TABLES_FIRST), 0);
        loop {
            // Go on even if there is no room: the map may need no table page.
            let has_room = !L::IS_HELD || self.space.make_room(tables).is_ok();
            let result = map();
            if L::IS_HELD {
                self.space.give_room_back(tables);
            }
            if tries == MEMORY_TRIES || !matches!(result, Err(MapError::NoMemory(_))) {
                return result;
            }
            if self.allocator.prepare(self.space.platform())? {
                tries += 1;
            } else if !L::IS_HELD || !has_room {
                return result;
            } else if tables < tables_max {
                tables = tables.saturating_mul(2).min(tables_max);
            } else {
                // Another map that found no room may have taken the table pages that were meant for this one.
                tries += 1;
            }
        }
    }

    /// Completes a map whose translations are written. If this fails, the caller has to take the mapping down.
    #[inline(always)]
    pub(super) fn sync(&self, range: IovaRange) -> Result<(), SyncError> {
        self.space.sync_map(range)?;
        self.policy.sync_map(&self.space, range)
    }

    /// Takes down a mapping whose map could not be completed, like an unmap whose commit failed. The hardware may
    /// hold something else for the range, so the device must find no translation, no driver can unmap the range, and
    /// it stays quarantined (S11). This clears the translations under every policy, because the domain is poisoned
    /// and no policy leaves translations in a poisoned domain.
    #[cold]
    #[inline(never)]
    fn quarantine(&self, range: IovaRange) {
        if !self.space.has_panicked() {
            let _ = self.space.poison_on_panic(|| self.claim_and_clear(range, &mut FreedTables::new()));
        }
    }

    /// Takes an address from the allocator and writes the translations.
    #[inline(always)]
    fn allocate_and_write(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let platform = self.space.platform();
        let range = self.allocator.allocate(platform, &IovaRequest::of(request))?;
        // Table indices wrap: an address beyond the table would lead to another mapping's entries, and only its own
        // name would be invalidated.
        assert!(range.end_pfn() <= self.space.end_pfn(), "an allocator of more addresses than its domain translates");
        let marked = range.pages() <= A::TABLE_CLAIM_PAGES_MAX;
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the allocator has handed the range to this call alone, and it is as long as the request. It lies
        // within the table, as checked above. Where it matters, the lock keeps other CPUs off the table.
        let write = || unsafe { self.write(range, request, marked) };
        if let Err(error) = self.locking.table(range, write) {
            // Nothing was written, so the hardware has not seen the range. If the claim fails, a driver that was
            // never given the range has unmapped it, and that unmap gives it back. A claim that is left to the table
            // cannot have been made, because no mark was written.
            if self.allocator.claim(platform, range).is_ok() {
                self.allocator.free(platform, range, &Proof::never_visible());
            }
            return Err(error);
        }
        Ok(range)
    }

    /// Writes translations to the table.
    ///
    /// # Errors
    /// Those of [`AddressSpace::map`].
    ///
    /// # Safety
    /// That of [`AddressSpace::map`].
    #[inline(always)]
    pub(super) unsafe fn write(&self, range: IovaRange, request: &Request<'_>, marked: bool) -> Result<(), MapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.locking.write(&self.space, range, (request.segments(), request.access()), marked) }
    }

    /// Clears the translations of a mapping that the caller has claimed. Returns whether table pages went to
    /// `tables`.
    ///
    /// # Safety
    /// That of [`AddressSpace::unmap`].
    #[inline(always)]
    pub(super) unsafe fn erase(&self, range: IovaRange, tables: &mut FreedTables) -> bool {
        // A table frees pages only if claims do not walk it.
        if A::TABLE_CLAIM_PAGES_MAX > 0 {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.space.unmap_kept(range) };
            return false;
        }
        // SAFETY: as above.
        unsafe { self.locking.erase(&self.space, range, tables) }
    }

    /// Unmaps the mapping at exactly `range` and commits the unmap: a batch of one.
    #[inline(never)]
    pub fn unmap_by_allocator(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut one = One::of(self.space.tag());
        self.take_down(range, &mut one)?;
        Ok(self.commit_own(&mut one)?)
    }

    /// Claims the mapping at exactly `range`, and clears its translations unless the policy leaves them. Notes it in
    /// `out`, which must have room for it and must then be committed.
    ///
    /// # Errors
    /// Those of [`Mapper::unmap`].
    #[inline]
    pub fn take_down<R: Room + ?Sized>(&self, range: IovaRange, out: &mut Revocation<R>) -> Result<(), UnmapError> {
        if self.space.has_panicked() {
            return Err(UnmapError::Poisoned);
        }
        match self.space.poison_on_panic(|| self.claim_and_clear(range, &mut out.tables)) {
            Ok(leaf_only) => {
                out.note(Revoked::one(range, Due::Invalidation, leaf_only));
                Ok(())
            }
            Err(refused) => self.take_down_placed(range, out, refused),
        }
    }

    /// Returns whether the unmap freed no table page.
    #[inline(never)]
    fn claim_and_clear(&self, range: IovaRange, tables: &mut FreedTables) -> Result<bool, UnmapError> {
        self.locking.whole(
            range.pages(),
            #[inline(always)]
            || {
                let claim = self.allocator.claim(self.space.platform(), range)?;
                if self.policy.leaves_translations(&self.space) { Ok(true) } else { self.clear(claim, range, tables) }
            },
        )
    }

    /// Commits a batch of this mapper.
    ///
    /// # Errors
    /// Those of [`Mapper::commit`].
    ///
    /// # Panics
    /// If its unmaps were made by another mapper.
    #[inline(always)]
    pub(crate) fn commit_any<R: Room + ?Sized>(
        &self,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        assert!(revocation.is_of(self.space.tag()), "a revocation must be committed by the mapper of its unmaps");
        if !revocation.is_empty() {
            return self.commit_own(revocation);
        }
        // No mapping was taken down, so there is nothing to prove, even under strict protection.
        if self.space.has_panicked() { Err(CommitError(QueueError::Panicked)) } else { Ok(Committed::Deferred) }
    }

    /// Commits unmaps of this mapper.
    #[inline(always)]
    fn commit_own<R: Room + ?Sized>(&self, revocation: &mut Revocation<R>) -> Result<Committed, CommitError> {
        let Self { allocator, policy, space, .. } = self;
        if space.has_panicked() {
            return Err(self.keep_for_good(revocation, QueueError::Panicked));
        }
        space.poison_on_panic(
            #[inline(always)]
            || {
                if policy.must_clear(space) {
                    self.clear_left(revocation);
                }
                if revocation.is_mixed()
                    && let Some(committed) = self.commit_mixed(revocation)?
                {
                    return Ok(committed);
                }
                policy.commit(space, allocator, revocation)
            },
        )
    }

    /// Clears the translations that unmaps have left for a later map to overwrite, after the domain was poisoned: no
    /// map will overwrite them any more.
    #[cold]
    #[inline(never)]
    fn clear_left<R: Room + ?Sized>(&self, revocation: &mut Revocation<R>) {
        let mut tables = core::mem::take(&mut revocation.tables);
        for revoked in revocation.revoked() {
            // SAFETY: this commit holds the claim on the mapping, and gives the range back only afterwards.
            self.locking.table(revoked.range, || unsafe { self.erase(revoked.range, &mut tables) });
        }
        revocation.tables = tables;
    }

    /// Clears the translations of a mapping on which the caller holds `claim`. Returns whether no table page was
    /// freed with them.
    fn clear(&self, claim: Claim, range: IovaRange, tables: &mut FreedTables) -> Result<bool, UnmapError> {
        self.space.platform().probe(Step::Enter(Phase::Table));
        self.locking.table(range, || match claim {
            // SAFETY: the claim makes this the only unmap of the mapping. The lock works as in `allocate_and_write`.
            Claim::Held => Ok(!unsafe { self.erase(range, tables) }),
            // SAFETY: only ranges whose claims the allocator leaves to the table are mapped with marks.
            Claim::ByTable => unsafe { self.space.claim_and_unmap(range) }.map(|()| true),
        })
    }
}

// SAFETY: the allocator hands each address to one mapping at a time, the policy gives it back with the proof of its
// invalidation, and the table leads to nothing else.
unsafe impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking, D: DeferredPolicy<P, I>> Mapper
    for AssembledMapper<A, P, I, L, D>
{
    #[inline(always)]
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.map_by_allocator(request) }
    }

    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        self.map_by_placement(request, placement)
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        let platform = self.space.platform();
        out.admit(self.space.tag(), range.pages())?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        self.take_down(range, out)
    }

    #[inline(always)]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        self.unmap_by_allocator(range)
    }

    #[inline(never)]
    fn commit_one(&self, one: &mut One) -> Result<Committed, CommitError> {
        self.commit_any(one)
    }

    #[inline(always)]
    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        self.commit_any(revocation)
    }

    fn submit(&self, revocation: &mut Runs, when_full: WhenFull) -> Result<Departure, CommitError> {
        let Self { allocator, policy, space, .. } = self;
        // Placed mappings, and those that others share, are committed in a way of their own. What is not strict does
        // not wait.
        let is_whole = revocation.is_empty() || revocation.is_mixed() || policy.flights().is_none();
        if is_whole || space.has_panicked() {
            return self.commit_any(revocation).map(Departure::Over);
        }
        assert!(revocation.is_of(space.tag()), "a revocation must be submitted by the mapper of its unmaps");
        space.poison_on_panic(|| policy.submit(space, allocator, revocation, when_full))
    }

    unsafe fn take_back(
        &self,
        revocation: &mut Runs,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        let Self { allocator, policy, space, .. } = self;
        if space.has_panicked() {
            return Err(self.keep_for_good(revocation, QueueError::Panicked));
        }
        // SAFETY: the caller's promise, passed on.
        space.poison_on_panic(|| unsafe { policy.take_back(space, allocator, revocation, in_flight, waits) })
    }

    fn tick(&self) -> Result<(), CommitError> {
        let Self { allocator, policy, space, .. } = self;
        let ticked = space.unless_panicked(|| {
            allocator.tick(space.platform());
            policy.tick(space, allocator)
        });
        ticked.unwrap_or(Err(CommitError(QueueError::Panicked)))
    }

    fn due_us(&self) -> Option<u64> {
        if self.space.has_panicked() {
            // Ticks no longer do anything.
            return None;
        }
        [self.policy.due_us(), self.allocator.due_us()].into_iter().flatten().min()
    }

    fn usage(&self) -> Usage {
        let Self { allocator, policy, space, .. } = self;
        let usage = space.unless_panicked(|| {
            let (queued_unmaps, queued_unmaps_max) = policy.queued();
            let kept = allocator.kept();
            let (bounce, in_flight) = (space.bounce_pages(), policy.flights().map_or((0, 0), Flights::usage));
            Usage {
                live_ranges: allocator.live() + self.placed.len(),
                kept_ranges: kept.ranges,
                kept_ranges_max: kept.ranges_max,
                record_bytes: allocator.record_bytes(),
                table_pages: space.table_pages(),
                queued_unmaps,
                queued_unmaps_max,
                batches_in_flight: in_flight.0,
                batches_in_flight_max: in_flight.1,
                bounce_pages: bounce.map_or(0, |bounce| bounce.0.in_use()),
                bounce_pages_max: bounce.map_or(0, |_| BOUNCE_PAGES_MAX),
                window_us_max: policy.window_us_max(),
            }
        });
        // After a panic the other numbers are behind locks that are no longer taken.
        usage.unwrap_or_else(|| Usage { table_pages: space.table_pages(), ..Usage::default() })
    }

    fn space(&self) -> &dyn Space {
        &self.space
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking, D: DeferredPolicy<P, I>> Drop
    for AssembledMapper<A, P, I, L, D>
{
    fn drop(&mut self) {
        let Self { allocator, policy, space, .. } = self;
        space.close(|walker, table, proof| {
            let waiting = policy.close(walker.platform(), allocator, proof);
            allocator.close(walker, table);
            waiting
        });
    }
}
