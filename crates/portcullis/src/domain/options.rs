//! Mappings as their options say: where they are, and whether their pages are unmapped one by one.

use super::Domain;
use crate::address::{IovaRange, PAGE_SIZE, PhysAddr, Segment};
use crate::design::{Addressing, Mapper};
use crate::error::{MapError, RawMapError, RawUnmapError, SyncError};
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
        if options.apart {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.map_in_pieces(segments, access, options) };
        }
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
        let request = Request::new(segments, access)?;
        let &[segment] = segments else { return Err(MapError::NotContiguous.into()) };
        // The pages of a mapping that the design tells apart by entries, or by their memory alone, are not its own.
        if matches!(self.info.addressing, Addressing::Entries { .. }) {
            return Err(MapError::NotApart.into());
        }
        if self.sub_page != SubPage::Expose
            && let Some(part) = pieces(segment).find(is_partial)
        {
            return Err(MapError::PartialPage(part.phys).into());
        }
        match options.placement(&request, None, self.last)? {
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.mapper.map_run(segment, access, options.stream) },
            Some(placement) => {
                let at = placement.at().ok_or(MapError::Unplaceable)?;
                // SAFETY: as above.
                unsafe { self.map_pieces_at(segment, access, options, at) }
            }
        }
    }

    /// Maps the pages of a segment at `at`. If one is refused, those before it are unmapped again.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    unsafe fn map_pieces_at(
        &self,
        segment: Segment,
        access: Access,
        options: &MapOptions,
        at: IovaRange,
    ) -> Result<IovaRange, RawMapError> {
        let page = |number: u64| IovaRange::of(at.first_pfn() + number, 1);
        for (number, piece) in (0..).zip(pieces(segment)) {
            let pieces = [piece];
            let mut request = Request::in_a_page(&pieces, access);
            (request.stream, request.lifetime) = (options.stream, options.lifetime);
            // SAFETY: the caller's promise, passed on.
            if let Err(error) = unsafe { self.mapper.map_placed(&request, &Placement::exactly(page(number))) } {
                for made in (0..number).map(page) {
                    // Whatever the protection, the unmap of a placed mapping waits for the hardware.
                    if let Err(RawUnmapError::Commit(lost)) = self.mapper.unmap_apart(made) {
                        return Err(RawMapError::Lost(SyncError(lost.0)));
                    }
                }
                return Err(error);
            }
        }
        Ok(at)
    }
}

/// The parts of a segment that lie within one page each.
fn pieces(segment: Segment) -> impl Iterator<Item = Segment> {
    let (mut phys, end) = (segment.phys.as_u64(), segment.phys.as_u64().saturating_add(segment.len));
    core::iter::from_fn(move || {
        let next = (phys | (PAGE_SIZE - 1)).saturating_add(1).min(end);
        let piece = Segment { phys: PhysAddr::new(phys), len: next - phys };
        phys = next;
        (piece.len > 0).then_some(piece)
    })
}
