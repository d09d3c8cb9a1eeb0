//! How translations are revoked: what an unmap leaves to invalidate, when the hardware is told of it, and what is
//! then given back.
//!
//! Everything that is given back afterwards needs a [`Proof`](crate::proof::Proof).

#[allow(unsafe_code, reason = "addresses come back on the word of a deferred policy")]
mod deferred;
#[allow(unsafe_code, reason = "a ticket lies in a place that its batch has taken")]
mod flights;
#[allow(unsafe_code, reason = "addresses come back on the word of a deferred policy")]
mod flush_queues;
mod global_queue;
mod open_run;
#[allow(unsafe_code, reason = "the room for further runs of a batch is not initialized")]
mod packed;
mod per_cpu_queues;
#[allow(unsafe_code, reason = "a batch in flight is taken back once")]
mod policy;
mod revocation;
mod revoked;
#[allow(unsafe_code, reason = "a batch in flight is taken back once")]
mod strict;

pub use deferred::DeferredPolicy;
pub use flights::{Departure, IN_FLIGHT_MAX, InFlight, WhenFull};
pub(crate) use flights::{Flights, Place, Unfinished, look};
pub use flush_queues::{Deferral, FlushQueues};
pub use global_queue::{GlobalQueue, QUEUE_CAPACITY, QUEUE_TIMEOUT_US};
pub use packed::Room;
pub use per_cpu_queues::{CPU_QUEUE_CAPACITY, Flushes, PerCpuQueues};
pub(crate) use policy::Policy;
pub use revocation::{Counted, One, Revocation, Runs};
pub use revoked::{Due, Revoked};
pub use strict::{Commands, Submissions};

/// The most unmaps in one commit.
pub const BATCH_MAX: usize = crate::iommu::COMMANDS_MAX;
