//! Fast and safe I/O memory protection.
#![cfg_attr(not(any(test, feature = "fake", loom)), no_std)]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;

mod address;
pub mod error;
pub mod iommu;
#[allow(unsafe_code, reason = "the contract of table pages")]
pub mod platform;
mod request;
mod sync;
pub mod table;

pub use address::{Iova, IovaRange, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Segment, pages_spanned};
pub use error::{CommitError, MapError, NewDomainError, NoMemory, UnmapError};
pub use iommu::{Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
pub use platform::Platform;
pub use request::{Access, Lifetime, Request, Stream};
