//! Unmaps committed together. Nothing goes back before the commit.
//!
//! A batch borrows its domain, or owns a share of it where it is made from an `Arc`: then it may lie in a `static`, or behind a pointer of C.

use super::mapping::{Lent, count_lost};
use super::{DmaBuffer, DomainRef, Mapping, Refused};
use crate::address::{Iova, IovaRange};
use crate::design::Mapper;
use crate::error::{CommitError, UnmapError};
use crate::invalidation::{BATCH_MAX, Revocation, Revoked};
use crate::iommu::QueueError;
use crate::proof::{Committed, Proof};
use crate::request::Access;
use arrayvec::{ArrayVec, Drain};

/// A batch of raw unmaps, at most [`BATCH_MAX`]. Dropping it commits it. An error then poisons the domain and is counted in
/// [`lost_buffers`](super::lost_buffers).
#[must_use = "an error of its commit should be looked at"]
pub struct RawBatch<H: DomainRef> {
    domain: H,
    revocation: Revocation,
}

impl<H: DomainRef> RawBatch<H> {
    /// An empty batch of the domain that `domain` leads to, which it keeps.
    pub const fn new(domain: H) -> Self {
        Self { domain, revocation: Revocation::new() }
    }

    /// Clears what [`map_raw`](super::Domain::map_raw) mapped: the same address and length. The buffer is not yet back.
    ///
    /// # Errors
    /// Those of [`unmap`](RawBatch::unmap).
    #[inline(always)]
    pub fn unmap_raw(&mut self, iova: Iova, len: u64) -> Result<(), UnmapError> {
        match self.domain.short_way.takes_raw(iova.page_offset(), len) {
            // Such a domain has no bounce pages to be taken.
            true => self.domain.mapper.unmap(IovaRange::of(iova.pfn(), 1), &mut self.revocation),
            false => self.unmap(IovaRange::covering(iova, len).ok_or(UnmapError::BadRange)?),
        }
    }

    /// Clears the mapping at exactly `range`. The buffer is not yet back.
    ///
    /// # Errors
    /// An [`UnmapError`], [`UnmapError::BatchFull`] among them; nothing has changed then.
    #[inline(never)]
    pub fn unmap(&mut self, range: IovaRange) -> Result<(), UnmapError> {
        self.domain.unmap_into(range, &mut self.revocation)
    }

    /// What its unmaps leave to be invalidated, in their order. Neighbours that came one after the other may have become one.
    pub fn revoked(&self) -> impl Iterator<Item = Revoked> + Clone {
        self.revocation.revoked()
    }

    /// Ends the batch: the buffers are the driver's again when this returns.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    #[inline(always)]
    pub fn commit(mut self) -> Result<(), CommitError> {
        self.commit_so_far()
    }

    /// Does what [`commit`](RawBatch::commit) does, and leaves an empty batch to go on with.
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn commit_so_far(&mut self) -> Result<(), CommitError> {
        // Nothing is done for an empty one, so that the drop after a commit takes no lock.
        self.domain.commit_raw(&mut self.revocation)
    }
}

impl<H: DomainRef> Drop for RawBatch<H> {
    fn drop(&mut self) {
        // After `commit` there is nothing left. There is no caller to tell of an error: the addresses stay quarantined and the
        // domain is poisoned, so the next map reports it.
        let unmaps = self.revocation.unmaps();
        if self.commit_so_far().is_err() {
            count_lost(unmaps);
        }
    }
}

/// A batch of unmaps that holds the buffers until it commits, at most [`BATCH_MAX`]. Dropping it commits it, and frees the buffers if
/// that succeeds; if not, they are [lost](super::lost_buffers), and the domain is poisoned.
#[must_use = "buffers come back by its commit"]
pub struct Batch<H: DomainRef, B: DmaBuffer> {
    domain: H,
    revocation: Revocation,
    buffers: ArrayVec<Lent<B>, BATCH_MAX>,
}

impl<H: DomainRef, B: DmaBuffer> Batch<H, B> {
    /// An empty batch of the domain that `domain` leads to, which it keeps.
    pub const fn new(domain: H) -> Self {
        Self { domain, revocation: Revocation::new(), buffers: ArrayVec::new_const() }
    }

