//! QEMU as a VT-d unit with devices behind it, and no guest.
//!
//! A [`QemuMachine`] is a QEMU whose virtual CPU does nothing. Its memory is shared with this process, so tables, queues and data
//! are plain loads and stores; registers and configuration space go through QEMU's qtest protocol. On it the unchanged driver
//! of `portcullis-vtd` and the unchanged designs of `portcullis` run, and real emulated devices do the DMA.
//!
//! It is a laboratory: by [`GuestMemory`] and [`QemuMachine`] anything of the machine can be written at any time, tables and registers
//! of the unit included. No memory of this process is in reach of the machine's devices, and the machine's is used as atomics only.
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
#[allow(unsafe_code, reason = "memory that another process maps too")]
mod memory;
pub mod nvme;
#[allow(unsafe_code, reason = "what a child does between fork and exec")]
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
