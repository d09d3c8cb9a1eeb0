//! Mappings whose requests say where they are to be, in a domain of [`AssembledMapper`].
//!
//! They are for what stays: rings below the limit of a device, the regions of firmware. Nothing of them is deferred, so that what
//! was reserved, or is another request's only place, is never held back by a queue.

use super::{AssembledMapper, Locking};
use crate::address::IovaRange;
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::{BATCH_MAX, Due, Revocation, Revoked};
use crate::iommu::{Invalidation, Iommu, QueueError};
use crate::iova::{IovaAllocator, Record};
use crate::placement::Placement;
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::Request;
use arrayvec::ArrayVec;

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
        self.space.poison_on_panic(|| {
            let place_and_write = || {
                self.with_memory(request.pages(), || {
                    let record = self.placed.record(self.space.platform())?;
                    self.locking.whole(request.pages(), || self.place_and_write(request, placement, record))
                })
            };
            let range = match place_and_write() {
                // The address may be waiting in a flush queue. No other address will do, so flush the queue instead of waiting for it.
                Err(MapError::Exhausted { .. } | MapError::Overlap(_))
                    if self.policy.flush(&self.space, &self.allocator)? =>
                {
                    place_and_write()
                }
                written => written,
            }?;
            self.end_map(range)
        })
    }

    /// Takes the pages and writes their translations.
    fn place_and_write(
        &self,
        request: &Request<'_>,
        placement: &Placement,
        record: Record,
    ) -> Result<IovaRange, MapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let range = self.placed.take(platform, &self.allocator, request.pages(), placement, record)?;
        assert!(range.end_pfn() <= self.space.end_pfn(), "an allocator of more addresses than its domain translates");
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the range was set aside, as long as the request, for this call alone; it lies in the table, as just seen; where it
        // matters, the lock keeps others off the table. Without marks, so that no claim by the table finds it.
        let write = || unsafe { self.space.map(range, request.segments(), request.access(), false) };
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
        let mut revocation = Revocation::of(self.space.tag());
        self.take_down_placed(range, refused, &mut revocation)?;
        Ok(super::Mapper::commit(self, &mut revocation)?)
    }

    /// Claims the placed mapping at exactly `range`, clears its translations, whatever the policy, and notes that in `out`.
    ///
    /// # Errors
    /// `refused` where there is none.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_down_placed(
        &self,
        range: IovaRange,
        refused: UnmapError,
        out: &mut Revocation,
    ) -> Result<(), UnmapError> {
        if refused == UnmapError::Poisoned {
            return Err(refused);
        }
        let cleared = self.space.unless_panicked(|| {
            self.locking.whole(range.pages(), || {
                self.claim_placed(range, refused)?;
                self.space.platform().probe(Step::Enter(Phase::Table));
                // SAFETY: the claim makes this the only unmap of the mapping; the lock as in `place_and_write`.
                Ok(self.locking.table(range, || unsafe { !self.space.unmap(range, &mut out.tables) }))
            })
        });
        let leaf_only = cleared.unwrap_or(Err(UnmapError::Poisoned))?;
        out.note(Revoked::one(range, Due::InvalidationAtOnce, leaf_only));
        Ok(())
    }

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

    /// Ends the part of a batch that the policy has no say in, and leaves the rest to it.
    ///
    /// # Errors
    /// [`CommitError`]; nothing of the batch goes back then.
    #[cold]
    #[inline(never)]
    pub(super) fn commit_mixed(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        let Self { allocator, policy, space, placed, .. } = self;
        let platform = space.platform();
        let of = |due: Due| move |revoked: &Revoked| revoked.due == due;
        // The device reaches these pages by mappings of others, whose unmaps will see to it; or have, if they came first.
        let mut proof = Proof::still_shared();
        let shared = revocation.revoked().filter(of(Due::Nothing));
        shared.for_each(|revoked| allocator.free(platform, revoked.range, &proof));
        let mut commands = ArrayVec::<Invalidation, BATCH_MAX>::new_const();
        let at_once = revocation.revoked().filter(of(Due::InvalidationAtOnce));
        commands.extend(at_once.map(|revoked| space.covering(revoked.range, revoked.leaf_only)));
        if !commands.is_empty() {
            platform.probe(Step::Enter(Phase::Invalidate));
            proof = match space.invalidate(&commands) {
                Ok(proof) => proof,
                Err(error) => return Err(self.keep_for_good(revocation, error)),
            };
            platform.probe(Step::Enter(Phase::IovaFree));
            let at_once = revocation.revoked().filter(of(Due::InvalidationAtOnce));
            at_once.for_each(|revoked| placed.give_back(platform, allocator, revoked.range, &proof));
        }
        revocation.keep_invalidations();
        if revocation.is_empty() {
            space.release(core::mem::take(&mut revocation.tables), &proof);
            return Ok(Committed::Lost(proof));
        }
        policy.commit(space, allocator, revocation)
    }

    /// Keeps addresses and table pages of a batch for good (S11).
    pub(super) fn keep_for_good(&self, revocation: &mut Revocation, error: QueueError) -> CommitError {
        revocation.forget();
        CommitError(error)
    }
}
