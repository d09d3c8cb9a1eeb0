//! Configuration space, through ports 0xcf8 and 0xcfc, and the register block behind a base address register (BAR).

use super::QemuMachine;
use portcullis::iommu::SourceId;
use std::fmt::Write as _;
use std::sync::Arc;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ENABLE: u64 = 1 << 31;
const COMMAND: u8 = 0x04;
const BAR0: u8 = 0x10;
const BAR1: u8 = 0x14;
/// The BAR is 64 bits wide and also occupies the next one.
const BAR_WIDE: u32 = 1 << 2;
/// Enables memory accesses to the function, and its DMA.
const MEMORY_AND_MASTER: u32 = 0x6;
/// Register blocks are placed from here on, by device and function number.
const BARS_BASE: u64 = 0xe000_0000;
const BAR_STRIDE: u64 = 1 << 20;

/// A function on bus 0.
#[derive(Clone)]
pub struct Function {
    machine: Arc<QemuMachine>,
    source: SourceId,
}

impl Function {
    pub(super) fn new(machine: Arc<QemuMachine>, source: SourceId) -> Self {
        Self { machine, source }
    }

    /// The source id of the function.
    pub fn source(&self) -> SourceId {
        self.source
    }

    /// Reads 4 bytes of its configuration space.
    ///
    /// # Panics
    /// If QEMU has ended, as [`QemuMachine::read32`].
    pub fn read(&self, offset: u8) -> u32 {
        let address = self.address(offset);
        self.machine.answered(|protocol| {
            protocol.port_out('l', ADDRESS_PORT, address)?;
            protocol.port_in('l', DATA_PORT)
        }) as u32
    }

    /// Writes 4 bytes of its configuration space.
    ///
    /// # Panics
    /// As [`Function::read`].
    pub fn write(&self, offset: u8, value: u32) {
        let address = self.address(offset);
        self.machine.answered(|protocol| {
            protocol.port_out('l', ADDRESS_PORT, address)?;
            protocol.port_out('l', DATA_PORT, value.into())
        });
    }

    /// Vendor and device id: `0xDDDDVVVV`.
    pub fn identity(&self) -> u32 {
        self.read(0)
    }

    /// Assigns an address to the first register block, and enables accesses to it and DMA.
    pub fn enable(&self) -> Bar {
        let base = BARS_BASE + u64::from(self.source.requester() & 0xff) * BAR_STRIDE;
        let wide = self.read(BAR0) & BAR_WIDE != 0;
        self.write(BAR0, base as u32);
        if wide {
            self.write(BAR1, 0);
        }
        self.write(COMMAND, self.read(COMMAND) | MEMORY_AND_MASTER);
        Bar { machine: self.machine.clone(), base }
    }

    fn address(&self, offset: u8) -> u64 {
        ENABLE | u64::from(self.source.requester()) << 8 | u64::from(offset & 0xfc)
    }
}

/// The registers of a function.
#[derive(Clone)]
pub struct Bar {
    machine: Arc<QemuMachine>,
    base: u64,
}

impl Bar {
    /// The machine of this function.
    pub fn machine(&self) -> &Arc<QemuMachine> {
        &self.machine
    }

    /// Reads 4 bytes.
    pub fn read32(&self, offset: u64) -> u32 {
        self.machine.read32(self.base + offset)
    }

    /// Reads 8 bytes.
    pub fn read64(&self, offset: u64) -> u64 {
        self.machine.read64(self.base + offset)
    }

    /// Writes 8 bytes at each of several offsets, in order, and then reads 8 bytes, all in one exchange with QEMU.
    ///
    /// # Panics
    /// If QEMU has ended, as [`QemuMachine::read32`].
    pub fn write_and_read64(&self, writes: &[(u64, u64)], read: u64) -> u64 {
        let mut commands = String::new();
        for (offset, value) in writes {
            writeln!(commands, "writeq {:#x} {value:#x}", self.base + offset).expect("a string takes all");
        }
        write!(commands, "readq {:#x}", self.base + read).expect("a string takes all");
        self.machine.answered(|protocol| protocol.number(&commands))
    }

    /// Writes 4 bytes.
    pub fn write32(&self, offset: u64, value: u32) {
        self.machine.write32(self.base + offset, value);
    }

    /// Writes 8 bytes.
    pub fn write64(&self, offset: u64, value: u64) {
        self.machine.write64(self.base + offset, value);
    }
}
