//! A domain: the object through which a driver maps its buffers.
//!
//! There are two interfaces. The typed interface ([`Domain::map`], [`Domain::unmap`], [`Domain::batch`]) owns a buffer
//! while the device can reach it. It works only under strict protection, because a buffer that it gives back must
//! belong to its owner alone. The raw interface ([`Domain::map_raw`], [`Domain::unmap_raw`]) is for C, and for kernels
//! whose drivers keep only addresses.
//!
//! A compiler cannot see what a device does to memory. The code that maps memory through the raw interface, and the
//! code that programs the device, are responsible for it: until the mapping is gone, the memory must be intended for
//! that device.

mod batch;
mod calls;
mod config;
#[cfg(any(feature = "fake", test))]
pub mod fake;
mod map_batch;
mod mapping;
mod open;
mod options;
mod partial_pages;
mod reference;
mod ring;
mod submitted;

pub use batch::{Batch, GivenBack, RawBatch};
pub use config::DomainConfig;
pub use map_batch::RUN_BUFFERS_MAX;
pub use mapping::{DmaBuffer, MapFailure, Mapping, Refused, SharedBuffer, UnmapFailure, leaked_mappings, lost_buffers};
pub use open::{DomainOf, DynDomain, Open};
pub use reference::DomainRef;
pub use ring::{
    DESCRIPTOR_PAGES_MAX, Descriptor, DescriptorError, DescriptorFailure, DescriptorMapFailure, Ring, RingConfig,
    RingError,
};
pub use submitted::{SubmitFailure, Submitted, SubmittedDescriptor, Unmaps};

use mapping::Tag;
use partial_pages::ShortWay;

use crate::mapper::{Info, Mapper};
use crate::safety::Protection;
use crate::sub_page::SubPage;
use crate::sync::AtomicUsize;

/// An address space for one or more devices, which mapper `M` manages. A [design](crate::designs) opens it
/// ([`Open`]).
///
/// All methods may be called from several CPUs and from interrupts. The host must call [`tick`](Domain::tick) from a
/// timer when [`due_us`](Domain::due_us) says so.
///
/// Dropping the domain detaches its devices, waits until the IOMMU has dropped everything cached for them, and only
/// then frees the tables (S10). Buffers that are still mapped stay lost to their owners; see [`Mapping`].
///
/// # Examples
/// ```
/// use portcullis::designs::Portcullis;
/// use portcullis::domain::fake::FakeBuffer;
/// use portcullis::iommu::fake::FakeIommu;
/// use portcullis::platform::fake::FakeHost;
/// use portcullis::{Access, Open, Protection, SourceId};
///
/// let host = FakeHost::default();
/// let iommu = FakeIommu::new(&host);
/// let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
/// domain.attach(SourceId::new(3, 0, 0))?;
/// let mapping = domain.map(FakeBuffer::new(1), Access::DeviceWrites)?;
/// // Program `mapping.iova()` into a descriptor, and wait for the device.
/// let _buffer = domain.unmap(mapping)?; // the device cannot reach it any more
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The raw interface, for drivers that keep addresses only:
/// ```
/// # use portcullis::designs::Portcullis;
/// # use portcullis::iommu::fake::FakeIommu;
/// # use portcullis::platform::fake::FakeHost;
/// # use portcullis::{Access, Open, PhysAddr, Protection};
/// # let host = FakeHost::default();
/// # let iommu = FakeIommu::new(&host);
/// # let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
/// // SAFETY: the fake devices do no DMA.
/// let iova = unsafe { domain.map_raw(PhysAddr::new(0x1234_0000), 1500, Access::DeviceReads) }?;
/// domain.unmap_raw(iova, 1500)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Domain<M: Mapper + ?Sized> {
    protection: Protection,
    sub_page: SubPage,
    tag: Tag,
    short_way: ShortWay,
    /// The highest address that it may allocate.
    last: u64,
    /// The number of rings made so far.
    rings: AtomicUsize,
    info: &'static Info,
    mapper: M,
}
