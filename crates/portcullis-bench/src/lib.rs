//! The protection layer timed natively, on the CPUs of this machine: what `portcullis bench` prints.
//!
//! Every workload is maps and unmaps of the raw face, in pairs, by threads that each have a CPU and live mappings of their own in
//! one domain. There is no device and no hardware to wait for (`iommu`); what is timed is checked (`check`).
#![cfg(target_os = "linux")]
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod case;
mod check;
#[allow(unsafe_code, reason = "what hardware reads and writes")]
mod driven;
mod group;
#[allow(unsafe_code, reason = "table pages, restartable sequences and counters of this machine")]
mod host;
#[allow(unsafe_code, reason = "what hardware promises")]
mod iommu;
mod meter;
mod prices;
mod repeat;
mod row;
mod statistics;
mod tables;
#[cfg(test)]
#[allow(unsafe_code, reason = "designs that break what they promise")]
mod tests;
mod verify;
mod work;
mod workload;

pub use case::{TimedDesign, execute, time, turns};
pub use group::Effort;
pub use host::Native;
pub use meter::CyclesFrom;
pub use prices::{Prices, ROUNDS, prices};
pub use repeat::repeat;
pub use row::{BenchRow, Timed};
pub use statistics::Spread;
pub use workload::{UnknownWorkload, Workload};

use portcullis::designs::Choice;
use portcullis::{CommitError, NewDomainError, RawMapError, RawUnmapError, UnmapError};
use portcullis_vtd::BringUpError;
use thiserror::Error;

/// What to time.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// Designs, under each of their protections.
    pub designs: Vec<Choice>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// How long.
    pub effort: Effort,
}

/// Why something was not timed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The domain was refused.
    #[error("no domain: {0}")]
    Domain(#[from] NewDomainError),
    /// A map was refused.
    #[error("a map was refused: {0}")]
    Map(#[from] RawMapError),
    /// An unmap failed.
    #[error("an unmap failed: {0}")]
    Unmap(#[from] RawUnmapError),
    /// An unmap of a batch was refused.
    #[error("an unmap was refused: {0}")]
    Refused(#[from] UnmapError),
    /// A commit failed.
    #[error("a commit failed: {0}")]
    Commit(#[from] CommitError),
    /// The unit of the VT-d driver did not come up.
    #[error("no unit: {0}")]
    BringUp(#[from] BringUpError),
    /// The work was not what it should have been.
    #[error("check failed: {0}")]
    Check(String),
    /// There are not as many CPUs.
    #[error("{asked} threads, each on a CPU of its own: this program may use {cpus}")]
    Threads {
        /// Threads asked for.
        asked: usize,
        /// CPUs that there are.
        cpus: usize,
    },
    /// A thread could not be kept on its CPU.
    #[error("a thread cannot be kept on CPU {0}")]
    Pin(usize),
    /// The machine cannot do what the workload needs.
    #[error("this machine has no instruction that writes a single cache line back")]
    NoFlush,
    /// There is no memory.
    #[error("no memory")]
    NoMemory,
    /// Nothing tells how long a cycle is.
    #[error("this machine has no counter of cycles, and does not say how fast its clock is (cpufreq)")]
    NoClock,
    /// The thread at the other end has failed.
    #[error("the other thread has given up")]
    Abandoned,
}
