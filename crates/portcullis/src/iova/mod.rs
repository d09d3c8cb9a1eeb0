//! Picking an address.

mod tree;

pub use tree::TreeAllocator;

use crate::address::{IovaRange, PAGE_SHIFT};
use crate::error::{MapError, UnmapError};
use crate::invalidation::Invalidated;
use crate::platform::Platform;

/// The interrupt range of the x86 architecture, in page numbers: writes there are messages, not DMA (S9).
pub const INTERRUPT_RANGE: (u64, u64) = (0xfee0_0000 >> PAGE_SHIFT, 0x10_0000 >> PAGE_SHIFT);

/// Hands out ranges of I/O addresses.
///
/// # Safety
/// Table pages are freed on its word. Implementations promise that a range handed out overlaps no other that is not yet
/// back, has as many pages as were asked for, and lies below the width that the allocator was made with; and that of a range
/// handed out, [`claim`](IovaAllocator::claim) succeeds once, and only for exactly that range.
pub unsafe trait IovaAllocator<P: Platform>: Sync {
    /// A range of `pages` pages that is in no other mapping, reserved nowhere, and that no translation is cached for.
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::NoMemory`].
    fn allocate(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError>;

    /// Claims the mapping at exactly `range` for an unmap: from now on nobody else can unmap it.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
    fn claim(&self, platform: &P, range: IovaRange) -> Result<(), UnmapError>;

    /// Takes back a range that was handed out and that the hardware has lost.
    fn free(&self, platform: &P, range: Invalidated<IovaRange>);

    /// Ranges handed out and not yet back.
    fn live(&self) -> usize;
}
