//! What a design is: a named whole of allocator, invalidation and table rule.

mod assembled;
mod identity;
mod locking;
mod options;
mod parts;
mod physical;
mod placed;

pub use assembled::AssembledMapper;
pub(crate) use identity::dynamic_identity_in;
pub use identity::{DynamicIdentity, IDENTITY_TAG_BITS, dynamic_identity};
pub use locking::{LockFree, LockPerTable, Locking, TableLock, WholeLock};
pub use options::{OptionError, OptionInfo, OptionKind, Options, Value};
pub use parts::Parts;
pub use physical::{IdentityMapped, Untranslated};

use crate::address::{Iova, IovaRange, PAGE_SHIFT, Segment};
use crate::error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::Revocation;
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::placement::Placement;
use crate::platform::{Context, Platform};
use crate::proof::Committed;
use crate::request::{Access, Request, Stream};
use crate::safety::{Breach, Protection, Rule};
use crate::sub_page::{BouncePages, Chain, SubPage};
use core::mem::MaybeUninit;

/// What there is to say about a design.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// The name on the command line and in JSON.
    pub id: &'static str,
    /// Where it comes from: system and paper.
    pub source: &'static str,
    /// Where addresses come from.
    pub allocator: &'static str,
    /// When translations are taken out of the hardware.
    pub invalidation: &'static str,
    /// What becomes of table pages.
    pub tables: &'static str,
    /// The protections that it offers.
    pub protections: &'static [Protection],
    /// The rules that it breaks by construction. The checker must find each.
    pub breaches: &'static [Breach],
    /// What its addresses are.
    pub addressing: Addressing,
    /// When it may refuse a request for want of addresses (S13).
    pub fit: Option<Fit>,
    /// The largest batch of unmaps under one commit, unless the user says otherwise.
    pub batch_default: usize,
    /// The parameters that it takes.
    pub options: &'static [OptionInfo],
}

impl Info {
    /// Whether the device sees physical addresses, so that the segments of a request stay apart.
    pub const fn physical_addresses(&self) -> bool {
        matches!(self.addressing, Addressing::Physical)
    }

    /// Whether it is for hardware that there is not: it is compared, and never recommended.
    pub const fn is_hypothetical(&self) -> bool {
        matches!(self.addressing, Addressing::Entries { .. })
    }

    /// Whether it says that it breaks `rule` under `protection`.
    pub fn breaks(&self, protection: Protection, rule: Rule) -> bool {
        self.breaches.iter().any(|breach| (breach.protection, breach.rule) == (protection, rule))
    }
}

/// Pages of the widest entry that there may be: those of all addresses of 64 bits.
pub const ENTRY_PAGES_MAX: u64 = 1 << (u64::BITS - PAGE_SHIFT);

/// What the addresses of a design are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    /// Each mapping has some of its own.
    Own,
    /// Mappings of the same memory with the same rights have the same; others have some of their own.
    Shared,
    /// Those of the memory itself: the segments of a request stay apart.
    Physical,
    /// Those of entries, each of which leads to one segment, from its first byte to its last: devices reach nothing of the pages around
    /// it. The segments of a mapping have one entry each, one behind the other, so that devices see a run of addresses for each
    /// (rIOMMU, ASPLOS'15, §4). A mapper takes any addresses of an entry for all of it: see [`whole`](Self::whole).
    Entries {
        /// How wide an entry is: a power of two of pages, [`ENTRY_PAGES_MAX`] at most; no domain is made of another. Entries begin at multiples of it.
        pages: u64,
    },
}

impl Addressing {
    /// The address at which a device sees segment `index` of a mapping at `range`.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn segment_iova(self, segments: &[Segment], index: usize, range: IovaRange) -> Iova {
        let segment = &segments[index];
        let before = match self {
            Self::Physical => return Iova::new(segment.phys.as_u64()),
            Self::Entries { pages } => return Iova::from_pfn(range.first_pfn() + index as u64 * pages),
            Self::Own | Self::Shared => segments[..index].iter().map(Segment::pages).sum::<u64>(),
        };
        Iova::new(Iova::from_pfn(range.first_pfn() + before).as_u64() + segment.phys.page_offset())
    }

    /// The addresses of all entries of which `range` has a part; of addresses by the page, `range` itself.
    pub fn whole(self, range: IovaRange) -> IovaRange {
        let Self::Entries { pages } = self else { return range };
        // Entries are powers of two of pages, so the end of the last page number there is ends one too.
        let first = range.first_pfn() & !(pages - 1);
        IovaRange::of(first, range.end_pfn().next_multiple_of(pages) - first)
    }

    /// How wide an entry is, where addresses are those of entries.
    pub(crate) const fn entry_pages(self) -> Option<u64> {
        match self {
            Self::Entries { pages } => Some(pages),
            _ => None,
        }
    }

    /// Whether a device that reaches a part of a page reaches the page.
    pub(crate) const fn opens_pages(self) -> bool {
        !matches!(self, Self::Entries { .. })
    }
}

