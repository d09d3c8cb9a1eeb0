//! The Intel VT-d driver: legacy mode, second-level translation, queued invalidation.
//!
//! A [`Unit`] takes an [`Mmio`] (how the registers are reached) and a [`portcullis::Platform`] (memory, locks, time), and
//! implements [`portcullis::Iommu`]. It knows nothing of who answers: a software model, an emulator or silicon. [`Units`]
//! joins several into one, for domains whose devices sit behind more than one of them.
//!
//! [`dmar`] reads the table in which firmware says which units there are, whom they serve and what it reserves.
//!
//! [`spec`] holds the constants and types of the Intel VT-d specification and no behaviour, so that a model of the hardware
//! can share them.
#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;

#[allow(unsafe_code, reason = "what hardware promises")]
mod attach;
mod attachments;
pub mod dmar;
mod faults;
#[allow(unsafe_code, reason = "one write can open the gate")]
mod hardware;
mod inherit;
#[allow(unsafe_code, reason = "what registers promise")]
mod mapped;
#[allow(unsafe_code, reason = "what registers promise")]
mod mmio;
#[allow(unsafe_code, reason = "pages that hardware shares")]
mod page;
mod queue;
mod sorted;
pub mod spec;
mod sync;
mod tables;
#[cfg(test)]
#[allow(unsafe_code, reason = "a unit of software and a host around the fake one")]
mod tests;
mod unbroken;
#[allow(unsafe_code, reason = "turning translation off opens all memory")]
mod unit;
#[allow(unsafe_code, reason = "what hardware promises")]
mod units;

pub use hardware::RegisterTimeout;
pub use inherit::InheritanceError;
pub use mapped::MappedRegisters;
pub use mmio::Mmio;
pub use queue::{QueueUse, Ticket};
pub use unit::{BringUpError, TakeOver, Unit, UnitConfig};
pub use units::{UNITS_MAX, UnitCount, Units, UnitsTicket};
