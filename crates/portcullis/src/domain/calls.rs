//! What a driver calls: map, unmap, and what belongs to them.

use super::mapping::Lent;
use super::{Batch, DmaBuffer, Domain, MapFailure, Mapping, RawBatch, Refused, SharedBuffer, UnmapFailure};
use crate::address::{Iova, IovaRange, PhysAddr, Segment};
use crate::error::{CommitError, MapError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::Runs;
use crate::iommu::{AttachError, DomainId, QueueError, SourceId, all_or_none};
use crate::mapper::{Addressing, Info, Mapper, Usage};
use crate::placement::MapOptions;
use crate::platform::Context;
use crate::platform::memory::try_reserve_by;
use crate::proof::{Committed, Proof};
use crate::request::{Access, Lifetime, Request, Stream};
use crate::safety::Protection;
use crate::segment_list::SegmentList;
use crate::sub_page::{SeenSegments, SubPage};

/// Lists of up to this many segments stay on the stack in [`Domain::map_list`].
const LISTED_MAX: usize = 4;

impl<M: Mapper + ?Sized> Domain<M> {
    /// Maps `buffer` and keeps it until [`unmap`](Domain::unmap) gives it back.
    ///
    /// # Errors
    /// [`MapFailure::Refused`] gives the buffer back. Its error is [`MapError::NotStrict`] if the device might reach
    /// the buffer after its unmap. After [`MapFailure::Lost`] the buffer is lost for good (S11).
    pub fn map<B: DmaBuffer>(&self, buffer: B, access: Access) -> Result<Mapping<B>, MapFailure<B>> {
        self.map_for(buffer, access, Stream::default())
    }

    /// Removes the mapping and gives the buffer back. The device can no longer reach the buffer through this mapping.
    /// If another buffer in one of its pages is mapped, the device still reaches that whole page through the other
    /// mapping, unless the domain refuses or bounces partial pages (S8, [`SubPage`]).
    ///
    /// # Errors
    /// [`UnmapFailure::Refused`] gives the mapping back: [`UnmapError::WrongDomain`] if it is one of another domain,
    /// [`UnmapError::NotMapped`] or [`UnmapError::Partial`] if a raw unmap has taken its pages,
    /// [`UnmapError::Poisoned`] after a panic in the domain. After [`UnmapFailure::Commit`] the buffer is lost for good
    /// (S11).
    #[inline(always)]
    pub fn unmap<B: DmaBuffer>(&self, mapping: Mapping<B>) -> Result<B, UnmapFailure<B>> {
        if mapping.tag() != self.short_way.tag {
            return self.unmap_unexposed(mapping);
        }
        let (range, access) = (mapping.range(), mapping.access());
        // From here on held as `Lent`, not as `Mapping`: if the buffer is lost now, that is not a leak by the driver.
        let lent = mapping.into_lent();
        let committed = match range.pages() {
            1 => self.mapper.unmap_now(IovaRange::of(range.first_pfn(), 1)),
            _ => self.unmap_pages(range),
        };
        self.unmapped(lent, range, access, committed)
    }

    /// A batch of unmaps that are committed together, with one wait for all of them.
    pub const fn batch<B: DmaBuffer>(&self) -> Batch<&Self, B> {
        Batch::new(self)
    }

    /// Maps as [`map`](Domain::map) does, with `options`.
    ///
    /// # Errors
    /// Those of [`map`](Domain::map). A buffer comes back as a whole, so never [apart](MapOptions::apart).
    pub fn map_with<B: DmaBuffer>(
        &self,
        buffer: B,
        access: Access,
        options: &MapOptions,
    ) -> Result<Mapping<B>, MapFailure<B>> {
        let lent = Lent::new(buffer);
        let mapped = match self.protection {
            // SAFETY: the memory belongs to a `DmaBuffer`, which is held as `Lent`.
            Protection::Strict if !options.apart => unsafe { self.map_as_said(lent.segments(), access, options) },
            Protection::Strict => Err(MapError::NotApart.into()),
            _ => Err(MapError::NotStrict.into()),
        };
        self.mapping(lent, mapped, access)
    }

    /// Maps memory that the CPU uses while the device does, such as a ring of descriptors. The CPU uses it through
    /// [`Mapping::shared`]. The mapping is expected to exist for as long as the driver runs. [`unmap`](Domain::unmap)
    /// removes it.
    ///
    /// # Errors
    /// Those of [`map`](Domain::map).
    pub fn map_shared<B: SharedBuffer>(&self, buffer: B, access: Access) -> Result<Mapping<B>, MapFailure<B>> {
        self.map_with(buffer, access, &MapOptions { lifetime: Lifetime::Persistent, ..MapOptions::default() })
    }

    /// Lets `device` reach memory through this domain.
    ///
    /// # Errors
    /// [`AttachError::Attached`] if it is in a domain already, and those of
    /// [`Iommu::attach`](crate::Iommu::attach).
    pub fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.mapper.space().attach(device)
    }

    /// Lets all of `devices` reach memory through this domain, or none of them.
    ///
    /// # Errors
    /// Those of [`Iommu::attach_all`](crate::Iommu::attach_all).
    pub fn attach_all(&self, devices: &[SourceId]) -> Result<(), AttachError> {
        all_or_none(devices, |device| self.attach(device), |device| self.detach(device))
    }

    /// Removes `device` from the domain. When this returns, the device reaches nothing.
    ///
    /// # Errors
    /// [`AttachError::NotAttached`] if it is not in this domain. After [`AttachError::Queue`] the device may still
    /// reach what it has reached.
    pub fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.mapper.space().detach(device)
    }

    /// Maps a physically contiguous buffer of `len` bytes and returns the address at which the device sees its first
    /// byte.
    ///
    /// # Errors
    /// [`RawMapError::Refused`], which changes nothing: [`MapError::Exhausted`] if no addresses are left,
    /// [`MapError::NoMemory`] if the host has no table page, [`MapError::Empty`] and [`MapError::PhysicalRange`] for a
    /// length or an address that cannot be, [`MapError::PartialPage`] in a domain that refuses such pages. After
    /// [`RawMapError::Lost`] the hardware has not confirmed a command, and the memory must never be used again (S11).
    ///
    /// # Safety
    /// Until its unmap has returned without error and the stale window that the design declares is over, the memory is
    /// intended for the devices of the domain; if that window has no bound, forever. None of the memory holds tables
    /// of the library. In a domain that [bounces](SubPage::Bounce) partial pages, no CPU writes the buffer while it is
    /// mapped, and no CPU accesses it during the unmap, which copies to it.
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

    /// The mapping of a buffer of any length. Not inlined, so that what takes one page stays short.
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    #[inline(never)]
    pub(super) unsafe fn map_segments(
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
    pub(super) unsafe fn map_segments_unexposed(
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

    /// Maps `request` and returns its pages. Segment *k* follows the pages of the segments before it, at its physical
    /// offset within its first page.
    ///
    /// # Errors
    /// Those of [`map_raw`](Domain::map_raw).
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
    pub(super) unsafe fn map_request_unexposed(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let (mut seen, mut request) = (SeenSegments::default(), *request);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.map_unexposed(&mut request, &mut seen, None) }
    }

    /// Maps as [`map_raw`](Domain::map_raw) does, with `options`.
    ///
    /// # Errors
    /// Those of [`map_raw`](Domain::map_raw), and those of the [options](MapOptions): [`MapError::BadLimit`],
    /// [`MapError::BadAlignment`] and [`MapError::BadBoundary`] for numbers that make no sense,
    /// [`MapError::CrossesBoundary`] and [`MapError::Misplaced`] if the buffer cannot satisfy them,
    /// [`MapError::Overlap`], [`MapError::Reserved`] and [`MapError::BeyondWidth`] for a place that cannot be had,
    /// [`MapError::Unplaceable`] and [`MapError::NotApart`] for a design that cannot do it.
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
        let range = match options.apart {
            // SAFETY: the caller's promise, passed on.
            true => unsafe { self.map_in_pieces(&segments, access, options) },
            // SAFETY: as above.
            false => unsafe { self.map_as_said(&segments, access, options) },
        }?;
        Ok(self.info.addressing.segment_iova(&segments, 0, range))
    }

    /// Maps a list of segments, which need not be physically contiguous, and returns the pages of the mapping. If the
    /// next segment follows the last in memory, and the boundary between them is a page boundary, the two are mapped
    /// as one segment, unless each segment has [its own entry](Addressing::Entries). Otherwise segments follow one
    /// another as in [`map_request`](Domain::map_request).
    ///
    /// A list of more than 4 segments is copied to the heap for the duration of the call.
    ///
    /// # Errors
    /// Those of [`map_raw_with`](Domain::map_raw_with).
    ///
    /// # Safety
    /// That of [`map_raw`](Domain::map_raw).
    pub unsafe fn map_list(
        &self,
        segments: impl IntoIterator<Item = Segment>,
        access: Access,
        options: &MapOptions,
    ) -> Result<IovaRange, RawMapError> {
        let room = |room| try_reserve_by(|allocate| self.mapper.space().allocate(Context::Atomic, allocate), room);
        let mut list = SegmentList::<LISTED_MAX>::default();
        list.collect(room, segments, self.info.addressing.opens_pages())?;
        match options.apart {
            // SAFETY: the caller's promise, passed on.
            true => unsafe { self.map_in_pieces(list.as_slice(), access, options) },
            // SAFETY: as above.
            false => unsafe { self.map_as_said(list.as_slice(), access, options) },
        }
    }

    /// Unmaps the mapping that begins in the page of `iova`, whatever its length, and returns its pages.
    ///
    /// # Errors
    /// Those of [`unmap_raw`](Domain::unmap_raw). [`UnmapError::LengthUnknown`] if mappings of the design share
    /// addresses, or if its addresses are physical.
    pub fn unmap_raw_at(&self, iova: Iova) -> Result<IovaRange, RawUnmapError> {
        if matches!(self.info.addressing, Addressing::Shared | Addressing::Physical) {
            return Err(UnmapError::LengthUnknown(iova).into());
        }
        let page = self.info.addressing.whole(IovaRange::of(iova.pfn(), 1));
        match self.unmap_pages(page) {
            // A refused unmap changes nothing, so the mapping can still be unmapped by its full range. If several
            // callers race, one of them succeeds.
            Err(RawUnmapError::Refused(UnmapError::Partial { mapped, .. }))
                if mapped.first_pfn() == page.first_pfn() =>
            {
                self.unmap_pages(mapped).map(|_| mapped)
            }
            result => result.map(|_| page),
        }
    }

    /// Unmaps a mapping of [`map_raw`](Domain::map_raw), given the same address and length. Under strict protection
    /// the device can no longer reach the buffer through this mapping when the call returns. If another buffer in one
    /// of its pages is mapped, the device still reaches that whole page through the other mapping, unless the domain
    /// refuses or bounces partial pages (S8, [`SubPage`]).
    ///
    /// Do not unmap a typed mapping with this call. The device would lose it early, and [`unmap`](Domain::unmap) may
    /// then refuse it, so that its buffer is never given back.
    ///
    /// # Errors
    /// [`RawUnmapError::Refused`] leaves the mapping as it was: [`UnmapError::BadRange`] if the length is zero or ends
    /// beyond the last address, [`UnmapError::NotMapped`] if nothing is mapped there, [`UnmapError::Partial`] if the
    /// mapping has other pages, [`UnmapError::Poisoned`] after a panic in the domain. After
    /// [`RawUnmapError::Commit`] the buffer must never be used again (S11).
    #[inline(always)]
    pub fn unmap_raw(&self, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
        match self.short_way.takes_raw(iova.page_offset(), len) {
            true => self.mapper.unmap_now(IovaRange::of(iova.pfn(), 1)),
            false => self.unmap_pages(IovaRange::covering(iova, len).ok_or(UnmapError::BadRange)?),
        }
        .map(drop)
    }

    /// Not inlined, to keep the path for a single page short.
    #[inline(never)]
    pub(super) fn unmap_pages(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        match self.sub_page {
            SubPage::Bounce => self.unmap_bounced(range),
            _ => self.mapper.unmap_apart(range),
        }
    }

    /// Unmaps a range in a domain that does not bounce. A function of its own, so that its stack frame is gone when
    /// the mapper takes its general path.
    #[inline(never)]
    pub(super) fn unmap_unbounced(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.mapper.unmap_apart(range)
    }

    /// Clears the mapping at exactly `range` and records in `out` what has to be invalidated. It does what a
    /// [`raw_batch`](Domain::raw_batch) does, but without borrowing the domain, for callers in C. The buffer belongs
    /// to the device until [`commit_raw`](Domain::commit_raw) has returned.
    ///
    /// # Errors
    /// An [`UnmapError`], including [`UnmapError::BatchFull`] and [`UnmapError::WrongDomain`]; nothing has changed
    /// then.
    pub fn unmap_raw_into(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        self.unmap_into(range, out)
    }

    /// Commits a batch of [`unmap_raw_into`](Domain::unmap_raw_into). Its buffers belong to the driver again, and the
    /// batch can be reused.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    ///
    /// # Panics
    /// If the batch holds unmaps of another domain.
    pub fn commit_raw(&self, revocation: &mut Runs) -> Result<(), CommitError> {
        if revocation.is_empty() { Ok(()) } else { self.commit(revocation).map(drop) }
    }

    /// A batch of raw unmaps that are committed together.
    pub const fn raw_batch(&self) -> RawBatch<&Self> {
        RawBatch::new(self)
    }

    /// Keeps a reserve of `tables` table pages, and of memory for their records, for maps that get no memory from the
    /// host. The size holds until another call changes it. A map adds at most [`tables_max`](Domain::tables_max) table
    /// pages, so with that many in reserve a map in atomic context does not fail for lack of a table page. A further
    /// call refills what maps have used up. The host may sleep.
    ///
    /// # Errors
    /// [`NoMemory`]; the reserve keeps what the host could supply.
    pub fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.mapper.reserve_tables(tables)
    }

    /// The largest number of table pages that a map of `pages` pages adds, wherever its addresses are.
    pub fn tables_max(&self, pages: u64) -> usize {
        self.mapper.space().tables_max(pages)
    }

    /// The number of table pages in use. Takes no lock.
    pub fn table_pages(&self) -> usize {
        self.mapper.space().table_pages()
    }

    /// What is in use now, and its limits (S7). May take locks. The figures are exact only while no map or unmap is
    /// running.
    pub fn usage(&self) -> Usage {
        self.mapper.usage()
    }

    /// Flushes the unmaps that have waited long enough, and frees what has been kept for long enough. Call it at the
    /// time that [`due_us`](Domain::due_us) returns, or every millisecond.
    ///
    /// # Errors
    /// [`CommitError`] if the flush failed.
    pub fn tick(&self) -> Result<(), CommitError> {
        self.mapper.tick()
    }

    /// The time at which the next [`tick`](Domain::tick) has work to do, in microseconds of the platform's clock.
    /// `None` if no work is pending.
    pub fn due_us(&self) -> Option<u64> {
        self.mapper.due_us()
    }

    /// The domain's id in the IOMMU.
    pub fn id(&self) -> DomainId {
        self.mapper.space().id()
    }

    /// The description of its design.
    pub fn info(&self) -> &'static Info {
        self.info
    }

    /// How its mappings are protected.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// What the domain does with a page that a buffer covers only in part. Always [`SubPage::Expose`] if devices reach
    /// [only the part itself](Addressing::Entries).
    pub fn sub_page(&self) -> SubPage {
        self.sub_page
    }

    #[inline(always)]
    pub(super) fn map_for<B: DmaBuffer>(
        &self,
        buffer: B,
        access: Access,
        stream: Stream,
    ) -> Result<Mapping<B>, MapFailure<B>> {
        // From here on the buffer is not dropped, not even by a panic, until the device is known not to have it.
        let lent = Lent::new(buffer);
        let mapped = match (lent.segments(), self.protection) {
            (&[segment], _) if self.short_way.takes_typed(segment.phys.page_offset(), segment.len) => {
                let segments = [segment];
                let mut request = Request::in_a_page(&segments, access);
                request.stream = stream;
                // SAFETY: the memory is that of a `DmaBuffer`, which has no other user until it is given back.
                let mapped = unsafe { self.mapper.map(&request) };
                // Known to be one page, so the range need not pass through memory.
                mapped.map(|range| IovaRange::of(range.first_pfn(), 1))
            }
            // SAFETY: as above.
            (segments, Protection::Strict) => unsafe { self.map_segments(segments, access, stream) },
            _ => Err(MapError::NotStrict.into()),
        };
        self.mapping(lent, mapped, access)
    }

    /// Turns the result of a map into a mapping or a failure.
    #[inline(always)]
    pub(super) fn mapping<B: DmaBuffer>(
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

    /// Turns the result of an unmap into the buffer or a failure.
    #[inline(always)]
    pub(super) fn unmapped<B: DmaBuffer>(
        &self,
        lent: Lent<B>,
        range: IovaRange,
        access: Access,
        committed: Result<Committed, RawUnmapError>,
    ) -> Result<B, UnmapFailure<B>> {
        match committed {
            Ok(Committed::Proven(proof)) => Ok(lent.give_back(&proof)),
            Ok(Committed::Deferred) => Err(UnmapFailure::Commit(CommitError(QueueError::Unproven))),
            Err(RawUnmapError::Commit(error)) => Err(UnmapFailure::Commit(error)),
            Err(RawUnmapError::Refused(error)) => {
                let value = Mapping::new(lent, range, access, self.tag);
                Err(UnmapFailure::Refused(Refused { value, error }))
            }
        }
    }

    #[inline(always)]
    pub(super) fn unmap_into(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        self.mapper.unmap(range, out)?;
        if self.sub_page == SubPage::Bounce {
            let _ = self.take_bounced(range, &mut out.bounced);
        }
        Ok(())
    }

    /// Unmaps as `unmap_into` does, for a lent buffer that consists of the segments `lent`.
    #[inline(always)]
    pub(super) fn unmap_lent_into(&self, lent: &[Segment], range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        self.mapper.unmap(range, out)?;
        match self.sub_page {
            SubPage::Bounce if !self.take_bounced_of(lent, range, &mut out.bounced) => {
                Err(UnmapError::NotMapped(range.start()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        match self.sub_page {
            SubPage::Bounce => self.commit_bounced(revocation),
            _ => self.mapper.commit(revocation),
        }
    }
}