/// How tightly a design fills its addresses. It refuses a request only where no aligned power of two of free pages would hold
/// the request and its guard pages; a partly used grain counts as full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// Pages that a mapping needs beside its own.
    pub guard_pages: u64,
    /// What addresses are taken by, in pages: a power of two.
    pub grain_pages: u64,
    /// Bits of the address that say something else, so that so many fewer are left to fill.
    pub tag_bits: u8,
}

impl Fit {
    /// Every free page counts.
    pub const TIGHT: Self = Self { guard_pages: 0, grain_pages: 1, tag_bits: 0 };
}

/// The domain-independent half of a design: its name.
pub trait DesignInfo: 'static {
    /// What there is to say about it.
    const INFO: Info;
}

/// A design, as a type to name it by.
///
/// # Safety
/// [`DesignInfo::INFO`] tells the truth about addresses and protections: drivers program devices by it. A design that wraps the
/// mapper of another answers for what it changes. Where [`build_in`](Design::build_in) returns `Ok`, it has made a mapper in `to`; after
/// an error nothing is there.
pub unsafe trait Design<P: Platform, I: Iommu>: DesignInfo {
    /// What maps and unmaps for one domain.
    type Mapper: Mapper;

    /// Makes the mapper of a new domain.
    ///
    /// # Errors
    /// A [`NewDomainError`].
    ///
    /// # Safety
    /// `setup` has a protection that the design offers, and a width that the hardware has, as
    /// [`Domain::with_config`](crate::Domain::with_config) sees to. Under [`Protection::None`] all memory, or all of `setup.memory`
    /// where there is a table, is meant for every device that is attached.
    unsafe fn build(setup: DomainSetup<'_, P, I>) -> Result<Self::Mapper, NewDomainError>;

    /// Makes it where it is to lie. A design whose mapper is large may have a way that takes less stack than to make one and move it.
    ///
    /// # Errors
    /// A [`NewDomainError`]; nothing is in `to` then.
    ///
    /// # Safety
    /// That of [`build`](Design::build).
    #[inline(never)]
    unsafe fn build_in(to: &mut MaybeUninit<Self::Mapper>, setup: DomainSetup<'_, P, I>) -> Result<(), NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        to.write(unsafe { Self::build(setup) }?);
        Ok(())
    }
}

/// The mapper of a design that makes it in place, to be moved.
///
/// # Errors
/// Those of [`Design::build_in`].
///
/// # Safety
/// That of [`Design::build`]; the design makes a mapper where its [`Design::build_in`] returns no error.
pub(crate) unsafe fn built<D: Design<P, I>, P: Platform, I: Iommu>(
    setup: DomainSetup<'_, P, I>,
) -> Result<D::Mapper, NewDomainError> {
    let mut mapper = MaybeUninit::uninit();
    // SAFETY: the caller's promise, passed on.
    unsafe { D::build_in(&mut mapper, setup) }?;
    // SAFETY: made just now.
    Ok(unsafe { mapper.assume_init() })
}

/// What a design is built from.
pub struct DomainSetup<'c, P, I> {
    /// The hardware.
    pub iommu: I,
    /// The host.
    pub platform: P,
    /// One of the protections that the design offers.
    pub protection: Protection,
    /// The device can drive addresses of this many bits.
    pub width: u8,
    /// Addresses never to be handed out, beyond page 0 and the interrupt range.
    pub reserved: &'c [IovaRange],
    /// Physical memory, for designs that map all of it.
    pub memory: &'c [Segment],
    /// The parameters of the design that differ from their defaults.
    pub options: &'c Options,
    /// What becomes of parts of pages. A design that hands it to its [`AddressSpace`](crate::AddressSpace), as an assembled mapper does,
    /// has done its part.
    pub sub_page: SubPage,
}

