//! Mappings whose requests say where they are to be, in a domain of [`AssembledMapper`].
//!
//! They are for what stays: rings below the limit of a device, the regions of firmware. Nothing of them is deferred, so that what
//! was reserved, or is another request's only place, is never held back by a queue.

use super::{AssembledMapper, Locking};
use crate::address::IovaRange;
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::{Counted, Due, Revocation, Revoked, TakenDown};
use crate::iommu::{Iommu, QueueError};
use crate::iova::{IovaAllocator, Record};
use crate::placement::Placement;
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::Request;

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> AssembledMapper<A, P, I, L> {
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
                        // The address may be waiting in a flush queue. No other address will do, so flush the queue instead of waiting for it.
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

    /// `AssembledMapper::quarantine` for a mapping that was placed.
    #[cold]
    #[inline(never)]
    fn quarantine_placed(&self, range: IovaRange) {
        let _ = self.take_down_placed(&mut TakenDown::of(range), UnmapError::NotMapped(range.start()));
    }

    // Its parts are in line: a frame for each would lie below the others.
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
        // SAFETY: the range was set aside, as long as the request, for this call alone; it lies in the table, as just seen; where it
        // matters, the lock keeps others off the table. Without marks, so that no claim by the table finds it.
        let write = || unsafe { self.write(range, request, false) };
        if let Err(error) = self.locking.table(range, write) {
            // Nothing was written.
            self.placed.give_back(platform, &self.allocator, range, &Proof::never_visible());
            return Err(error);
        }
        self.placed.publish(range);
        Ok(range)
    }

    /// Unmaps the placed mapping at exactly `range` and commits that.
    ///
    /// # Errors
    /// `refused` where there is none.
    #[cold]
    #[inline(never)]
    pub(crate) fn unmap_placed(&self, range: IovaRange, refused: UnmapError) -> Result<Committed, RawUnmapError> {
        let mut taken = TakenDown::of(range);
        self.take_down_placed(&mut taken, refused)?;
        if self.space.has_panicked() {
            return Err(CommitError(QueueError::Panicked).into());
        }
        Ok(self.space.poison_on_panic(|| self.commit_placed(&mut taken))?)
    }

    /// Claims the placed mapping at exactly the range of `taken` and clears its translations, under every policy. Then `taken` is to be
    /// committed.
    ///
    /// # Errors
    /// `refused` where there is none.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_down_placed(&self, taken: &mut TakenDown, refused: UnmapError) -> Result<(), UnmapError> {
        if refused == UnmapError::Poisoned || self.space.has_panicked() {
            return Err(UnmapError::Poisoned);
        }
        let TakenDown { revoked, tables } = taken;
        let range = revoked.range;
        let claim_and_clear = || {
            self.claim_placed(range, refused)?;
            self.space.platform().probe(Step::Enter(Phase::Table));
            // SAFETY: the claim makes this the only unmap of the mapping; the lock as in `place_and_write`.
            Ok(self.locking.table(range, || unsafe { !self.erase(range, tables) }))
        };
        revoked.leaf_only = self.space.poison_on_panic(|| self.locking.whole(range.pages(), claim_and_clear))?;
        revoked.due = Due::InvalidationAtOnce;
        Ok(())
    }

    #[inline(never)]
    fn claim_placed(&self, range: IovaRange, refused: UnmapError) -> Result<(), UnmapError> {
        let (Self { allocator, placed, space, .. }, UnmapError::NotMapped(_)) = (self, refused) else {
            // There is something else.
            return Err(refused);
        };
        let claimed = if placed.is_empty() { Err(refused) } else { placed.claim(space.platform(), range) };
        claimed.map_err(|error| match (error, allocator.live_around(space.platform(), range.first_pfn())) {
            (UnmapError::NotMapped(_), Some(mapped)) if mapped != range => UnmapError::Partial { asked: range, mapped },
            _ => error,
        })
    }

    /// Ends the part of a batch that the policy has no say in. Returns what there is to say of all of it, where nothing is left to the policy.
    ///
    /// # Errors
    /// [`CommitError`]; nothing of the batch goes back then.
    #[cold]
    #[inline(never)]
    pub(super) fn commit_mixed(&self, revocation: &mut Revocation) -> Result<Option<Committed>, CommitError> {
        let Self { allocator, space, placed, .. } = self;
        let platform = space.platform();
        let of = |due: Due| move |revoked: &Revoked| revoked.due == due;
        // The device reaches these pages by mappings of others, whose unmaps will see to it; or have, if they came first.
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
            return Ok(Some(Committed::Lost(proof)));
        }
        Ok(None)
    }

    /// Invalidates the placed mappings of a batch. `None` if it has none.
    ///
    /// # Errors
    /// A [`QueueError`].
    #[inline(never)]
    fn invalidate_placed(&self, revocation: &Revocation) -> Result<Option<Proof>, QueueError> {
        let space = &self.space;
        let placed = || revocation.revoked().filter(|revoked| revoked.due == Due::InvalidationAtOnce);
        let count = placed().count();
        if count == 0 {
            return Ok(None);
        }
        space.platform().probe(Step::Enter(Phase::Invalidate));
        let command = |revoked: Revoked| space.covering(revoked.range, revoked.leaf_only);
        space.invalidate_each(&|| Counted::new(placed().map(command), count), false).map(Some)
    }

    /// Ends a batch of one mapping that was placed.
    ///
    /// # Errors
    /// [`CommitError`]; nothing goes back then (S11).
    #[cold]
    #[inline(never)]
    pub(super) fn commit_placed(&self, taken: &mut TakenDown) -> Result<Committed, CommitError> {
        let Self { allocator, space, placed, .. } = self;
        let TakenDown { revoked, tables } = taken;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        let proof = space.invalidate(&[space.covering(revoked.range, revoked.leaf_only)]).map_err(CommitError)?;
        platform.probe(Step::Enter(Phase::IovaFree));
        placed.give_back(platform, allocator, revoked.range, &proof);
        space.release(core::mem::take(tables), &proof);
        Ok(Committed::Lost(proof))
    }

    /// Keeps addresses and table pages of a batch for good (S11).
    pub(super) fn keep_for_good(&self, revocation: &mut Revocation, error: QueueError) -> CommitError {
        revocation.forget();
        CommitError(error)
    }
}
