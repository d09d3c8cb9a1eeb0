//! Fast and safe I/O memory protection: decides which memory a device may reach by DMA, for how long, and at what
//! price.
//!
//! The modules follow the life of one mapping: [`domain`] takes the request, [`iova`] picks an address, [`table`]
//! writes the translation, and [`invalidation`] removes it. Two modules are traits for the outside: [`iommu`] is what
//! the hardware must offer, and [`platform`] is what the host must supply. [`mapper`] has what protection designs are
//! made of, and [`designs`] has the few of this crate. [`chunk`] contains all of the design `portcullis`.
//!
//! # Start here
//!
//! A kernel or a user-space driver needs three things: a [`Platform`] (memory for table pages, locks, time), an
//! [`Iommu`] (for Intel VT-d, `portcullis_vtd::Unit`), and a [`Domain`] for each device or group of devices. The
//! fakes of the feature `fake` stand in for the first two in the tests of a driver:
//!
//! ```
//! use portcullis::designs::Portcullis;
//! use portcullis::domain::fake::FakeBuffer;
//! use portcullis::iommu::fake::FakeIommu;
//! use portcullis::platform::fake::FakeHost;
//! use portcullis::{Access, Open, Protection, SourceId};
//!
//! let host = FakeHost::default();
//! let iommu = FakeIommu::new(&host);
//! let domain = Portcullis::open(&iommu, &host, Protection::Strict)?;
//! domain.attach(SourceId::new(3, 0, 0))?;
//!
//! // Receive: fill a ring, and later take back what the device is done with, with one invalidation.
//! let mut ring = Vec::new();
//! let buffers = (0..32).map(|_| FakeBuffer::new(1));
//! domain.map_batch(buffers, Access::DeviceWrites, |mapping| ring.push(mapping))?;
//! let mut batch = domain.batch();
//! for mapping in ring.drain(..16) {
//!     batch.unmap(mapping)?;
//! }
//! let buffers = batch.commit()?; // the device cannot reach them any more
//! assert_eq!((buffers.len(), iommu.take_commands().len()), (16, 1));
//!
//! // The rest, one by one.
//! for mapping in ring {
//!     domain.unmap(mapping)?;
//! }
//! // A timer calls this when it is due: it gives back tables that are not needed, and flushes deferred unmaps.
//! if domain.due_us().is_some() {
//!     domain.tick()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`buffers`] has buffers that are ready to be lent: an array, words that CPU and device share, and a pool.
//! - Drivers that own their buffers use the typed interface: [`Domain::map`], [`Domain::unmap`], [`Domain::batch`],
//!   [`Domain::ring`]. C, and drivers that keep addresses only, use the raw interface: [`Domain::map_raw`],
//!   [`Domain::unmap_raw`]. [`DynDomain`] has a design that is chosen at run time.
//! - A driver that has other work while the hardware invalidates commits in two halves:
//!   [`submit`](domain::Batch::submit), and later [`wait`](domain::Submitted::wait).
//! - [`Platform`] lists what a host supplies; only about ten of its methods have no default. Before a map in atomic
//!   context, [`Domain::reserve_tables`] keeps table pages ready.
//! - The porting guide in the repository (`docs/porting.md`) goes through a port step by step, and
//!   `examples/custom-host` is a small host to copy.
//!
//! # The contract
//!
//! A program without `unsafe` gets strict protection. From the map until the hardware has confirmed that the device
//! has lost the buffer, only the device can reach a buffer that was mapped through the typed interface. This also
//! holds after a panic, and for a mapping that is forgotten. A buffer mapped with [`Domain::map_shared`] is also open
//! to atomic or volatile accesses by the CPU. This guarantee rests on promises, each stated where the corresponding
//! `unsafe` is:
//!
//! - by the host ([`Platform`]);
//! - by the hardware ([`Iommu`]; for a VT-d unit, `portcullis_vtd::Mmio`);
//! - by a design, its mapper and their parts ([`mapper::Design`], [`mapper::Mapper`], [`iova::IovaAllocator`],
//!   [`mapper::Locking`]);
//! - by a buffer ([`domain::DmaBuffer`], [`domain::SharedBuffer`]);
//! - by callers that map by address ([`Domain::map_raw`]) or without protection ([`Open::open_unprotected`]).
//!
//! Types cannot express the following limits:
//!
//! - An invalidation must reach the unit that the device is behind. It must be the right unit, with only one driver.
//! - DMA that began before an invalidation is complete after it only if the unit drains reads and writes (VT-d's
//!   `CAP.DRD` and `CAP.DWD`). The driver requests draining; a unit without it may let a DMA land late.
//! - Protection works in pages. If a buffer shares a page with other data, the device reaches that data as well (S8),
//!   for as long as any buffer in that page is mapped. A domain can refuse or bounce partial pages instead
//!   ([`SubPage`]).
//! - The library does not check what the driver programs into the device. The device can use the address of any other
//!   mapping in the same domain.
//! - Traffic between peer devices that bypasses the IOMMU, regions reserved by the firmware, and interrupts sent as
//!   DMA writes are out of scope.
//! - A mapping that is dropped or forgotten stays mapped until its domain is dropped. Its buffer is lost.
//!   [`domain::lost_buffers`] counts the dropped ones, but cannot count the forgotten ones.
//!
//! The library is one crate because allocators, tables and invalidation are parts of one mapper. Other published
//! designs are in the crate `portcullis-designs`, which uses this one as any other crate would. A program normally
//! uses one design, and its linker leaves out the code of all others.
#![cfg_attr(not(any(test, feature = "fake", loom)), no_std)]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;

