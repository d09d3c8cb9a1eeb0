//! A domain: what a driver maps its buffers through.
//!
//! The raw face ([`Domain::map_raw`], [`Domain::unmap_raw`]) is for C and for kernels whose drivers keep addresses only; the
//! typed face ([`Domain::map`], [`Domain::unmap`], [`Domain::batch`]) owns a buffer while the device has it, and is there
//! only under strict protection: what it gives back is its owner's alone.
//!
//! What a device does to memory is outside what a compiler can see. Whoever maps memory through the raw face, and whoever
//! programs the device, answers for it: the memory must be meant for that device until the mapping is gone.

mod batch;
mod erased;
mod map_batch;
mod mapping;
mod open;
mod reference;
mod ring;
mod unexposed;

pub use batch::{Batch, GivenBack, RawBatch};
pub use erased::{DynDomain, Erased};
pub use map_batch::RUN_BUFFERS_MAX;
pub use mapping::{DmaBuffer, MapFailure, Mapping, Refused, SharedBuffer, UnmapFailure, leaked_mappings, lost_buffers};
pub use reference::DomainRef;
pub use ring::{
    DESCRIPTOR_PAGES_MAX, Descriptor, DescriptorError, DescriptorFailure, DescriptorMapFailure, Ring, RingConfig,
    RingError,
};

use mapping::{Lent, Tag};
use unexposed::ShortWay;

use crate::address::{Iova, IovaRange, PhysAddr, Segment};
use crate::design::{Addressing, Design, Info, Mapper, Options, Usage};
use crate::error::{CommitError, MapError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::Revocation;
use crate::iommu::{AttachError, DomainId, Iommu, QueueError, SourceId};
use crate::placement::{MapOptions, Placement};
use crate::platform::memory::try_reserve_by;
use crate::platform::{Context, Platform};
use crate::proof::{Committed, Proof};
use crate::request::{Access, Lifetime, Request, Stream};
use crate::safety::Protection;
use crate::segment_list::SegmentList;
use crate::sub_page::{SeenSegments, SubPage};
use crate::sync::{AtomicUsize, Ordering};

/// Segments that [`Domain::map_list`] keeps on the stack.
const LISTED_MAX: usize = 4;

/// What a new domain may be told beyond its protection.
#[derive(Clone, Copy, Debug)]
pub struct DomainConfig<'c> {
    /// How mappings are protected.
    pub protection: Protection,
    /// The devices can drive addresses of this many bits, 13 to 64. The IOMMU and its tables may be narrower; then theirs
    /// counts. Where addresses are those of [entries](Addressing::Entries), devices are taken to drive all 64.
    pub address_bits: u8,
    /// Ranges never to be handed out: those that the firmware reserves and the windows of bridges. Page 0 and the interrupt
    /// range need not be named.
    pub reserved: &'c [IovaRange],
    /// Physical memory in whole pages, for designs that map all of it once.
    pub memory: &'c [Segment],
    /// Parameters of the design, where they are not to be its defaults. Those that it does not have are ignored.
    pub options: Options,
    /// What becomes of pages of which a buffer has a part only (S8).
    pub sub_page: SubPage,
}

impl DomainConfig<'_> {
    /// 48-bit addresses, nothing reserved, no memory named, the defaults of the design, parts of pages exposed.
    pub const fn new(protection: Protection) -> Self {
        let (options, sub_page) = (Options::NONE, SubPage::Expose);
        Self { protection, address_bits: 48, reserved: &[], memory: &[], options, sub_page }
    }
}

/// An address space for one or more devices, managed by design `D`.
///
/// All methods may be called from several CPUs and from interrupts. Somebody has to call [`tick`](Domain::tick) from a timer
/// when [`due_us`](Domain::due_us) says so.
///
/// Dropping the domain detaches its devices, waits until the IOMMU has forgotten them, and only then frees its tables (S10);
/// buffers still mapped stay lost to their owners, see [`Mapping`].
pub struct Domain<D: Design<P, I>, P: Platform, I: Iommu> {
    mapper: D::Mapper,
    protection: Protection,
    sub_page: SubPage,
    tag: Tag,
    short_way: ShortWay,
    /// The highest address that it may hand out.
    last: u64,
    /// Rings made so far.
    rings: AtomicUsize,
    info: &'static Info,
}

impl<D: Design<P, I>, P: Platform, I: Iommu> Domain<D, P, I> {
    /// The domain's id in the IOMMU.
    pub fn id(&self) -> DomainId {
        self.mapper.id()
    }

