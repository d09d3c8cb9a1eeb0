//! Buffers while the device has them.

use crate::address::{Iova, IovaRange, Segment};
use crate::error::{CommitError, MapError, UnmapError};
use crate::iommu::QueueError;
use crate::request::Access;
use crate::sync::{Ordering, StaticCounter};
use core::fmt;
use core::mem::ManuallyDrop;

/// Memory that can be lent to a device.
///
/// # Safety
/// The segments are physical memory that belongs to the buffer, wherever the value is moved and for as long as it is not
/// dropped; they are the same at every call. `'static`, so that a forgotten mapping outlives everything.
pub unsafe trait DmaBuffer: 'static {
    /// The physical pieces of the buffer, in order.
    fn segments(&self) -> &[Segment];
}

/// Mappings dropped without an unmap so far.
static LEAKED: StaticCounter = StaticCounter::new(0);

/// How many mappings have been dropped, not unmapped, since the program started. A driver without bugs keeps this at zero.
pub fn leaked_mappings() -> usize {
    LEAKED.load(Ordering::Relaxed)
}

/// A buffer that the device may reach. Its owner cannot, until the domain's `unmap` gives it back.
///
/// Dropping a mapping leaks it: it stays mapped and its buffer is never freed, so nothing can be corrupted; it is counted in
/// [`leaked_mappings`], and the fake host of this crate fails the test that did it.
#[must_use = "dropping a mapping leaks its buffer; give it to `Domain::unmap`"]
pub struct Mapping<B: DmaBuffer> {
    /// Never dropped here: the device may reach it.
    buffer: ManuallyDrop<B>,
    range: IovaRange,
    access: Access,
    tag: u64,
    physical_addresses: bool,
}

impl<B: DmaBuffer> Mapping<B> {
    pub(super) const fn new(buffer: B, range: IovaRange, access: Access, tag: u64, physical_addresses: bool) -> Self {
        Self { buffer: ManuallyDrop::new(buffer), range, access, tag, physical_addresses }
    }

    /// What to program into the device: the address of the first byte.
    pub fn iova(&self) -> Iova {
        self.segment_iova(0)
    }

    /// The address at which the device sees segment `index`.
    ///
    /// # Panics
    /// If the buffer has no such segment.
    pub fn segment_iova(&self, index: usize) -> Iova {
        let segments = self.buffer.segments();
        segment_iova(segments, index, self.range, self.physical_addresses)
    }

    /// The pages of the mapping.
    pub const fn range(&self) -> IovaRange {
        self.range
    }

    /// What the device may do.
    pub const fn access(&self) -> Access {
        self.access
    }

    pub(super) const fn tag(&self) -> u64 {
        self.tag
    }

    pub(super) fn into_buffer(self) -> B {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the buffer is taken once.
        unsafe { ManuallyDrop::take(&mut this.buffer) }
    }
}

/// The address at which a device sees segment `index` of a mapping at `range`.
///
/// # Panics
/// If there is no such segment.
pub fn segment_iova(segments: &[Segment], index: usize, range: IovaRange, physical_addresses: bool) -> Iova {
    let segment = &segments[index];
    if physical_addresses {
        return Iova::new(segment.phys.as_u64());
    }
    let before: u64 = segments[..index].iter().map(Segment::pages).sum();
    Iova::new(Iova::from_pfn(range.first_pfn() + before).as_u64() + segment.phys.page_offset())
}

impl<B: DmaBuffer> Drop for Mapping<B> {
    fn drop(&mut self) {
        LEAKED.fetch_add(1, Ordering::Relaxed);
        #[cfg(any(feature = "fake", test))]
        crate::platform::fake::mapping_leaked();
    }
}

impl<B: DmaBuffer> fmt::Debug for Mapping<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({}, {:?})", self.range, self.access)
    }
}

/// Something refused, given back with the reason.
#[derive(Debug)]
pub struct Refused<T, E> {
    /// What was passed in.
    pub value: T,
    /// Why it was refused.
    pub error: E,
}

/// Why a buffer was not mapped.
#[derive(Debug)]
pub enum MapFailure<B: DmaBuffer> {
    /// Nothing has changed; here is the buffer.
    Refused(Refused<B, MapError>),
    /// It was mapped, and an invalidation that this needed failed: the device may reach the buffer, which is lost for good
    /// (S11).
    Lost(QueueError),
}

impl<B: DmaBuffer> MapFailure<B> {
    /// What went wrong.
    pub const fn error(&self) -> MapError {
        match self {
            Self::Refused(refused) => refused.error,
            Self::Lost(error) => MapError::Unsettled(*error),
        }
    }
}

/// Why an unmap gave no buffer back.
#[derive(Debug)]
pub enum UnmapFailure<B: DmaBuffer> {
    /// Nothing has changed; here is the mapping.
    Refused(Refused<Mapping<B>, UnmapError>),
    /// The invalidation failed: the buffer is lost for good.
    Commit(CommitError),
}

impl<B: DmaBuffer> From<Refused<Mapping<B>, UnmapError>> for UnmapFailure<B> {
    fn from(refused: Refused<Mapping<B>, UnmapError>) -> Self {
        Self::Refused(refused)
    }
}

impl<B: DmaBuffer> From<CommitError> for UnmapFailure<B> {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}
