//! Unmaps that are committed together. No buffer goes back before the commit.
//!
//! A commit may also be made in two halves ([`Submitted`](super::Submitted)), so that the wait for the hardware is
//! spent on other work.
//!
//! A batch borrows its domain, or owns a share of it if it is made from an `Arc`. Such a batch can be stored in a
//! `static`, or behind a pointer held by C code.

use super::mapping::{Lent, count_lost};
use super::{DmaBuffer, DomainRef, Mapping, Refused};
use crate::address::{Iova, IovaRange};
use crate::error::{CommitError, UnmapError};
use crate::invalidation::{BATCH_MAX, Revocation, Revoked};
use crate::iommu::QueueError;
use crate::mapper::Mapper;
use crate::proof::{Committed, Proof};
use crate::request::Access;
use arrayvec::{ArrayVec, Drain};

/// A batch of raw unmaps, at most [`BATCH_MAX`]. Dropping it commits it. If that commit fails, the domain is poisoned
/// and the unmaps are counted in [`lost_buffers`](super::lost_buffers).
#[must_use = "check its commit for an error"]
pub struct RawBatch<H: DomainRef> {
    pub(super) domain: H,
    pub(super) revocation: Revocation,
}

impl<H: DomainRef> RawBatch<H> {
    /// An empty batch. It keeps `domain`, the pointer to its domain.
    pub const fn new(domain: H) -> Self {
        Self { domain, revocation: Revocation::new() }
    }

    /// Clears a mapping of [`map_raw`](super::Domain::map_raw), given the same address and length. The device keeps
    /// the buffer until the commit.
    ///
    /// # Errors
    /// Those of [`unmap`](RawBatch::unmap).
    #[inline(always)]
    pub fn unmap_raw(&mut self, iova: Iova, len: u64) -> Result<(), UnmapError> {
        match self.domain.short_way.takes_raw(iova.page_offset(), len) {
            // A domain that takes this path has no bounce pages.
            true => self.domain.mapper.unmap(IovaRange::of(iova.pfn(), 1), &mut self.revocation),
            false => self.unmap(IovaRange::covering(iova, len).ok_or(UnmapError::BadRange)?),
        }
    }

    /// Clears the mapping at exactly `range`. The device keeps the buffer until the commit.
    ///
    /// # Errors
    /// An [`UnmapError`], including [`UnmapError::BatchFull`]; nothing has changed then.
    #[inline(never)]
    pub fn unmap(&mut self, range: IovaRange) -> Result<(), UnmapError> {
        self.domain.unmap_into(range, &mut self.revocation)
    }

    /// What the unmaps of the batch have to invalidate. Unmaps of adjacent ranges that follow each other, or alternate
    /// with those of another stream, may be merged into one.
    pub fn revoked(&self) -> impl Iterator<Item = Revoked> + Clone {
        self.revocation.revoked()
    }

    /// Commits the batch. When this returns, its buffers belong to the driver again.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    #[inline(always)]
    pub fn commit(mut self) -> Result<(), CommitError> {
        self.commit_so_far()
    }

    /// Commits the batch as [`commit`](RawBatch::commit) does, and leaves an empty batch for further use.
    ///
    /// # Errors
    /// Those of [`commit`](RawBatch::commit).
    #[inline]
    pub fn commit_so_far(&mut self) -> Result<(), CommitError> {
        // An empty batch is not committed, so the drop after a commit takes no lock.
        self.domain.commit_raw(&mut self.revocation)
    }
}

impl<H: DomainRef> Drop for RawBatch<H> {
    fn drop(&mut self) {
        // After `commit` nothing is left. A drop cannot return an error: the addresses stay quarantined and the domain
        // is poisoned, so the next map reports it.
        let unmaps = self.revocation.unmaps();
        if self.commit_so_far().is_err() {
            count_lost(unmaps);
        }
    }
}

