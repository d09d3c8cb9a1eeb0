//! The allocators of the two halves of the address space, as one allocator.

use super::chunks::{CHUNKED_PAGES_MAX, Chunks};
use crate::address::IovaRange;
use crate::design::DomainSetup;
use crate::error::{MapError, NewDomainError, UnmapError};
use crate::in_place::{Made, part};
use crate::iova::{Claim, IovaAllocator, IovaRequest, Kept, MagazineAllocator, never_handed_out};
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
    #[inline(never)]
    pub(super) fn new_in<I>(to: &mut MaybeUninit<Self>, setup: &DomainSetup<'_, P, I>) -> Result<(), NewDomainError> {
        let at = to.as_mut_ptr();
        // SAFETY: each part of `to` is used once.
        let (to_chunks, to_below) = unsafe { (part(&raw mut (*at).chunks), part(&raw mut (*at).below)) };
        // SAFETY: `make_chunks` initializes it if it returns no error.
        let chunks = unsafe { Made::by(to_chunks, |to| Self::make_chunks(to, setup)) }?;
        Self::make_below(to_below, setup, setup.width - u8::from(!chunks.get().is_none()))?;
        chunks.keep();
        // Names every field: if `Halves` gets another one, this does not compile.
        let _ = |Self { chunks: _, below: _ }: &Self| {};
        Ok(())
    }

    // Two functions, so that each has a stack frame of its own.
    #[inline(never)]
    fn make_chunks<I>(to: &mut MaybeUninit<Chunks<P>>, setup: &DomainSetup<'_, P, I>) -> Result<(), NewDomainError> {
        to.write(Chunks::new(&setup.platform, setup.width, &never_handed_out(&setup.platform, setup.reserved)?)?);
        Ok(())
    }

    #[inline(never)]
    fn make_below<I>(
        to: &mut MaybeUninit<MagazineAllocator<P>>,
        setup: &DomainSetup<'_, P, I>,
        width: u8,
    ) -> Result<(), NewDomainError> {
        to.write(MagazineAllocator::new(&setup.platform, width, setup.reserved)?);
        Ok(())
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

    fn kept(&self) -> Kept {
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
