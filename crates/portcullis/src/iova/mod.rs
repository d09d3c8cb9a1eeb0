//! Picking an address: what every allocator promises, and the allocators, by the system that they come from.
//!
//! The design `portcullis` hands out addresses where it writes them: see [`chunk`](crate::chunk).

mod fast_and_safe;
mod freebsd;
mod kmalloc;
mod linux;
mod macos;
mod placed;
mod solaris;

pub use fast_and_safe::WindowAllocator;
pub use freebsd::GapTreeAllocator;
pub use kmalloc::KmallocAllocator;
pub use linux::{DEPOT_MAGAZINES_MAX, FreeListAllocator, MAGAZINE_CAPACITY, MagazineAllocator, TreeAllocator};
pub use macos::{BUDDY_PAGES_MAX, BuddyAllocator};
pub(crate) use placed::{PlacedRanges, Record};
pub use solaris::{QUANTUM_CACHE_PAGES_MAX, SLAB_PAGES, VmemAllocator};

use crate::address::{Iova, IovaRange, PAGE_SHIFT};
use crate::error::{MapError, NoMemory, UnmapError};
use crate::placement::Placement;
use crate::platform::memory::{push_within, try_reserve};
use crate::platform::{Context, Platform};
use crate::proof::Proof;
use crate::request::{Access, Lifetime, Request, Stream};
use crate::sort::sort_by_key;
use crate::table::{SecondLevelTable, Walker};
use alloc::vec::Vec;

/// The interrupt range of the x86 architecture, in page numbers: writes there are messages, not DMA (S9).
pub const INTERRUPT_RANGE: (u64, u64) = (0xfee0_0000 >> PAGE_SHIFT, 0x10_0000 >> PAGE_SHIFT);

/// What an address is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IovaRequest {
    /// Pages.
    pub pages: u64,
    /// What the device will do there.
    pub access: Access,
    /// The ring that the mapping belongs to, where known.
    pub stream: Stream,
    /// How long the mapping is expected to live.
    pub lifetime: Lifetime,
}

impl IovaRequest {
    /// What `request` wants.
    pub const fn of(request: &Request<'_>) -> Self {
        let (stream, lifetime) = (request.stream, request.lifetime);
        Self { pages: request.pages(), access: request.access(), stream, lifetime }
    }
}

/// Who sees to it that a mapping is unmapped once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a claim that the table decides is not made yet"]
pub enum Claim {
    /// The allocator has done so: the caller owns the mapping.
    Held,
    /// The allocator does not know its ranges one by one; the marks in the table decide
    /// ([`SecondLevelTable::claim_and_unmap`](crate::table::SecondLevelTable::claim_and_unmap)).
    ByTable,
}

/// Ranges that an allocator keeps out of use, for the next requests of their size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// How many.
    pub ranges: usize,
    /// The most that there can be; `None` where, for each size, only the most that were ever in use at once bound them.
    pub ranges_max: Option<usize>,
}

/// The exponent of the power of two that `pages` rounds up to, if it is below `orders`.
fn order(pages: u64, orders: usize) -> Option<usize> {
    let order = pages.checked_next_power_of_two()?.trailing_zeros() as usize;
    (order < orders).then_some(order)
}

/// Refuses pages that no translation leads to, whoever asks for them.
///
/// # Errors
/// [`MapError::Reserved`].
pub(crate) fn refuse_interrupts(range: IovaRange) -> Result<(), MapError> {
    let interrupts = IovaRange::of(INTERRUPT_RANGE.0, INTERRUPT_RANGE.1);
    match range.overlaps(interrupts) {
        true => Err(MapError::Reserved(Iova::from_pfn(range.first_pfn().max(interrupts.first_pfn())))),
        false => Ok(()),
    }
}

/// Page 0, the interrupt range and `reserved` (S9), by first page and one past the last: in order, and none overlaps another.
pub(crate) fn never_handed_out<P: Platform>(platform: &P, reserved: &[IovaRange]) -> Result<Vec<(u64, u64)>, NoMemory> {
    let mut ranges = try_reserve(platform, Context::MaySleep, reserved.len() + 2)?;
    let always = [(0, 1), (INTERRUPT_RANGE.0, INTERRUPT_RANGE.0 + INTERRUPT_RANGE.1)];
    let reserved = reserved.iter().map(|range| (range.first_pfn(), range.end_pfn()));
    always.into_iter().chain(reserved).for_each(|range| push_within(&mut ranges, range));
    sort_by_key(&mut ranges, |range| *range);
    let mut end_before = 0;
    for (first, end) in &mut ranges {
        // What an earlier range covers already is left out.
        (*first, end_before) = ((*first).max(end_before), end_before.max(*end));
    }
    ranges.retain(|(first, end)| first < end);
    Ok(ranges)
}

