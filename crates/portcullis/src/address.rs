//! Addresses, page ranges and physical segments.

use core::fmt;

/// log2 of the page size that every IOMMU here translates: 4 KiB.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The address with this numeric value, in bytes.
            #[inline]
            pub const fn new(bytes: u64) -> Self {
                Self(bytes)
            }

            /// The address of the first byte of page number `pfn`.
            #[inline]
            pub const fn from_pfn(pfn: u64) -> Self {
                Self(pfn << PAGE_SHIFT)
            }

            /// The numeric value, in bytes.
            #[inline]
            pub const fn as_u64(self) -> u64 {
                self.0
            }

            /// The number of the page that holds this byte.
            #[inline]
            pub const fn pfn(self) -> u64 {
                self.0 >> PAGE_SHIFT
            }

            /// The distance from the start of the page, in bytes.
            #[inline]
            pub const fn page_offset(self) -> u64 {
                self.0 & (PAGE_SIZE - 1)
            }

            /// The address `bytes` further on, or `None` if it would wrap.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// An I/O virtual address: what a device puts on the bus.
    Iova
}
address! {
    /// A physical address: what the memory controller sees.
    PhysAddr
}

/// The number of pages that the bytes `[offset, offset + len)` of a page-aligned area touch.
///
/// `offset` is below [`PAGE_SIZE`]; the sum must not wrap.
#[inline]
pub const fn pages_spanned(offset: u64, len: u64) -> u64 {
    (offset + len).div_ceil(PAGE_SIZE)
}

/// A run of whole IOVA pages, never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IovaRange {
    first_pfn: u64,
    pages: u64,
}

impl IovaRange {
    /// The run of `pages` pages from `first_pfn` on; `None` if it is empty or wraps.
    #[inline]
    pub const fn new(first_pfn: u64, pages: u64) -> Option<Self> {
        const PFN_LIMIT: u64 = 1 << (64 - PAGE_SHIFT);
        match first_pfn.checked_add(pages) {
            Some(end) if pages > 0 && end <= PFN_LIMIT => Some(Self { first_pfn, pages }),
            _ => None,
        }
    }

    /// Makes a range as [`new`](Self::new) does, for pages that are known not to be empty and not to wrap.
    #[inline(always)]
    pub(crate) const fn of(first_pfn: u64, pages: u64) -> Self {
        debug_assert!(Self::new(first_pfn, pages).is_some());
        Self { first_pfn, pages }
    }

    /// The pages that the bytes `[start, start + len)` touch; `None` if `len` is zero or the end wraps.
    #[inline]
    pub const fn covering(start: Iova, len: u64) -> Option<Self> {
        match start.as_u64().checked_add(len.wrapping_sub(1)) {
            Some(last) if len > 0 => Some(Self::of(start.pfn(), (last >> PAGE_SHIFT) - start.pfn() + 1)),
            _ => None,
        }
    }

    /// Number of the first page.
    #[inline]
    pub const fn first_pfn(self) -> u64 {
        self.first_pfn
    }

    /// Number of pages.
    #[inline]
    pub const fn pages(self) -> u64 {
        self.pages
    }

    /// One past the number of the last page.
    #[inline]
    pub const fn end_pfn(self) -> u64 {
        self.first_pfn + self.pages
    }

    /// Address of the first byte.
    #[inline]
    pub const fn start(self) -> Iova {
        Iova::from_pfn(self.first_pfn)
    }

    /// The shortest run that contains both.
    #[inline]
    pub(crate) fn around(self, other: Self) -> Self {
        let first = self.first_pfn.min(other.first_pfn);
        Self::of(first, self.end_pfn().max(other.end_pfn()) - first)
    }

    /// Whether the two runs share a page.
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first_pfn < other.end_pfn() && other.first_pfn < self.end_pfn()
    }

    /// Whether page `pfn` is in the run.
    #[inline]
    pub const fn contains(self, pfn: u64) -> bool {
        self.first_pfn <= pfn && pfn < self.end_pfn()
    }
}

impl fmt::Display for IovaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{} pages", self.first_pfn << PAGE_SHIFT, self.pages)
    }
}

/// A physically contiguous piece of a buffer. It may start and end anywhere in a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Address of the first byte.
    pub phys: PhysAddr,
    /// Length in bytes.
    pub len: u64,
}

impl Segment {
    /// The number of pages that the segment touches.
    #[inline]
    pub const fn pages(&self) -> u64 {
        pages_spanned(self.phys.page_offset(), self.len)
    }
}
