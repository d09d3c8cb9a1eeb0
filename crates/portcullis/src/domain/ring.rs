//! A ring of descriptors: buffers that the device uses in order. Each descriptor's buffers are mapped and unmapped
//! together.

use super::map_batch::Unmapped;
use super::{Batch, DmaBuffer, Domain, DomainRef, Mapping, Refused};
use crate::address::{PAGE_SIZE, Segment};
use crate::error::{CommitError, MapError, RawMapError, SyncError, UnmapError};
use crate::invalidation::BATCH_MAX;
use crate::iommu::QueueError;
use crate::mapper::Mapper;
use crate::request::{Access, Stream};
use crate::sync::Ordering;
use crate::table::ENTRIES;
use arrayvec::ArrayVec;
use thiserror::Error;

/// The number of pages of the largest descriptor: one buffer of 2 MiB, which a single leaf may translate.
pub const DESCRIPTOR_PAGES_MAX: u64 = ENTRIES as u64;

/// The settings of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingConfig {
    /// The largest number of pages that the buffers of one descriptor take together: 1 to [`DESCRIPTOR_PAGES_MAX`]. A
    /// descriptor has at most [`BATCH_MAX`] buffers, because one commit unmaps them all.
    pub pages_per_descriptor: u64,
    /// What the device does with the buffers.
    pub access: Access,
}

impl Default for RingConfig {
    /// Receive descriptors of 64 pages.
    fn default() -> Self {
        Self { pages_per_descriptor: BATCH_MAX as u64, access: Access::DeviceWrites }
    }
}

/// Why a ring cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// More pages than a descriptor can have, or zero.
    #[error("there are no descriptors of {0} pages; expected 1 to {max}", max = DESCRIPTOR_PAGES_MAX)]
    PagesPerDescriptor(u64),
}

/// Why a descriptor was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// Its buffers take more pages than this ring allows for a descriptor.
    #[error("the buffers take {pages} pages; expected at most {most}")]
    TooManyPages {
        /// The pages of all its buffers.
        pages: u64,
        /// [`RingConfig::pages_per_descriptor`].
        most: u64,
    },
    /// One of its buffers was not mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Why a descriptor was not mapped.
#[derive(Debug)]
pub enum DescriptorMapFailure<B: DmaBuffer> {
    /// Nothing has changed; here are the buffers.
    Refused(Refused<ArrayVec<B, BATCH_MAX>, DescriptorError>),
    /// Some of the buffers are lost for good (S11).
    Lost {
        /// The buffers that are not lost.
        buffers: ArrayVec<B, BATCH_MAX>,
        /// Why the first of the others is lost.
        error: SyncError,
    },
}

/// Why not all buffers of a descriptor came back.
#[derive(Debug)]
pub enum DescriptorFailure<B: DmaBuffer> {
    /// Some unmaps were refused. Their mappings have not changed.
    Refused {
        /// The refused mappings.
        descriptor: Descriptor<B>,
        /// Why the first of them was refused.
        error: UnmapError,
        /// The buffers of the other mappings, given back.
        buffers: ArrayVec<B, BATCH_MAX>,
    },
    /// The invalidation failed: the buffers are lost for good (S11).
    Commit(CommitError),
}

/// The mapped buffers of a descriptor, one mapping each. Dropping it leaks them, as dropping a [`Mapping`] does.
#[derive(Debug)]
#[must_use = "dropping a descriptor leaks its buffers; give it to `Ring::unmap`"]
pub struct Descriptor<B: DmaBuffer> {
    mappings: ArrayVec<Mapping<B>, BATCH_MAX>,
}

impl<B: DmaBuffer> Descriptor<B> {
    /// The mappings, in the order of the buffers.
    pub fn mappings(&self) -> &[Mapping<B>] {
        &self.mappings
    }

