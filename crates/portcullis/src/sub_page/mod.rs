//! What becomes of memory that shares a page with a buffer (S8).
//!
//! A page is the unit of protection: who maps a part of one opens all of it to the device. A domain either lets that be, or refuses such
//! buffers, or has the device use whole pages of the domain's own in their place, and copies.
//!
//! Copying is what "True IOMMU Protection from DMA Attacks" (ASPLOS'16) does for all buffers, and Linux, through its `swiotlb`, for those
//! parts of buffers of untrusted devices that are no whole pages.

mod bounce;
mod pages;

pub use bounce::{BOUNCE_PAGES_MAX, BouncePages, Chain};
pub(crate) use bounce::{Bounce, BouncePool, SeenSegments, Sync};
pub(crate) use pages::is_partial;

use core::fmt;

/// What a domain does about pages of which a buffer has a part only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum SubPage {
    /// Maps the page: the device reaches all of it, for as long as one mapping of it lives.
    #[default]
    Expose,
    /// Refuses the buffer.
    Refuse,
    /// Maps a page of the domain's own in its place, with the part of the buffer in it and zeros beside that. The map copies the part
    /// there; the unmap copies it back if the device may have written it.
    ///
    /// What is expected to stay, or is shared with the CPU, is refused: its copy would not follow it. At most [`BOUNCE_PAGES_MAX`] pages
    /// are in use, which [`Usage`](crate::design::Usage) tells; the domain keeps them until it goes. So a stale translation of
    /// deferred protection leads to a page of this kind and to nothing else.
    Bounce,
}

impl SubPage {
    /// All of them.
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
