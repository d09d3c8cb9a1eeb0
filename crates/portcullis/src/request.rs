//! What a driver asks for: which memory, which rights, on whose behalf.

use crate::address::{PAGE_SIZE, PhysAddr, Segment};
use crate::error::MapError;
use crate::table::Rights;

/// What the device will do with a buffer, seen from the device.
///
/// Linux calls these `DMA_TO_DEVICE`, `DMA_FROM_DEVICE` and `DMA_BIDIRECTIONAL`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// The device reads the buffer (transmit).
    DeviceReads,
    /// The device writes the buffer (receive).
    DeviceWrites,
    /// The device does both (descriptor rings).
    DeviceReadsAndWrites,
}

impl Access {
    /// The rights that the translation gets, never wider than the access (S5).
    #[inline]
    pub const fn rights(self) -> Rights {
        match self {
            Self::DeviceReads => Rights::READ,
            Self::DeviceWrites => Rights::WRITE,
            Self::DeviceReadsAndWrites => Rights::READ_WRITE,
        }
    }
}

/// The queue of a device that a mapping belongs to. Designs that place addresses by ring use it.
///
/// `None` where the caller does not know; a design then falls back to the CPU and the direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Stream(pub Option<u32>);

/// How long the mapping is expected to live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Lifetime {
    /// For one DMA: mapped just before, unmapped just after.
    #[default]
    Transient,
    /// For as long as the driver runs: descriptor rings, coherent buffers.
    Persistent,
}

/// One mapping to be made: a buffer of one or more segments, seen by the device as one run of pages.
///
/// Every segment starts on a page of its own; the device sees segment *k* at the offset in its first page at which it lies
/// physically.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    segments: &'a [Segment],
    pages: u64,
    access: Access,
    /// The ring that the mapping belongs to, where known.
    pub stream: Stream,
    /// How long the mapping is expected to live.
    pub lifetime: Lifetime,
}

impl<'a> Request<'a> {
    /// A request for `segments`, with unknown stream and a transient lifetime.
    ///
    /// # Errors
    /// [`MapError::Empty`] without segments or with an empty one, [`MapError::PhysicalRange`] where a segment wraps or the
    /// pages cannot be counted.
    #[inline]
    pub fn new(segments: &'a [Segment], access: Access) -> Result<Self, MapError> {
        if segments.is_empty() {
            return Err(MapError::Empty);
        }
        let mut pages = 0u64;
        for segment in segments {
            if segment.len == 0 {
                return Err(MapError::Empty);
            }
            // The last byte must have an address, and rounding up to a page must not wrap either.
            if segment.phys.checked_add(segment.len).and_then(|end| end.checked_add(PAGE_SIZE - 1)).is_none() {
                return Err(MapError::PhysicalRange(segment.phys));
            }
            pages = pages.checked_add(segment.pages()).ok_or(MapError::PhysicalRange(segment.phys))?;
        }
        Ok(Self { segments, pages, access, stream: Stream::default(), lifetime: Lifetime::default() })
    }

    /// Has it ask for other segments.
    ///
    /// # Errors
    /// Those of [`new`](Request::new); it has not changed then.
    #[inline(never)]
    pub(crate) fn set_segments(&mut self, segments: &'a [Segment]) -> Result<(), MapError> {
        let request = Request::new(segments, self.access)?;
        (self.segments, self.pages) = (request.segments, request.pages);
        Ok(())
    }

    /// A request for a segment that lies in one page or, where an entry leads to it, is no longer than one: then pages are not what it
    /// takes.
    #[inline(always)]
    pub(crate) const fn in_a_page(segment: &'a [Segment; 1], access: Access) -> Self {
        debug_assert!(segment[0].len <= PAGE_SIZE);
        Self { segments: segment, pages: 1, access, stream: Stream(None), lifetime: Lifetime::Transient }
    }

    /// The segments, none empty.
    #[inline]
    pub const fn segments(&self) -> &'a [Segment] {
        self.segments
    }

    /// Pages that the mapping takes: the sum over the segments.
    #[inline]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// What the device may do.
    #[inline]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Bytes from the first that the device sees to the last, those of pages in between that are no part of a segment among them.
    /// `None` where they cannot be counted.
    pub(crate) fn extent(&self) -> Option<u64> {
        let last = self.segments.last()?;
        let before = (self.pages - last.pages()).checked_mul(PAGE_SIZE)?;
        Some(before.checked_add(last.phys.page_offset() + last.len)? - self.phys().page_offset())
    }

    /// Physical address of the first byte.
    #[inline]
    pub const fn phys(&self) -> PhysAddr {
        self.segments[0].phys
    }
}
