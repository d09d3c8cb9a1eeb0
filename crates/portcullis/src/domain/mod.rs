//! A domain: what a driver maps its buffers through.
//!
//! The raw face ([`Domain::map_raw`], [`Domain::unmap_raw`]) is for C and for kernels whose drivers keep addresses only; the
//! typed face ([`Domain::map`], [`Domain::unmap`], [`Domain::batch`]) owns a buffer while the device has it, and is there
//! only under strict protection: what it gives back is its owner's alone.
//!
//! What a device does to memory is outside what a compiler can see. Whoever maps memory through the raw face, and whoever
//! programs the device, answers for it: the memory must be meant for that device until the mapping is gone.

mod batch;
mod mapping;
mod ring;

pub use batch::{Batch, RawBatch};
pub use mapping::{DmaBuffer, MapFailure, Mapping, Refused, UnmapFailure, leaked_mappings, segment_iova};
pub use ring::{DESCRIPTOR_PAGES_MAX, Descriptor, DescriptorError, DescriptorFailure, Ring, RingConfig, RingError};

use mapping::Tag;

use crate::address::{Iova, IovaRange, PAGE_SHIFT, PhysAddr, Segment, lies_in_a_page};
use crate::design::{Design, DomainSetup, Mapper, Options, Usage};
use crate::error::{CommitError, MapError, NewDomainError, RawUnmapError, UnmapError};
use crate::invalidation::Revocation;
use crate::iommu::{AttachError, DomainId, Iommu, QueueError, SourceId};
use crate::platform::Platform;
use crate::proof::Committed;
use crate::request::{Access, Request, Stream};
use crate::safety::Protection;
use crate::sync::{AtomicUsize, Ordering};

/// What a new domain may be told beyond its protection.
#[derive(Clone, Copy, Debug)]
pub struct DomainConfig<'c> {
    /// How mappings are protected.
    pub protection: Protection,
    /// The devices can drive addresses of this many bits, 13 to 64. The IOMMU and its tables may be narrower; then theirs
    /// counts.
    pub address_bits: u8,
    /// Ranges never to be handed out: those that the firmware reserves and the windows of bridges. Page 0 and the interrupt
    /// range need not be named.
    pub reserved: &'c [IovaRange],
    /// Physical memory in whole pages, for designs that map all of it once.
    pub memory: &'c [Segment],
    /// Parameters of the design, where they are not to be its defaults. Those that it does not have are ignored.
    pub options: Options,
}

impl DomainConfig<'_> {
    /// 48-bit addresses, nothing reserved, no memory named, the defaults of the design.
    pub const fn new(protection: Protection) -> Self {
        Self { protection, address_bits: 48, reserved: &[], memory: &[], options: Options::NONE }
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
    tag: Tag,
    /// Rings made so far.
    rings: AtomicUsize,
}

impl<D: Design<P, I>, P: Platform, I: Iommu> Domain<D, P, I> {
    /// A domain with 48-bit addresses and nothing reserved beyond page 0 and the interrupt range.
    ///
    /// # Errors
    /// A [`NewDomainError`].
    pub fn new(iommu: I, platform: P, protection: Protection) -> Result<Self, NewDomainError> {
        Self::with_config(iommu, platform, &DomainConfig::new(protection))
    }

    /// A domain as `config` says.
    ///
    /// # Errors
    /// A [`NewDomainError`].
    pub fn with_config(iommu: I, platform: P, config: &DomainConfig<'_>) -> Result<Self, NewDomainError> {
        if !D::INFO.protections.contains(&config.protection) {
            return Err(NewDomainError::Protection);
        }
        let capabilities = iommu.capabilities();
        let by_format = match (capabilities.four_level, capabilities.three_level) {
            (true, _) => 48,
            (false, true) => 39,
            (false, false) => 0,
        };
        let width = config.address_bits.min(capabilities.address_bits).min(by_format);
        if config.address_bits > 64 || width <= PAGE_SHIFT as u8 {
            return Err(NewDomainError::Width(config.address_bits));
        }
        let mapper = D::build(DomainSetup {
            iommu,
            platform,
            protection: config.protection,
            width,
            reserved: config.reserved,
            memory: config.memory,
            options: config.options,
        })?;
        let tag = Tag::new(D::INFO.physical_addresses());
        Ok(Self { mapper, protection: config.protection, tag, rings: AtomicUsize::new(0) })
    }