/// The example of the README, compiled as a documentation test. `tests/suite/readme.rs` compares it with the README of
/// the repository.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod address;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "buffers are lent to devices")]
pub mod buffers;
#[allow(unsafe_code, reason = "types cannot express who owns a table page")]
pub mod chunk;
#[allow(unsafe_code, reason = "the mapper that a design builds is trusted with memory")]
pub mod designs;
#[allow(unsafe_code, reason = "buffers are lent to devices")]
pub mod domain;
mod entry;
pub mod error;
#[allow(unsafe_code, reason = "the parts of a value are initialized one by one")]
pub mod in_place;
pub mod invalidation;
#[allow(unsafe_code, reason = "hardware makes promises that types cannot check")]
pub mod iommu;
#[allow(unsafe_code, reason = "the tree keeps a pointer to one of its own nodes")]
pub mod iova;
#[allow(unsafe_code, reason = "mappers make promises that types cannot check")]
pub mod mapper;
#[allow(unsafe_code, reason = "all memory is open to a device")]
mod pass_through;
mod placement;
#[allow(unsafe_code, reason = "the contract of table pages")]
pub mod platform;
pub mod proof;
mod request;
mod safety;
mod segment_list;
#[cfg(feature = "serde")]
mod serialise;
mod sort;
#[allow(unsafe_code, reason = "types cannot express who owns a table page")]
mod space;
#[allow(unsafe_code, reason = "the memory of buffers is copied")]
pub mod sub_page;
pub mod submission;
mod sync;
#[allow(unsafe_code, reason = "types cannot express who owns a table page")]
pub mod table;

#[doc(inline)]
pub use address::{Iova, IovaRange, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Segment, pages_spanned};
#[doc(inline)]
pub use domain::{Domain, DomainConfig, DomainOf, DynDomain, Open};
#[doc(inline)]
pub use error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, SyncError, UnmapError};
#[doc(inline)]
pub use invalidation::{Departure, IN_FLIGHT_MAX, InFlight, WhenFull};
#[doc(inline)]
pub use iommu::{Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
#[doc(inline)]
pub use placement::{MapOptions, Placement};
#[doc(inline)]
pub use platform::{INVALIDATION_TIMEOUT_US, Platform};
#[doc(inline)]
pub use request::{Access, Lifetime, Request, Stream};
#[doc(inline)]
pub use safety::{Breach, Protection, Rule};
#[doc(inline)]
pub use space::{AddressSpace, Space, next_tag};
#[doc(inline)]
pub use sub_page::SubPage;
