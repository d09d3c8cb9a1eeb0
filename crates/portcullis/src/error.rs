//! The errors of the library. A refused operation changes nothing (S6).

use crate::address::{Iova, IovaRange, PhysAddr};
use crate::iommu::{AttachError, QueueError};
pub use crate::platform::NoMemory;
use thiserror::Error;

/// Why a mapping was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// No segment, or a segment of zero bytes.
    #[error("nothing to map: the buffer or one of its segments is empty")]
    Empty,
    /// A segment that wraps the address space or lies beyond what a table entry can hold.
    #[error("physical address {0} is beyond what the IOMMU can address")]
    PhysicalRange(PhysAddr),
    /// The address that the design would allocate is reserved (S9).
    #[error("I/O address {0} is reserved")]
    Reserved(Iova),
    /// The address that the design would allocate is beyond what the device can drive.
    #[error("I/O address {iova} is beyond {limit_bits}-bit addresses")]
    BeyondWidth {
        /// The first address beyond the limit.
        iova: Iova,
        /// The width, in bits.
        limit_bits: u8,
    },
    /// There is no free run of that many pages below the address limit of the device.
    #[error("no run of {pages} free pages below {limit_bits}-bit addresses")]
    Exhausted {
        /// The number of pages requested.
        pages: u64,
        /// The address width searched, in bits.
        limit_bits: u8,
    },
    /// Another translation exists at the address.
    #[error("I/O address {0} is already mapped")]
    Overlap(Iova),
    /// A limit below which there is no page: fewer than 12 bits.
    #[error("no page lies below {0:#x}")]
    BadLimit(u64),
    /// An alignment that is not a power of two.
    #[error("{0} is not an alignment; expected a power of two")]
    BadAlignment(u64),
    /// A boundary that is not a power of two.
    #[error("{0} is not a boundary; expected a power of two")]
    BadBoundary(u64),
    /// A buffer of this length crosses a multiple of the boundary, at any address or at the requested one.
    #[error("{len} bytes cross a multiple of {boundary}, at any address or at the requested one")]
    CrossesBoundary {
        /// The length in bytes, from the first byte that the device sees to the last.
        len: u64,
        /// The boundary.
        boundary: u64,
    },
    /// Memory keeps its offset within the page, and the requested address or alignment needs another offset; or the
    /// requested address does not have the requested alignment.
    #[error("memory at {phys} cannot be mapped as requested: its offset within {alignment} bytes would be wrong")]
    Misplaced {
        /// The physical address of the first byte.
        phys: PhysAddr,
        /// The requested alignment, or that of pages.
        alignment: u64,
    },
    /// The design cannot choose its addresses, or not under these constraints.
    #[error("the design cannot place a mapping as requested")]
    Unplaceable,
    /// The pages of the mapping cannot be unmapped [one by one](crate::MapOptions::apart): not under this design, not
    /// so many of them, or not if it is typed.
    #[error("the pages of this mapping cannot be unmapped one by one: by this design, so many, or as a typed mapping")]
    NotApart,
    /// The design cannot map these segments to one run of addresses.
    #[error("segments that are not contiguous need one mapping each, under this design or with these options")]
    NotContiguous,
    /// The device would reach the rest of a page, and the domain [refuses](crate::SubPage::Refuse) that; or the domain
    /// would [bounce](crate::SubPage::Bounce) the part, which is not possible for a persistent mapping.
    #[error("memory at {0} has a part of a page only, which the domain does not map")]
    PartialPage(PhysAddr),
    /// All pages that the domain may use to [bounce](crate::SubPage::Bounce) partial pages are in use.
    #[error("no bounce page is free; the domain has at most {most}")]
    NoBouncePage {
        /// [`BOUNCE_PAGES_MAX`](crate::sub_page::BOUNCE_PAGES_MAX).
        most: usize,
    },
    /// A segment that is too long for one entry of the design.
    #[error("a segment of {len} bytes is too long: an entry holds at most {most}")]
    SegmentTooLong {
        /// The length of the segment, in bytes.
        len: u64,
        /// The largest length, in bytes.
        most: u64,
    },
    /// The next entries of the ring are in use, or wait for their invalidation: try again after a commit. A leaked
    /// mapping keeps its entries. Once the ring has reached them, it stays full.
    #[error("ring {ring} is full: the next of its {entries} entries is in use")]
    RingFull {
        /// The number of the ring, from 1 on.
        ring: u16,
        /// The number of entries in the ring.
        entries: u32,
    },
    /// A list with more segments than a ring has entries.
    #[error("a list of {segments} segments; a ring has {entries} entries")]
    ListTooLong {
        /// The number of segments.
        segments: usize,
        /// The number of entries in a ring.
        entries: u32,
    },
    /// Every ring that the domain may have is in use.
    #[error("all {most} rings of the domain are in use")]
    NoRing {
        /// The number of rings that the domain may have.
        most: usize,
    },
    /// No memory for a table page.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The typed interface gives a buffer back to its owner alone, which only strict protection can guarantee.
    #[error("typed mappings need strict protection; use raw mappings")]
    NotStrict,
    /// A failed invalidation (S11) or a panic has poisoned the domain.
    #[error("the domain is poisoned by an earlier invalidation failure or panic")]
    Poisoned,
    /// No address was free without an invalidation, and that invalidation failed. Nothing was mapped.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A map wrote its translations, but the invalidation that it needed failed. A map needs one if the IOMMU caches
