//! Memory that shares a page with a buffer (S8).
//!
//! A page is the unit of protection: mapping a part of a page opens all of it to the device. A domain either exposes
//! such pages, or refuses such buffers, or lets the device use whole pages of the domain in their place and copies.
//!
//! "True IOMMU Protection from DMA Attacks" (ASPLOS'16) copies all buffers. For untrusted devices Linux copies the
//! parts of buffers that are not whole pages, through its `swiotlb`.

mod bounce;
mod pages;

pub use bounce::{BOUNCE_PAGES_MAX, BouncePages, Chain};
pub(crate) use bounce::{Bounce, BouncePool, SeenSegments, Sync};
pub(crate) use pages::{is_partial, part_in_page, pieces};

use core::fmt;

/// What a domain does with a page that a buffer covers only in part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum SubPage {
    /// Maps the page: the device reaches all of it for as long as any mapping of it exists.
    #[default]
    Expose,
    /// Refuses the buffer.
    Refuse,
    /// Maps a bounce page of the domain in its place. The bounce page holds the part of the buffer, and zeros
    /// elsewhere. The map copies the part to the bounce page. If the device may have written the part, the unmap
    /// copies it back.
    ///
    /// Persistent and shared mappings of partial pages are refused, because the copy would not follow later changes.
    /// At most [`BOUNCE_PAGES_MAX`] bounce pages are in use, which [`Usage`](crate::mapper::Usage) reports. The domain
    /// keeps them until it is dropped. A stale translation under deferred protection therefore leads to a bounce page
    /// and to nothing else.
    Bounce,
}

impl SubPage {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Expose, Self::Refuse, Self::Bounce];

    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expose => "expose",
            Self::Refuse => "refuse",
            Self::Bounce => "bounce",
        }
    }
}

impl fmt::Display for SubPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
