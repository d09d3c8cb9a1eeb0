//! Address allocation: what every allocator promises, and the allocators, by the system that they come from.
//!
//! The design `portcullis` does not use these for its chunks: see [`chunk`](crate::chunk).

mod linux;
mod placed;

pub use linux::{
    DEPOT_MAGAZINES_MAX, MAGAZINE_CAPACITY, MagazineAllocator, Magazines, Node, Parked, RangeTree, TreeAllocator,
    may_ever_fit, new_node,
};
pub(crate) use placed::{PlacedRanges, Record};

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

/// A request for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IovaRequest {
    /// The number of pages.
    pub pages: u64,
    /// How the device will access them.
    pub access: Access,
    /// The ring that the mapping belongs to, if known.
    pub stream: Stream,
    /// How long the mapping is expected to live.
    pub lifetime: Lifetime,
}

impl IovaRequest {
    /// The address request of a map request.
    pub const fn of(request: &Request<'_>) -> Self {
        let (stream, lifetime) = (request.stream, request.lifetime);
        Self { pages: request.pages(), access: request.access(), stream, lifetime }
    }
}

/// How a claim ensures that a mapping is unmapped only once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a claim that the table decides is not made yet"]
pub enum Claim {
    /// The allocator has made the claim: the caller owns the mapping.
    Held,
    /// The allocator does not know its ranges individually. The marks in the table decide
    /// ([`SecondLevelTable::claim_and_unmap`](crate::table::SecondLevelTable::claim_and_unmap)).
    ByTable,
}

/// Free ranges that an allocator keeps for later requests of their size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedRanges {
    /// The number of ranges.
    pub ranges: usize,
    /// The upper bound of `ranges`. `None` if the only bound, for each size, is the most ranges that were ever in use
    /// at once.
    pub ranges_max: Option<usize>,
}

/// The exponent of the power of two that `pages` rounds up to, if it is below `orders`.
pub fn order(pages: u64, orders: usize) -> Option<usize> {
    let order = pages.checked_next_power_of_two()?.trailing_zeros() as usize;
    (order < orders).then_some(order)
}

/// Refuses pages of the interrupt range, for which there are no translations, in any request.
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

/// Page 0, the interrupt range and `reserved` (S9), as first and end page numbers. They are sorted and do not
/// overlap.
///
/// # Errors
/// [`NoMemory`].
pub fn never_handed_out<P: Platform>(platform: &P, reserved: &[IovaRange]) -> Result<Vec<(u64, u64)>, NoMemory> {
    let mut ranges = try_reserve(platform, Context::MaySleep, reserved.len() + 2)?;
    let always = [(0, 1), (INTERRUPT_RANGE.0, INTERRUPT_RANGE.0 + INTERRUPT_RANGE.1)];
    let reserved = reserved.iter().map(|range| (range.first_pfn(), range.end_pfn()));
    always.into_iter().chain(reserved).for_each(|range| push_within(&mut ranges, range));
    sort_by_key(&mut ranges, |range| *range);
    let mut end_before = 0;
    for (first, end) in &mut ranges {
        // Leave out the part that an earlier range already covers.
        (*first, end_before) = ((*first).max(end_before), end_before.max(*end));
    }
    ranges.retain(|(first, end)| first < end);
    Ok(ranges)
}

/// Hands out ranges of I/O addresses.
///
/// The laboratory charges what an allocator [reports](Platform::probe), and nothing else: see
/// [`Step`](crate::platform::Step), and its variant `Own` for work that no other step describes. Report the phase that
/// begins, too: [`allocate`](IovaAllocator::allocate) enters
/// [`Phase::IovaAllocate`](crate::platform::Phase::IovaAllocate).
///
/// Memory is taken within [`Platform::allocate`], and with no lock held: a host may have to wait for it. The fake host
/// panics if a lock is held then.
///
/// # Safety
/// Table pages are freed on the word of this trait. Implementations promise the following:
/// * a range that is handed out or set aside overlaps no other that has not come back, has as many pages as
///   requested, and lies below the width that the allocator was made with;
/// * for a range that is handed out, [`claim`](IovaAllocator::claim) returns [`Claim::Held`] at most once, and only
///   for exactly that range;
/// * `claim` never returns [`Claim::Held`] for a range of at most
///   [`TABLE_CLAIM_PAGES_MAX`](IovaAllocator::TABLE_CLAIM_PAGES_MAX) pages, and never [`Claim::ByTable`] if that
///   constant is zero.
pub unsafe trait IovaAllocator<P: Platform>: Send + Sync {
    /// Mappings of up to this many pages are claimed by their marks in the table, which must then keep its pages.
    /// Larger ones are claimed by [`claim`](IovaAllocator::claim).
    const TABLE_CLAIM_PAGES_MAX: u64 = 0;

