//! Maps of the design `portcullis` that need more than entries to be written, or that find no place where they should.

use super::chunks::Taken;
use super::mapper::Chunked;
use super::page_states;
use super::two_halves::{fits, has_place};
use crate::address::{IovaRange, PAGE_SHIFT};
use crate::error::{MapError, RawMapError};
use crate::iommu::Iommu;
use crate::iova::IovaRequest;
use crate::mapper::AssembledMapper;
use crate::platform::{Phase, Platform, Step};
use crate::request::Request;

impl<P: Platform, I: Iommu> Chunked<P, I> {
    /// Maps a request that needs more than its entries to be written.
    #[inline(never)]
    pub(super) fn map_general(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        if self.chunks().is_none() || !fits(request) {
            return self.map_below(request);
        }
        if !has_place(request) {
            return self.map_below_first(request);
        }
        match self.map_in_chunk(request) {
            Ok(None) | Err(RawMapError::Refused(MapError::NoMemory(_))) => self.map_below(request),
            Ok(Some(range)) => Ok(range),
            Err(error) => Err(error),
        }
    }

    /// Maps outside of chunks or, if no address is left there, in what is left of their tables.
    #[inline(never)]
    fn map_below_first(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        match self.map_below(request) {
            Err(exhausted @ RawMapError::Refused(MapError::Exhausted { .. })) => {
                self.map_in_chunk(request)?.ok_or(exhausted)
            }
            mapped => mapped,
        }
    }

    /// Maps outside of chunks.
    #[inline(never)]
    fn map_below(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        self.base.space.platform().probe(Step::Map);
        // SAFETY: the promise of a map, from which all of this is called.
        let map = || unsafe { self.base.map_by_allocator(request) };
        match map() {
            Err(RawMapError::Refused(MapError::Exhausted { .. })) if self.lend() => map(),
            mapped => mapped,
        }
    }

    /// Gives the allocator below all tables in which nothing is mapped. Returns whether there were any.
    #[cold]
    #[inline(never)]
    pub(super) fn lend(&self) -> bool {
        let AssembledMapper { allocator, space, .. } = &self.base;
        space.unless_panicked(|| allocator.lend(space.platform())) == Some(true)
    }

    /// Makes a mapping for each page of a segment, side by side in a chunk.
    #[cold]
    #[inline(never)]
    pub(super) fn map_run_in_chunk(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let space = &self.base.space;
        let platform = space.platform();
        space.refuse_if_poisoned()?;
        space.check_physical(request.segments())?;
        if self.chunks().is_none() || !fits(request) {
            return Err(MapError::NotApart.into());
        }
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let taken = space.poison_on_panic(|| self.chunks().take(platform, &IovaRequest::of(request), &self.base))?;
        // Chunks have the upper half of the domain.
        let width = self.chunks().table_pfn(0).ilog2() + 1 + PAGE_SHIFT;
        let exhausted = MapError::Exhausted { pages: request.pages(), limit_bits: width as u8 };
        let Taken { range, entries } = taken.ok_or(exhausted)?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::ChunkMap);
        platform.probe(Step::Enter(Phase::Table));
        page_states::write_run(space.walker(), entries, request.phys(), request.access().rights());
        if let Err(error) = space.sync_map(range) {
            // As for one mapping: all are cleared and never spent (S11).
            for (entry, pfn) in entries.chunks(1).zip(range.first_pfn()..) {
                let cleared = page_states::clear(platform, entry, IovaRange::of(pfn, 1));
                let _ = cleared.map(|cleared| cleared.make_visible(space.walker()));
            }
            return Err(error.into());
        }
        Ok(range)
    }

    /// Makes a mapping in a chunk, and does everything else that the hardware requires. `None` if no chunk is left.
    #[inline(never)]
    fn map_in_chunk(&self, request: &Request<'_>) -> Result<Option<IovaRange>, RawMapError> {
        let space = &self.base.space;
        space.refuse_if_poisoned()?;
        space.check_physical(request.segments())?;
        let Some(Taken { range, entries }) = self.take_and_write(request)? else { return Ok(None) };
        if let Err(error) = space.sync_map(range) {
            // The mapping is cleared and never spent: its pages are quarantined (S11).
            let platform = space.platform();
            let _ = page_states::clear(platform, entries, range).map(|cleared| cleared.make_visible(space.walker()));
            return Err(error.into());
        }
        Ok(Some(range))
    }
}