    /// What there is to say about its design.
    pub fn info(&self) -> &'static Info {
        self.info
    }

    /// How its mappings are protected.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// What becomes of pages of which a buffer has a part only. [`SubPage::Expose`] where devices reach [no more than the
    /// part](Addressing::Entries).
    pub fn sub_page(&self) -> SubPage {
        self.sub_page
    }

    /// Lets `device` reach memory through this domain.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.mapper.attach(device)
    }

    /// Takes `device` out of the domain; it reaches nothing when this returns.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.mapper.detach(device)
    }

    /// Keeps `tables` table pages, and memory for what is noted of them, for maps that find none at the host, until another call says
    /// otherwise. So a map in atomic context does not fail for want of a table: it takes [`tables_max`](Domain::tables_max) at most. A call
    /// fills up what maps have taken. The host may sleep.
    ///
    /// # Errors
    /// [`NoMemory`]; what the host had is kept.
    pub fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.mapper.reserve_tables(tables)
    }

    /// Table pages that a map of `pages` pages adds at most, wherever its addresses lie.
    pub fn tables_max(&self, pages: u64) -> usize {
        self.mapper.tables_max(pages)
    }

    /// Table pages in use. Takes no lock.
    pub fn table_pages(&self) -> usize {
        self.mapper.table_pages()
    }

    /// What is in use now, and its limits (S7). May take locks. Exact while nothing is mapped or unmapped.
    pub fn usage(&self) -> Usage {
        self.mapper.usage()
    }

    /// Flushes what has waited long enough, and gives back what was kept for too long. Call it when [`due_us`](Domain::due_us) has come, or every millisecond.
    ///
    /// # Errors
    /// [`CommitError`] where the flush failed.
    pub fn tick(&self) -> Result<(), CommitError> {
        self.mapper.tick()
    }

    /// When the next [`tick`](Domain::tick) has work to do, in microseconds of the platform's clock.
    pub fn due_us(&self) -> Option<u64> {
        self.mapper.due_us()
    }

    /// Maps a physically contiguous buffer of `len` bytes and returns the address of its first byte for the device.
    ///
    /// # Errors
    /// A [`RawMapError`].
    ///
    /// # Safety
    /// The memory is meant for the devices of the domain until its unmap has returned without error and the stale window that the
    /// design declares is over; for good, where that window has no bound. None of it holds tables of the library. In a domain that
    /// [bounces](SubPage::Bounce), no CPU writes it while it is mapped, or uses it while it is unmapped: it is copied then.
    #[inline(always)]
    pub unsafe fn map_raw(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, RawMapError> {
        let (segment, offset) = (Segment { phys, len }, self.short_way.offset_of(phys));
        let range = match self.short_way.takes_raw(offset, len) {
            // SAFETY: the caller's promise, passed on.
            true => unsafe { self.mapper.map(&Request::in_a_page(&[segment], access)) },
            // SAFETY: as above.
            false => unsafe { self.map_segments(&[segment], access, Stream::default()) },
        }?;
        Ok(Iova::new(range.start().as_u64() + offset))
    }

    /// Maps a buffer as [`map_raw`](Domain::map_raw) does if it lies in a page and takes no more than an entry. `None` leaves it to `map_raw`. For
    /// a caller that calls that as the last thing it does, in a function apart: so that no register is saved here.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(always)]
    pub unsafe fn map_raw_at_once(&self, phys: PhysAddr, len: u64, access: Access) -> Option<Iova> {
        let offset = self.short_way.offset_of(phys);
        if !self.short_way.takes_raw(offset, len) {
            return None;
        }
        // SAFETY: the caller's promise, passed on.
        let range = unsafe { self.mapper.map_at_once(Segment { phys, len }, access) }?;
        Some(Iova::new(range.start().as_u64() + offset))
    }

    /// The mapping of a buffer of any length. Not inlined, so that what takes one page stays short.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(never)]
    unsafe fn map_segments(
        &self,
        segments: &[Segment],
        access: Access,
        stream: Stream,
    ) -> Result<IovaRange, RawMapError> {
        if self.sub_page != SubPage::Expose {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.map_segments_unexposed(segments, access, stream) };
        }
        let mut request = Request::new(segments, access)?;
        request.stream = stream;
        // SAFETY: as above.
        unsafe { self.mapper.map(&request) }
    }

    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[cold]
    #[inline(never)]
    unsafe fn map_segments_unexposed(
        &self,
        segments: &[Segment],
        access: Access,
        stream: Stream,
    ) -> Result<IovaRange, RawMapError> {
        let mut seen = SeenSegments::default();
        let mut request = Request::new(segments, access)?;
        request.stream = stream;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.map_unexposed(&mut request, &mut seen, None) }
    }

    /// Makes the mapping of `request` and returns its pages. Segment *k* lies behind the pages of those before it, at its
    /// offset in its first page.
    ///
    /// # Errors
    /// A [`RawMapError`].
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(always)]
    pub unsafe fn map_request(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        match self.sub_page {
            // SAFETY: the caller's promise, passed on.
            SubPage::Expose => unsafe { self.mapper.map(request) },
            // SAFETY: as above.
            _ => unsafe { self.map_request_unexposed(request) },
        }
    }

    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[cold]
    #[inline(never)]
    unsafe fn map_request_unexposed(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let (mut seen, mut request) = (SeenSegments::default(), *request);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.map_unexposed(&mut request, &mut seen, None) }
    }

    /// The same as `options` say.
    ///
    /// # Errors
    /// A [`RawMapError`].
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    pub unsafe fn map_raw_with(
        &self,
        phys: PhysAddr,
        len: u64,
        access: Access,
        options: &MapOptions,
    ) -> Result<Iova, RawMapError> {
        let segments = [Segment { phys, len }];
        // SAFETY: the caller's promise, passed on.
        let range = unsafe { self.map_as_said(&segments, access, options) }?;
        Ok(self.info.addressing.segment_iova(&segments, 0, range))
    }

    /// Maps a list of segments, which need not stand in memory side by side, and returns its pages. Where one segment ends with a page
    /// and the next begins with the next, they are one, unless each has [an entry of its own](Addressing::Entries). The others lie one
    /// behind the other as in [`map_request`](Domain::map_request).
    ///
    /// Lists of more than 4 segments are copied to the heap for as long as this takes.
    ///
    /// # Errors
    /// A [`RawMapError`].
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    pub unsafe fn map_list(
        &self,
        segments: impl IntoIterator<Item = Segment>,
        access: Access,
        options: &MapOptions,
    ) -> Result<IovaRange, RawMapError> {
        let room = |room| try_reserve_by(|allocate| self.mapper.allocate(Context::Atomic, allocate), room);
        let mut list = SegmentList::<LISTED_MAX>::default();
        list.collect(room, segments, self.info.addressing.opens_pages())?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.map_as_said(list.as_slice(), access, options) }
    }

    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(never)]
    unsafe fn map_as_said(
        &self,
        segments: &[Segment],
        access: Access,
        options: &MapOptions,
    ) -> Result<IovaRange, RawMapError> {
        let mut seen = SeenSegments::default();
        let mut request = Request::new(segments, access)?;
        (request.stream, request.lifetime) = (options.stream, options.lifetime);
        // Where it is: to move it would take as much of the stack again.
        let placement = options.placement(&request, self.info.addressing.entry_pages(), self.last);
        let placement = placement.as_ref().map_err(|error| *error)?;
        match self.sub_page {
            // SAFETY: the caller's promise, passed on.
            SubPage::Expose => unsafe { self.map_at(&request, placement.as_ref()) },
            // SAFETY: as above.
            _ => unsafe { self.map_unexposed(&mut request, &mut seen, placement.as_ref()) },
        }
    }

    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(never)]
    unsafe fn map_at(&self, request: &Request<'_>, placement: Option<&Placement>) -> Result<IovaRange, RawMapError> {
        match placement {
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.mapper.map_apart(request) },
            // SAFETY: as above.
            Some(placement) => unsafe { self.mapper.map_placed(request, placement) },
        }
    }

    /// Unmaps the mapping that begins in the page of `iova`, however long it is, and returns its pages.
    ///
    /// # Errors
    /// Those of [`unmap_raw`](Domain::unmap_raw); [`UnmapError::LengthUnknown`] under a design whose mappings share addresses, or whose
    /// addresses are physical.
    pub fn unmap_raw_at(&self, iova: Iova) -> Result<IovaRange, RawUnmapError> {
        if matches!(self.info.addressing, Addressing::Shared | Addressing::Physical) {
            return Err(UnmapError::LengthUnknown(iova).into());
        }
        let page = self.info.addressing.whole(IovaRange::of(iova.pfn(), 1));
        match self.unmap_pages(page) {
            // What is refused has not changed, so it is there to be unmapped: by one caller, whoever comes first.
            Err(RawUnmapError::Refused(UnmapError::Partial { mapped, .. }))
                if mapped.first_pfn() == page.first_pfn() =>
            {
                self.unmap_pages(mapped).map(|_| mapped)
            }
            result => result.map(|_| page),
        }
    }

    /// Unmaps what [`map_raw`](Domain::map_raw) mapped: the same address and length. Under strict protection the device has
    /// lost the buffer when this returns, by this mapping: where another buffer of one of its pages is mapped, the device reaches that
    /// whole page by the address of the other, unless the domain does not [expose](SubPage::Expose) parts of pages (S8).
    ///
    /// It is a mistake to unmap a typed mapping by it: the device loses that early, and [`unmap`](Domain::unmap) may then refuse it, so
    /// that its buffer stays lent.
    ///
    /// # Errors
    /// [`RawUnmapError::Refused`] leaves the mapping as it was. After [`RawUnmapError::Commit`] the buffer must never be
    /// used again (S11).
    #[inline(always)]
    pub fn unmap_raw(&self, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
        match self.short_way.takes_raw(iova.page_offset(), len) {
            true => self.mapper.unmap_now(IovaRange::of(iova.pfn(), 1)),
            false => self.unmap_pages(IovaRange::covering(iova, len).ok_or(UnmapError::BadRange)?),
        }
        .map(drop)
    }

    /// Not inlined, so that what takes one page stays short.
    #[inline(never)]
    fn unmap_pages(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        match self.sub_page {
            SubPage::Bounce => self.unmap_bounced(range),
            _ => self.mapper.unmap_apart(range),
        }
    }

    /// The same where nothing is bounced, in a frame that is gone where the mapper takes a general way.
    #[inline(never)]
    fn unmap_unbounced(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.mapper.unmap_apart(range)
    }

    /// Clears the mapping at exactly `range` and notes in `out` what is to be invalidated: a [`raw_batch`](Domain::raw_batch) that
    /// borrows no domain, for callers in C. The buffer is not back before [`commit_raw`](Domain::commit_raw).
    ///
    /// # Errors
    /// An [`UnmapError`], [`UnmapError::BatchFull`] and [`UnmapError::WrongDomain`] among them; nothing has changed then.
    pub fn unmap_raw_into(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        self.unmap_into(range, out)
    }

    /// Ends a batch of [`unmap_raw_into`](Domain::unmap_raw_into). Its buffers are the driver's again, and it may be used anew.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    ///
    /// # Panics
    /// If its unmaps are another domain's.
    pub fn commit_raw(&self, revocation: &mut Revocation) -> Result<(), CommitError> {
        if revocation.is_empty() { Ok(()) } else { self.commit(revocation).map(drop) }
    }

    /// Collects raw unmaps to be committed together.
    pub const fn raw_batch(&self) -> RawBatch<&Self> {
        RawBatch::new(self)
    }

    /// Maps `buffer` and keeps it until [`unmap`](Domain::unmap) gives it back.
    ///
    /// # Errors
    /// [`MapFailure::Refused`] gives the buffer back, with [`MapError::NotStrict`] where the device might keep it beyond the unmap;
    /// after [`MapFailure::Lost`] it is lost for good (S11).
    pub fn map<B: DmaBuffer>(&self, buffer: B, access: Access) -> Result<Mapping<B>, MapFailure<B>> {
        self.map_for(buffer, access, Stream::default())
    }

    /// The same as `options` say.
    ///
    /// # Errors
    /// Those of [`map`](Domain::map).
    pub fn map_with<B: DmaBuffer>(
        &self,
        buffer: B,
        access: Access,
        options: &MapOptions,
    ) -> Result<Mapping<B>, MapFailure<B>> {
        let lent = Lent::new(buffer);
        let mapped = match self.protection {
            // SAFETY: that of a `DmaBuffer`, which is `Lent`.
            Protection::Strict => unsafe { self.map_as_said(lent.segments(), access, options) },
            _ => Err(MapError::NotStrict.into()),
        };
        self.mapping(lent, mapped, access)
    }

    /// Maps memory that the CPU uses while the device does, such as a ring of descriptors, through [`Mapping::shared`]. It is
    /// expected to stay for as long as the driver runs. [`unmap`](Domain::unmap) takes it away.
    ///
    /// # Errors
    /// Those of [`map`](Domain::map).
    pub fn map_shared<B: SharedBuffer>(&self, buffer: B, access: Access) -> Result<Mapping<B>, MapFailure<B>> {
        self.map_with(buffer, access, &MapOptions { lifetime: Lifetime::Persistent, ..MapOptions::default() })
    }

    #[inline(always)]
    fn map_for<B: DmaBuffer>(&self, buffer: B, access: Access, stream: Stream) -> Result<Mapping<B>, MapFailure<B>> {
        // From here on it is not dropped before the device is known not to have it, by a panic either.
        let lent = Lent::new(buffer);
        let mapped = match (lent.segments(), self.protection) {
            (&[segment], _) if self.short_way.takes_typed(segment.phys.page_offset(), segment.len) => {
                let segments = [segment];
                let mut request = Request::in_a_page(&segments, access);
                request.stream = stream;
                // SAFETY: the memory is that of a `DmaBuffer`, which has no other user until it is given back.
                let mapped = unsafe { self.mapper.map(&request) };
                // Known to be one page, so that the range need not go through memory.
                mapped.map(|range| IovaRange::of(range.first_pfn(), 1))
            }
            // SAFETY: as above.
            (segments, Protection::Strict) => unsafe { self.map_segments(segments, access, stream) },
            _ => Err(MapError::NotStrict.into()),
        };
        self.mapping(lent, mapped, access)
    }

    /// What has become of a buffer that was to be mapped.
    #[inline(always)]
    fn mapping<B: DmaBuffer>(
        &self,
        lent: Lent<B>,
        mapped: Result<IovaRange, RawMapError>,
        access: Access,
    ) -> Result<Mapping<B>, MapFailure<B>> {
        match mapped {
            Ok(range) => Ok(Mapping::new(lent, range, access, self.tag)),
            Err(RawMapError::Lost(error)) => Err(MapFailure::Lost(error)),
            Err(RawMapError::Refused(error)) => {
                let value = lent.give_back(&Proof::never_visible());
                Err(MapFailure::Refused(Refused { value, error }))
            }
        }
    }

    /// Takes the mapping away and gives the buffer back. The device has lost it, by this mapping: where another buffer of one of its
    /// pages is mapped, the device reaches that whole page by the address of the other, unless the domain does not
    /// [expose](SubPage::Expose) parts of pages (S8).
    ///
    /// # Errors
    /// [`UnmapFailure::Refused`] gives the mapping back; after [`UnmapFailure::Commit`] the buffer is lost for good (S11).
    #[inline(always)]
    pub fn unmap<B: DmaBuffer>(&self, mapping: Mapping<B>) -> Result<B, UnmapFailure<B>> {
        if mapping.tag() != self.short_way.tag {
            return self.unmap_unexposed(mapping);
        }
        let (range, access) = (mapping.range(), mapping.access());
        // Not as a mapping, which the driver would have dropped: what is lost from here on is not its mistake.
        let lent = mapping.into_lent();
        let committed = match range.pages() {
            1 => self.mapper.unmap_now(IovaRange::of(range.first_pfn(), 1)),
            _ => self.unmap_pages(range),
        };
        self.unmapped(lent, range, access, committed)
    }

    /// What has become of a buffer that was to be unmapped.
    #[inline(always)]
    fn unmapped<B: DmaBuffer>(
        &self,
        lent: Lent<B>,
        range: IovaRange,
        access: Access,
        committed: Result<Committed, RawUnmapError>,
    ) -> Result<B, UnmapFailure<B>> {
        match committed {
            Ok(Committed::Lost(proof)) => Ok(lent.give_back(&proof)),
            Ok(Committed::Deferred) => Err(UnmapFailure::Commit(CommitError(QueueError::Unproven))),
            Err(RawUnmapError::Commit(error)) => Err(UnmapFailure::Commit(error)),
            Err(RawUnmapError::Refused(error)) => {
                let value = Mapping::new(lent, range, access, self.tag);
                Err(UnmapFailure::Refused(Refused { value, error }))
            }
        }
    }

    /// Collects unmaps to be committed together: one wait for all of them.
    pub const fn batch<B: DmaBuffer>(&self) -> Batch<&Self, B> {
        Batch::new(self)
    }

    /// A ring of descriptors. Its number is its own until 2^32 have been made.
    ///
    /// # Errors
    /// A [`RingError`].
    pub fn ring(&self, config: RingConfig) -> Result<Ring<&Self>, RingError> {
        Ring::new(self, config)
    }

    fn next_ring(&self) -> u32 {
        // Relaxed: only uniqueness matters.
        self.rings.fetch_add(1, Ordering::Relaxed) as u32
    }

    #[inline(always)]
    fn unmap_into(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        self.mapper.unmap(range, out)?;
        if self.sub_page == SubPage::Bounce {
            let _ = self.take_bounced(range, out);
        }
        Ok(())
    }

    /// The same for a buffer that is lent, of these segments.
    #[inline(always)]
    fn unmap_lent_into(&self, lent: &[Segment], range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        self.mapper.unmap(range, out)?;
        match self.sub_page {
            SubPage::Bounce => self.take_bounced_of(lent, range, out),
            _ => Ok(()),
        }
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        match self.sub_page {
            SubPage::Bounce => self.commit_bounced(revocation),
            _ => self.mapper.commit(revocation),
        }
    }
}
