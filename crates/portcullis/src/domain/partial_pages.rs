//! Maps and unmaps in domains that refuse or bounce partial pages.

use super::mapping::Tag;
use super::{DmaBuffer, Domain, Mapping, Refused, UnmapFailure};
use crate::address::{Iova, IovaRange, PAGE_SIZE, PhysAddr, Segment};
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::{Departure, One, Revocation, Runs, WhenFull};
use crate::mapper::{Addressing, Mapper};
use crate::placement::Placement;
use crate::proof::Committed;
use crate::request::Request;
use crate::safety::Protection;
use crate::sub_page::{BouncePages, Chain, SeenSegments, SubPage, Sync, is_partial};
use core::mem;

/// Which requests take the short way, straight to the mapper: buffers that lie in one page. The fields are
/// precomputed, so that the fast paths need few instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortWay {
    /// A buffer of the raw interface must lie within this many bytes from the start of its page: the size of a page,
    /// or 0 if none may take the short way.
    raw: u64,
    /// 0 if the typed interface may map this way; all ones otherwise.
    typed: u64,
    /// The bits of a physical address that the address for the device shares.
    offset: u64,
    /// The tag of mappings that may be unmapped this way.
    pub(super) tag: Tag,
}

impl ShortWay {
    pub(super) fn of(protection: Protection, sub_page: SubPage, addressing: Addressing, tag: Tag) -> Self {
        let exposes = sub_page == SubPage::Expose;
        // A typed mapping holds its whole range. The range of an entry can be more than one page, so it cannot go
        // this way.
        let is_typed = exposes && addressing.opens_pages();
        Self {
            raw: if exposes { PAGE_SIZE } else { 0 },
            typed: if is_typed && protection == Protection::Strict { 0 } else { u64::MAX },
            offset: if addressing.opens_pages() { PAGE_SIZE - 1 } else { 0 },
            tag: if is_typed { tag } else { Tag::NO_DOMAIN },
        }
    }

    /// How far after the start of its mapping a device sees the byte at `phys`, the first byte of a buffer: its offset
    /// within its page, or 0 if the address is that of an entry.
    #[inline(always)]
    pub(super) const fn offset_of(self, phys: PhysAddr) -> u64 {
        phys.as_u64() & self.offset
    }

    /// Whether `len` bytes that begin at `offset` in a page lie within the page and may take the short way. False if
    /// `len` is 0.
    #[inline(always)]
    pub(super) const fn takes_raw(self, offset: u64, len: u64) -> bool {
        // `raw` is 0 or a power of two, so one comparison of the OR checks both values. A length of 0 wraps, and
        // fails.
        let last = len.wrapping_sub(1);
        last | offset.wrapping_add(last) < self.raw
    }

    /// Whether such a buffer may be mapped the short way through the typed interface. The expression is the one that
    /// takes the fewest instructions there.
    #[inline(always)]
    pub(super) const fn takes_typed(self, offset: u64, len: u64) -> bool {
        // `offset ^ (PAGE_SIZE - 1)` is `PAGE_SIZE - 1 - offset`. A length of 0 wraps, and fails.
        len.wrapping_sub(1) | self.typed <= offset ^ (PAGE_SIZE - 1)
    }
}

