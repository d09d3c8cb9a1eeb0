//! Native timings of the protection layer on the CPUs of this machine: the results of `portcullis bench`.
//!
//! Every workload maps and unmaps through the raw or the typed interface, in pairs. Each thread has its own CPU and
//! its own live mappings, all in one domain. There is no device, and no hardware to wait for (`iommu`). The timed work
//! is checked (`check`).
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

pub use case::{BenchDesign, Choice, TimedDesign, execute, time, turns};
pub use group::Effort;
pub use host::Native;
pub use meter::CyclesFrom;
pub use prices::{Prices, ROUNDS, prices};
pub use repeat::repeat;
pub use row::{BenchRow, Timed};
pub use statistics::Spread;
pub use workload::{UnknownWorkload, Workload};

use portcullis::{CommitError, NewDomainError, RawMapError, RawUnmapError, UnmapError};
use portcullis_vtd::BringUpError;
use thiserror::Error;

/// What to time.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// The designs. Each runs under each of its protections.
    pub designs: Vec<Choice>,
    /// The numbers of threads.
    pub threads: Vec<usize>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// How long to measure.
    pub effort: Effort,
}

/// Why something was not timed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The domain could not be made.
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
    /// There are fewer CPUs than threads.
    #[error("{asked} threads, each on a CPU of its own: this program may use {cpus}")]
    Threads {
        /// The number of threads requested.
        asked: usize,
        /// The number of CPUs that this program may use.
        cpus: usize,
    },
    /// A thread could not be kept on its CPU.
    #[error("a thread cannot be kept on CPU {0}")]
    Pin(usize),
    /// The machine cannot do what the workload needs.
    #[error("this machine has no instruction that writes a single cache line back")]
    NoFlush,
    /// The host is out of memory.
    #[error("no memory")]
    NoMemory,
    /// Nothing shows the length of a cycle.
    #[error("this machine has no counter of cycles, and does not say how fast its clock is (cpufreq)")]
    NoClock,
    /// The thread at the other end of the queue has failed.
    #[error("the other thread has given up")]
    Abandoned,
}
