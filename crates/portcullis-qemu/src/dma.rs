//! Code that both drivers share: buffers lent to a device, and memory that driver and device share.

use crate::{GuestBuffer, GuestMemory};
use portcullis::domain::{
    Batch, DescriptorError, DescriptorMapFailure, DomainRef, Mapping, Refused, Ring, RingError, Submitted,
};
use portcullis::mapper::Mapper;
use portcullis::{Access, Domain, NoMemory, RawMapError, RawUnmapError};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The time limit for any action of a device.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why a driver could not perform a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The function is another device, or does not exist.
    #[error("the device says that it is {found:#x}; expected {expected}")]
    Identity {
        /// The identity that was read.
        found: u32,
        /// The identity that was expected.
        expected: &'static str,
    },
    /// There is no memory for the rings.
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
    /// Buffers could not be unmapped. The device may still reach them, or they are lost for good.
    #[error("unmapping failed: {0}")]
    Unmap(#[from] RawUnmapError),
    /// The device did not act in time.
    #[error("the device does not {0}")]
    Silent(&'static str),
    /// The device's rings are full.
    #[error("the rings are full")]
    Full,
    /// The device cannot take this buffer.
    #[error("a buffer of {len} bytes at {at:#x}; expected {expected}")]
    Buffer {
        /// Its address, as the driver was given it.
        at: u64,
        /// Its length in bytes.
        len: u64,
        /// The buffers that the device can take.
        expected: &'static str,
    },
    /// The device ended a command of the driver itself with this status.
    #[error("the device refuses a command with status {0:#x}")]
    Refused(u16),
}

/// A buffer that a driver did not take, and the reason.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotTaken {
    /// The buffer, unless it is lost for good.
    pub buffer: Option<GuestBuffer>,
    /// The reason.
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

/// A batch of buffers that a device is done with, and whose unmaps were submitted.
pub(crate) type Returning<'d, M> = Submitted<Batch<&'d Domain<M>, GuestBuffer>>;

/// Unmaps all of `mappings` and submits that. There are at most [`BATCH_MAX`](portcullis::invalidation::BATCH_MAX) of
/// them.
///
/// # Errors
/// [`DriverError::Unmap`]. A mapping that was refused leaks, and so do those after it. The leak is counted and safe.
/// A domain refuses a mapping that it has made only after a panic, or if other code has unmapped it.
pub(crate) fn give_up<M: Mapper + ?Sized>(
    domain: &Domain<M>,
    mappings: impl IntoIterator<Item = Mapping<GuestBuffer>>,
) -> Result<Returning<'_, M>, DriverError> {
    let mut batch = domain.batch();
    for mapping in mappings {
        batch.unmap(mapping).map_err(|Refused { error, .. }| RawUnmapError::from(error))?;
    }
    Ok(batch.submit().map_err(RawUnmapError::from)?)
}

/// Waits for the hardware, and returns the buffers in the order of their unmaps.
///
/// # Errors
/// [`DriverError::Unmap`]: they are lost.
pub(crate) fn wait<M: Mapper + ?Sized>(returning: Returning<'_, M>) -> Result<Vec<GuestBuffer>, DriverError> {
    Ok(returning.wait().map_err(RawUnmapError::from)?.into_iter().collect())
}

/// Unmaps all of `mappings` and waits for the hardware.
///
/// # Errors
/// Those of both.
pub(crate) fn take_back<M: Mapper + ?Sized>(
    domain: &Domain<M>,
    mappings: impl IntoIterator<Item = Mapping<GuestBuffer>>,
) -> Result<Vec<GuestBuffer>, DriverError> {
    wait(give_up(domain, mappings)?)
}

/// Pages that driver and device share for as long as the driver runs: rings, lists, and the device's description of
/// itself.
pub(crate) struct Shared(Mapping<GuestBuffer>);

impl Shared {
    /// `pages` pages of zeros, mapped for both directions.
    pub(crate) fn new<M: Mapper + ?Sized>(
        domain: &Domain<M>,
        memory: &Arc<GuestMemory>,
        pages: u64,
    ) -> Result<Self, DriverError> {
        let buffer = GuestBuffer::new(memory, pages)?;
        buffer.fill(0);
        let mapped = domain.map_shared(buffer, Access::DeviceReadsAndWrites);
        Ok(Self(mapped.map_err(|failure| failure.error())?))
    }

    /// The IOVA of the byte at `offset`.
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

    /// Unmaps the pages. The device no longer uses them.
    pub(crate) fn close<M: Mapper + ?Sized>(self, domain: &Domain<M>) -> Result<(), DriverError> {
        take_back(domain, [self.0]).map(drop)
    }
}

/// Polls until `look` returns something. If that takes too long, the error contains `what`.
pub(crate) fn within<T>(what: &'static str, mut look: impl FnMut() -> Option<T>) -> Result<T, DriverError> {
    let begun = Instant::now();
    loop {
        // The clock is read before the poll, so a thread that was held up past the limit still polls once more.
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
