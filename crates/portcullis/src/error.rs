//! Everything that can be refused or go wrong, by name. A refused operation changes nothing (S6).

use crate::address::{Iova, IovaRange, PhysAddr};
use crate::iommu::{AttachError, QueueError};
pub use crate::platform::NoMemory;
use thiserror::Error;

/// Why a mapping was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// No segment, or a segment of no bytes.
    #[error("nothing to map: the buffer or one of its segments is empty")]
    Empty,
    /// A segment that wraps the address space or lies beyond what a table entry can hold.
    #[error("physical address {0} is beyond what the IOMMU can address")]
    PhysicalRange(PhysAddr),
    /// The address that the design would hand out is reserved (S9).
    #[error("I/O address {0} is reserved")]
    Reserved(Iova),
    /// The address that the design would hand out is beyond what the device can drive.
    #[error("I/O address {iova} is beyond {limit_bits}-bit addresses")]
    BeyondWidth {
        /// The first address beyond.
        iova: Iova,
        /// The width, in bits.
        limit_bits: u8,
    },
    /// No free run of that many pages below the device's address limit.
    #[error("no run of {pages} free pages below {limit_bits}-bit addresses")]
    Exhausted {
        /// Pages asked for.
        pages: u64,
        /// The address width searched, in bits.
        limit_bits: u8,
    },
    /// A translation exists where the new one would go.
    #[error("I/O address {0} is already mapped")]
    Overlap(Iova),
    /// A limit below which there is no page: less than 12 bits.
    #[error("no page lies below {0:#x}")]
    BadLimit(u64),
    /// An alignment that is no power of two.
    #[error("{0} is no alignment; expected a power of two")]
    BadAlignment(u64),
    /// A boundary that is no power of two.
    #[error("{0} is no boundary; expected a power of two")]
    BadBoundary(u64),
    /// A boundary that a buffer of this length crosses wherever it lies, or at the one address asked for.
    #[error("{len} bytes cross a multiple of {boundary}, wherever they lie or where they are to lie")]
    CrossesBoundary {
        /// Bytes, from the first that the device sees to the last.
        len: u64,
        /// The boundary.
        boundary: u64,
    },
    /// Memory that keeps its place within the page, and is asked for at another; or an address asked for that is not aligned.
    #[error("memory at {phys} cannot be mapped there: its place within {alignment} bytes would be another")]
    Misplaced {
        /// The first byte.
        phys: PhysAddr,
        /// The alignment asked for, or that of pages.
        alignment: u64,
    },
    /// The design cannot choose its addresses, or not so.
    #[error("the design cannot place a mapping as asked")]
    Unplaceable,
    /// The design cannot show these segments as one run of addresses.
    #[error("segments that are not contiguous need one mapping each under this design")]
    NotContiguous,
    /// The rest of a page would be open to the device, and the domain [refuses](crate::SubPage::Refuse) that; or it would
    /// [bounce](crate::SubPage::Bounce) the part, and cannot for a mapping that is to last.
    #[error("memory at {0} has a part of a page only, which the domain does not map")]
    PartialPage(PhysAddr),
    /// All the pages are in use that the domain may have to [bounce](crate::SubPage::Bounce) parts of pages.
    #[error("no bounce page is free; the domain has {most} at most")]
    NoBouncePage {
        /// [`BOUNCE_PAGES_MAX`](crate::sub_page::BOUNCE_PAGES_MAX).
        most: usize,
    },
    /// A segment longer than an entry of the design can say.
    #[error("a segment of {len} bytes; an entry leads to {most} at most")]
    SegmentTooLong {
        /// Its length, in bytes.
        len: u64,
        /// The longest.
        most: u64,
    },
    /// The next entries of the ring are in use, or wait for their invalidation: try again after a commit. A mapping that was leaked keeps
    /// its entries, and once the ring has come round to them it stays full.
    #[error("ring {ring} is full: the next of its {entries} entries is in use")]
    RingFull {
        /// The ring, from 1 on.
        ring: u16,
        /// How many entries it has.
        entries: u32,
    },
    /// A list of more segments than a ring has entries.
    #[error("a list of {segments} segments; a ring has {entries} entries")]
    ListTooLong {
        /// Its segments.
        segments: usize,
        /// Entries of a ring.
        entries: u32,
    },
    /// Every ring that the domain can have is in use.
    #[error("all {most} rings of the domain are in use")]
    NoRing {
        /// How many it can have.
        most: usize,
    },
    /// No memory for a table page.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The typed face gives a buffer back as its owner's alone, and only strict protection can promise that.
    #[error("typed mappings need strict protection; use the raw ones")]
    NotStrict,
    /// An invalidation that failed (S11), or a panic, has poisoned the domain.
    #[error("the domain is poisoned by an earlier invalidation failure or panic")]
    Poisoned,
    /// No address was free before an invalidation, and that failed. Nothing was mapped.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// The translations of a map were written and the invalidation that they needed failed: because the IOMMU caches absent entries,
/// because the address or its table was in use before, or because a count had to be undone. They have been taken back, but the
/// device may still reach the memory, which must not be used again (S11). The address stays quarantined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the invalidation that a map needed failed, the memory stays with the device: {0}")]
pub struct SyncError(#[from] pub QueueError);

/// Why a raw map failed. There will be no third kind: memory that is lost never hides among refusals.
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
    /// A length of zero, or one that wraps.
    #[error("not a range of I/O addresses")]
    BadRange,
    /// Nothing is mapped there, or it is being unmapped already.
    #[error("nothing is mapped at {0}")]
    NotMapped(Iova),
    /// The range is only a part of a mapping, or more than one.
    #[error("{asked} is not the whole of the mapping at {mapped}")]
    Partial {
        /// The pages that were to be unmapped.
        asked: IovaRange,
        /// The mapping that lies there.
        mapped: IovaRange,
    },
    /// Mappings share these addresses, or they are those of the memory, so that only its owner knows how long one is.
    #[error("how long the mapping at {0} is, its address does not tell")]
    LengthUnknown(Iova),
    /// The batch holds as many unmaps as it can; commit it first.
    #[error("the batch is full")]
    BatchFull,
    /// The mapping belongs to another domain.
    #[error("the mapping belongs to another domain")]
    WrongDomain,
    /// A panic has left the domain half changed. It keeps what it has until it is closed.
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
    /// Without protection a device reaches memory that is not mapped for it: only [`Domain::unprotected`](crate::Domain::unprotected) makes
    /// such a domain.
    #[error("a domain without protection is made by `Domain::unprotected` only")]
    Unprotected,
    /// The design maps all memory, so that parts of pages stay [exposed](crate::SubPage::Expose).
    #[error("the design exposes whole pages, and more")]
    Exposed,
    /// The host copies no memory, or the design has no pages to copy to, so that the domain cannot [bounce](crate::SubPage::Bounce) parts
    /// of pages.
    #[error("parts of pages cannot be bounced: the host copies no memory, or the design does not offer it")]
    CannotBounce,
    /// The IOMMU has no table format of that width.
    #[error("the IOMMU cannot translate {0}-bit addresses")]
    Width(u8),
    /// The design needs an IOMMU with [rings](crate::Capabilities::rings).
    #[error("the IOMMU has no rings, which the design needs")]
    NoRings,
    /// A range in the configuration that does not lie on page boundaries or is empty.
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