    /// Hands out a range of `request.pages` pages that is in no other mapping and not reserved, and for which no
    /// translation is cached. A translation may still be cached only if the domain leaves invalidation to its maps
    /// ([`DeferredPolicy::LEAVES_TRANSLATIONS`](crate::invalidation::DeferredPolicy::LEAVES_TRANSLATIONS)).
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::NoMemory`].
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError>;

    /// Takes memory from the host, with no lock held, after an [`allocate`](IovaAllocator::allocate) has failed with
    /// [`MapError::NoMemory`]. Returns whether the caller should try again. Where [a lock is
    /// held](crate::mapper::Locking::IS_HELD) around all of a map, allocators must take memory only here. Other
    /// allocators may take it in `allocate`, and have nothing to prepare.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn prepare(&self, _platform: &P) -> Result<bool, NoMemory> {
        Ok(false)
    }

    /// Claims the mapping at exactly `range` for an unmap. From now on no other unmap can claim it.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError>;

    /// The range in use around page `pfn`, if the allocator knows it and claims do not report it. With it, an unmap
    /// of a part of the range is refused as such.
    fn live_around(&self, _platform: &P, _pfn: u64) -> Option<IovaRange> {
        None
    }

    /// Takes back a range that was handed out. The hardware has lost it, or will have lost it before a map returns
    /// with it. Locks may be held, so this asks for no memory.
    fn free(&self, platform: &P, range: IovaRange, proof: &Proof);

    /// Takes `pages` pages, where `placement` says, out of the pages that may be handed out. They are for a placed
    /// mapping, of which the mapper keeps the record. No claim finds them, and they do not count as handed out.
    ///
    /// # Errors
    /// [`MapError::Unplaceable`] if the allocator cannot choose places, or not in this way; [`MapError::Exhausted`],
    /// or [`MapError::Overlap`] if there is only one place; [`MapError::NoMemory`].
    fn set_aside(&self, _platform: &P, _pages: u64, _placement: &Placement) -> Result<IovaRange, MapError> {
        Err(MapError::Unplaceable)
    }

    /// Takes back exactly a range that was set aside, after the hardware has lost it or if it has never seen it.
    fn put_back(&self, _platform: &P, _range: IovaRange, _proof: &Proof) {}

    /// Ranges handed out and not yet back. Exact while no CPU allocates or frees.
    fn live(&self) -> usize;

    /// Free ranges kept for later requests.
    fn kept(&self) -> CachedRanges {
        CachedRanges { ranges: 0, ranges_max: Some(0) }
    }

    /// Memory for records of addresses that were once in use, and for lists of those that are kept, in bytes.
    fn record_bytes(&self) -> usize {
        0
    }

    /// Gives back what was kept for too long. The caller runs it when [`due_us`](IovaAllocator::due_us) has come.
    fn tick(&self, _platform: &P) {}

    /// When the next [`tick`](IovaAllocator::tick) has work to do, in microseconds of the platform's clock. `None` if
    /// none has.
    fn due_us(&self) -> Option<u64> {
        None
    }

    /// Gives back to the host what it has lent besides memory, when the domain is closed and the IOMMU has forgotten
    /// it. `table` still shows the mappings that were not unmapped.
    fn close(&self, _walker: Walker<'_, P>, _table: &SecondLevelTable) {}
}