/// absent entries, if the address or its table was in use before, or if it had to undo a count. The translations have
/// been cleared again, but the device may still reach the memory, which must not be used again (S11). The address
/// stays quarantined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the invalidation that a map needed failed, the memory stays with the device: {0}")]
pub struct SyncError(#[from] pub QueueError);

/// Why a raw map failed. There will never be a third variant: lost memory is never reported as a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RawMapError {
    /// Nothing has changed.
    #[error(transparent)]
    Refused(#[from] MapError),
    /// The memory must not be used again.
    #[error(transparent)]
    Lost(#[from] SyncError),
}

impl From<NoMemory> for RawMapError {
    fn from(error: NoMemory) -> Self {
        Self::Refused(error.into())
    }
}

/// Why an unmap was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum UnmapError {
    /// A length of zero, or a range that wraps.
    #[error("not a range of I/O addresses")]
    BadRange,
    /// Nothing is mapped there, or it is being unmapped already.
    #[error("nothing is mapped at {0}")]
    NotMapped(Iova),
    /// The range is a part of a mapping, or extends beyond one.
    #[error("{asked} is not the whole mapping, which is {mapped}")]
    Partial {
        /// The pages of the unmap.
        asked: IovaRange,
        /// The mapping at that address.
        mapped: IovaRange,
    },
    /// Mappings share these addresses, or the addresses are physical, so only the owner of a mapping knows its length.
    #[error("the address {0} does not tell how long its mapping is")]
    LengthUnknown(Iova),
    /// The batch holds as many unmaps as it can; commit it first.
    #[error("the batch is full")]
    BatchFull,
    /// The mapping belongs to another domain.
    #[error("the mapping belongs to another domain")]
    WrongDomain,
    /// A panic has left the domain half changed. It keeps all of its mappings until it is closed.
    #[error("the domain is poisoned by an earlier panic")]
    Poisoned,
}

/// Why a commit returned no buffer: the invalidation did not complete (S11).
///
/// The addresses of the batch stay quarantined for the life of the domain, and the domain refuses further maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("invalidation failed, the buffers stay with the device: {0}")]
pub struct CommitError(#[from] pub QueueError);

/// Why a domain could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NewDomainError {
    /// The design does not offer that protection.
    #[error("the design does not offer this protection")]
    Protection,
    /// Without protection, a device reaches memory that is not mapped for it. Only
    /// [`Open::open_unprotected`](crate::Open::open_unprotected) makes such a domain.
    #[error("only `Open::open_unprotected` makes a domain without protection")]
    Unprotected,
    /// The design maps all memory, so partial pages are always [exposed](crate::SubPage::Expose).
    #[error("the design always exposes whole pages")]
    Exposed,
    /// The domain cannot [bounce](crate::SubPage::Bounce) partial pages, because the host cannot copy memory or the
    /// design has no bounce pages.
    #[error("partial pages cannot be bounced: the host cannot copy memory, or the design does not support it")]
    CannotBounce,
    /// The IOMMU supports no table format of that width.
    #[error("the IOMMU cannot translate {0}-bit addresses")]
    Width(u8),
    /// The design needs an IOMMU with [rings](crate::Capabilities::rings).
    #[error("the IOMMU has no rings, which the design needs")]
    NoRings,
    /// A range in the configuration that is empty or does not begin and end at page boundaries.
    #[error("the configuration names a bad memory range at {0}")]
    BadRange(PhysAddr),
    /// No memory for the first tables.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The identity map could not be built.
    #[error("the identity map failed: {0}")]
    Identity(RawMapError),
    /// The IOMMU refused a new domain.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Why a raw unmap failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RawUnmapError {
    /// Nothing has changed.
    #[error(transparent)]
    Refused(#[from] UnmapError),
    /// The invalidation failed; the buffer must not be used again.
    #[error(transparent)]
    Commit(#[from] CommitError),
}
