//! Mappings at places that their requests name, in a domain of [`AssembledMapper`].
//!
//! They are for long-lived mappings: rings below the address limit of a device, and firmware regions. Their
//! invalidation is never deferred. A queue therefore never holds back a reserved range, or the only place that
//! another request can use.

use super::{AssembledMapper, Locking};
use crate::address::IovaRange;
use crate::error::{CommitError, MapError, RawMapError, UnmapError};
use crate::invalidation::{Counted, DeferredPolicy, Due, One, Revocation, Revoked, Room};
use crate::iommu::{Iommu, QueueError};
use crate::iova::{IovaAllocator, Record};
use crate::placement::Placement;
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::Request;

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking, D: DeferredPolicy<P, I>> AssembledMapper<A, P, I, L, D> {
    /// Makes a mapping where `placement` says.
    ///
    /// # Errors
    /// Those of [`Mapper::map_placed`](super::Mapper::map_placed).
    #[cold]
    #[inline(never)]
    pub(super) fn map_by_placement(
        &self,
        request: &Request<'_>,
        placement: &Placement,
    ) -> Result<IovaRange, RawMapError> {
        self.space.refuse_if_poisoned()?;
        self.space.poison_on_panic(
            #[inline(always)]
            || {
                let mut is_flushed = false;
                let range = loop {
                    match self.place_with_memory(request, placement) {
                        // The range may be waiting in a flush queue. No other range will do, so flush the queue
                        // instead of waiting for it.
                        Err(MapError::Exhausted { .. } | MapError::Overlap(_))
                            if !is_flushed && self.policy.flush(&self.space, &self.allocator)? =>
                        {
                            is_flushed = true;
                        }
                        written => break written?,
                    }
                };
                self.sync(range).inspect_err(|_| self.quarantine_placed(range))?;
                Ok(range)
            },
        )
    }

    /// Does what `AssembledMapper::quarantine` does, for a placed mapping.
    #[cold]
    #[inline(never)]
    fn quarantine_placed(&self, range: IovaRange) {
        let _ = self.take_down_placed(range, &mut One::of(self.space.tag()), UnmapError::NotMapped(range.start()));
    }

    // Its parts are inlined: otherwise the stack frame of each would lie below the others.
    #[inline(never)]
    fn place_with_memory(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, MapError> {
        self.with_memory(
            request.pages(),
            #[inline(always)]
            || {
                let mut record = self.placed.record(self.space.platform())?;
                self.locking.whole(
                    request.pages(),
                    #[inline(always)]
                    || self.place_and_write(request, placement, &mut record),
                )
            },
        )
    }

    /// Takes the pages and writes their translations.
    #[inline(always)]
    fn place_and_write(
        &self,
        request: &Request<'_>,
        placement: &Placement,
        record: &mut Record,
    ) -> Result<IovaRange, MapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let range = self.placed.take(platform, &self.allocator, request.pages(), placement, record)?;
        assert!(range.end_pfn() <= self.space.end_pfn(), "an allocator of more addresses than its domain translates");
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the range was set aside for this call alone, and it is as long as the request. It lies within the
        // table, as checked above. Where it matters, the lock keeps other CPUs off the table. The range has no marks,
        // so that no claim by the table finds it.
        let write = || unsafe { self.write(range, request, false) };
        if let Err(error) = self.locking.table(range, write) {
            // Nothing was written.
            self.placed.give_back(platform, &self.allocator, range, &Proof::never_visible());
            return Err(error);
        }
        self.placed.publish(range);
        Ok(range)
    }

    /// Claims the placed mapping at exactly `range` and clears its translations, under every policy. Notes it in `out`,
    /// which must have room for it and must then be committed.
    ///
    /// # Errors
    /// `refused` if there is no such mapping.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_down_placed<R: Room + ?Sized>(
        &self,
        range: IovaRange,
        out: &mut Revocation<R>,
        refused: UnmapError,
    ) -> Result<(), UnmapError> {
        if refused == UnmapError::Poisoned || self.space.has_panicked() {
            return Err(UnmapError::Poisoned);
        }
        let tables = &mut out.tables;
        let claim_and_clear = || {
            self.claim_placed(range, refused)?;
            self.space.platform().probe(Step::Enter(Phase::Table));
            // SAFETY: the claim makes this the only unmap of the mapping. The lock works as in `place_and_write`.
            Ok(self.locking.table(range, || unsafe { !self.erase(range, tables) }))
        };
        let leaf_only = self.space.poison_on_panic(|| self.locking.whole(range.pages(), claim_and_clear))?;
        out.note(Revoked::one(range, Due::InvalidationAtOnce, leaf_only));
        Ok(())
    }

    #[inline(never)]
    fn claim_placed(&self, range: IovaRange, refused: UnmapError) -> Result<(), UnmapError> {
        let (Self { allocator, placed, space, .. }, UnmapError::NotMapped(_)) = (self, refused) else {
            // Something else is mapped there.
            return Err(refused);
        };
        let claimed = if placed.is_empty() { Err(refused) } else { placed.claim(space.platform(), range) };
        claimed.map_err(|error| match (error, allocator.live_around(space.platform(), range.first_pfn())) {
            (UnmapError::NotMapped(_), Some(mapped)) if mapped != range => UnmapError::Partial { asked: range, mapped },
            _ => error,
        })
    }

    /// Commits the part of a batch that does not go through the policy. Returns the result for the whole batch if
    /// nothing is left for the policy.
    ///
    /// # Errors
    /// [`CommitError`]; no address or table page of the batch is then given back.
    #[cold]
    #[inline(never)]
    pub(super) fn commit_mixed<R: Room + ?Sized>(
        &self,
        revocation: &mut Revocation<R>,
    ) -> Result<Option<Committed>, CommitError> {
        let Self { allocator, space, placed, .. } = self;
        let platform = space.platform();
        let of = |due: Due| move |revoked: &Revoked| revoked.due == due;
        // The device reaches these pages through other mappings. The unmaps of those invalidate them, or have already
        // done so.
        let mut proof = Proof::still_shared();
        let shared = revocation.revoked().filter(of(Due::Nothing));
        shared.for_each(|revoked| allocator.free(platform, revoked.range, &proof));
        let invalidated = match self.invalidate_placed(revocation) {
            Ok(invalidated) => invalidated,
            Err(error) => return Err(self.keep_for_good(revocation, error)),
        };
        if let Some(invalidated) = invalidated {
            proof = invalidated;
            platform.probe(Step::Enter(Phase::IovaFree));
            let at_once = revocation.revoked().filter(of(Due::InvalidationAtOnce));
            at_once.for_each(|revoked| placed.give_back(platform, allocator, revoked.range, &proof));
        }
        revocation.keep_invalidations();
        if revocation.is_empty() {
            space.release(core::mem::take(&mut revocation.tables), &proof);
            return Ok(Some(Committed::Proven(proof)));
        }
        Ok(None)
    }

    /// Invalidates the placed mappings of a batch. `None` if the batch has none.
    ///
    /// # Errors
    /// A [`QueueError`].
    #[inline(never)]
    fn invalidate_placed<R: Room + ?Sized>(&self, revocation: &Revocation<R>) -> Result<Option<Proof>, QueueError> {
        let space = &self.space;
        if let Some(run) = revocation.only_run() {
            if run.due != Due::InvalidationAtOnce {
                return Ok(None);
            }
            space.platform().probe(Step::Enter(Phase::Invalidate));
            return space.invalidate(&[space.covering(run.range, run.leaf_only)]).map(Some);
        }
        if R::IS_NONE {
            return Ok(None);
        }
        let placed = || revocation.revoked().filter(|revoked| revoked.due == Due::InvalidationAtOnce);
        let count = placed().count();
        if count == 0 {
            return Ok(None);
        }
        space.platform().probe(Step::Enter(Phase::Invalidate));
        let command = |revoked: Revoked| space.covering(revoked.range, revoked.leaf_only);
        space.invalidate_each(&|| Counted::new(placed().map(command), count), false).map(Some)
    }

    /// Never gives back the addresses and table pages of a batch (S11).
    pub fn keep_for_good<R: Room + ?Sized>(&self, revocation: &mut Revocation<R>, error: QueueError) -> CommitError {
        revocation.forget();
        CommitError(error)
    }
}
