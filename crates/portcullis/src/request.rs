//! A request for a mapping: the memory, the rights, and the stream that it belongs to.

use crate::address::{PAGE_SIZE, PhysAddr, Segment};
use crate::error::MapError;
use crate::table::Rights;

/// How the device will access a buffer.
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

/// The queue of a device that a mapping belongs to. Designs that allocate addresses by ring use it.
///
/// `None` if the caller does not know. A design then uses the CPU and the direction instead.
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

/// A request for one mapping: a buffer of one or more segments, which the device sees as one run of pages.
///
/// Every segment starts on a new page. The device sees segment *k* at the offset within its first page that it has
/// physically.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    segments: &'a [Segment],
    pages: u64,
    access: Access,
    /// The ring that the mapping belongs to, if known.
    pub stream: Stream,
    /// How long the mapping is expected to live.
    pub lifetime: Lifetime,
}

impl<'a> Request<'a> {
    /// A request for `segments`, with unknown stream and a transient lifetime.
    ///
    /// # Errors
    /// [`MapError::Empty`] if there are no segments or one is empty; [`MapError::PhysicalRange`] if a segment wraps or
    /// the pages cannot be counted.
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

    /// Replaces the segments of the request.
    ///
    /// # Errors
    /// Those of [`new`](Request::new); the request has not changed then.
    #[inline(never)]
    pub(crate) fn set_segments(&mut self, segments: &'a [Segment]) -> Result<(), MapError> {
        let request = Request::new(segments, self.access)?;
        (self.segments, self.pages) = (request.segments, request.pages);
        Ok(())
    }

    /// A request for one segment. It lies within one page or, under designs whose addresses are those of entries, is
    /// no longer than a page; the number of pages is then not used.
    #[inline(always)]
    pub(crate) const fn in_a_page(segment: &'a [Segment; 1], access: Access) -> Self {
        debug_assert!(segment[0].len <= PAGE_SIZE);
        Self { segments: segment, pages: 1, access, stream: Stream(None), lifetime: Lifetime::Transient }
    }

    /// The segments, none of them empty.
    #[inline]
    pub const fn segments(&self) -> &'a [Segment] {
        self.segments
    }

    /// The number of pages that the mapping takes: the sum over its segments.
    #[inline]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// What the device may do.
    #[inline]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The number of bytes from the first that the device sees to the last, including bytes in between that belong to
    /// no segment. `None` if they cannot be counted.
    pub(crate) fn extent(&self) -> Option<u64> {
        let last = self.segments.last()?;
        let before = (self.pages - last.pages()).checked_mul(PAGE_SIZE)?;
        Some(before.checked_add(last.phys.page_offset() + last.len)? - self.phys().page_offset())
    }

    /// The physical address of the first byte.
    #[inline]
    pub const fn phys(&self) -> PhysAddr {
        self.segments[0].phys
    }
}
