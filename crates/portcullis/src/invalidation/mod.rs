//! How translations are revoked: what an unmap leaves to invalidate, when the hardware is told of it, and what is
//! then given back.
//!
//! Everything that is given back afterwards needs a [`Proof`](crate::proof::Proof).

mod asynchronous;
mod global_queue;
mod open_run;
mod packed;
mod per_cpu_queues;
mod policy;
mod revocation;
mod strict;

pub use asynchronous::{ASYNCHRONOUS_CAPACITY, AsynchronousQueue};
pub use global_queue::{GlobalQueue, QUEUE_CAPACITY, QUEUE_TIMEOUT_US};
pub use per_cpu_queues::{CPU_QUEUE_CAPACITY, PerCpuQueues};
pub(crate) use policy::Policy;
pub use policy::{Commands, Deferral, Flushes, Submissions};
pub(crate) use revocation::{Counted, TakenDown};
pub use revocation::{Due, Revocation, Revoked};

/// The most unmaps in one commit.
pub const BATCH_MAX: usize = crate::iommu::COMMANDS_MAX;
