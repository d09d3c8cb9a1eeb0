//! QEMU as a rig: its unit, its memory, and three `edu` devices.

use super::Trouble;
use super::rig::{A, B, C, DATA_BASE, FETCHED, Hardware, Rig, pattern};
use crate::edu::Edu;
use crate::{Accelerator, GuestMemory, QemuMachine, QemuSetup, VtdMmio};
use portcullis::iommu::SourceId;
use portcullis::table::{Entry, Frame};
use portcullis::{Iova, NoMemory, PhysAddr};
use portcullis_vtd::Mmio;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// A rig with a separate QEMU process.
pub struct QemuRig {
    // The devices come before the registers, so that they are dropped first. Each holds the machine, which ends with
    // the last holder.
    devices: BTreeMap<SourceId, Edu>,
    registers: VtdMmio,
    memory: Arc<GuestMemory>,
    begun: Instant,
}

impl QemuRig {
    /// Starts a QEMU.
    ///
    /// # Errors
    /// [`Trouble::Broken`].
    pub fn start(hardware: Hardware) -> Result<Self, Trouble> {
        let setup = QemuSetup::new(Accelerator::Jumping)
            .device("edu,addr=3.0,multifunction=on,dma_mask=0xffffffffffffffff")
            .device("edu,addr=3.4,dma_mask=0xffffffffffffffff")
            .device("edu,addr=4,dma_mask=0xffffffffffffffff");
        let setup = match hardware {
            Hardware::Narrow => setup.address_bits(39),
            Hardware::CachingMode => setup.caching_mode(),
            _ => setup,
        };
        let machine = QemuMachine::start(setup)?;
        let memory = machine.memory().clone();
        let mut devices = BTreeMap::new();
        for source in [A, B, C] {
            let edu = Edu::new(&machine.function(source))?;
            let bytes: Vec<u8> = (0..FETCHED).map(|index| pattern(source, index)).collect();
            let at = PhysAddr::new(DATA_BASE);
            memory.write(at, &bytes);
            // Translation is not on yet.
            edu.fetch(Iova::new(at.as_u64()), bytes.len())?;
            devices.insert(source, edu);
        }
        Ok(Self { devices, registers: VtdMmio(machine), memory, begun: Instant::now() })
    }

    fn device(&self, source: SourceId) -> Result<&Edu, Trouble> {
        self.devices.get(&source).ok_or_else(|| Trouble::Broken(format!("no device {:04x}", source.requester())))
    }
}

// SAFETY: these are the registers of one unit, at every call. The unit's devices reach only the memory of the rig,
// which holds no Rust objects.
unsafe impl Mmio for QemuRig {
    fn read32(&self, offset: u32) -> u32 {
        self.registers.read32(offset)
    }

    fn read64(&self, offset: u32) -> u64 {
        self.registers.read64(offset)
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.registers.write32(offset, value) };
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        unsafe { self.registers.write64(offset, value) };
    }
}

impl Rig for QemuRig {
    fn allocate(&self) -> Result<PhysAddr, NoMemory> {
        self.memory.allocate()
    }

    fn free(&self, page: PhysAddr) {
        self.memory.free(page);
    }

    fn lent(&self) -> usize {
        self.memory.tables_lent()
    }

    fn frame(&self, page: PhysAddr) -> &Frame {
        self.memory.frame(page)
    }

    fn flush(&self, _entries: &[Entry]) {
        fence(Ordering::SeqCst);
    }

    fn load(&self, at: PhysAddr, out: &mut [u8]) {
        self.memory.read(at, out);
    }

    fn store(&self, at: PhysAddr, data: &[u8]) {
        self.memory.write(at, data);
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn pause(&self) {
        std::thread::yield_now();
    }

    fn device_reads(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble> {
        Ok(self.device(device)?.fetch_to(iova, at, len)?)
    }

    fn device_writes(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble> {
        Ok(self.device(device)?.store_from(iova, at, len)?)
    }

    fn health(&self) -> Result<(), Trouble> {
        // Only a running QEMU answers. If QEMU has ended, this panics, which counts as a failure.
        let _ = self.registers.read32(portcullis_vtd::spec::registers::VER);
        Ok(())
    }
}