/// Maps and unmaps for one domain. All methods may be called from several CPUs and from interrupts.
///
/// # Safety
/// Buffers go back to their owners on its word. Implementations promise that the devices of the domain reach
/// * what has been [mapped](Mapper::map), at the addresses returned, with the rights asked for, and nothing else, unless the
///   protection is [`Protection::None`];
/// * no mapping any more once the commit of its unmap has returned [`Committed::Lost`], unless they reach its memory by another
///   mapping of the same;
/// * nothing of a map that was [refused](RawMapError::Refused), and the mapping as it was after an unmap that was refused.
///
/// All of that holds after a panic in any method, too. What a method had begun by then stays mapped, or is lost, for good.
pub unsafe trait Mapper: Send + Sync {
    /// Makes a mapping. The device may use it when this returns.
    ///
    /// # Errors
    /// A [`RawMapError`].
    ///
    /// # Safety
    /// The memory is meant for the devices of the domain until the commit of its unmap has returned and the stale window that the
    /// design declares is over; for good, where that window has no bound. None of it holds tables of the library.
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError>;

    /// Makes a mapping of a segment within a page, of a CPU's own stream and for one DMA, if that takes no more than an entry. `None` leaves it
    /// to [`map`](Mapper::map).
    ///
    /// # Safety
    /// That of [`map`](Mapper::map).
    #[inline(always)]
    unsafe fn map_at_once(&self, _segment: Segment, _access: Access) -> Option<IovaRange> {
        None
    }

    /// Does what [`map`](Mapper::map) does, for callers that are off the fast paths: in a frame of its own, and the general way at once
    /// where there is a short one.
    ///
    /// # Errors
    /// Those of [`map`](Mapper::map).
    ///
    /// # Safety
    /// That of [`map`](Mapper::map).
    #[inline(never)]
    unsafe fn map_apart(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.map(request) }
    }

    /// Makes a mapping of its own for each of the first of `segments`: for as many as find pages side by side, and for one at least.
    /// Returns these pages. The device may use them when this returns.
    ///
    /// There is at least one segment, and each lies in a page.
    ///
    /// # Errors
    /// Those of [`map`](Mapper::map) for the first.
    ///
    /// # Safety
    /// That of [`map`](Mapper::map), for each.
    #[inline(always)]
    unsafe fn map_pages(&self, segments: &[Segment], access: Access, stream: Stream) -> Result<IovaRange, RawMapError> {
        let [first, ..] = segments else { return Err(MapError::Empty.into()) };
        let first = [*first];
        let mut request = Request::in_a_page(&first, access);
        request.stream = stream;
        // SAFETY: the caller's promise, passed on.
        let mapped = unsafe { self.map(&request) }?;
        Ok(IovaRange::of(mapped.first_pfn(), 1))
    }

    /// Makes a mapping where `placement` says. It is unmapped like any other, and its unmap is invalidated and waited for by its
    /// commit, whatever the protection.
    ///
    /// # Errors
    /// Those of [`map`](Mapper::map); [`MapError::Unplaceable`] where the design cannot choose its
    /// addresses, or not so.
    ///
    /// # Safety
    /// That of [`map`](Mapper::map).
    unsafe fn map_placed(&self, _request: &Request<'_>, _placement: &Placement) -> Result<IovaRange, RawMapError> {
        Err(RawMapError::Refused(MapError::Unplaceable))
    }

    /// Runs `allocate`, which asks the global allocator for memory that a domain needs beside its mapper: by [`Platform::allocate`] of the
    /// host, for a mapper that has one.
    fn allocate(&self, _context: Context, allocate: &mut dyn FnMut()) {
        allocate();
    }

    /// Keeps `tables` table pages, and memory for what it notes of them, for maps that find none at the host: until another call says
    /// otherwise. Each map takes [`tables_max`](Mapper::tables_max) of its pages at most, and another call fills up what they have taken.
    /// The host may sleep.
    ///
    /// # Errors
    /// [`NoMemory`]; what the host had is kept.
    fn reserve_tables(&self, _tables: usize) -> Result<(), NoMemory> {
        Ok(())
    }

    /// Table pages that a map of `pages` pages adds at most: none, unless the mapper says otherwise.
    fn tables_max(&self, _pages: u64) -> usize {
        0
    }

    /// Clears the mapping at exactly `range` and notes in `out` what is to be invalidated. The buffer is not yet back: that
    /// takes a [`commit`](Mapper::commit).
    ///
    /// # Errors
    /// An [`UnmapError`]; nothing has changed then.
    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError>;

    /// Ends a batch of unmaps. When it returns without error, the buffers are the driver's again; under strict protection
    /// the device has lost them, and there is a proof of it. `revocation` is empty then, whatever the result.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    ///
    /// # Panics
    /// If the unmaps of `revocation` were made by another mapper.
    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError>;

    /// Unmaps the mapping at exactly `range` and commits that. Unless the mapper has a shorter way, a batch of one.
    ///
    /// # Errors
    /// Those of [`unmap`](Mapper::unmap) and [`commit`](Mapper::commit).
    #[inline(never)]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut revocation = Revocation::new();
        self.unmap(range, &mut revocation)?;
        Ok(self.commit(&mut revocation)?)
    }

    /// Does what [`unmap_now`](Mapper::unmap_now) does, for mappings of several pages and for callers to whom the stack matters more than speed.
    /// A mapper may override it with a shallower path.
    ///
    /// # Errors
    /// Those of [`unmap_now`](Mapper::unmap_now).
    #[inline(always)]
    fn unmap_apart(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.unmap_now(range)
    }

    /// Does what [`unmap_now`](Mapper::unmap_now) does, and takes the [bounce pages](Mapper::bounce_pages) of the mapping to `pages` before the
    /// commit, and to `part` a part of the buffer that they stand for. Its domain asks for it; a mapper may have a way of its own that
    /// takes less stack.
    ///
    /// # Errors
    /// Those of [`unmap_now`](Mapper::unmap_now).
    #[inline(never)]
    fn unmap_bounced_now(
        &self,
        range: IovaRange,
        pages: &mut Chain,
        part: &mut Option<Segment>,
    ) -> Result<Committed, RawUnmapError> {
        let mut revocation = Revocation::new();
        self.unmap(range, &mut revocation)?;
        *part = self.bounce_pages().and_then(|BouncePages(bounce)| bounce.take(range.first_pfn(), pages));
        Ok(self.commit(&mut revocation)?)
    }

    /// Flushes what has waited long enough, and gives back what was kept for too long. To be called when
    /// [`due_us`](Mapper::due_us) has come, from a timer.
    ///
    /// # Errors
    /// [`CommitError`] where the flush failed.
    fn tick(&self) -> Result<(), CommitError>;

    /// When the next [`tick`](Mapper::tick) has work to do, in microseconds of the platform's clock.
    fn due_us(&self) -> Option<u64>;

    /// Table pages in use. Takes no lock.
    fn table_pages(&self) -> usize;

    /// What is in use now, and its limits (S7). May take locks. Exact while nothing is mapped or unmapped.
    fn usage(&self) -> Usage;

    /// What its domain bounces parts of pages through: that of its [`AddressSpace`](crate::AddressSpace::bounce_pages).
    fn bounce_pages(&self) -> Option<BouncePages<'_>> {
        None
    }

    /// The domain's id.
    fn id(&self) -> DomainId;

    /// Lets a device into the domain.
    ///
    /// # Errors
    /// An [`AttachError`].
    fn attach(&self, device: SourceId) -> Result<(), AttachError>;

    /// Takes a device out of the domain.
    ///
    /// # Errors
    /// An [`AttachError`].
    fn detach(&self, device: SourceId) -> Result<(), AttachError>;
}

