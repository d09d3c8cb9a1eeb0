//! The allocators of the two halves of the address space, as one allocator.

use super::chunks::{CHUNKED_PAGES_MAX, Chunks};
use crate::address::IovaRange;
use crate::design::DomainSetup;
use crate::error::{MapError, NewDomainError, UnmapError};
use crate::in_place::in_place;
use crate::iova::{CachedRanges, Claim, IovaAllocator, IovaRequest, MagazineAllocator, never_handed_out};
use crate::placement::Placement;
use crate::platform::Platform;
use crate::proof::Proof;
use crate::request::{Lifetime, Request};
use core::mem::MaybeUninit;

/// The allocators of the two halves. Only the one of the lower half allocates addresses here. [`Chunked`] takes those
/// of the upper half itself, and writes their entries at once. Addresses of both halves are freed here, except those
/// that an unmap by one command spends itself.
pub(super) struct Halves<P: Platform> {
    pub(super) chunks: Chunks<P>,
    pub(super) below: MagazineAllocator<P>,
}

impl<P: Platform> Halves<P> {
    /// Makes the allocators of a new domain in `to`.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`]; `to` is uninitialized then.
    pub(super) fn new_in<'t, I>(
        to: &'t mut MaybeUninit<Self>,
        setup: &DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self, NewDomainError> {
        let &DomainSetup { ref platform, width, reserved, .. } = setup;
        Ok(in_place!(to => Self {
            chunks <- |to| {
                Chunks::new_in(to, platform, width, &never_handed_out(platform, reserved)?)
            },
            below <- |to| {
                let width = width - u8::from(!chunks.is_none());
                Ok(to.write(MagazineAllocator::new(platform, width, reserved)?))
            },
        }))
    }

    /// The chunks, if `range` lies in their half.
    #[inline(always)]
    pub(super) fn chunks_of(&self, range: IovaRange) -> Option<&Chunks<P>> {
        self.chunks.contains(range).then_some(&self.chunks)
    }
}

// SAFETY: `below` allocates all addresses, below the half of the chunks, and keeps the promises.
unsafe impl<P: Platform> IovaAllocator<P> for Halves<P> {
    const TABLE_CLAIM_PAGES_MAX: u64 = MagazineAllocator::<P>::TABLE_CLAIM_PAGES_MAX;

    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        self.below.allocate(platform, request)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        self.below.claim(platform, range)
    }

    #[inline(always)]
    fn free(&self, platform: &P, range: IovaRange, proof: &Proof) {
        match self.chunks_of(range) {
            Some(chunks) => chunks.spend(platform, range, proof),
            None => self.below.free(platform, range, proof),
        }
    }

    fn live_around(&self, platform: &P, pfn: u64) -> Option<IovaRange> {
        self.below.live_around(platform, pfn)
    }

    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        match placement.at() {
            // The pages of the upper half belong to chunks, which hand them out in order.
            Some(range) if self.chunks.reaches(range) => Err(MapError::Unplaceable),
            _ => self.below.set_aside(platform, pages, placement),
        }
    }

    fn put_back(&self, platform: &P, range: IovaRange, proof: &Proof) {
        self.below.put_back(platform, range, proof);
    }

    fn live(&self) -> usize {
        self.below.live() + self.chunks.live()
    }

    fn kept(&self) -> CachedRanges {
        self.below.kept()
    }

    fn record_bytes(&self) -> usize {
        self.chunks.record_bytes()
    }

    fn tick(&self, platform: &P) {
        self.below.tick(platform);
    }

    fn due_us(&self) -> Option<u64> {
        self.below.due_us()
    }
}

/// Whether a chunk may serve the request.
#[inline(always)]
pub(super) fn has_place(request: &Request<'_>) -> bool {
    request.pages() <= CHUNKED_PAGES_MAX && request.lifetime == Lifetime::Transient
}
