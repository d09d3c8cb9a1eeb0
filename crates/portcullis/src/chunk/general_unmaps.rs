//! Unmaps and commits of the design `portcullis` that do not take the fast path, which is one command for a mapping in
//! a chunk, completed at once. The fast path makes tail calls to these functions, so that their stack frames replace
//! its own.

use super::chunks::Chunks;
use super::geometry::TABLE_PAGES;
use super::mapper::{Chunked, Unspent};
use super::page_states;
use crate::address::IovaRange;
use crate::error::{CommitError, RawUnmapError, UnmapError};
use crate::invalidation::{Departure, InFlight, One, Revocation, Room, Runs, WhenFull};
use crate::iommu::Iommu;
use crate::mapper::{AssembledMapper, Mapper};
use crate::platform::{Phase, Platform, Step, Walk};
use crate::proof::Committed;

impl<P: Platform, I: Iommu> Chunked<P, I> {
    /// Waits for the invalidation of the cleared mapping at `range`, outside of any walk, and spends the mapping.
    #[cold]
    #[inline(never)]
    pub(super) fn await_and_spend(
        &self,
        range: IovaRange,
        Unspent { pending, mark }: Unspent<I>,
    ) -> Result<Committed, RawUnmapError> {
        let space = &self.base.space;
        let platform = space.platform();
        let proof = space.invalidate_pending(pending, &[space.covering(range, true)]).map_err(CommitError)?;
        platform.probe(Step::Enter(Phase::IovaFree));
        platform.probe(Step::ChunkFind);
        Walk::on(platform, |walk| {
            platform.probe(Step::ChunkReturn);
            mark.spend(self.chunks().entries(walk, range.first_pfn()), &proof);
        });
        Ok(Committed::Proven(proof))
    }

    /// An unmap that finds no mapping in a chunk: the mapping lies in the lower half, or was placed, or the unmap is
    /// refused.
    #[inline(never)]
    pub(super) fn take_down_general<R: Room + ?Sized>(
        &self,
        range: IovaRange,
        out: &mut Revocation<R>,
    ) -> Result<(), UnmapError> {
        let AssembledMapper { allocator, space, .. } = &self.base;
        match allocator.chunks_of(range) {
            Some(chunks) => self.base.take_down_placed(range, out, self.refusal(chunks, range)),
            None => {
                space.platform().probe(Step::Unmap);
                self.base.take_down(range, out)
            }
        }
    }

    /// Makes the entries visible that unmaps have cleared in chunks.
    #[inline(never)]
    fn make_visible<R: Room + ?Sized>(&self, revocation: &Revocation<R>) {
        let AssembledMapper { allocator, space, .. } = &self.base;
        let runs = revocation.revoked().map(|revoked| revoked.range);
        runs.filter(|run| allocator.chunks_of(*run).is_some())
            .for_each(|run| allocator.chunks.make_visible(space.walker(), run));
    }

    #[inline(never)]
    pub(super) fn commit_general<R: Room + ?Sized>(
        &self,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        self.make_visible(revocation);
        let committed = self.base.commit_any(revocation)?;
        // Done at the commit and not at each unmap: if the batch is held for a long time, the sweep would be over
        // before the commit.
        self.schedule_sweep_if_none();
        Ok(committed)
    }

    /// Submits a batch. Its pages stay cleared and unspent until it is taken back.
    #[inline(never)]
    pub(super) fn submit_general(&self, revocation: &mut Runs, when_full: WhenFull) -> Result<Departure, CommitError> {
        self.make_visible(revocation);
        let departure = self.base.submit(revocation, when_full)?;
        if matches!(departure, Departure::Over(_)) {
            self.schedule_sweep_if_none();
        }
        Ok(departure)
    }

    /// Takes a batch back, or waits for it.
    ///
    /// # Safety
    /// That of [`Mapper::take_back`].
    #[inline(never)]
    pub(super) unsafe fn take_back_general(
        &self,
        revocation: &mut Runs,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        // SAFETY: the caller's promise, passed on.
        let taken = unsafe { self.base.take_back(revocation, in_flight, waits) }?;
        if taken.is_some() {
            self.schedule_sweep_if_none();
        }
        Ok(taken)
    }

    /// Unmaps and commits `range` in all cases that one command does not handle: under deferred protection, in the
    /// lower half, on hardware without page-selective commands, if the unmap has to schedule a sweep, and if it is
    /// refused. With `ONE`, the range is one page.
    #[inline(never)]
    pub(super) fn unmap_general<const ONE: bool>(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let range = if ONE { IovaRange::of(range.first_pfn(), 1) } else { range };
        let AssembledMapper { allocator, policy, space, .. } = &self.base;
        // Each call is a tail call, so its frame replaces this one.
        let chunks = &allocator.chunks;
        if !chunks.reach(range) {
            return self.unmap_elsewhere(range);
        }
        space.platform().probe(Step::ChunkUnmap);
        if !self.clear(chunks, range) {
            return self.unmap_elsewhere(range);
        }
        // The path for drivers that defer unmaps, one by one and often: it needs nothing further.
        if !policy.join::<TABLE_PAGES>(space, range) {
            return self.commit_cleared(range);
        }
        if self.is_sweep_left_to_unmaps() { self.defer_and_sweep() } else { Ok(Committed::Deferred) }
    }

    /// A deferred unmap that has to schedule a sweep.
    #[cold]
    #[inline(never)]
    fn defer_and_sweep(&self) -> Result<Committed, RawUnmapError> {
        self.schedule_sweep();
        Ok(Committed::Deferred)
    }

    /// Commits an unmap whose mapping in a chunk has been cleared.
    #[inline(never)]
    fn commit_cleared(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let AssembledMapper { allocator, policy, space, .. } = &self.base;
        let committed = space.poison_on_panic(
            #[inline(always)]
            || policy.begin_run(space, allocator, range),
        )?;
        self.schedule_sweep_if_none();
        Ok(committed)
    }

    /// Unmaps and commits what is in no chunk: a mapping of the lower half, or a placed one.
    #[inline(never)]
    fn unmap_elsewhere(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut one = One::of(self.base.space.tag());
        self.take_down_general(range, &mut one)?;
        Ok(self.base.commit_one(&mut one)?)
    }

    /// Clears the mapping at exactly `range`, which lies in `chunks`, and makes that visible. It is not invalidated
    /// yet. False if there is a [reason](Self::refusal) not to clear it.
    #[inline(always)]
    fn clear(&self, chunks: &Chunks<P>, range: IovaRange) -> bool {
        if self.base.space.has_panicked() {
            // The unmap could not be committed.
            return false;
        }
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        Walk::on(
            platform,
            #[inline(always)]
            move |walk| {
                let entries = chunks.entries(walk, range.first_pfn());
                let cleared = page_states::clear(platform, entries, range);
                cleared.map(|cleared| cleared.make_visible(space.walker())).is_some()
            },
        )
    }

    /// The reason why no mapping at exactly `range`, which lies in `chunks`, is unmapped.
    #[cold]
    fn refusal(&self, chunks: &Chunks<P>, range: IovaRange) -> UnmapError {
        if self.base.space.has_panicked() {
            return UnmapError::Poisoned;
        }
        Walk::on(self.base.space.platform(), |walk| {
            page_states::refusal(chunks.entries(walk, range.first_pfn()), range)
        })
    }
}
