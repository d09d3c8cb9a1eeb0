//! Mappers: what maps and unmaps in a domain. A design is a named combination of allocator, invalidation and table
//! rule, and makes the mapper of each of its domains.

mod assembled;
mod chosen;
mod locking;
mod options;
mod parts;
mod physical;
mod placed;

pub use assembled::AssembledMapper;
pub use chosen::{AnyDesign, Visitor};
pub use locking::{LockFree, Locking};
pub use options::{OptionError, OptionInfo, OptionKind, Options, Value};
pub use parts::Parts;
pub use physical::{IdentityMapped, Untranslated};

use crate::address::{Iova, IovaRange, PAGE_SHIFT, Segment};
use crate::error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::in_place::built;
use crate::invalidation::{Departure, InFlight, One, Revocation, Runs, WhenFull};
use crate::iommu::{Iommu, QueueError};
use crate::placement::Placement;
use crate::platform::Platform;
use crate::proof::Committed;
use crate::request::{Access, Request, Stream};
use crate::safety::{Breach, Protection, Rule};
use crate::space::Space;
use crate::sub_page::SubPage;
use core::mem::MaybeUninit;

/// The description of a design.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// The name on the command line and in JSON.
    pub id: &'static str,
    /// Its origin: system and paper.
    pub source: &'static str,
    /// Where addresses come from.
    pub allocator: &'static str,
    /// When translations are removed from the hardware.
    pub invalidation: &'static str,
    /// What happens to table pages.
    pub tables: &'static str,
    /// The protections that the design offers.
    pub protections: &'static [Protection],
    /// The rules that the design breaks by construction. The checker must find each breach.
    pub breaches: &'static [Breach],
    /// What the design's addresses are.
    pub addressing: Addressing,
    /// When the design may refuse a request for lack of addresses (S13).
    pub address_overhead: Option<AddressOverhead>,
    /// The largest number of unmaps in one commit, unless the user sets another.
    pub batch_default: usize,
    /// The parameters that the design takes.
    pub options: &'static [OptionInfo],
}

impl Info {
    /// Whether devices see physical addresses, so that the segments of a request stay apart.
    pub const fn physical_addresses(&self) -> bool {
        matches!(self.addressing, Addressing::Physical)
    }

    /// Whether the design is for hardware that does not exist. Such a design is compared, but never recommended.
    pub const fn is_hypothetical(&self) -> bool {
        matches!(self.addressing, Addressing::Entries { .. })
    }

    /// Whether the design declares that it breaks `rule` under `protection`.
    pub fn breaks(&self, protection: Protection, rule: Rule) -> bool {
        self.breaches.iter().any(|breach| (breach.protection, breach.rule) == (protection, rule))
    }
}

/// Pages of the widest possible entry: all of a 64-bit address space.
pub const ENTRY_PAGES_MAX: u64 = 1 << (u64::BITS - PAGE_SHIFT);

/// What the addresses of a design are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    /// Each mapping has its own addresses.
    Own,
    /// Mappings of the same memory with the same rights may share addresses. All others have their own.
    Shared,
    /// Physical addresses: the segments of a request stay apart.
    Physical,
    /// Addresses of entries. Each entry leads to one segment, from its first byte to its last, so that devices reach
    /// nothing of the pages around it. Each segment of a mapping has one entry. The entries follow one another, so
    /// that devices see a separate run of addresses for each segment (rIOMMU, ASPLOS'15, §4). A mapper takes any
    /// address range within an entry to mean the whole entry: see [`whole`](Self::whole).
    Entries {
        /// The width of an entry: a power of two of pages, at most [`ENTRY_PAGES_MAX`]. No domain is created with any
        /// other width. Entries begin at multiples of it.
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

    /// The addresses of all entries that `range` touches. For designs without entries, `range` itself.
    pub fn whole(self, range: IovaRange) -> IovaRange {
        let Self::Entries { pages } = self else { return range };
        // Entries are powers of two of pages, so the last page number that exists also ends an entry.
        let first = range.first_pfn() & !(pages - 1);
        IovaRange::of(first, range.end_pfn().next_multiple_of(pages) - first)
    }

    /// The width of an entry, for designs with entries.
    pub(crate) const fn entry_pages(self) -> Option<u64> {
        match self {
            Self::Entries { pages } => Some(pages),
            _ => None,
        }
    }

    /// Whether a device that reaches a part of a page reaches the whole page.
    pub(crate) const fn opens_pages(self) -> bool {
        !matches!(self, Self::Entries { .. })
    }
}

