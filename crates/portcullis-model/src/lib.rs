//! Hardware as software: an Intel VT-d that is a *device*, and devices that do DMA through it.
//!
//! [`Vtd`] exposes VT-d's registers and reads VT-d's tables and invalidation queue from [`Ram`]; a driver cannot tell it from
//! the real thing, and it knows nothing of the driver. It caches as silicon does: stale entries stay until they are
//! invalidated, walks take time and run side by side, and the queue works through its descriptors on its own.
//!
//! Time is explicit, in picoseconds of a clock outside, so that the same model serves real threads ([`Host`]) and virtual
//! cores.
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod cache;
mod device;
#[allow(unsafe_code, reason = "implements `portcullis::Platform`")]
mod host;
mod iotlb_log;
#[allow(unsafe_code, reason = "implements `portcullis_vtd::Mmio`")]
mod mmio;
mod parameters;
mod prefetch;
mod ram;
mod slab;
mod vtd;

pub use cache::{Cache, Replacement};
pub use device::{Device, DmaError, Transfer};
pub use host::{Host, HostLock};
pub use iotlb_log::{Eviction, IotlbLog};
pub use mmio::{Clock, ModelMmio};
pub use parameters::{ParameterError, Parameters};
pub use prefetch::{PrefetcherError, PrefetcherSpec};
pub use ram::Ram;
pub use slab::{PagePool, Slab};
pub use vtd::{Counters, Fault, LookupOutcome, PrefetchFlaw, RingFlaw, Scope, Translated, Vtd};
