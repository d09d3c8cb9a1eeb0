//! Picks one of the interfaces of a domain for each map of a script: the one that a driver with such buffers would use.
//! In this way the checker takes the paths that the benchmarks time.

use super::Checker;
use super::operation::Buffer;
use crate::raw_face::{RawFace, is_by_request};
use portcullis::domain::{DmaBuffer, MapFailure, Refused, UnmapFailure};
use portcullis::mapper::Mapper;
use portcullis::{CommitError, Iova, IovaRange, PAGE_SHIFT, Protection, RawMapError, RawUnmapError, Request, Segment};

/// A buffer that its mapping owns.
#[derive(Debug)]
pub(super) struct Owned(Vec<Segment>);

// SAFETY: no memory is at its segments: only the fake IOMMU uses them. They never change.
unsafe impl DmaBuffer for Owned {
    fn segments(&self) -> &[Segment] {
        &self.0
    }
}

impl<M: Mapper + ?Sized> Checker<'_, M> {
    /// Maps `buffer`: half of the buffers through the typed interface, if the domain has one, and others of one segment
    /// through the raw interface, half of these at once where that is possible.
    pub(super) fn map_by_face(&mut self, buffer: &Buffer, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let Buffer { segments, access } = buffer;
        let is_typed = segments[0].phys.pfn() % 2 == 1;
        if self.bench.protection == Protection::Strict && is_typed {
            return match self.domain.map(Owned(segments.clone()), *access) {
                Ok(mapping) => {
                    let range = mapping.range();
                    self.owned.push(mapping);
                    Ok(range)
                }
                Err(MapFailure::Refused(refused)) => {
                    assert_eq!(refused.value.0, *segments, "the buffer is back");
                    Err(refused.error.into())
                }
                Err(MapFailure::Lost(error)) => Err(error.into()),
            };
        }
        match segments[..] {
            [Segment { phys, len }] if !is_by_request(phys) => {
                // SAFETY: no memory is behind the IOMMU of a test.
                let iova = unsafe { self.domain.map_raw(phys, len, *access) }?;
                Ok(self.info.addressing.whole(IovaRange::covering(iova, len).expect("what was mapped")))
            }
            _ => self.domain.raw_map_or_lose(request),
        }
    }

    /// Maps buffers of one segment each in one batch, through either interface, chosen likewise. Returns the pages of
    /// the buffers that were mapped, and the result of the next one.
    pub(super) fn map_batch_by_face(&mut self, buffers: &[Buffer]) -> (Vec<IovaRange>, Result<(), RawMapError>) {
        let (first, mut ranges) = (&buffers[0], Vec::new());
        if self.bench.protection == Protection::Strict && first.segments[0].phys.pfn() % 2 == 1 {
            let all = buffers.iter().map(|buffer| Owned(buffer.segments.clone()));
            let mapped = self.domain.map_batch(all, first.access, |mapping| {
                ranges.push(mapping.range());
                self.owned.push(mapping);
            });
            let mapped = mapped.map_err(|Refused { value, error }| {
                let next = ranges.len() + usize::from(matches!(error, RawMapError::Lost(_)));
                let taken = buffers[next..].iter().map(|buffer| &buffer.segments).take(value.len());
                assert!(value.iter().map(|owned| &owned.0).eq(taken), "the buffers that were taken are back");
                error
            });
            return (ranges, mapped);
        }
        let segments: Vec<Segment> = buffers.iter().map(|buffer| buffer.segments[0]).collect();
        let mut iovas = Vec::new();
        // SAFETY: the IOMMU of a test has no memory behind it.
        let mapped = unsafe { self.domain.map_raw_batch(&segments, first.access, |iova| iovas.push(iova)) };
        let range = |(iova, segment): (Iova, &Segment)| {
            self.info.addressing.whole(IovaRange::covering(iova, segment.len).expect("the mapping just made"))
        };
        (iovas.into_iter().zip(&segments).map(range).collect(), mapped)
    }

    /// Unmaps `range` by itself, through the interface that mapped it. The outer error is the refusal.
    pub(super) fn unmap_by_face(&mut self, range: IovaRange) -> Result<Result<(), CommitError>, RawUnmapError> {
        let owned = self.owned.iter().position(|mapping| mapping.range() == range);
        let unmapped = match owned.map(|which| self.owned.swap_remove(which)) {
            Some(mapping) => match self.domain.unmap(mapping) {
                Ok(Owned(_)) => Ok(()),
                Err(UnmapFailure::Commit(error)) => Err(error.into()),
                Err(UnmapFailure::Refused(refused)) => {
                    self.owned.push(refused.value);
                    Err(refused.error.into())
                }
            },
            None => self.domain.unmap_raw(range.start(), range.pages() << PAGE_SHIFT),
        };
        match unmapped {
            Ok(()) => Ok(Ok(())),
            Err(RawUnmapError::Commit(error)) => Ok(Err(error)),
            refused => refused.map(Ok),
        }
    }

    /// Forgets the owner of `range`, which is unmapped by its address instead: the raw interface allows any caller to
    /// do that. Its buffer can then never be returned.
    pub(super) fn disown(&mut self, range: IovaRange) {
        if let Some(which) = self.owned.iter().position(|mapping| mapping.range() == range) {
            std::mem::forget(self.owned.swap_remove(which));
        }
    }
}