/// What a domain uses, and the limits that it keeps (S7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Ranges handed out and not yet back, those that wait for a flush among them.
    pub live_ranges: usize,
    /// Ranges that are free, but kept for the next requests of their size.
    pub kept_ranges: usize,
    /// The most of those; `None` where, for each size, only the most that were ever in use at once bound them.
    pub kept_ranges_max: Option<usize>,
    /// Memory for records of addresses that were in use once, in bytes: it grows with those, and stays. 64 bytes for each 8
    /// pages of the address space at most.
    pub record_bytes: usize,
    /// Table pages in use. Those that are [reserved](Mapper::reserve_tables) are not, nor those that a design with a lock around its table
    /// has at hand for the next map: [`tables_max(1)`](Mapper::tables_max) at most.
    pub table_pages: usize,
    /// Unmaps that wait for a flush, or whose invalidation is not known to be done.
    pub queued_unmaps: usize,
    /// The most that can wait.
    pub queued_unmaps_max: usize,
    /// Bounce pages that stand for parts of pages, those that are lost among them.
    pub bounce_pages: usize,
    /// The most of those.
    pub bounce_pages_max: usize,
    /// The longest that one waits for the hardware to be told, in microseconds, if [`Mapper::tick`] is called when due; `None`
    /// without bound.
    pub window_us_max: Option<u64>,
}

impl Default for Usage {
    /// Nothing, with nothing to bound.
    fn default() -> Self {
        Self {
            live_ranges: 0,
            kept_ranges: 0,
            kept_ranges_max: Some(0),
            record_bytes: 0,
            table_pages: 0,
            queued_unmaps: 0,
            queued_unmaps_max: 0,
            bounce_pages: 0,
            bounce_pages_max: 0,
            window_us_max: None,
        }
    }
}