    /// The mappings, to be unmapped one by one with [`Domain::unmap`](super::Domain::unmap) or in the caller's own
    /// batch.
    pub fn into_mappings(self) -> ArrayVec<Mapping<B>, BATCH_MAX> {
        self.mappings
    }
}

/// A ring of descriptors in a domain. The library knows that buffers mapped through it belong together.
///
/// Every design supports rings. Under designs that allocate addresses by ring, such as
/// [`Portcullis`](crate::designs::Portcullis), the pages of a descriptor are adjacent, and one invalidation covers them
/// all. A buffer of several segments is a scatter list, and becomes one mapping. A buffer of 2 MiB that is aligned to
/// its size takes one table entry, where the IOMMU and the design support that, and one command. This gives strict
/// protection to huge pages, which Fast & Safe (SOSP'24, §5) leaves as future work.
///
/// # Examples
/// ```
/// use portcullis::designs::Portcullis;
/// use portcullis::domain::RingConfig;
/// use portcullis::domain::fake::FakeBuffer;
/// use portcullis::iommu::fake::FakeIommu;
/// use portcullis::platform::fake::FakeHost;
/// use portcullis::{Open, Protection};
///
/// let host = FakeHost::default();
/// let iommu = FakeIommu::new(&host);
/// let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
/// let mut ring = domain.ring(RingConfig { pages_per_descriptor: 16, ..RingConfig::default() })?;
///
/// let descriptor = ring.map((0..16).map(|_| FakeBuffer::new(1)).collect()).expect("room for 16 pages");
/// for mapping in descriptor.mappings() {
///     // ... write mapping.iova() into the descriptor ...
/// }
/// // ... when the device is done with it:
/// let buffers = ring.unmap(descriptor).expect("mapped by this ring");
/// assert_eq!((buffers.len(), iommu.take_commands().len()), (16, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ring<H: DomainRef> {
    domain: H,
    number: u32,
    config: RingConfig,
}

impl<M: Mapper + ?Sized> Domain<M> {
    /// A ring of descriptors. Its number is unique until the domain has made 2^32 rings.
    ///
    /// # Errors
    /// [`RingError::PagesPerDescriptor`].
    pub fn ring(&self, config: RingConfig) -> Result<Ring<&Self>, RingError> {
        Ring::new(self, config)
    }

    pub(super) fn next_ring(&self) -> u32 {
        // Relaxed: only uniqueness matters.
        self.rings.fetch_add(1, Ordering::Relaxed) as u32
    }
}

impl<H: DomainRef> Ring<H> {
    /// A ring in the domain that `domain` points to. The ring keeps `domain`. Its number is unique until the domain
    /// has made 2^32 rings.
    ///
    /// # Errors
    /// [`RingError::PagesPerDescriptor`].
    pub fn new(domain: H, config: RingConfig) -> Result<Self, RingError> {
        if !(1..=DESCRIPTOR_PAGES_MAX).contains(&config.pages_per_descriptor) {
            return Err(RingError::PagesPerDescriptor(config.pages_per_descriptor));
        }
        let number = domain.next_ring();
        Ok(Self { domain, number, config })
    }

    /// The stream that identifies the ring in a [`Request`](crate::Request), for the raw interface.
    pub const fn stream(&self) -> Stream {
        Stream(Some(self.number))
    }

    /// Maps as [`Domain::map_batch`](super::Domain::map_batch) does, for this ring. Under designs that allocate
    /// addresses by ring, buffers that are mapped together are adjacent.
    ///
    /// # Errors
    /// Those of [`Domain::map_batch`](super::Domain::map_batch).
    pub fn map_batch<B: DmaBuffer>(
        &mut self,
        buffers: impl IntoIterator<Item = B>,
        mapped: impl FnMut(Mapping<B>),
    ) -> Result<(), Unmapped<B>> {
        self.domain.map_all(buffers, self.config.access, self.stream(), mapped)
    }

