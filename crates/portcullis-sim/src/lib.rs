//! The lab: runs the protection layer on virtual cores, over modelled hardware, with real work.
//!
//! It includes `figures`, because these need runs that code outside cannot make. The crate is therefore a little
//! longer than others.
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod account;
pub mod advice;
pub mod attack;
pub mod compare;
pub mod engine;
pub mod figures;
mod free_lists;
mod machine;
pub mod number;
pub mod oracle;
mod outcome;
mod parallel;
#[allow(unsafe_code, reason = "implements `portcullis::Platform`")]
mod platform;
pub mod prefetch;
pub mod priced;
mod rates;
mod run;
mod share;
pub mod simulate;
pub mod totals;
mod traffic;

pub use account::Account;
pub use engine::{CostBook, LockKind, Numbering, Sharing};
pub use free_lists::FreeLists;
pub use machine::{
    Adaptation, Applications, Fragments, Machine, MachineError, NicDriver, Reader, SegmentJoining, Server, Software,
    Striding, Writer,
};
pub use outcome::{PrefetchCounts, Recorded, RiotlbCounts, RunOutcome, run};
pub use platform::LabPlatform;
pub use rates::Limit;
pub use run::{
    Choice, Churn, IperfChoices, Job, LabDesign, LabUnit, Pace, ParameterInfo, Recycling, Replay, Rings, RunError,
    SERVER_WORKLOADS, ServerError, ServerWork, ServerWorkload, StreamDirection, WORKLOADS, Work, WorkloadError,
    WorkloadInfo, machine_pace,
};
pub use traffic::{PayloadRule, Traffic};
