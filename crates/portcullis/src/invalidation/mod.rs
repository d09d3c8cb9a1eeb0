//! How translations are revoked: what an unmap leaves to invalidate, when the hardware is told of it, and what is
//! then given back.
//!
//! Everything that is given back afterwards needs a [`Proof`](crate::proof::Proof).

mod asynchronous;
mod global_queue;
mod open_run;
#[allow(unsafe_code, reason = "the room for further runs of a batch is not initialized")]
mod packed;
mod per_cpu_queues;
mod policy;
mod revocation;
mod strict;

pub use asynchronous::{ASYNCHRONOUS_CAPACITY, AsynchronousQueue};
pub use global_queue::{GlobalQueue, QUEUE_CAPACITY, QUEUE_TIMEOUT_US};
pub(crate) use packed::Room;
pub use per_cpu_queues::{CPU_QUEUE_CAPACITY, PerCpuQueues};
pub(crate) use policy::Policy;
pub use policy::{Commands, Deferral, Flushes, Submissions};
pub(crate) use revocation::Counted;
pub use revocation::{Due, One, Revocation, Revoked, Runs};

/// The most unmaps in one commit.
pub const BATCH_MAX: usize = crate::iommu::COMMANDS_MAX;
