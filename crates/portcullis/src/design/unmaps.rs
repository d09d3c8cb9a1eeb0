//! Unmaps over an allocator and a table: a mapping is claimed and taken down, and by itself it is a batch of one.

use super::{AssembledMapper, Locking};
use crate::address::IovaRange;
use crate::error::{CommitError, RawUnmapError, UnmapError};
use crate::invalidation::{Due, Revocation, TakenDown};
use crate::iommu::{Iommu, QueueError};
use crate::iova::{Claim, IovaAllocator};
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::table::FreedTables;

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> AssembledMapper<A, P, I, L> {
    /// Clears the translations of a mapping that this unmap has claimed. Returns whether table pages went to `tables`.
    ///
    /// # Safety
    /// That of [`AddressSpace::unmap`].
    #[inline(always)]
    pub(super) unsafe fn erase(&self, range: IovaRange, tables: &mut FreedTables) -> bool {
        // Likewise, only a table that claims do not walk frees pages at all.
        match (L::TABLE_EXCLUSIVE, A::TABLE_CLAIM_PAGES_MAX > 0) {
            // SAFETY: the caller's promise, passed on.
            (true, _) => unsafe { self.space.unmap(range, tables) },
            // SAFETY: as above.
            (false, false) => unsafe { self.space.unmap_uncounted(range, tables) },
            (false, true) => {
                // SAFETY: as above.
                unsafe { self.space.unmap_kept(range) };
                false
            }
        }
    }

    /// Unmaps the mapping at exactly `range` and commits that: a batch of one.
    ///
    /// # Errors
    /// Those of [`Mapper::unmap_now`].
    #[inline(never)]
    pub(crate) fn unmap_by_allocator(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut taken = TakenDown::of(range);
        self.take_down(&mut taken)?;
        Ok(self.commit_alone(&mut taken)?)
    }

    /// Ends a batch of one.
    ///
    /// # Errors
    /// Those of [`Mapper::commit`].
    #[inline(never)]
    pub(crate) fn commit_alone(&self, taken: &mut TakenDown) -> Result<Committed, CommitError> {
        let Self { allocator, policy, space, .. } = self;
        if space.has_panicked() {
            return Err(CommitError(QueueError::Panicked));
        }
        space.poison_on_panic(
            #[inline(always)]
            || {
                if policy.must_clear(space) {
                    self.clear_left_alone(taken);
                }
                match taken.revoked.due {
                    Due::Invalidation => policy.commit_alone(space, allocator, taken),
                    Due::InvalidationAtOnce => self.commit_placed(taken),
                    Due::Nothing => Ok(self.give_back_shared(taken)),
                }
            },
        )
    }

    /// Gives the address of a mapping back whose pages other mappings share.
    #[inline(never)]
    fn give_back_shared(&self, taken: &mut TakenDown) -> Committed {
        let Self { allocator, space, .. } = self;
        let proof = Proof::still_shared();
        allocator.free(space.platform(), taken.revoked.range, &proof);
        space.release(core::mem::take(&mut taken.tables), &proof);
        Committed::Lost(proof)
    }

    /// Claims the mapping at exactly the range of `taken`, and clears its translations unless the policy leaves them. Then `taken` is to be
    /// committed.
    ///
    /// # Errors
    /// Those of [`Mapper::unmap`].
    pub(crate) fn take_down(&self, taken: &mut TakenDown) -> Result<(), UnmapError> {
        if self.space.has_panicked() {
            return Err(UnmapError::Poisoned);
        }
        match self.space.poison_on_panic(|| self.claim_and_clear(taken)) {
            Ok(()) => Ok(()),
            Err(refused) => self.take_down_placed(taken, refused),
        }
    }

    #[inline(never)]
    pub(super) fn claim_and_clear(&self, TakenDown { revoked, tables }: &mut TakenDown) -> Result<(), UnmapError> {
        self.locking.whole(
            revoked.range.pages(),
            #[inline(always)]
            || {
                let claim = self.allocator.claim(self.space.platform(), revoked.range)?;
                if !self.policy.leaves_translations(&self.space) {
                    revoked.leaf_only = self.clear(claim, revoked.range, tables)?;
                }
                Ok(())
            },
        )
    }

    /// Clears the translations that unmaps have left to a map, in a domain that was poisoned since: none will come and write over them.
    #[cold]
    #[inline(never)]
    pub(super) fn clear_left(&self, revocation: &mut Revocation) {
        let mut tables = core::mem::take(&mut revocation.tables);
        for revoked in revocation.revoked() {
            // SAFETY: this commit has the claim on the mapping, and gives the range back after this.
            unsafe { self.erase(revoked.range, &mut tables) };
        }
        revocation.tables = tables;
    }

    /// The same for a batch of one.
    #[cold]
    #[inline(never)]
    fn clear_left_alone(&self, taken: &mut TakenDown) {
        // SAFETY: as above.
        unsafe { self.erase(taken.revoked.range, &mut taken.tables) };
    }

    /// Clears the translations of a mapping with this claim on it. Returns whether no table page went with it.
    fn clear(&self, claim: Claim, range: IovaRange, tables: &mut FreedTables) -> Result<bool, UnmapError> {
        self.space.platform().probe(Step::Enter(Phase::Table));
        self.locking.table(range, || match claim {
            // SAFETY: the claim makes this the only unmap of the mapping; the lock as in `allocate_and_write`.
            Claim::Held => Ok(!unsafe { self.erase(range, tables) }),
            // SAFETY: only ranges that the allocator leaves to the table are mapped with marks.
            Claim::ByTable => unsafe { self.space.claim_and_unmap(range) }.map(|()| true),
        })
    }
}
