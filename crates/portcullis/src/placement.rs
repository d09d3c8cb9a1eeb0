//! Constraints on the address of a mapping: the limit of a device, an alignment, a boundary that must not be crossed,
//! or a fixed address.

use crate::address::{Iova, IovaRange, PAGE_SHIFT, PAGE_SIZE};
use crate::error::MapError;
use crate::request::{Lifetime, Request, Stream};
use core::num::NonZeroU64;

/// How to map, apart from memory and rights. The default is an address that the design chooses, for one DMA and no
/// particular stream.
///
/// Limit, alignment and boundary express DMA masks and other constraints of devices, in bytes. They apply to what the
/// device sees, from the first byte of the first segment to the last byte of the last.
///
/// # Examples
/// ```
/// use portcullis::{Lifetime, MapOptions};
///
/// // A ring for a device that drives 32 bits and wants it at a multiple of 64 KiB.
/// let limits = MapOptions { limit: u32::MAX.into(), alignment: 1 << 16, ..MapOptions::default() };
/// let ring = MapOptions { lifetime: Lifetime::Persistent, ..limits };
/// assert_eq!(ring.boundary, None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapOptions {
    /// The ring that the mapping belongs to, if known.
    pub stream: Stream,
    /// How long the mapping is expected to live.
    pub lifetime: Lifetime,
    /// The highest address that the device can use here, as in a DMA mask. [`u64::MAX`] means that only the width of
    /// the domain limits it.
    pub limit: u64,
    /// The first byte lies at a multiple of this number of bytes, a power of two.
    pub alignment: u64,
    /// No multiple of this number of bytes, a power of two, lies within the mapping. A boundary beyond the addresses
    /// of the domain has no effect.
    pub boundary: Option<u64>,
    /// Whether each page is a mapping of its own, so that the pages are unmapped one by one and in any order, and never
    /// together: for kernels that split what they have mapped. It is for one segment, and for the raw interface. A
    /// design that cannot do that refuses it ([`MapError::NotApart`]). All designs that can place a mapping can do it
    /// [at](MapOptions::at) an address, for any number of pages. `portcullis` can also choose the address, for up to
    /// 511 pages ([`MapError::NotApart`] for more), and without limit, alignment or boundary
    /// ([`MapError::Unplaceable`] with one of them).
    ///
    /// A page is unmapped from its first byte that is mapped to its last one:
    /// ```
    /// use portcullis::designs::Portcullis;
    /// use portcullis::iommu::fake::FakeIommu;
    /// use portcullis::platform::fake::FakeHost;
    /// use portcullis::{Access, Iova, MapOptions, Open, PhysAddr, Protection};
    ///
    /// let host = FakeHost::default();
    /// let iommu = FakeIommu::new(&host);
    /// let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
    /// let apart = MapOptions { apart: true, ..MapOptions::default() };
    /// // From the middle of one page to the middle of the next.
    /// // SAFETY: the fake device does no DMA.
    /// let iova = unsafe { domain.map_raw_with(PhysAddr::new(0x800), 0x1000, Access::DeviceReads, &apart) }?;
    /// domain.unmap_raw(Iova::new(iova.as_u64() + 0x800), 0x800)?;
    /// domain.unmap_raw(iova, 0x800)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub apart: bool,
    /// The address of the first byte, if it must be a particular one. It may lie in a
    /// [reserved](crate::DomainConfig::reserved) region, because such regions are only excluded from allocation. It
    /// must not lie in the interrupt range, where writes are interrupts (S9).
    pub at: Option<Iova>,
}

impl Default for MapOptions {
    fn default() -> Self {
        let (stream, lifetime) = (Stream::default(), Lifetime::default());
        Self { stream, lifetime, limit: u64::MAX, alignment: 1, boundary: None, apart: false, at: None }
    }
}

impl MapOptions {
    /// Options for a persistent mapping at exactly `at`. If `at` is the address of the memory itself, this is an
    /// identity mapping, as firmware regions (RMRR) and doorbells of other devices need it.
    pub const fn fixed(at: Iova) -> Self {
        let lifetime = Lifetime::Persistent;
        Self {
            stream: Stream(None),
            lifetime,
            limit: u64::MAX,
            alignment: 1,
            boundary: None,
            apart: false,
            at: Some(at),
        }
    }