/// What mappings cost in addresses beyond their own pages. The design refuses a request only if no aligned power of two
/// of free pages could hold the request and its guard pages. A partly used grain counts as full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressOverhead {
    /// Pages that a mapping needs in addition to its own.
    pub guard_pages: u64,
    /// The unit in which addresses are taken, in pages: a power of two.
    pub grain_pages: u64,
    /// Address bits that have another meaning, so that the usable addresses are fewer by this many bits.
    pub tag_bits: u8,
}

impl AddressOverhead {
    /// Every free page counts.
    pub const NONE: Self = Self { guard_pages: 0, grain_pages: 1, tag_bits: 0 };
}

/// The part of a design that does not depend on the domain: its description.
pub trait DesignInfo: 'static {
    /// The description.
    const INFO: Info;
}

/// A design, as a type that names it.
///
/// # Safety
/// [`DesignInfo::INFO`] tells the truth about addresses and protections, because drivers program devices by it. A
/// design that wraps the mapper of another is responsible for what it changes.
pub unsafe trait Design<P: Platform, I: Iommu>: DesignInfo {
    /// What maps and unmaps for one domain.
    type Mapper: Mapper;

    /// Makes the mapper of a new domain in `to`, which takes less stack than making it and moving it.
    ///
    /// # Errors
    /// A [`NewDomainError`]; `to` then holds nothing.
    ///
    /// # Safety
    /// `setup` has a protection that the design offers and a width that the hardware has, as
    /// [`Open::open_with`](crate::Open::open_with) ensures. Under [`Protection::None`], all memory is meant
    /// for every device that is attached. If the design has a table, this covers only all of `setup.memory`.
    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError>;

    /// Makes the mapper as [`build_in`](Design::build_in) does, and returns it by value.
    ///
    /// # Errors
    /// Those of [`build_in`](Design::build_in).
    ///
    /// # Safety
    /// That of [`build_in`](Design::build_in).
    unsafe fn build(setup: DomainSetup<'_, P, I>) -> Result<Self::Mapper, NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        built(|to| unsafe { Self::build_in(to, setup) })
    }
}

/// What a design builds a mapper from.
pub struct DomainSetup<'c, P, I> {
    /// The hardware.
    pub iommu: I,
    /// The host.
    pub platform: P,
    /// One of the protections that the design offers.
    pub protection: Protection,
    /// The number of address bits that the devices can drive.
    pub width: u8,
    /// Addresses that must never be handed out, in addition to page 0 and the interrupt range.
    pub reserved: &'c [IovaRange],
    /// Physical memory, for designs that map all of it.
    pub memory: &'c [Segment],
    /// The parameters of the design that differ from their defaults.
    pub options: &'c Options,
    /// What to do with parts of pages. A design only has to hand this to its [`AddressSpace`](crate::AddressSpace),
    /// as an assembled mapper does.
    pub sub_page: SubPage,
}

/// Maps and unmaps for one domain. All methods may be called from several CPUs and from interrupts.
///
/// # Safety
/// Buffers go back to their owners on the word of this trait. Implementations promise that the devices of the domain
/// reach
/// * memory that has been [mapped](Mapper::map), at the addresses returned, with the rights requested, and nothing
///   else, unless the protection is [`Protection::None`];
/// * no mapping once the commit of its unmap has returned [`Committed::Proven`], unless they reach its memory through
///   another mapping of the same memory;
/// * nothing of a map that was [refused](RawMapError::Refused), and after an unmap that was refused, the mapping as
///   it was.
///
/// All of this also holds after a panic in any method. What the method had begun by then stays mapped, or stays lost,
/// for good.
pub unsafe trait Mapper: Send + Sync {
    /// Makes a mapping. The device may use it when this returns.
    ///
    /// # Errors
    /// [`RawMapError::Refused`], and then nothing has changed; [`RawMapError::Lost`] if the hardware has not confirmed
    /// a command, and then the memory is lost for good.
    ///
    /// # Safety
    /// The memory is meant for the devices of the domain until the commit of its unmap has returned and the stale
    /// window that the design declares is over. If that window has no bound, the memory is meant for them for good.
    /// None of the memory holds tables of the library.
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError>;