    /// The domain's id in the IOMMU.
    pub fn id(&self) -> DomainId {
        self.mapper.id()
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
    /// A [`MapError`]; nothing has changed then, but after [`MapError::SyncFailed`]: that memory must not be used again.
    #[inline(always)]
    pub fn map_raw(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, MapError> {
        let segment = Segment { phys, len };
        let range = match segment.lies_in_a_page() {
            true => self.mapper.map(&Request::in_a_page(&[segment], access)),
            false => self.map_segments(&[segment], access, Stream::default()),
        }?;
        Ok(Iova::new(range.start().as_u64() + phys.page_offset()))
    }

    /// Makes a mapping of whatever there is to map. Not inlined, so that what takes one page stays short.
    #[inline(never)]
    fn map_segments(&self, segments: &[Segment], access: Access, stream: Stream) -> Result<IovaRange, MapError> {
        let mut request = Request::new(segments, access)?;
        request.stream = stream;
        self.map_request(&request)
    }

    /// Makes the mapping of `request` and returns its pages. Segment *k* lies behind the pages of those before it, at its
    /// offset in its first page.
    ///
    /// # Errors
    /// A [`MapError`]; nothing has changed then, but after [`MapError::SyncFailed`]: that memory must not be used again.
    #[inline(always)]
    pub fn map_request(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        self.mapper.map(request)
    }

    /// Unmaps what [`map_raw`](Domain::map_raw) mapped: the same address and length. Under strict protection the device has
    /// lost the buffer when this returns.
    ///
    /// # Errors
    /// [`RawUnmapError::Refused`] leaves the mapping as it was. After [`RawUnmapError::Commit`] the buffer must never be
    /// used again (S11).
    #[inline(always)]
    pub fn unmap_raw(&self, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
        match lies_in_a_page(iova.page_offset(), len) {
            true => self.mapper.unmap_now(IovaRange::of(iova.pfn(), 1)),
            false => self.unmap_pages(IovaRange::covering(iova, len).ok_or(UnmapError::BadRange)?),
        }
        .map(drop)
    }

    /// Not inlined, so that what takes one page stays short.
    #[inline(never)]
    fn unmap_pages(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.mapper.unmap_now(range)
    }

    /// Collects raw unmaps to be committed together.
    pub fn raw_batch(&self) -> RawBatch<'_, D, P, I> {
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

    #[inline(always)]
    fn map_for<B: DmaBuffer>(&self, buffer: B, access: Access, stream: Stream) -> Result<Mapping<B>, MapFailure<B>> {
        let mapped = match (self.protection, buffer.segments()) {
            (Protection::Strict, &[segment]) if segment.lies_in_a_page() => {
                let segments = [segment];
                let mut request = Request::in_a_page(&segments, access);
                request.stream = stream;
                // Known to be one page, so that the range need not go through memory.
                self.mapper.map(&request).map(|range| IovaRange::of(range.first_pfn(), 1))
            }
            (Protection::Strict, segments) => self.map_segments(segments, access, stream),
            _ => Err(MapError::NotStrict),
        };
        match mapped {
            Ok(range) => Ok(Mapping::new(buffer, range, access, self.tag)),
            Err(MapError::SyncFailed(error)) => {
                // Never dropped: the device may write to it.
                core::mem::forget(buffer);
                Err(MapFailure::Lost(error))
            }
            Err(error) => Err(MapFailure::Refused(Refused { value: buffer, error })),
        }
    }

    /// Takes the mapping away and gives the buffer back. The device has lost it.
    ///
    /// # Errors
    /// [`UnmapFailure::Refused`] gives the mapping back; after [`UnmapFailure::Commit`] the buffer is lost for good (S11).
    #[inline(always)]
    pub fn unmap<B: DmaBuffer>(&self, mapping: Mapping<B>) -> Result<B, UnmapFailure<B>> {
        let range = mapping.range();
        let committed = match range.pages() {
            _ if mapping.tag() != self.tag => Err(UnmapError::WrongDomain.into()),
            1 => self.mapper.unmap_now(IovaRange::of(range.first_pfn(), 1)),
            _ => self.unmap_pages(range),
        };
        match committed {
            Ok(Committed::Lost(proof)) => Ok(mapping.into_lent().give_back(&proof)),
            Ok(Committed::Deferred) => Err(UnmapFailure::lost(mapping, CommitError(QueueError::Unproven))),
            Err(RawUnmapError::Commit(error)) => Err(UnmapFailure::lost(mapping, error)),
            Err(RawUnmapError::Refused(error)) => Err(UnmapFailure::Refused(Refused { value: mapping, error })),
        }
    }

    /// Collects unmaps to be committed together: one wait for all of them.
    pub fn batch<B: DmaBuffer>(&self) -> Batch<'_, D, P, I, B> {
        Batch::new(self)
    }

    /// A ring of descriptors. Its number is its own until 2^32 have been made.
    ///
    /// # Errors
    /// A [`RingError`].
    pub fn ring(&self, config: RingConfig) -> Result<Ring<'_, D, P, I>, RingError> {
        // Relaxed: only uniqueness matters.
        Ring::new(self, self.rings.fetch_add(1, Ordering::Relaxed) as u32, config)
    }

    #[inline(always)]
    fn unmap_into(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        self.mapper.unmap(range, out)
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        self.mapper.commit(revocation)
    }
}
