//! Mappings as their options say: where they are, and whether their pages are unmapped one by one.

use super::Domain;
use crate::address::{IovaRange, Segment};
use crate::design::{Addressing, Mapper};
use crate::error::{MapError, RawMapError, RawUnmapError, SyncError};
use crate::iommu::QueueError;
use crate::placement::{MapOptions, Placement};
use crate::request::{Access, Request};
use crate::sub_page::{SeenSegments, SubPage, is_partial};

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
    /// Each part is called from here, where the stack is shallow: an unmap takes much of it.
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
        let (segment, at) = self.check_pieces(segments, access, options)?;
        let Some(at) = at else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.mapper.map_run(segment, access, options.stream) };
        };
        let mut made = 0;
        // SAFETY: as above.
        match unsafe { self.mapper.map_run_at(segment, access, options.lifetime, at.first_pfn(), &mut made) } {
            Ok(()) => Ok(at),
            Err(error) if made > 0 => Err(self.undo_pieces(at.first_pfn(), made, error)),
            Err(error) => Err(error),
        }
    }

    /// The one segment of a request, and the pages that it is to have, if it must have particular ones.
    #[inline(never)]
    fn check_pieces(
        &self,
        segments: &[Segment],
        access: Access,
        options: &MapOptions,
    ) -> Result<(Segment, Option<IovaRange>), MapError> {
        let request = Request::new(segments, access)?;
        let &[segment] = segments else { return Err(MapError::NotContiguous) };
        // Entries are not pages: a piece has no entry of its own.
        if matches!(self.info.addressing, Addressing::Entries { .. }) {
            return Err(MapError::NotApart);
        }
        if self.sub_page != SubPage::Expose
            && let Some(part) = segment.in_pages().find(is_partial)
        {
            return Err(MapError::PartialPage(part.phys));
        }
        match options.placement(&request, None, self.last)? {
            Some(placement) => Ok((segment, Some(placement.at().ok_or(MapError::Unplaceable)?))),
            None => Ok((segment, None)),
        }
    }

    /// Unmaps the first `made` pieces from `first` on, after the next one was refused. Whatever the protection, the
    /// unmap of a placed mapping waits for the hardware. If one is not known to be gone, the memory is lost (S11).
    #[cold]
    #[inline(never)]
    fn undo_pieces(&self, first: u64, made: u64, mut error: RawMapError) -> RawMapError {
        for pfn in first..first + made {
            error = match self.mapper.unmap_apart(IovaRange::of(pfn, 1)) {
                Ok(_) => error,
                Err(RawUnmapError::Commit(lost)) => RawMapError::Lost(SyncError(lost.0)),
                // It may still be mapped: the domain is poisoned, or another caller has taken the piece.
                Err(RawUnmapError::Refused(_)) => RawMapError::Lost(SyncError(QueueError::Unproven)),
            };
        }
        error
    }
}