    /// Does what [`map`](Mapper::map) does, in a separate stack frame, for callers that are not on a fast path. A
    /// mapper whose `map` has a short path may override it, to take the general path at once.
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

    /// Makes one mapping for each of the first of `segments`: for as many as get neighbouring pages, and for at least
    /// one. Returns these pages. The device may use them when this returns.
    ///
    /// There must be at least one segment, and each must lie within a page.
    ///
    /// # Errors
    /// Those of [`map`](Mapper::map) for the first.
    ///
    /// # Safety
    /// That of [`map`](Mapper::map), for each segment.
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

    /// Makes one mapping for each page of `segment`, on neighbouring pages: all of them, or none. The device may use
    /// them when this returns.
    ///
    /// # Errors
    /// Those of [`map`](Mapper::map); [`MapError::NotApart`] if the design cannot do this, or not for so many pages.
    ///
    /// # Safety
    /// That of [`map`](Mapper::map).
    unsafe fn map_run(&self, segment: Segment, access: Access, stream: Stream) -> Result<IovaRange, RawMapError> {
        match segment.pages() {
            // SAFETY: the caller's promise, passed on.
            1 => unsafe { self.map_pages(&[segment], access, stream) },
            _ => Err(RawMapError::Refused(MapError::NotApart)),
        }
    }

    /// Makes a mapping where `placement` says. It is unmapped like any other. Whatever the protection, the commit of
    /// its unmap invalidates it and waits.
    ///
    /// # Errors
    /// Those of [`map`](Mapper::map); [`MapError::Unplaceable`] if the design cannot choose its addresses, or cannot
    /// choose them in this way.
    ///
    /// # Safety
    /// That of [`map`](Mapper::map).
    unsafe fn map_placed(&self, _request: &Request<'_>, _placement: &Placement) -> Result<IovaRange, RawMapError> {
        Err(RawMapError::Refused(MapError::Unplaceable))
    }

    /// What it maps in.
    fn space(&self) -> &dyn Space;

    /// Keeps table pages in reserve, as [`Space::reserve_tables`] says. A mapper may override it if it needs more for
    /// a map than table pages.
    ///
    /// # Errors
    /// Those of [`Space::reserve_tables`].
    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.space().reserve_tables(tables)
    }

    /// Clears the mapping at exactly `range` and records in `out` what has to be invalidated. The driver must not
    /// reuse the buffer yet: that takes a [`commit`](Mapper::commit).
    ///
    /// # Errors
    /// An [`UnmapError`]; nothing has changed then.
    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError>;

    /// Commits a batch of unmaps. When it returns without error, the buffers belong to the driver again. Under strict
    /// protection the device has lost them, and the result holds a proof of it. `revocation` is empty afterwards,
    /// whatever the result.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    ///
    /// # Panics
    /// If the unmaps of `revocation` were made by another mapper.
    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError>;

    /// Submits a batch of unmaps without waiting for the hardware: the first half of a [`commit`](Mapper::commit). If
    /// the batch is [in flight](Departure::InFlight) then, no buffer of it belongs to the driver yet, and `revocation`
    /// holds what it will give back. Otherwise `revocation` is empty as after a commit, or is
    /// [as it was](Departure::Full).
    ///
    /// The default commits the batch, and waits. So do mappers whose commits do not wait or do more than wait, whatever
    /// `when_full` is. [`Departure::Full`] is only for [`WhenFull::Refuse`].
    ///
    /// # Errors
    /// Those of [`commit`](Mapper::commit).
    ///
    /// # Panics
    /// As [`commit`](Mapper::commit).
    fn submit(&self, revocation: &mut Runs, _when_full: WhenFull) -> Result<Departure, CommitError> {
        self.commit(revocation).map(Departure::Over)
    }

    /// Looks whether a batch in flight is done, or waits until it is: the second half of a [`commit`](Mapper::commit).
    /// `None` if it is not done; `in_flight` and `revocation` have to be kept then. Otherwise the batch is over, as
    /// after a commit.
    ///
    /// A look waits as well if the batch has not been done for longer than [`Platform::wait_us_max`]: the caller
    /// learns in the end that the hardware does not answer.
    ///
    /// # Errors
    /// Those of [`commit`](Mapper::commit).
    ///
    /// # Panics
    /// If the batch is one of another mapper.
    ///
    /// # Safety
    /// `revocation` is as [`submit`](Mapper::submit) has left it when it returned `in_flight`, and the batch is not
    /// over.
    unsafe fn take_back(
        &self,
        revocation: &mut Runs,
        _in_flight: &InFlight,
        _waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        // A mapper that commits at once has nothing in flight.
        revocation.forget();
        Err(CommitError(QueueError::Unproven))
    }

    /// Does what [`commit`](Mapper::commit) does, for a single unmap. A mapper may override it with the same code for a
    /// batch without room for more, which takes less stack.
    ///
    /// # Errors
    /// Those of [`commit`](Mapper::commit).
    ///
    /// # Panics
    /// As [`commit`](Mapper::commit).
    fn commit_one(&self, one: &mut One) -> Result<Committed, CommitError> {
        self.commit(one)
    }

    /// Unmaps the mapping at exactly `range` and commits the unmap. Unless the mapper has a shorter path, this is a
    /// batch of one.
    ///
    /// # Errors
    /// Those of [`unmap`](Mapper::unmap) and [`commit`](Mapper::commit).
    #[inline]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut one = Revocation::one();
        self.unmap(range, &mut one)?;
        Ok(self.commit_one(&mut one)?)
    }

    /// Does what [`unmap_now`](Mapper::unmap_now) does, for mappings of several pages and for callers that care more
    /// about stack than about speed. A mapper may override it with a shallower path.
    ///
    /// # Errors
    /// Those of [`unmap_now`](Mapper::unmap_now).
    #[inline(always)]
    fn unmap_apart(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.unmap_now(range)
    }

    /// Flushes what has waited long enough, and gives back what was kept for too long. The host must call it from a
    /// timer when [`due_us`](Mapper::due_us) has come.
    ///
    /// # Errors
    /// [`CommitError`] if the flush failed.
    fn tick(&self) -> Result<(), CommitError>;

    /// When the next [`tick`](Mapper::tick) has work to do, in microseconds of the platform's clock. `None` if none
    /// has.
    fn due_us(&self) -> Option<u64>;

    /// What is in use now, and the limits (S7). It may take locks. It is exact while nothing is mapped or unmapped.
    fn usage(&self) -> Usage;
}