    /// The constraints on `request` in a domain with addresses up to `last`. `entry_pages` is the width of an entry if
    /// the addresses are those of entries. `None` if any address satisfies the constraints.
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
            // The start of an entry is unrelated to the offset of the memory in its page, and no particular entry can
            // be chosen. The address of the first byte is a multiple of every power of two up to the width of an
            // entry.
            let is_within = |boundary| matches!(request.segments(), [one] if one.len <= boundary);
            let is_met = self.limit >= last
                && self.alignment >> PAGE_SHIFT <= pages
                && boundary.is_none_or(is_within)
                && self.at.is_none();
            return if is_met { Ok(None) } else { Err(MapError::Unplaceable) };
        }
        let offset = request.phys().page_offset();
        let pages = request.pages();
        // A mapping keeps the offset of the memory within the page.
        if offset & (self.alignment - 1) != 0 {
            return Err(MapError::Misplaced { phys: request.phys(), alignment: self.alignment });
        }
        let extent = request.extent().ok_or(MapError::PhysicalRange(request.phys()))?;
        if let Some(boundary) = boundary {
            // A mapping that begins at a multiple of its size, rounded up to a power of two, can cross a boundary only
            // in these cases.
            let crosses = match boundary < PAGE_SIZE {
                true => offset / boundary != (offset + extent - 1) / boundary,
                false => pages > boundary >> PAGE_SHIFT,
            };
            if crosses {
                return Err(MapError::CrossesBoundary { len: extent, boundary });
            }
        }
        // The last page may be used only in part, and only that part must lie below the limit.
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
        // If every page satisfies the constraints as the memory lies in it, the design is not constrained.
        let is_anywhere = self.limit >= last && placement.align_pages == 1 && (pages == 1 || boundary.is_none());
        match self.at {
            None if is_anywhere => Ok(None),
            None => Ok(Some(placement)),
            Some(at) => placement.fixed(at, request, extent).map(Some),
        }
    }
}

/// Constraints on the pages of a mapping: [`MapOptions`] after checking, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    end_pfn: u64,
    align_pages: u64,
    boundary_pages: Option<NonZeroU64>,
    at: Option<IovaRange>,
}

impl Placement {
    /// The placement at exactly `at`, for a request that takes `extent` bytes.
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

    /// The placement at exactly `range`.
    pub(crate) const fn exactly(range: IovaRange) -> Self {
        Self { end_pfn: range.end_pfn(), align_pages: 1, boundary_pages: None, at: Some(range) }
    }

    /// One past the last page that the mapping may use.
    pub const fn end_pfn(&self) -> u64 {
        self.end_pfn
    }

    /// The width of the addresses below its limit and below `2^width`, in bits.
    pub fn limit_bits(&self, width: u8) -> u8 {
        let last_pfn = self.end_pfn.saturating_sub(1);
        width.min((u64::BITS - last_pfn.leading_zeros() + PAGE_SHIFT) as u8)
    }

    /// The pages, if they are fixed.
    pub const fn at(&self) -> Option<IovaRange> {
        self.at
    }

    /// The first page of the lowest suitable run of `pages` pages in `[floor, ceiling)`.
    pub fn lowest(&self, floor: u64, ceiling: u64, pages: u64) -> Option<u64> {
        let first = match self.at {
            Some(at) => Some(at.first_pfn()).filter(|first| *first >= floor)?,
            None => {
                let first = floor.checked_next_multiple_of(self.align_pages)?;
                // A multiple of the boundary is a multiple of the alignment as well; otherwise the alignment is the
                // larger, and `first` is a multiple of both.
                self.crossed(first, pages).unwrap_or(first)
            }
        };
        let end = first.checked_add(pages)?;
        (end <= ceiling.min(self.end_pfn)).then_some(first)
    }

    /// The first page of the highest suitable run of `pages` pages in `[floor, ceiling)`.
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

    /// The multiple of the boundary that lies within `pages` pages from `first` on, if there is one.
    fn crossed(&self, first: u64, pages: u64) -> Option<u64> {
        let boundary = self.boundary_pages?.get();
        let last = first + (pages - 1);
        (first / boundary != last / boundary).then(|| last / boundary * boundary)
    }

    /// Whether a mapping at physical addresses, which cannot be chosen, satisfies the constraints.
    pub(crate) fn allows(&self, range: IovaRange) -> bool {
        match self.at {
            Some(at) => at == range,
            None => self.lowest(range.first_pfn(), range.end_pfn(), range.pages()).is_some(),
        }
    }
}
