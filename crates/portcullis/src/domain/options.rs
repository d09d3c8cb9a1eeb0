//! Mappings as their options say: where they are, and whether their pages are unmapped one by one.

use super::Domain;
use crate::address::{IovaRange, Segment};
use crate::error::{MapError, RawMapError, SyncError};
use crate::invalidation::Revocation;
use crate::iommu::QueueError;
use crate::mapper::{Addressing, Mapper};
use crate::placement::{MapOptions, Placement};
use crate::request::{Access, Request};
use crate::sub_page::{SeenSegments, SubPage, is_partial, part_in_page, pieces};

impl<M: Mapper + ?Sized> Domain<M> {
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(never)]
    pub(super) unsafe fn map_as_said(
        &self,
        segments: &[Segment],
        access: Access,
        options: &MapOptions,
    ) -> Result<IovaRange, RawMapError> {
        let mut seen = SeenSegments::default();
        let mut request = Request::new(segments, access)?;
        (request.stream, request.lifetime) = (options.stream, options.lifetime);
        // Kept by reference: moving it would take the same stack space again.
        let placement = options.placement(&request, self.info.addressing.entry_pages(), self.last);
        let placement = placement.as_ref().map_err(|error| *error)?;
        match self.sub_page {
            // SAFETY: the caller's promise, passed on.
            SubPage::Expose => unsafe { self.map_at(&request, placement.as_ref()) },
            // SAFETY: as above.
            _ => unsafe { self.map_unexposed(&mut request, &mut seen, placement.as_ref()) },
        }
    }

    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(never)]
    pub(super) unsafe fn map_at(
        &self,
        request: &Request<'_>,
        placement: Option<&Placement>,
    ) -> Result<IovaRange, RawMapError> {
        match placement {
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.mapper.map_apart(request) },
            // SAFETY: as above.
            Some(placement) => unsafe { self.mapper.map_placed(request, placement) },
        }
    }

    /// Maps a segment so that each of its pages is a mapping of its own, on neighbouring pages: all of them, or none.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn map_in_pieces(
        &self,
        segments: &[Segment],
        access: Access,
        options: &MapOptions,
    ) -> Result<IovaRange, RawMapError> {
        let first = self.check_pieces(segments, access, options)?;
        let segment = &segments[0];
        let Some(first) = first else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.mapper.map_run(*segment, access, options.stream) };
        };
        for made in 0..segment.pages() {
            // SAFETY: as above.
            if let Err(error) = unsafe { self.map_piece(segment, made, access, options, first) } {
                // If a piece is not known to be gone, the memory is lost (S11).
                let mut lost = None;
                // All are unmapped, also those behind one that is lost.
                for pfn in first..first + made {
                    lost = lost.or(self.undo_piece(pfn).err());
                }
                return Err(lost.map_or(error, RawMapError::Lost));
            }
        }
        Ok(IovaRange::of(first, segment.pages()))
    }

    /// Checks that there is one segment whose pages can be mapped one by one. Returns the first page of the pieces, if
    /// it must be a particular one.
    #[inline(never)]
    fn check_pieces(
        &self,
        segments: &[Segment],
        access: Access,
        options: &MapOptions,
    ) -> Result<Option<u64>, MapError> {
        let request = Request::new(segments, access)?;
        let &[segment] = segments else { return Err(MapError::NotContiguous) };
        // Entries are not pages: a piece has no entry of its own.
        if matches!(self.info.addressing, Addressing::Entries { .. }) {
            return Err(MapError::NotApart);
        }
        if self.sub_page != SubPage::Expose
            && let Some(part) = pieces(segment).find(is_partial)
        {
            return Err(MapError::PartialPage(part.phys));
        }
        let placement = options.placement(&request, None, self.last)?;
        placement.map(|placement| Ok(placement.at().ok_or(MapError::Unplaceable)?.first_pfn())).transpose()
    }

    /// Maps piece `number` of a segment, whose pieces begin at page `first`. By itself, so that its frame does not lie
    /// above that of an undo.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(never)]
    unsafe fn map_piece(
        &self,
        segment: &Segment,
        number: u64,
        access: Access,
        options: &MapOptions,
        first: u64,
    ) -> Result<(), RawMapError> {
        let parts = [part_in_page(segment, number)];
        let mut request = Request::in_a_page(&parts, access);
        request.lifetime = options.lifetime;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.mapper.map_placed(&request, &Placement::exactly(IovaRange::of(first + number, 1))) }.map(drop)
    }

    /// Unmaps the piece at `pfn`. Whatever the protection, the unmap of a placed mapping waits for the hardware. The
    /// unmap and the commit are called from here, because `unmap_apart` needs more stack.
    #[cold]
    #[inline(never)]
    fn undo_piece(&self, pfn: u64) -> Result<(), SyncError> {
        let mut one = Revocation::one();
        // It is refused if the domain is poisoned, or if another caller has taken the piece.
        self.mapper.unmap(IovaRange::of(pfn, 1), &mut one).map_err(|_| SyncError(QueueError::Unproven))?;
        self.mapper.commit_one(&mut one).map_err(|lost| SyncError(lost.0)).map(drop)
    }
}
