//! What both drivers need: buffers on loan to a device, and memory that driver and device share.

use crate::{GuestBuffer, GuestMemory};
use portcullis::design::Design;
use portcullis::domain::{DescriptorError, DescriptorMapFailure, DomainRef, Mapping, Refused, Ring, RingError};
use portcullis::{Access, Domain, Iommu, NoMemory, Platform, RawMapError, RawUnmapError};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long a device may take for anything.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why a driver could not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// Another device, or none, is there.
    #[error("the device says that it is {found:#x}; expected {expected}")]
    Identity {
        /// What it says.
        found: u32,
        /// What it should be.
        expected: &'static str,
    },
    /// No memory for rings.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The rings could not be mapped, or a buffer is lost for good.
    #[error("mapping failed: {0}")]
    Map(#[from] RawMapError),
    /// A buffer could not be mapped.
    #[error("mapping failed: {0}")]
    Descriptor(#[from] DescriptorError),
    /// There is no such ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Buffers could not be unmapped. They stay with the device, or are lost for good.
    #[error("unmapping failed: {0}")]
    Unmap(#[from] RawUnmapError),
    /// The device does not answer in time.
    #[error("the device does not {0}")]
    Silent(&'static str),
    /// The device has as much to do as its rings hold.
    #[error("the rings are full")]
    Full,
    /// A buffer that the device cannot take.
    #[error("a buffer of {len} bytes at {at:#x}; expected {expected}")]
    Buffer {
        /// Where it is, as the driver was told.
        at: u64,
        /// How many bytes it has.
        len: u64,
        /// What can be taken.
        expected: &'static str,
    },
    /// The device ended a command of the driver's own with this status.
    #[error("the device refuses a command with status {0:#x}")]
    Refused(u16),
}

/// A buffer that a driver has not taken, and why.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotTaken {
    /// The buffer, unless it is lost for good.
    pub buffer: Option<GuestBuffer>,
    /// Why.
    #[source]
    pub error: DriverError,
}

/// Maps one buffer as a descriptor of `ring`.
pub(crate) fn lend<H: DomainRef>(ring: &mut Ring<H>, buffer: GuestBuffer) -> Result<Mapping<GuestBuffer>, NotTaken> {
    match ring.map(iter::once(buffer).collect()) {
        Ok(descriptor) => Ok(descriptor.into_mappings().pop().expect("one buffer, one mapping")),
        Err(DescriptorMapFailure::Refused(Refused { mut value, error })) => {
            Err(NotTaken { buffer: value.pop(), error: error.into() })
        }
        Err(DescriptorMapFailure::Lost { mut buffers, error }) => {
            Err(NotTaken { buffer: buffers.pop(), error: RawMapError::Lost(error).into() })
        }
    }
}

/// Unmaps all of them, with one wait for the hardware, and gives their buffers back in the same order. There are at most
/// [`BATCH_MAX`](portcullis::invalidation::BATCH_MAX).
///
/// # Errors
/// [`DriverError::Unmap`]. A mapping that was refused leaks, as do those behind it, which is counted and safe: a domain refuses what it
/// has mapped only after a panic, or where another has unmapped it.
pub(crate) fn take_back<D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &Domain<D, P, I>,
    mappings: impl IntoIterator<Item = Mapping<GuestBuffer>>,
) -> Result<Vec<GuestBuffer>, DriverError> {
    let mut batch = domain.batch();
    for mapping in mappings {
        batch.unmap(mapping).map_err(|Refused { error, .. }| RawUnmapError::from(error))?;
    }
    Ok(batch.commit().map_err(RawUnmapError::from)?.into_iter().collect())
}

/// Pages that driver and device share for as long as the driver runs: rings, lists, and what a device says about itself.
pub(crate) struct Shared(Mapping<GuestBuffer>);

impl Shared {
    /// `pages` pages of zeros, mapped for both directions.
    pub(crate) fn new<D: Design<P, I>, P: Platform, I: Iommu>(
        domain: &Domain<D, P, I>,
        memory: &Arc<GuestMemory>,
        pages: u64,
    ) -> Result<Self, DriverError> {
        let buffer = GuestBuffer::new(memory, pages)?;
        buffer.fill(0);
        let mapped = domain.map_shared(buffer, Access::DeviceReadsAndWrites);
        Ok(Self(mapped.map_err(|failure| failure.error())?))
    }

    /// Where the device sees the byte at `offset`.
    pub(crate) fn iova(&self, offset: u64) -> u64 {
        self.0.iova().as_u64() + offset
    }

    /// Reads the word at `offset`.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        self.0.shared().read_u64(offset)
    }

    /// Writes the word at `offset`.
    pub(crate) fn write(&self, offset: u64, word: u64) {
        self.0.shared().write_u64(offset, word);
    }

    /// Unmaps them. The device uses them no more.
    pub(crate) fn close<D: Design<P, I>, P: Platform, I: Iommu>(
        self,
        domain: &Domain<D, P, I>,
    ) -> Result<(), DriverError> {
        take_back(domain, [self.0]).map(drop)
    }
}

/// Waits until `look` finds something; `what` it is goes into the error.
pub(crate) fn within<T>(what: &'static str, mut look: impl FnMut() -> Option<T>) -> Result<T, DriverError> {
    let begun = Instant::now();
    loop {
        // The clock is read before the look: a thread that was kept from running past the limit still looks once more.
        let late = begun.elapsed() > ANSWER_MAX;
        if let Some(found) = look() {
            return Ok(found);
        }
        if late {
            return Err(DriverError::Silent(what));
        }
        std::thread::yield_now();
    }
}
