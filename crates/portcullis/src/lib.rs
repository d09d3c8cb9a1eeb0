//! Fast and safe I/O memory protection: decides which memory a device may reach by DMA, for how long, and at what price.
//!
//! The modules follow the life of one mapping: [`domain`] takes the request, [`iova`] picks an address, [`table`] writes the
//! translation, [`invalidation`] takes it away, [`iommu`] is what the hardware must offer. Beside them, [`platform`] is what
//! the host must supply, and [`design`] and [`designs`] are the named wholes. [`chunk`] is one of those, whole.
//!
//! # The contract
//!
//! What compiles without `unsafe` is strict: a buffer that is lent by the typed face is in reach of the device alone (with
//! [`Domain::map_shared`], of the device and of atomic or volatile accesses) until the hardware has confirmed that the device has lost
//! it, a panic or a forgotten value notwithstanding. That rests on promises, each written where the `unsafe` is: of the host
//! ([`Platform`]), of the hardware ([`Iommu`]; of a VT-d unit, `portcullis_vtd::Mmio`), of a design, its mapper and their parts
//! ([`design::Design`], [`design::Mapper`], [`iova::IovaAllocator`], [`design::Locking`]), of a buffer ([`domain::DmaBuffer`],
//! [`domain::SharedBuffer`]), and of callers that map by address ([`Domain::map_raw`]) or without protection ([`Domain::unprotected`]).
//! What no type can show:
//!
//! - An invalidation reaches the hardware that the device is behind: the unit is the right one, with one driver.
//! - What a device had begun before an invalidation is over after it where the unit drains: VT-d's `CAP.DWD` and `CAP.DRD`. The driver
//!   asks for it; a unit without them may let a DMA land late.
//! - A page is the unit of protection. Of a buffer that shares a page with others the device reaches these as well (S8), for as long as
//!   one of them is mapped, unless the domain refuses or bounces parts of pages ([`SubPage`]).
//! - What the driver programs into the device is its own affair: an address of another mapping in the same domain is in reach.
//! - Peer devices that need no IOMMU, firmware's regions and interrupts written as DMA are outside.
//! - A mapping that is dropped or forgotten stays mapped until its domain goes; its buffer is lost, which is counted in
//!   [`domain::lost_buffers`] where it was dropped.
//!
//! It is one crate, although a large one: designs, allocators, tables and invalidation are parts of one mapper, and who links it
//! takes one design out of it. What no design of a program needs, its linker leaves out.
#![cfg_attr(not(any(test, feature = "fake", loom)), no_std)]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;

/// The examples of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod address;
#[allow(unsafe_code, reason = "table pages have an owner that types cannot show")]
pub mod chunk;
#[allow(unsafe_code, reason = "what a mapper promises")]
pub mod design;
#[allow(unsafe_code, reason = "what a design builds is trusted with memory")]
pub mod designs;
#[allow(unsafe_code, reason = "buffers on loan to a device")]
pub mod domain;
mod entry;
pub mod error;
#[allow(unsafe_code, reason = "parts of a value are made one by one")]
mod in_place;
pub mod invalidation;
#[allow(unsafe_code, reason = "what hardware promises")]
pub mod iommu;
#[allow(unsafe_code, reason = "the tree keeps a pointer to one of its own nodes")]
pub mod iova;
#[allow(unsafe_code, reason = "all memory is open to a device")]
mod pass_through;
mod placement;
#[allow(unsafe_code, reason = "the contract of table pages")]
pub mod platform;
pub mod proof;
mod request;
#[allow(unsafe_code, reason = "table pages have an owner that types cannot show")]
pub mod riommu;
mod safety;
mod segment_list;
#[cfg(feature = "serde")]
mod serialise;
mod sort;
#[allow(unsafe_code, reason = "table pages have an owner that types cannot show")]
mod space;
#[allow(unsafe_code, reason = "memory of buffers is copied")]
pub mod sub_page;
mod submission;
mod sync;
#[allow(unsafe_code, reason = "table pages have an owner that types cannot show")]
pub mod table;
mod unwind;

pub use address::{Iova, IovaRange, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Segment, pages_spanned};
pub use domain::{Domain, DomainConfig, DynDomain};
pub use error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, SyncError, UnmapError};
pub use iommu::{Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
pub use placement::{MapOptions, Placement};
pub use platform::{INVALIDATION_TIMEOUT_US, Platform};
pub use request::{Access, Lifetime, Request, Stream};
pub use safety::{Breach, Protection, Rule};
pub use space::AddressSpace;
pub use sub_page::SubPage;
