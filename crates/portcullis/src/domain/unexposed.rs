//! Maps and unmaps in domains that do not open whole pages for the parts of them that buffers have.

use super::mapping::Tag;
use super::{DmaBuffer, Domain, Mapping, Refused, UnmapFailure};
use crate::address::{Iova, IovaRange, lies_in_a_page};
use crate::design::{Design, Mapper};
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::Revocation;
use crate::iommu::Iommu;
use crate::placement::Placement;
use crate::platform::Platform;
use crate::proof::Committed;
use crate::request::Request;
use crate::safety::Protection;
use crate::sub_page::{BouncePages, Chain, SubPage, Sync, is_partial};
use core::mem;

/// What goes the short way: a page or a part of one, straight to the mapper. The fields stand for questions of the fast paths that
/// would take an instruction more each.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortWay {
    /// Zero where the raw face may; all ones elsewhere.
    raw: u64,
    /// The same of the typed face, to map.
    typed: u64,
    /// The tag of mappings that may be unmapped so.
    pub(super) tag: Tag,
}

impl ShortWay {
    pub(super) fn of(protection: Protection, sub_page: SubPage, tag: Tag) -> Self {
        let exposes = sub_page == SubPage::Expose;
        let mask = |may: bool| if may { 0 } else { u64::MAX };
        Self {
            raw: mask(exposes),
            typed: mask(exposes && protection == Protection::Strict),
            tag: if exposes { tag } else { Tag::NO_DOMAIN },
        }
    }

    /// Whether `len` bytes that begin at `offset` in a page lie in it, and may go the short way.
    #[inline(always)]
    pub(super) const fn takes_raw(self, offset: u64, len: u64) -> bool {
        lies_in_a_page(offset, len, self.raw)
    }

    /// The same, to map by the typed face.
    #[inline(always)]
    pub(super) const fn takes_typed(self, offset: u64, len: u64) -> bool {
        lies_in_a_page(offset, len, self.typed)
    }
}

impl<D: Design<P, I>, P: Platform, I: Iommu> Domain<D, P, I> {
    /// The mapping of `request`, with bounce pages for parts of pages where the domain has such.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn map_unexposed(
        &self,
        request: &Request<'_>,
        placement: Option<&Placement>,
    ) -> Result<IovaRange, RawMapError> {
        let map = |request: &Request<'_>| match placement {
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.mapper.map(request) },
            // SAFETY: as above.
            Some(placement) => unsafe { self.mapper.map_placed(request, placement) },
        };
        let partial = request.segments().iter().find(|segment| is_partial(segment));
        let (bounce, is_whole) = match (self.mapper.bounce_pages(), partial) {
            (Some(BouncePages(bounce)), _) => (bounce, partial.is_none()),
            (None, None) => return map(request),
            (None, Some(partial)) => return Err(MapError::PartialPage(partial.phys).into()),
        };
        if is_whole {
            let mapped = map(request);
            if let Ok(range) = mapped {
                bounce.note(range.first_pfn(), Chain::EMPTY);
            }
            return mapped;
        }
        // SAFETY: the caller's promise.
        let (list, pages) = unsafe { bounce.enter(request) }?;
        let mapped =
            Request::new(list.as_slice(), request.access()).map_err(RawMapError::from).and_then(|mut whole| {
                (whole.stream, whole.lifetime) = (request.stream, request.lifetime);
                map(&whole)
            });
        match mapped {
            Ok(range) => bounce.note(range.first_pfn(), pages),
            Err(RawMapError::Refused(_)) => bounce.abandon(pages),
            // The device may reach them: they are lost, and the memory behind them is as it was.
            Err(RawMapError::Lost(_)) => drop(pages),
        }
        mapped
    }

    /// Unmaps the mapping at exactly `range`, whether it has bounce pages or not.
    #[cold]
    #[inline(never)]
    pub(super) fn unmap_bounced(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut revocation = Revocation::new();
        self.unmap_into(range, &mut revocation)?;
        Ok(self.commit(&mut revocation)?)
    }

    /// The bounce pages of a mapping that was unmapped go with that to its commit. Until then no other has its addresses.
    #[cold]
    #[inline(never)]
    pub(super) fn take_bounced(&self, range: IovaRange, out: &mut Revocation) {
        if let Some(BouncePages(bounce)) = self.mapper.bounce_pages() {
            bounce.take(range.first_pfn(), &mut out.bounced);
        }
    }

    /// Commits unmaps; then what devices have written is copied to where it belongs.
    #[cold]
    #[inline(never)]
    pub(super) fn commit_bounced(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        let committed = self.mapper.commit(revocation);
        let pages = mem::take(&mut revocation.bounced);
        // After an error the pages are lost, for the device may have them still (S11).
        let committed = committed?;
        if let Some(BouncePages(bounce)) = self.mapper.bounce_pages() {
            // SAFETY: that was their commit. The buffers are the driver's again when this call returns, and not before.
            unsafe { bounce.settle(pages) };
        }
        Ok(committed)
    }

    /// Copies bounced parts of the mapping that begins in the page of `iova`.
    ///
    /// # Safety
    /// That of [`sync_for_cpu`](Domain::sync_for_cpu).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn sync_bounced(&self, iova: Iova, whom: Sync) {
        if let Some(BouncePages(bounce)) = self.mapper.bounce_pages() {
            // SAFETY: the caller's promise, passed on.
            unsafe { bounce.sync(iova.pfn(), whom) };
        }
    }

    /// Unmaps a mapping that is none of this domain's, or of one that does not expose.
    #[cold]
    #[inline(never)]
    pub(super) fn unmap_unexposed<B: DmaBuffer>(&self, mapping: Mapping<B>) -> Result<B, UnmapFailure<B>> {
        if mapping.tag() != self.tag {
            return Err(UnmapFailure::Refused(Refused { value: mapping, error: UnmapError::WrongDomain }));
        }
        let (range, access) = (mapping.range(), mapping.access());
        self.unmapped(mapping.into_lent(), range, access, self.unmap_pages(range))
    }
}
