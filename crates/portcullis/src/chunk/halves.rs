//! The allocators of the two halves of the addresses, as one.

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

/// The allocators of the two halves. Only that of the lower half is asked for addresses: [`Chunked`] takes those of the upper by
/// itself, and writes their entries at once. Addresses of both come back here, but for those that an unmap of one command spends.
pub(super) struct Halves<P: Platform> {
    pub(super) chunks: Chunks<P>,
    pub(super) below: MagazineAllocator<P>,
}

impl<P: Platform> Halves<P> {
    /// Those of a new domain, made in `to`.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`]; nothing is in `to` then.
    #[inline(never)]
    pub(super) fn new_in<I>(to: &mut MaybeUninit<Self>, setup: &DomainSetup<'_, P, I>) -> Result<(), NewDomainError> {
        let at = to.as_mut_ptr();
        // SAFETY: each part of `to` once.
        let (to_chunks, to_below) = unsafe { (part(&raw mut (*at).chunks), part(&raw mut (*at).below)) };
        // SAFETY: it writes them.
        let chunks = unsafe { Made::by(to_chunks, |to| Self::make_chunks(to, setup)) }?;
        Self::make_below(to_below, setup, setup.width - u8::from(!chunks.get().is_none()))?;
        chunks.keep();
        // Every field: with another in the halves this does not compile.
        let _ = |Self { chunks: _, below: _ }: &Self| {};
        Ok(())
    }

    // Each with a frame of its own.
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

    /// The chunks, where `range` lies in their half.
    #[inline(always)]
    pub(super) fn chunks_of(&self, range: IovaRange) -> Option<&Chunks<P>> {
        self.chunks.contains(range).then_some(&self.chunks)
    }
}

// SAFETY: what it hands out is handed out by an allocator that keeps the promises, below the half of the chunks.
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
            // The pages of the upper half are in chunks, which hand them out in their order.
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

/// Whether a request may have its place in a chunk.
#[inline(always)]
pub(super) fn has_place(request: &Request<'_>) -> bool {
    request.pages() <= CHUNKED_PAGES_MAX && request.lifetime == Lifetime::Transient
}
