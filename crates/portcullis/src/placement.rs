//! Where a mapping may lie, for requests that cannot do with any address: the limit of a device, an alignment, a boundary that is not
//! to be crossed, or the one address that it must be.

use crate::address::{Iova, IovaRange, PAGE_SHIFT, PAGE_SIZE};
use crate::error::MapError;
use crate::request::{Lifetime, Request, Stream};
use core::num::NonZeroU64;

/// How a mapping is wanted, beyond memory and rights. The default is an address that the design picks, for one DMA of no stream.
///
/// Limit, alignment and boundary are what DMA masks and the constraints of devices say, in bytes; they hold for what the device
/// sees, from the first byte of the first segment to the last byte of the last.
///
/// ```
/// use portcullis::{Lifetime, MapOptions};
///
/// // A ring for a device that drives 32 bits and wants it at a multiple of 64 KiB.
/// let ring = MapOptions { lifetime: Lifetime::Persistent, limit: u32::MAX.into(), alignment: 1 << 16, ..MapOptions::default() };
/// assert_eq!(ring.boundary, None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapOptions {
    /// The ring that the mapping belongs to, where known.
    pub stream: Stream,
    /// How long the mapping is expected to live.
    pub lifetime: Lifetime,
    /// The highest address that the device can drive here, as a DMA mask has it; [`u64::MAX`] where the width of the domain will do.
    pub limit: u64,
    /// The first byte is at a multiple of it, in bytes: a power of two.
    pub alignment: u64,
    /// No multiple of it lies within the mapping, in bytes: a power of two. One beyond the addresses of the domain is no demand.
    pub boundary: Option<u64>,
    /// The address of the first byte, where it must be this one. It may lie in a region that is [reserved](crate::DomainConfig::reserved),
    /// which is only never handed out, but not where writes are interrupts (S9).
    pub at: Option<Iova>,
}

impl Default for MapOptions {
    fn default() -> Self {
        let (stream, lifetime) = (Stream::default(), Lifetime::default());
        Self { stream, lifetime, limit: u64::MAX, alignment: 1, boundary: None, at: None }
    }
}

impl MapOptions {
    /// For what stays as long as the driver runs, at exactly `at`. With the address of the memory itself it is an identity
    /// mapping, as the regions of firmware (RMRR) and doorbells of other devices need it.
    pub const fn fixed(at: Iova) -> Self {
        let lifetime = Lifetime::Persistent;
        Self { stream: Stream(None), lifetime, limit: u64::MAX, alignment: 1, boundary: None, at: Some(at) }
    }

    /// Where `request` may lie in a domain of addresses up to `last`, which are those of entries of `entry_pages` pages or go by the page;
    /// `None` where any of these will do.
    ///
    /// # Errors
    /// [`MapError::BadLimit`], [`MapError::BadAlignment`], [`MapError::BadBoundary`], [`MapError::CrossesBoundary`],
    /// [`MapError::Misplaced`], [`MapError::BeyondWidth`], [`MapError::PhysicalRange`], [`MapError::Unplaceable`].
    #[inline(never)]
    pub(crate) fn placement(
        &self,
        request: &Request<'_>,
        entry_pages: Option<u64>,
        last: u64,
    ) -> Result<Option<Placement>, MapError> {
        if (self.limit, self.alignment, self.boundary, self.at) == (u64::MAX, 1, None, None) {
            return Ok(None);
        }
        if self.limit < PAGE_SIZE - 1 {
            return Err(MapError::BadLimit(self.limit));
        }
        if !self.alignment.is_power_of_two() {
            return Err(MapError::BadAlignment(self.alignment));
        }
        if let Some(boundary) = self.boundary.filter(|boundary| !boundary.is_power_of_two()) {
            return Err(MapError::BadBoundary(boundary));
        }
        let boundary = self.boundary.filter(|boundary| *boundary <= last);
        if let Some(pages) = entry_pages {
            // Where memory lies in its pages is not where its entry begins, and no entry can be chosen. What its first byte is at is
            // a multiple of all that is no wider than an entry.
            let is_within = |boundary| matches!(request.segments(), [one] if one.len <= boundary);
            let is_met = self.limit >= last
                && self.alignment >> PAGE_SHIFT <= pages
                && boundary.is_none_or(is_within)
                && self.at.is_none();
            return if is_met { Ok(None) } else { Err(MapError::Unplaceable) };
        }
        let offset = request.phys().page_offset();
        let pages = request.pages();
        // The place within the page is that of the memory.
        if offset & (self.alignment - 1) != 0 {
            return Err(MapError::Misplaced { phys: request.phys(), alignment: self.alignment });
        }
        let extent = request.extent().ok_or(MapError::PhysicalRange(request.phys()))?;
        if let Some(boundary) = boundary {
            // Where the mapping begins at a multiple of its size, rounded up, nothing else is crossed than this.
            let crosses = match boundary < PAGE_SIZE {
                true => offset / boundary != (offset + extent - 1) / boundary,
                false => pages > boundary >> PAGE_SHIFT,
            };
            if crosses {
                return Err(MapError::CrossesBoundary { len: extent, boundary });
            }
        }
        // The last page may be used in part, and only that part must lie below the limit.
        let unused = (pages << PAGE_SHIFT).saturating_sub(offset + extent);
        let end_pfn = match self.limit.checked_add(1) {
            None => 1 << (u64::BITS - PAGE_SHIFT),
            Some(end) => end.saturating_add(unused) >> PAGE_SHIFT,
        };
        let placement = Placement {
            end_pfn,
            align_pages: (self.alignment >> PAGE_SHIFT).max(1),
            boundary_pages: boundary.and_then(|boundary| NonZeroU64::new((boundary >> PAGE_SHIFT).max(1))),
            at: None,
        };
        // What lies as memory does within its pages, and no page can break, is no demand on a design.
        let is_anywhere = self.limit >= last && placement.align_pages == 1 && (pages == 1 || boundary.is_none());
        match self.at {
            None if is_anywhere => Ok(None),
            None => Ok(Some(placement)),
            Some(at) => placement.fixed(at, request, extent).map(Some),
        }
    }
}

