//! Maps and unmaps in domains that do not open whole pages for the parts of them that buffers have.

use super::mapping::Tag;
use super::{DmaBuffer, Domain, Mapping, Refused, UnmapFailure};
use crate::address::{Iova, IovaRange, PAGE_SIZE, PhysAddr, Segment};
use crate::design::{Addressing, Design, Mapper};
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::Revocation;
use crate::iommu::Iommu;
use crate::placement::Placement;
use crate::platform::Platform;
use crate::proof::Committed;
use crate::request::Request;
use crate::safety::Protection;
use crate::sub_page::{BouncePages, Chain, SeenSegments, SubPage, Sync, is_partial};
use core::mem;

/// What goes the short way: a page or a part of one, straight to the mapper. The fields stand for questions of the fast paths that
/// would take instructions of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortWay {
    /// In how many bytes from the first of its page on a buffer of the raw face has to lie: those of the page, or none.
    raw: u64,
    /// Zero where the typed face may map so; all ones elsewhere.
    typed: u64,
    /// The bits of a physical address that are also those of the address for devices.
    offset: u64,
    /// The tag of mappings that may be unmapped so.
    pub(super) tag: Tag,
}

impl ShortWay {
    pub(super) fn of(protection: Protection, sub_page: SubPage, addressing: Addressing, tag: Tag) -> Self {
        let exposes = sub_page == SubPage::Expose;
        // A typed mapping knows all of its addresses. Where they are those of an entry, they are more than a page.
        let is_typed = exposes && addressing.opens_pages();
        Self {
            raw: if exposes { PAGE_SIZE } else { 0 },
            typed: if is_typed && protection == Protection::Strict { 0 } else { u64::MAX },
            offset: if addressing.opens_pages() { PAGE_SIZE - 1 } else { 0 },
            tag: if is_typed { tag } else { Tag::NO_DOMAIN },
        }
    }

    /// How far behind the first address of its mapping a device sees the byte at `phys`, the first of a buffer: as far as that is in
    /// its page, unless the address is that of an entry.
    #[inline(always)]
    pub(super) const fn offset_of(self, phys: PhysAddr) -> u64 {
        phys.as_u64() & self.offset
    }

    /// Whether `len` bytes that begin at `offset` in a page lie in it, and may go the short way. No bytes may not.
    #[inline(always)]
    pub(super) const fn takes_raw(self, offset: u64, len: u64) -> bool {
        // The bound is 0 or a power of two, so both are asked for. A length of 0 wraps, and is beyond it.
        let last = len.wrapping_sub(1);
        last | offset.wrapping_add(last) < self.raw
    }

    /// The same, to map by the typed face. It is put as takes that face the fewest instructions.
    #[inline(always)]
    pub(super) const fn takes_typed(self, offset: u64, len: u64) -> bool {
        // `offset ^ (PAGE_SIZE - 1)` is `PAGE_SIZE - 1 - offset`. A length of 0 wraps, and fails.
        len.wrapping_sub(1) | self.typed <= offset ^ (PAGE_SIZE - 1)
    }
}

