//! The allocators of the two halves of the address space, as one allocator.
//!
//! The tree of the allocator below spans the whole space. It prefers the lower half, and chunks lie only in the upper
//! one. Each table of chunks is first taken out of the tree, so an address belongs to one of the two at any time. When
//! the tree is exhausted, it gets back all tables in which nothing is mapped. So each can use what the other leaves.

use super::chunk_source::Ground;
use super::chunks::{CHUNKED_PAGES_MAX, Chunks};
use crate::address::IovaRange;
use crate::error::{MapError, NewDomainError, NoMemory, UnmapError};
use crate::in_place::in_place;
use crate::iommu::Iommu;
use crate::iova::{CachedRanges, Claim, IovaAllocator, IovaRequest, MagazineAllocator, never_handed_out};
use crate::mapper::{AssembledMapper, DomainSetup};
use crate::placement::Placement;
use crate::platform::Platform;
use crate::proof::Proof;
use crate::request::{Lifetime, Request};
use crate::table::{ENTRIES, Frame};
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
                let below = to.write(MagazineAllocator::new(platform, width, reserved)?);
                if !chunks.is_none() {
                    below.prefer(width - 1);
                }
                Ok(below)
            },
        }))
    }

    /// The chunks, if the addresses of `range` are held for them. That does not change while something is mapped there,
    /// or waits for its invalidation.
    pub(super) fn chunks_of(&self, range: IovaRange) -> Option<&Chunks<P>> {
        self.chunks.hold(range).then_some(&self.chunks)
    }

    /// The addresses of table `number`.
    fn table(&self, number: u32) -> IovaRange {
        IovaRange::of(self.chunks.table_pfn(number), ENTRIES as u64)
    }

    /// Holds the addresses of table `number` for chunks. Returns false if some of them are in use below, or kept there.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn hold(&self, platform: &P, number: u32) -> Result<bool, NoMemory> {
        self.below.hold(platform, self.table(number))
    }

    /// In a stack frame of its own.
    #[inline(never)]
    fn free_below(&self, platform: &P, range: IovaRange, proof: &Proof) {
        self.below.free(platform, range, proof);
    }

    /// Gives the allocator below all tables in which nothing is mapped. Returns whether there were any.
    #[cold]
    #[inline(never)]
    pub(super) fn lend(&self, platform: &P) -> bool {
        !self.chunks.is_none() && self.chunks.lend(platform, |number| self.below.let_go(platform, self.table(number)))
    }
}

// SAFETY: `below` allocates all addresses, except those that are held for chunks, and keeps the promises.
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
        if !self.chunks.spend_if_held(platform, range, proof) {
            self.free_below(platform, range, proof);
        }
    }

    fn live_around(&self, platform: &P, pfn: u64) -> Option<IovaRange> {
        self.below.live_around(platform, pfn)
    }

    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        self.below.set_aside(platform, pages, placement)
    }

    fn put_back(&self, platform: &P, range: IovaRange, proof: &Proof) {
        self.below.put_back(platform, range, proof);
    }

    /// Those below: to count those in chunks takes [walks](Chunks::live).
    fn live(&self) -> usize {
        self.below.live()
    }

    fn kept(&self) -> CachedRanges {
        self.below.kept()
    }

    fn record_bytes(&self) -> usize {
        self.chunks.record_bytes() + self.below.record_bytes()
    }

    fn tick(&self, platform: &P) {
        self.below.tick(platform);
    }

    fn due_us(&self) -> Option<u64> {
        self.below.due_us()
    }
}

impl<'g, P: Platform, I: Iommu> Ground<'g> for &'g AssembledMapper<Halves<P>, P, I> {
    fn hold(self, number: u32) -> Result<bool, NoMemory> {
        self.allocator.hold(self.space.platform(), number)
    }

    fn grow(self, number: u32) -> Result<&'g Frame, NoMemory> {
        // SAFETY: the addresses are held for chunks, whose leaves are of 4 KiB, and lie within the width of the table.
        unsafe { self.space.add_leaf_table(self.allocator.chunks.table_pfn(number)) }
    }
}

/// Whether a chunk can serve the request.
#[inline(always)]
pub(super) fn fits(request: &Request<'_>) -> bool {
    request.pages() <= CHUNKED_PAGES_MAX
}

/// Whether a chunk is to serve the request if there is one.
#[inline(always)]
pub(super) fn has_place(request: &Request<'_>) -> bool {
    fits(request) && request.lifetime == Lifetime::Transient
}