/// A batch of unmaps that holds the buffers until it commits, at most [`BATCH_MAX`]. Dropping it commits it and then
/// frees the buffers. If that commit fails, they are [lost](super::lost_buffers) and the domain is poisoned.
///
/// # Examples
/// ```
/// use portcullis::designs::Portcullis;
/// use portcullis::domain::fake::FakeBuffer;
/// use portcullis::iommu::fake::FakeIommu;
/// use portcullis::platform::fake::FakeHost;
/// use portcullis::{Access, Open, Protection};
///
/// let host = FakeHost::default();
/// let iommu = FakeIommu::new(&host);
/// let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
/// let (first, second) = (FakeBuffer::new(1), FakeBuffer::new(1));
/// let (first, second) = (domain.map(first, Access::DeviceWrites)?, domain.map(second, Access::DeviceWrites)?);
/// let mut batch = domain.batch();
/// batch.unmap(first)?;
/// batch.unmap(second)?;
/// // Until this returns, the device may still reach both.
/// let buffers = batch.commit()?;
/// assert_eq!((buffers.len(), iommu.take_commands().len()), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "its buffers come back when it commits"]
pub struct Batch<H: DomainRef, B: DmaBuffer> {
    pub(super) domain: H,
    pub(super) revocation: Revocation,
    pub(super) buffers: ArrayVec<Lent<B>, BATCH_MAX>,
}

impl<H: DomainRef, B: DmaBuffer> Batch<H, B> {
    /// An empty batch. It keeps `domain`, the pointer to its domain.
    pub const fn new(domain: H) -> Self {
        Self { domain, revocation: Revocation::new(), buffers: ArrayVec::new_const() }
    }

    /// Clears the mapping and keeps its buffer until the commit.
    ///
    /// # Errors
    /// Gives the mapping back with an [`UnmapError`]: those of [`Domain::unmap`](super::Domain::unmap), and
    /// [`UnmapError::BatchFull`]. Commit then, and try again.
    #[inline(always)]
    pub fn unmap(&mut self, mapping: Mapping<B>) -> Result<(), Refused<Mapping<B>, UnmapError>> {
        let (domain, range) = (&*self.domain, mapping.range());
        if mapping.tag() != domain.short_way.tag || range.pages() != 1 {
            return self.unmap_general(mapping);
        }
        let access = mapping.access();
        // See `Domain::unmap`.
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

    /// Keeps the buffer of an unmapped mapping. The revocation had room for its unmap, so `buffers` has room for it,
    /// unless it holds what was [submitted](Batch::submit_so_far) and forgotten.
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
                if let Err(full) = self.buffers.try_push(lent) {
                    self.keep_alone(full.element());
                }
                Ok(())
            }
            Err(error) => Err(Refused { value: Mapping::new(lent, range, access, self.domain.tag), error }),
        }
    }

    /// Keeps a buffer where others were submitted and forgotten, which are lost.
    #[cold]
    #[inline(never)]
    fn keep_alone(&mut self, lent: Lent<B>) {
        self.buffers.clear();
        self.buffers.push(lent);
    }

    /// Commits the batch and gives the buffers back, in the order of their unmaps.
    ///
    /// # Errors
    /// [`CommitError`]: the buffers are lost for good (S11).
    pub fn commit(mut self) -> Result<ArrayVec<B, BATCH_MAX>, CommitError> {
        Ok(self.commit_so_far()?.collect())
    }

    /// Commits the batch, gives the buffers back one by one, and leaves an empty batch for further use. Buffers that
    /// the caller does not take from the iterator are freed.
    ///
    /// # Errors
    /// Those of [`commit`](Batch::commit).
    #[inline]
    pub fn commit_so_far(&mut self) -> Result<GivenBack<'_, B>, CommitError> {
        let proof = match self.prove() {
            Ok(proof) => proof,
            Err(error) => {
                // None of the buffers is given back, now or later.
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
            Committed::Proven(proof) => Ok(proof),
            Committed::Deferred => Err(CommitError(QueueError::Unproven)),
        }
    }
}

/// The buffers of a committed batch, in the order of their unmaps.
pub struct GivenBack<'b, B: DmaBuffer> {
    pub(super) buffers: Drain<'b, Lent<B>, BATCH_MAX>,
    pub(super) proof: Proof,
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
        // The device has lost these buffers, so they are freed.
        self.for_each(drop);
    }
}

impl<H: DomainRef, B: DmaBuffer> Drop for Batch<H, B> {
    fn drop(&mut self) {
        // As in `RawBatch`, the next map reports the error.
        drop(self.commit_so_far());
    }
}