impl<D: Design<P, I>, P: Platform, I: Iommu> Domain<D, P, I> {
    /// The mapping of `request`, with bounce pages for parts of pages where the domain has such: then it asks for what the device is to see,
    /// which is in `seen`.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    // In line, for its callers are there for nothing else: a frame of its own would lie below theirs.
    #[inline(always)]
    pub(super) unsafe fn map_unexposed<'s>(
        &self,
        request: &mut Request<'s>,
        seen: &'s mut SeenSegments,
        placement: Option<&Placement>,
    ) -> Result<IovaRange, RawMapError> {
        let mut pages = Chain::EMPTY;
        let partial = request.segments().iter().find(|segment| is_partial(segment));
        let bounce = match (self.mapper.bounce_pages(), partial) {
            (None, Some(partial)) => return Err(MapError::PartialPage(partial.phys).into()),
            (bounce, _) => bounce.map(|BouncePages(bounce)| bounce),
        };
        if let Some(bounce) = bounce.filter(|_| partial.is_some()) {
            // SAFETY: the caller's promise.
            pages = unsafe { bounce.enter(request, seen) }?;
            if let Err(error) = request.set_segments(seen.as_slice()) {
                bounce.abandon(pages);
                return Err(error.into());
            }
        }
        // SAFETY: the caller's promise, passed on.
        let mapped = unsafe { self.map_at(request, placement) };
        if let Some(bounce) = bounce {
            match mapped {
                Ok(range) => bounce.note(range.first_pfn(), pages),
                Err(RawMapError::Refused(_)) => bounce.abandon(pages),
                // The device may reach them: they are lost, and the memory behind them is as it was.
                Err(RawMapError::Lost(_)) => drop(pages),
            }
        }
        mapped
    }

    /// Unmaps the mapping at exactly `range`, whether it has bounce pages or not.
    #[cold]
    #[inline(never)]
    pub(super) fn unmap_bounced(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let (mut pages, mut part) = (Chain::EMPTY, None);
        let committed = self.mapper.unmap_bounced_now(range, &mut pages, &mut part)?;
        self.settle(pages)?;
        Ok(committed)
    }

    /// The same for a buffer that is lent, of these segments.
    #[inline(always)]
    fn unmap_bounced_of(&self, buffer: &[Segment], range: IovaRange) -> Result<Committed, RawUnmapError> {
        let (mut pages, mut part) = (Chain::EMPTY, None);
        let committed = self.mapper.unmap_bounced_now(range, &mut pages, &mut part)?;
        // The unmap was made and committed, also where it was of another mapping.
        self.settle(pages)?;
        refuse_other(buffer, part, range)?;
        Ok(committed)
    }

    /// The bounce pages of a mapping that was unmapped go with that to its commit. Until then no other has its addresses. Returns a
    /// part of the buffer that they stand for.
    #[cold]
    #[inline(never)]
    pub(super) fn take_bounced(&self, range: IovaRange, out: &mut Revocation) -> Option<Segment> {
        let BouncePages(bounce) = self.mapper.bounce_pages()?;
        bounce.take(range.first_pfn(), &mut out.bounced)
    }

    /// The same for a buffer that is lent, whose pages these have to be. Where they are not, the raw face has unmapped it early. A
    /// copy to it may then still be under way, so it never goes back to its owner.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`].
    #[cold]
    #[inline(never)]
    pub(super) fn take_bounced_of(
        &self,
        buffer: &[Segment],
        range: IovaRange,
        out: &mut Revocation,
    ) -> Result<(), UnmapError> {
        refuse_other(buffer, self.take_bounced(range, out), range)
    }

    /// Commits unmaps; then what devices have written is copied to where it belongs.
    #[cold]
    #[inline(never)]
    pub(super) fn commit_bounced(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        let committed = self.mapper.commit(revocation);
        let pages = mem::take(&mut revocation.bounced);
        // After an error the pages are lost, for the device may have them still (S11).
        let committed = committed?;
        self.settle(pages)?;
        Ok(committed)
    }

    /// Copies what devices have written to where it belongs. The unmaps of the pages are committed.
    fn settle(&self, pages: Chain) -> Result<(), CommitError> {
        if let Some(BouncePages(bounce)) = self.mapper.bounce_pages() {
            // SAFETY: after their commit. The buffers are the driver's again when the caller's call returns, and not before.
            unsafe { bounce.settle(pages) }?;
        }
        Ok(())
    }

    /// Shows the CPU what the device has written by now of a mapping that goes on, of the raw face, which begins in the page of `iova`.
    ///
    /// That takes something where the domain [bounces](SubPage::Bounce): parts of pages are copied. Caches of the CPU that devices do not
    /// snoop are the host's affair, here and in [`sync_for_device`](Domain::sync_for_device).
    ///
    /// # Safety
    /// The mapping is the caller's, and stays mapped during the call. Nothing else uses the buffer during the call.
    pub unsafe fn sync_for_cpu(&self, iova: Iova) {
        if self.sub_page == SubPage::Bounce {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.sync_bounced(iova, Sync::ForCpu) };
        }
    }

    /// Shows the device what the CPU has written by now of a buffer whose mapping goes on.
    ///
    /// # Safety
    /// That of [`sync_for_cpu`](Domain::sync_for_cpu).
    pub unsafe fn sync_for_device(&self, iova: Iova) {
        if self.sub_page == SubPage::Bounce {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.sync_bounced(iova, Sync::ForDevice) };
        }
    }

    /// Copies bounced parts of the mapping that begins in the page of `iova`.
    ///
    /// # Safety
    /// That of [`sync_for_cpu`](Domain::sync_for_cpu).
    #[cold]
    #[inline(never)]
    unsafe fn sync_bounced(&self, iova: Iova, whom: Sync) {
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
        // Each of these takes the place of this frame.
        match self.sub_page {
            SubPage::Bounce => self.unmap_lent_bounced(mapping),
            _ => self.unmap_lent(mapping),
        }
    }

    #[inline(never)]
    fn unmap_lent_bounced<B: DmaBuffer>(&self, mapping: Mapping<B>) -> Result<B, UnmapFailure<B>> {
        let (range, access) = (mapping.range(), mapping.access());
        let lent = mapping.into_lent();
        let committed = self.unmap_bounced_of(lent.segments(), range);
        self.unmapped(lent, range, access, committed)
    }

    #[inline(never)]
    fn unmap_lent<B: DmaBuffer>(&self, mapping: Mapping<B>) -> Result<B, UnmapFailure<B>> {
        let (range, access) = (mapping.range(), mapping.access());
        let lent = mapping.into_lent();
        let committed = self.unmap_unbounced(range);
        self.unmapped(lent, range, access, committed)
    }
}

/// Refuses the bounce pages of another mapping than that of a buffer that was lent, of these segments; `taken` is a part of the buffer
/// that they stand for.
///
/// # Errors
/// [`UnmapError::NotMapped`].
fn refuse_other(buffer: &[Segment], taken: Option<Segment>, range: IovaRange) -> Result<(), UnmapError> {
    let is_part_of = |of: &Segment, part: Segment| {
        part.phys.as_u64().checked_sub(of.phys.as_u64()).is_some_and(|before| before < of.len)
    };
    let is_its_own = taken.is_some_and(|part| buffer.iter().any(|segment| is_part_of(segment, part)));
    match buffer.iter().any(is_partial) && !is_its_own {
        true => Err(UnmapError::NotMapped(range.start())),
        false => Ok(()),
    }
}