/// Hands out ranges of I/O addresses.
///
/// # Safety
/// Table pages are freed on its word. Implementations promise that a range handed out, or set aside, overlaps no other that is not
/// yet back, has as many pages as were asked for, and lies below the width that the allocator was made with; that of a range
/// handed out, [`claim`](IovaAllocator::claim) returns [`Claim::Held`] once at most, and only for exactly that range; and
/// that it never does so for a range of at most [`TABLE_CLAIM_PAGES_MAX`](IovaAllocator::TABLE_CLAIM_PAGES_MAX) pages, nor
/// [`Claim::ByTable`] where that is zero.
pub unsafe trait IovaAllocator<P: Platform>: Send + Sync {
    /// Mappings of up to so many pages are claimed by their marks in the table, whose pages must then stay; others by
    /// [`claim`](IovaAllocator::claim).
    const TABLE_CLAIM_PAGES_MAX: u64 = 0;

    /// A range of `request.pages` pages that is in no other mapping, reserved nowhere, and that no translation is cached for:
    /// unless the domain leaves that to its maps ([`Deferral::AtMap`](crate::invalidation::Deferral::AtMap)).
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::NoMemory`].
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError>;

    /// Takes memory from the host, with no lock held, for an [`allocate`](IovaAllocator::allocate) that has failed with
    /// [`MapError::NoMemory`]. Returns whether that is to be tried again. Under [`WholeLock`](crate::design::WholeLock) allocators must
    /// leave it to this; others may take memory in `allocate`, and have nothing to prepare.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn prepare(&self, _platform: &P) -> Result<bool, NoMemory> {
        Ok(false)
    }

    /// Claims the mapping at exactly `range` for an unmap: from now on nobody else can unmap it.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError>;

    /// The range in use around page `pfn`, where the allocator knows it and claims do not tell: so that an unmap of a part of it is
    /// refused as such.
    fn live_around(&self, _platform: &P, _pfn: u64) -> Option<IovaRange> {
        None
    }

    /// Takes back a range that was handed out and that the hardware has lost, or will have before a map returns with it. Locks may be held,
    /// so this asks for no memory.
    fn free(&self, platform: &P, range: IovaRange, proof: &Proof);

    /// Takes `pages` pages where `placement` says out of what may be handed out: for a mapping that is placed, of which the mapper
    /// keeps the record. No claim finds them, and they do not count as handed out.
    ///
    /// # Errors
    /// [`MapError::Unplaceable`] where the allocator cannot choose, or not so; [`MapError::Exhausted`], or [`MapError::Overlap`] where
    /// there is only one place; [`MapError::NoMemory`].
    fn set_aside(&self, _platform: &P, _pages: u64, _placement: &Placement) -> Result<IovaRange, MapError> {
        Err(MapError::Unplaceable)
    }

    /// Takes back exactly what was set aside, now that the hardware has lost it or has never seen it.
    fn put_back(&self, _platform: &P, _range: IovaRange, _proof: &Proof) {}

    /// Ranges handed out and not yet back. Exact while nobody allocates or frees.
    fn live(&self) -> usize;

    /// Ranges kept out of use.
    fn kept(&self) -> Kept {
        Kept { ranges: 0, ranges_max: Some(0) }
    }

    /// Memory for records of addresses that were in use once, in bytes: it grows with those, and stays.
    fn record_bytes(&self) -> usize {
        0
    }

    /// Gives back what was kept for too long. To be called when [`due_us`](IovaAllocator::due_us) has come.
    fn tick(&self, _platform: &P) {}

    /// When the next [`tick`](IovaAllocator::tick) has work to do, in microseconds of the platform's clock.
    fn due_us(&self) -> Option<u64> {
        None
    }

    /// Gives back to the host what it has lent beside memory: the domain goes, and the IOMMU has forgotten it. `table` still
    /// shows what was not unmapped.
    fn close(&self, _walker: Walker<'_, P>, _table: &SecondLevelTable) {}
}