    /// Maps the buffers of a descriptor, each with a mapping of its own. Their entries are made visible
    /// [together](super::Domain::map_batch).
    ///
    /// # Errors
    /// [`DescriptorMapFailure::Refused`] gives all buffers back, and nothing has changed. After
    /// [`DescriptorMapFailure::Lost`] some are lost for good (S11).
    pub fn map<B: DmaBuffer>(
        &mut self,
        buffers: ArrayVec<B, BATCH_MAX>,
    ) -> Result<Descriptor<B>, DescriptorMapFailure<B>> {
        let most = self.config.pages_per_descriptor;
        // A segment that is too long is not counted page by page.
        let pages_of = |segment: &Segment| if segment.len > most * PAGE_SIZE { most + 1 } else { segment.pages() };
        let pages = buffers.iter().flat_map(DmaBuffer::segments).map(pages_of).fold(0, u64::saturating_add);
        if pages > most {
            let error = DescriptorError::TooManyPages { pages, most };
            return Err(DescriptorMapFailure::Refused(Refused { value: buffers, error }));
        }
        let (mut mappings, mut rest) = (ArrayVec::new(), buffers.into_iter());
        let mapped = |mapping| mappings.push(mapping);
        let Err(Refused { value: not_mapped, error }) =
            self.domain.map_all(rest.by_ref(), self.config.access, self.stream(), mapped)
        else {
            return Ok(Descriptor { mappings });
        };
        // One buffer could not be mapped, so the mapped ones are unmapped.
        let (mut buffers, lost) = match self.unmap(Descriptor { mappings }) {
            Ok(buffers) => (buffers, None),
            Err(DescriptorFailure::Refused { descriptor, buffers, error }) => {
                // These stay mapped for good: the domain has been poisoned meanwhile, or another caller has unmapped
                // them.
                descriptor.mappings.into_iter().for_each(|mapping| drop(mapping.into_lent()));
                let why = if error == UnmapError::Poisoned { QueueError::Panicked } else { QueueError::Unproven };
                (buffers, Some(SyncError(why)))
            }
            Err(DescriptorFailure::Commit(CommitError(queue))) => (ArrayVec::new(), Some(SyncError(queue))),
        };
        buffers.extend(not_mapped.into_iter().chain(rest));
        Err(match (error, lost) {
            (RawMapError::Lost(error), _) | (RawMapError::Refused(_), Some(error)) => {
                DescriptorMapFailure::Lost { buffers, error }
            }
            (RawMapError::Refused(error), None) => {
                DescriptorMapFailure::Refused(Refused { value: buffers, error: error.into() })
            }
        })
    }

    /// Unmaps all buffers of a descriptor with one commit and gives them back in order. The device has lost them.
    ///
    /// # Errors
    /// A [`DescriptorFailure`].
    pub fn unmap<B: DmaBuffer>(
        &self,
        descriptor: Descriptor<B>,
    ) -> Result<ArrayVec<B, BATCH_MAX>, DescriptorFailure<B>> {
        self.batch_of(descriptor)?.commit().map_err(DescriptorFailure::Commit)
    }

    /// The unmaps of a descriptor, as a batch. If some are refused, the others are committed.
    pub(super) fn batch_of<B: DmaBuffer>(
        &self,
        descriptor: Descriptor<B>,
    ) -> Result<Batch<&Domain<H::Mapper>, B>, DescriptorFailure<B>> {
        let mut batch = Batch::new(&*self.domain);
        let (mut refused, mut why) = (ArrayVec::new(), None);
        for mapping in descriptor.mappings {
            if let Err(Refused { value, error }) = batch.unmap(mapping) {
                refused.push(value);
                why.get_or_insert(error);
            }
        }
        let Some(error) = why else { return Ok(batch) };
        let buffers = batch.commit().map_err(DescriptorFailure::Commit)?;
        Err(DescriptorFailure::Refused { descriptor: Descriptor { mappings: refused }, error, buffers })
    }
}
