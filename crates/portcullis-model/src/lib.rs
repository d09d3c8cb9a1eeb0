//! A software model of an Intel VT-d remapping unit, and of devices that do DMA through it: [`Device`], which does what
//! its caller says, and [`Nic`], a network card.
//!
//! [`Vtd`] exposes VT-d's registers, and reads VT-d's tables and invalidation queue from [`Ram`]. A driver cannot
//! tell it from hardware, and the model knows nothing of the driver. It caches as silicon does: stale entries stay
//! until they are invalidated, walks take time and run in parallel, and the queue executes its descriptors on its
//! own.
//!
//! Time is explicit, in picoseconds of an external clock. So the same model serves real threads ([`Host`]) and
//! virtual cores.
#![deny(missing_docs)]
#![deny(unsafe_code)]

/// The example of the README, compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod cache;
mod device;
#[allow(unsafe_code, reason = "implements `portcullis::Platform`")]
mod host;
mod iotlb_log;
#[allow(unsafe_code, reason = "implements `portcullis_vtd::Mmio`")]
mod mmio;
mod nic;
mod parameters;
mod prefetch;
mod ram;
mod schedule;
mod slab;
mod vtd;
#[allow(unsafe_code, reason = "allocates memory without touching it")]
mod zeroed;

pub use cache::{Cache, Replacement};
pub use device::{Device, DmaError, Transfer};
pub use host::{Host, HostLock};
pub use iotlb_log::{Eviction, IotlbLog};
pub use mmio::{Clock, ModelMmio};
pub use nic::{
    BusCounters, COMPLETION_BYTES, Completion, DESCRIPTOR_BYTES, Descriptor, Direction, EVENT_BYTES, Event, EventQueue,
    Frame, JOINED_PAGES_MAX, JOINING_COMPLETION_BYTES, Joined, Joins, Moderation, Nic, NicCounters, NicParameters,
    Output, PIECES_MAX, PagesOfPacket, RingConfig, RingFormat, RingNumber, STRIDING_COMPLETION_BYTES,
    STRIDING_PIECES_MAX, TcpSegment, entry_bytes,
};
pub use parameters::{ParameterError, Parameters, PsiDrops};
pub use prefetch::{PrefetcherError, PrefetcherSpec};
pub use ram::Ram;
pub use slab::{PagePool, Slab};
pub use vtd::{Counters, Fault, LookupOutcome, PrefetchFlaw, RingFlaw, Scope, Translated, Vtd};
