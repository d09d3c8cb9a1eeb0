//! The Intel VT-d driver: legacy mode, second-level translation, queued invalidation.
//!
//! A [`Unit`] takes an [`Mmio`] (access to the registers) and a [`portcullis::Platform`] (memory, locks, time), and
//! implements [`portcullis::Iommu`]. It does not know whether a software model, an emulator or silicon answers.
//! [`Units`] joins several units into one, for domains whose devices sit behind more than one of them.
//!
//! [`dmar`] reads the firmware table that lists the units, the devices behind each of them, and the memory that
//! firmware reserves.
//!
//! [`spec`] holds the constants and types of the Intel VT-d specification and no behaviour, so that a model of the
//! hardware can share them.
#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;

#[allow(unsafe_code, reason = "implements the unsafe trait `Iommu`")]
mod attach;
mod attachments;
pub mod dmar;
mod faults;
#[allow(unsafe_code, reason = "a register write can open all memory")]
mod hardware;
mod inherit;
#[allow(unsafe_code, reason = "declares the unsafe trait `Mmio`")]
mod mmio;
#[allow(unsafe_code, reason = "pages shared with the hardware")]
mod page;
mod queue;
mod sorted;
pub mod spec;
mod sync;
mod tables;
#[cfg(test)]
#[allow(unsafe_code, reason = "a software unit, and a host that wraps the fake one")]
mod tests;
mod unbroken;
#[allow(unsafe_code, reason = "turning translation off opens all memory")]
mod unit;
#[allow(unsafe_code, reason = "implements the unsafe trait `Iommu`")]
mod units;

pub use hardware::RegisterTimeout;
pub use inherit::InheritanceError;
pub use mmio::Mmio;
pub use queue::{QueueUse, Ticket};
pub use unit::{BringUpError, TakeOver, Unit, UnitConfig};
pub use units::{UNITS_MAX, UnitCount, Units, UnitsTicket};