    /// Clears the mapping and keeps its buffer until the commit.
    ///
    /// # Errors
    /// The mapping, with the [`UnmapError`].
    #[inline(always)]
    pub fn unmap(&mut self, mapping: Mapping<B>) -> Result<(), Refused<Mapping<B>, UnmapError>> {
        let (domain, range) = (&*self.domain, mapping.range());
        if mapping.tag() != domain.short_way.tag || range.pages() != 1 {
            return self.unmap_general(mapping);
        }
        let access = mapping.access();
        // As in `Domain::unmap`.
        let lent = mapping.into_lent();
        let unmapped = domain.mapper.unmap(IovaRange::of(range.first_pfn(), 1), &mut self.revocation);
        self.keep(lent, range, access, unmapped)
    }

    #[inline(never)]
    fn unmap_general(&mut self, mapping: Mapping<B>) -> Result<(), Refused<Mapping<B>, UnmapError>> {
        if mapping.tag() != self.domain.tag {
            return Err(Refused { value: mapping, error: UnmapError::WrongDomain });
        }
        let (range, access) = (mapping.range(), mapping.access());
        let lent = mapping.into_lent();
        let unmapped = self.domain.unmap_lent_into(lent.segments(), range, &mut self.revocation);
        self.keep(lent, range, access, unmapped)
    }

    /// Keeps the buffer of a mapping that was unmapped. There is room for it wherever there was for the unmap.
    #[inline(always)]
    fn keep(
        &mut self,
        lent: Lent<B>,
        range: IovaRange,
        access: Access,
        unmapped: Result<(), UnmapError>,
    ) -> Result<(), Refused<Mapping<B>, UnmapError>> {
        match unmapped {
            Ok(()) => {
                self.buffers.push(lent);
                Ok(())
            }
            Err(error) => Err(Refused { value: Mapping::new(lent, range, access, self.domain.tag), error }),
        }
    }

    /// Ends the batch and gives the buffers back, in the order of their unmaps.
    ///
    /// # Errors
    /// [`CommitError`]: the buffers are lost for good (S11).
    pub fn commit(mut self) -> Result<ArrayVec<B, BATCH_MAX>, CommitError> {
        Ok(self.commit_so_far()?.collect())
    }

    /// Does the same one by one, and leaves an empty batch to go on with. Buffers that are not taken are freed.
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn commit_so_far(&mut self) -> Result<GivenBack<'_, B>, CommitError> {
        let proof = match self.prove() {
            Ok(proof) => proof,
            Err(error) => {
                // None of them is given back, now or later.
                self.buffers.clear();
                return Err(error);
            }
        };
        Ok(GivenBack { buffers: self.buffers.drain(..), proof })
    }

    fn prove(&mut self) -> Result<Proof, CommitError> {
        if self.buffers.is_empty() && self.revocation.is_empty() {
            return Ok(Proof::never_visible());
        }
        match self.domain.commit(&mut self.revocation)? {
            Committed::Lost(proof) => Ok(proof),
            Committed::Deferred => Err(CommitError(QueueError::Unproven)),
        }
    }
}

/// The buffers of a batch that was committed, in the order of their unmaps.
pub struct GivenBack<'b, B: DmaBuffer> {
    buffers: Drain<'b, Lent<B>, BATCH_MAX>,
    proof: Proof,
}

impl<B: DmaBuffer> Iterator for GivenBack<'_, B> {
    type Item = B;

    #[inline]
    fn next(&mut self) -> Option<B> {
        Some(self.buffers.next()?.give_back(&self.proof))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.buffers.size_hint()
    }
}

impl<B: DmaBuffer> ExactSizeIterator for GivenBack<'_, B> {}

impl<B: DmaBuffer> Drop for GivenBack<'_, B> {
    fn drop(&mut self) {
        // The device has lost them: they are freed, and not lost.
        self.for_each(drop);
    }
}

impl<H: DomainRef, B: DmaBuffer> Drop for Batch<H, B> {
    fn drop(&mut self) {
        // An error here reaches the driver with the next map, as in `RawBatch`.
        drop(self.commit_so_far());
    }
}