/// What a domain uses, and the limits that it keeps to (S7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Usage {
    /// Ranges that are handed out and not yet given back, including those that wait for a flush.
    pub live_ranges: usize,
    /// Ranges that are free, but kept for later requests of their size.
    pub kept_ranges: usize,
    /// The upper bound of `kept_ranges`. `None` if the only bound, for each size, is the most ranges that were ever
    /// in use at once.
    pub kept_ranges_max: Option<usize>,
    /// Memory for records of addresses that were once in use, in bytes: at most 64 bytes for each 8 pages of the
    /// address space, which never shrink, and the magazines of CPUs and depots.
    pub record_bytes: usize,
    /// Table pages in use. This does not count those that are [reserved](Mapper::reserve_tables). Nor does it count
    /// those that a design with a lock around its table holds ready for the next map: at most
    /// [`tables_max(1)`](Space::tables_max).
    pub table_pages: usize,
    /// Unmaps that wait for a flush, or whose invalidation is not known to have completed.
    pub queued_unmaps: usize,
    /// The most unmaps that can wait.
    pub queued_unmaps_max: usize,
    /// Batches that were submitted and not taken back yet, or never will be.
    pub batches_in_flight: usize,
    /// The most batches that can be in flight.
    pub batches_in_flight_max: usize,
    /// Bounce pages that stand for parts of pages, including those that are lost.
    pub bounce_pages: usize,
    /// The upper bound of `bounce_pages`.
    pub bounce_pages_max: usize,
    /// The longest time that an unmap waits until the hardware is told of it, in microseconds, if [`Mapper::tick`] is
    /// called when due. `None` if there is no bound.
    pub window_us_max: Option<u64>,
}

impl Default for Usage {
    /// Nothing in use, and nothing to bound.
    fn default() -> Self {
        Self {
            live_ranges: 0,
            kept_ranges: 0,
            kept_ranges_max: Some(0),
            record_bytes: 0,
            table_pages: 0,
            queued_unmaps: 0,
            queued_unmaps_max: 0,
            batches_in_flight: 0,
            batches_in_flight_max: 0,
            bounce_pages: 0,
            bounce_pages_max: 0,
            window_us_max: None,
        }
    }
}