impl<M: Mapper + ?Sized> Domain<M> {
    /// Maps `request`. If the domain bounces and the request has partial pages, bounce pages take their place:
    /// `request` then names the segments that the device is to see, which are stored in `seen`.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    // Inlined because its callers do nothing else: otherwise its stack frame would add to theirs.
    #[inline(always)]
    pub(super) unsafe fn map_unexposed<'s>(
        &self,
        request: &mut Request<'s>,
        seen: &'s mut SeenSegments,
        placement: Option<&Placement>,
    ) -> Result<IovaRange, RawMapError> {
        let mut pages = Chain::EMPTY;
        let partial = request.segments().iter().find(|segment| is_partial(segment));
        let bounce = match (self.mapper.space().bounce_pages(), partial) {
            (None, Some(partial)) => return Err(MapError::PartialPage(partial.phys).into()),
            (bounce, _) => bounce.map(|BouncePages(bounce)| bounce),
        };
        if let Some(bounce) = bounce.filter(|_| partial.is_some()) {
            // SAFETY: the caller's promise, passed on.
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
                // The device may reach the bounce pages, so they are lost. The buffer's own memory is untouched.
                Err(RawMapError::Lost(_)) => drop(pages),
            }
        }
        mapped
    }

    /// Unmaps the mapping at exactly `range`, whether it has bounce pages or not.
    #[cold]
    #[inline(never)]
    pub(super) fn unmap_bounced(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.unmap_bounced_of(&[], range)
    }

    /// Unmaps as `unmap_bounced` does, for a lent buffer that consists of the segments `buffer`.
    #[inline(always)]
    fn unmap_bounced_of(&self, buffer: &[Segment], range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut one = Revocation::one();
        self.unmap_apart_into(range, &mut one)?;
        let is_its_own = self.take_bounced_of(buffer, range, &mut one.bounced);
        let committed = self.mapper.commit_one(&mut one)?;
        // The unmap has been made and committed, even if it was that of another mapping.
        self.settle(one.bounced)?;
        if is_its_own { Ok(committed) } else { Err(UnmapError::NotMapped(range.start()).into()) }
    }

    /// Unmaps without a commit, in a stack frame that is gone when the commit comes.
    #[inline(never)]
    fn unmap_apart_into(&self, range: IovaRange, one: &mut One) -> Result<(), UnmapError> {
        self.mapper.unmap(range, one)
    }

    /// Moves the bounce pages of an unmapped mapping into `out`, which holds them until the commit. Until then no
    /// other mapping gets their addresses. Returns a part of the buffer that they stand for.
    #[cold]
    #[inline(never)]
    pub(super) fn take_bounced(&self, range: IovaRange, out: &mut Chain) -> Option<Segment> {
        let BouncePages(bounce) = self.mapper.space().bounce_pages()?;
        bounce.take(range.first_pfn(), out)
    }

    /// Takes the bounce pages as `take_bounced` does, for a lent buffer that consists of the segments `buffer`. Returns
    /// whether they stand for a part of it. If they do not, the raw interface has unmapped the buffer early. A copy to
    /// it may then still be under way, so it never goes back to its owner.
    #[cold]
    #[inline(never)]
    pub(super) fn take_bounced_of(&self, buffer: &[Segment], range: IovaRange, out: &mut Chain) -> bool {
        are_of(buffer, self.take_bounced(range, out))
    }

    /// Commits unmaps, then copies what devices have written to the buffers.
    #[cold]
    #[inline(never)]
    pub(super) fn commit_bounced(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        let committed = self.mapper.commit(revocation);
        self.settle_after(revocation, committed)
    }

    /// Submits a batch. Its bounce pages are copied when it is taken back.
    #[cold]
    #[inline(never)]
    pub(super) fn submit_bounced(&self, revocation: &mut Runs, when_full: WhenFull) -> Result<Departure, CommitError> {
        match self.mapper.submit(revocation, when_full) {
            Ok(Departure::Over(committed)) => self.settle_after(revocation, Ok(committed)).map(Departure::Over),
            Err(error) => self.settle_after(revocation, Err(error)).map(Departure::Over),
            Ok(departure) => Ok(departure),
        }
    }

    /// What is left of a batch that was looked at or waited for.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_if_over(
        &self,
        revocation: &mut Runs,
        taken: Result<Option<Committed>, CommitError>,
    ) -> Result<Option<Committed>, CommitError> {
        match taken.transpose() {
            Some(committed) => self.settle_after(revocation, committed).map(Some),
            None => Ok(None),
        }
    }

    /// Copies what devices have written to the buffers of a batch, if that is committed.
    fn settle_after(
        &self,
        revocation: &mut Runs,
        committed: Result<Committed, CommitError>,
    ) -> Result<Committed, CommitError> {
        let pages = mem::take(&mut revocation.bounced);
        // After an error the bounce pages are lost, because the device may still reach them (S11).
        let committed = committed?;
        self.settle(pages)?;
        Ok(committed)
    }

    /// Copies what devices have written to the buffers. The unmaps of the bounce pages must be committed.
    fn settle(&self, pages: Chain) -> Result<(), CommitError> {
        if let Some(BouncePages(bounce)) = self.mapper.space().bounce_pages() {
            // SAFETY: the unmaps are committed. The buffers belong to the driver again only when the caller's call
            // returns.
            unsafe { bounce.settle(pages) }?;
        }
        Ok(())
    }

    /// Makes what the device has written so far visible to the CPU, for a raw mapping that stays mapped. The mapping
    /// begins in the page of `iova`.
    ///
    /// This does work only in a domain that [bounces](SubPage::Bounce): it copies the partial pages. The host is
    /// responsible for CPU caches that devices do not snoop, here and in [`sync_for_device`](Domain::sync_for_device).
    ///
    /// # Safety
    /// The mapping belongs to the caller and stays mapped during the call. Nothing else uses the buffer during the
    /// call.
    pub unsafe fn sync_for_cpu(&self, iova: Iova) {
        if self.sub_page == SubPage::Bounce {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.sync_bounced(iova, Sync::ForCpu) };
        }
    }

    /// Makes what the CPU has written so far visible to the device, for a raw mapping that stays mapped.
    ///
    /// # Safety
    /// That of [`sync_for_cpu`](Domain::sync_for_cpu).
    pub unsafe fn sync_for_device(&self, iova: Iova) {
        if self.sub_page == SubPage::Bounce {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.sync_bounced(iova, Sync::ForDevice) };
        }
    }

    /// Copies the bounced parts of the mapping that begins in the page of `iova`.
    ///
    /// # Safety
    /// That of [`sync_for_cpu`](Domain::sync_for_cpu).
    #[cold]
    #[inline(never)]
    unsafe fn sync_bounced(&self, iova: Iova, whom: Sync) {
        if let Some(BouncePages(bounce)) = self.mapper.space().bounce_pages() {
            // SAFETY: the caller's promise, passed on.
            unsafe { bounce.sync(iova.pfn(), whom) };
        }
    }

    /// Unmaps a mapping that does not take the short way: it belongs to another domain, or the domain does not expose
    /// pages.
    #[cold]
    #[inline(never)]
    pub(super) fn unmap_unexposed<B: DmaBuffer>(&self, mapping: Mapping<B>) -> Result<B, UnmapFailure<B>> {
        if mapping.tag() != self.tag {
            return Err(UnmapFailure::Refused(Refused { value: mapping, error: UnmapError::WrongDomain }));
        }
        // Each call is a tail call, so its frame replaces this one.
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

/// Whether the bounce pages that were taken are those of the lent buffer, which consists of the segments `buffer`.
/// `taken` is a part of the buffer that the bounce pages stand for.
fn are_of(buffer: &[Segment], taken: Option<Segment>) -> bool {
    let is_part_of = |of: &Segment, part: Segment| {
        part.phys.as_u64().checked_sub(of.phys.as_u64()).is_some_and(|before| before < of.len)
    };
    let is_its_own = taken.is_some_and(|part| buffer.iter().any(|segment| is_part_of(segment, part)));
    is_its_own || !buffer.iter().any(is_partial)
}