/// Where pages may lie: what [`MapOptions`] say, checked, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    end_pfn: u64,
    align_pages: u64,
    boundary_pages: Option<NonZeroU64>,
    at: Option<IovaRange>,
}

impl Placement {
    /// The one place that begins at `at`, for a request that takes `extent` bytes.
    fn fixed(self, at: Iova, request: &Request<'_>, extent: u64) -> Result<Self, MapError> {
        let misplaced = |alignment| MapError::Misplaced { phys: request.phys(), alignment };
        if at.page_offset() != request.phys().page_offset() {
            return Err(misplaced(PAGE_SIZE));
        }
        let beyond = MapError::BeyondWidth { iova: at, limit_bits: self.limit_bits(u64::BITS as u8) };
        let range = IovaRange::new(at.pfn(), request.pages()).filter(|range| range.end_pfn() <= self.end_pfn);
        let range = range.ok_or(beyond)?;
        if range.first_pfn() & (self.align_pages - 1) != 0 {
            return Err(misplaced(self.align_pages << PAGE_SHIFT));
        }
        match self.boundary_pages.filter(|_| self.crossed(range.first_pfn(), range.pages()).is_some()) {
            Some(boundary) => Err(MapError::CrossesBoundary { len: extent, boundary: boundary.get() << PAGE_SHIFT }),
            None => Ok(Self { at: Some(range), ..self }),
        }
    }

    /// Exactly `range`.
    pub(crate) const fn exactly(range: IovaRange) -> Self {
        Self { end_pfn: range.end_pfn(), align_pages: 1, boundary_pages: None, at: Some(range) }
    }

    /// One past the last page that may be used.
    pub const fn end_pfn(&self) -> u64 {
        self.end_pfn
    }

    /// Bits of the addresses below its limit and below `2^width`.
    pub(crate) fn limit_bits(&self, width: u8) -> u8 {
        let last_pfn = self.end_pfn.saturating_sub(1);
        width.min((u64::BITS - last_pfn.leading_zeros() + PAGE_SHIFT) as u8)
    }

    /// The pages, where they must be these.
    pub const fn at(&self) -> Option<IovaRange> {
        self.at
    }

    /// The first of the lowest `pages` pages in `[floor, ceiling)` that may be used.
    pub fn lowest(&self, floor: u64, ceiling: u64, pages: u64) -> Option<u64> {
        let first = match self.at {
            Some(at) => Some(at.first_pfn()).filter(|first| *first >= floor)?,
            None => {
                let first = floor.checked_next_multiple_of(self.align_pages)?;
                // A multiple of the boundary is one of the alignment, or else `first` is one of both.
                self.crossed(first, pages).unwrap_or(first)
            }
        };
        let end = first.checked_add(pages)?;
        (end <= ceiling.min(self.end_pfn)).then_some(first)
    }

    /// The first of the highest such pages.
    pub fn highest(&self, floor: u64, ceiling: u64, pages: u64) -> Option<u64> {
        if self.at.is_some() {
            return self.lowest(floor, ceiling, pages);
        }
        let below = |end: u64| Some(end.checked_sub(pages)? & !(self.align_pages - 1));
        let first = below(ceiling.min(self.end_pfn))?;
        let first = match self.crossed(first, pages) {
            Some(boundary) => below(boundary)?,
            None => first,
        };
        (floor <= first).then_some(first)
    }

    /// The multiple of the boundary within `pages` pages from `first` on.
    fn crossed(&self, first: u64, pages: u64) -> Option<u64> {
        let boundary = self.boundary_pages?.get();
        let last = first + (pages - 1);
        (first / boundary != last / boundary).then(|| last / boundary * boundary)
    }

    /// Whether a mapping of physical addresses, which nobody can choose, lies where it may.
    pub(crate) fn allows(&self, range: IovaRange) -> bool {
        match self.at {
            Some(at) => at == range,
            None => self.lowest(range.first_pfn(), range.end_pfn(), range.pages()).is_some(),
        }
    }
}
