//! What both drivers need: a buffer on loan to a device, and memory that driver and device share.

use crate::{Buffers, GuestMemory};
use portcullis::design::Design;
use portcullis::domain::segment_iova;
use portcullis::{
    Access, Domain, Iommu, Iova, IovaRange, Lifetime, NoMemory, PAGE_SIZE, PhysAddr, Platform, RawMapError,
    RawUnmapError, Request, Segment, Stream,
};
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
    /// A buffer, or the rings, could not be mapped.
    #[error("mapping failed: {0}")]
    Map(#[from] RawMapError),
    /// A buffer could not be unmapped. It must not be used again.
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

/// A buffer that a device has: mapped, and not yet unmapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    pub(crate) buffer: Segment,
    /// What to program.
    pub(crate) iova: Iova,
    /// What to unmap.
    pub(crate) range: IovaRange,
}

impl Lent {
    /// Maps `buffer` through the raw face, which serves every protection.
    pub(crate) fn new<D: Design<P, I>, P: Platform, I: Iommu>(
        domain: &Domain<D, P, I>,
        buffer: Segment,
        access: Access,
        stream: Stream,
        lifetime: Lifetime,
    ) -> Result<Self, RawMapError> {
        let segments = [buffer];
        let mut request = Request::new(&segments, access)?;
        (request.stream, request.lifetime) = (stream, lifetime);
        // SAFETY: nothing of Rust lies in the memory of a machine.
        let range = unsafe { domain.map_request(&request) }?;
        let iova = segment_iova(&segments, 0, range, D::INFO.physical_addresses());
        Ok(Self { buffer, iova, range })
    }
}

/// Pages that driver and device share for as long as the driver runs: rings, lists, and what a device says about itself.
pub(crate) struct Coherent {
    memory: Arc<GuestMemory>,
    lent: Lent,
}

impl Coherent {
    /// `pages` pages of zeros, mapped for both directions.
    pub(crate) fn new<D: Design<P, I>, P: Platform, I: Iommu>(
        domain: &Domain<D, P, I>,
        memory: &Arc<GuestMemory>,
        buffers: &mut Buffers,
        pages: u64,
    ) -> Result<Self, DriverError> {
        let buffer = Segment { phys: buffers.take(pages)?, len: pages * PAGE_SIZE };
        memory.fill(buffer.phys, buffer.len as usize, 0);
        let access = Access::DeviceReadsAndWrites;
        let lent = Lent::new(domain, buffer, access, Stream::default(), Lifetime::Persistent)?;
        Ok(Self { memory: memory.clone(), lent })
    }

    /// Where the device sees the byte at `offset`.
    pub(crate) fn iova(&self, offset: u64) -> u64 {
        self.lent.iova.as_u64() + offset
    }

    /// What to unmap.
    pub(crate) fn range(&self) -> IovaRange {
        self.lent.range
    }

    /// Reads the word at `offset`; what the device wrote before it is seen by whoever has seen the word.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        self.memory.read_u64(self.at(offset))
    }

    /// Writes the word at `offset`, after everything that was written before.
    pub(crate) fn write(&self, offset: u64, word: u64) {
        self.memory.write_u64(self.at(offset), word);
    }

    fn at(&self, offset: u64) -> PhysAddr {
        debug_assert!(offset < self.lent.buffer.len);
        PhysAddr::new(self.lent.buffer.phys.as_u64() + offset)
    }
}

/// Waits until `look` finds something; `what` it is goes into the error.
pub(crate) fn within<T>(what: &'static str, mut look: impl FnMut() -> Option<T>) -> Result<T, DriverError> {
    let begun = Instant::now();
    loop {
        // The clock is read before the look: whoever was kept from running past the limit still looks once more.
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
