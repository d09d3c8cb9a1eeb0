//! The Intel VT-d driver: legacy mode, second-level translation, queued invalidation.
//!
//! A [`Unit`] takes an [`Mmio`] (access to the registers) and a [`portcullis::Platform`] (memory, locks, time), and
//! implements [`portcullis::Iommu`]. It does not know whether a software model, an emulator or silicon answers.
//! [`Units`] joins several units into one, for domains whose devices sit behind more than one of them.
//!
//! [`dmar`] reads the firmware table that lists the units, the devices behind each of them, and the memory that
//! firmware reserves.
//!
//! # Start here
//!
//! From the firmware's table to a device that reaches one buffer, and then nothing:
//!
//! ```no_run
//! use portcullis::designs::Portcullis;
//! use portcullis::domain::DmaBuffer;
//! use portcullis::{Access, DomainConfig, IovaRange, Open, PhysAddr, Platform, Protection, SourceId};
//! use portcullis_vtd::dmar::Dmar;
//! use portcullis_vtd::{Mmio, Unit, UnitConfig};
//! use std::error::Error;
//! use std::fmt::Debug;
//!
//! fn receive_once<P: Platform, M: Mmio, B: DmaBuffer + Debug>(
//!     host: &P,
//!     table: &[u8],                          // the ACPI table DMAR
//!     registers: impl Fn(PhysAddr) -> M,     // maps the registers of a unit, uncached
//!     nic: SourceId,                         // a device on bus 0 of its segment
//!     buffer: B,
//! ) -> Result<B, Box<dyn Error>> {
//!     let dmar = Dmar::parse(table)?;
//!     let buses = |_bridge| None; // the buses behind a bridge, from PCI enumeration
//!     let drhd = dmar.unit_for(nic.segment(), nic, buses).ok_or("no unit serves the device")?;
//!     let (physical_bits, segment) = (dmar.host_address_bits(), drhd.segment);
//!     let config = UnitConfig { physical_bits, segment, ..UnitConfig::default() };
//!     // Translation is on from here, and every device is shut out: all of them must be quiet.
//!     let unit = Unit::bring_up(registers(drhd.register_base), host, config)?;
//!     let reserved: Vec<IovaRange> = dmar.reserved_for(nic.segment(), nic, buses).collect();
//!     let config = DomainConfig { reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
//!     let domain = Portcullis::open_with(&unit, host, &config)?;
//!     domain.attach(nic)?;
//!     let mapping = domain.map(buffer, Access::DeviceWrites)?;
//!     // Program mapping.iova() into the device, and wait until it is done.
//!     Ok(domain.unmap(mapping)?)
//! }
//! ```
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
#[allow(unsafe_code, reason = "a unit that changes hands")]
mod bring_up;
pub mod chipset;
mod closable_lock;
pub mod dmar;
mod faults;
mod foreign;
#[allow(unsafe_code, reason = "units that change hands")]
mod handover;
#[allow(unsafe_code, reason = "a register write can open all memory")]
mod hardware;
mod inherit;
#[allow(unsafe_code, reason = "reads and writes registers through a pointer")]
mod mapped;
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
#[allow(unsafe_code, reason = "turning translation off opens all memory")]
mod unit;
#[allow(unsafe_code, reason = "implements the unsafe trait `Iommu`")]
mod units;

#[doc(inline)]
pub use bring_up::{BringUpError, Prepared, TakeOver};
#[doc(inline)]
pub use foreign::{ForeignQueue, Interrupts};
#[doc(inline)]
pub use handover::{Handover, NotSwitched, switch_all};
#[doc(inline)]
pub use hardware::RegisterError;
#[doc(inline)]
pub use inherit::InheritanceError;
#[doc(inline)]
pub use mapped::MappedRegisters;
#[doc(inline)]
pub use mmio::Mmio;
#[doc(inline)]
pub use queue::{Discipline, QueueUse, SUBMISSIONS_MAX, Ticket};
#[doc(inline)]
pub use unit::{Unit, UnitConfig};
#[doc(inline)]
pub use units::{UNITS_MAX, UnitCount, Units, UnitsTicket};
