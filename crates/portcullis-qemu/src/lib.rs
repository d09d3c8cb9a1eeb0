//! QEMU as a VT-d unit with devices behind it, without a guest.
//!
//! A [`QemuMachine`] is a QEMU process whose virtual CPU does nothing. Its memory is shared with this process, so
//! tables, queues and data are plain loads and stores. Registers and configuration space are accessed through QEMU's
//! qtest protocol. The unchanged driver of `portcullis-vtd` and the unchanged designs of `portcullis` run on this
//! machine, and real emulated devices do the DMA.
//!
//! It is a laboratory: through [`GuestMemory`] and [`QemuMachine`], everything in the machine can be written at any
//! time, including the tables and registers of the unit. The machine's devices cannot reach the memory of this
//! process, and this process accesses the machine's memory only as atomics.
#![deny(missing_docs)]
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "implements `portcullis::domain::DmaBuffer`")]
mod buffer;
#[allow(unsafe_code, reason = "units and raw maps over the memory of a machine")]
pub mod conformance;
mod dma;
pub mod e1000e;
pub mod edu;
mod firmware;
mod host;
#[allow(unsafe_code, reason = "implements `portcullis_vtd::Mmio`")]
mod machine;
#[allow(unsafe_code, reason = "memory that another process also maps")]
mod memory;
pub mod nvme;
#[allow(unsafe_code, reason = "code that runs between fork and exec")]
mod process;
mod protocol;

pub use buffer::GuestBuffer;
pub use dma::{DriverError, NotTaken};
pub use firmware::{FirmwareError, acpi_tables, find_table};
pub use host::{QemuHost, QemuLock};
pub use machine::{Accelerator, Bar, Function, MachineError, QemuMachine, QemuSetup, VTD_BASE, VtdMmio};
pub use memory::GuestMemory;
pub use process::{EXECUTABLE_VARIABLE, find_executable};
pub use protocol::{Protocol, QtestError};
