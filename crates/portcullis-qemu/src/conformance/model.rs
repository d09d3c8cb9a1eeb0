//! The model as a rig.

use super::Trouble;
use super::rig::{BUFFER_BYTES, DEVICES, Hardware, MEMORY_END, Rig, TABLES_BASE, pattern};
use portcullis::iommu::SourceId;
use portcullis::platform::{Platform, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{Iova, NoMemory, PAGE_SIZE, PhysAddr};
use portcullis_model::{Clock, Device, DmaError, Host, Parameters, Ram, Vtd};
use portcullis_vtd::Mmio;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A device with a buffer, like QEMU's `edu`.
struct Buffered {
    device: Device,
    buffer: Mutex<Vec<u8>>,
}

/// The model as a rig: a unit with QEMU's parameters, except for what a check needs otherwise.
pub struct ModelRig {
    host: Host,
    vtd: Arc<Vtd>,
    devices: BTreeMap<SourceId, Buffered>,
}

/// The parameters of a kind of unit.
fn parameters(hardware: Hardware) -> Parameters {
    let qemu = Parameters::qemu();
    match hardware {
        Hardware::Standard => qemu,
        Hardware::Narrow => Parameters { four_level: false, address_bits: 39, physical_bits: 39, ..qemu },
        Hardware::CachingMode => Parameters { caching_mode: true, ..qemu },
        Hardware::PagingCaches => Parameters {
            ptcache_l1_entries: 32,
            ptcache_l2_entries: 32,
            ptcache_l3_entries: 32,
            honours_hint: true,
            ..qemu
        },
        Hardware::FaultRegisters => Parameters { fault_registers: 8, ..qemu },
        Hardware::WholeDomains => Parameters { page_selective: false, ..qemu },
    }
}

impl ModelRig {
    /// A new model for this kind of unit.
    pub fn new(hardware: Hardware) -> Self {
        Self::with(parameters(hardware))
    }

    /// A model with these parameters.
    pub fn with(parameters: Parameters) -> Self {
        let bytes = MEMORY_END - TABLES_BASE;
        let base = PhysAddr::new(TABLES_BASE);
        let ram = Arc::new(if parameters.coherent { Ram::new(base, bytes) } else { Ram::with_flushing(base, bytes) });
        let vtd = Arc::new(Vtd::new(parameters, ram.clone()));
        let host = Host::new(ram);
        host.add_hardware(vtd.clone());
        let devices = DEVICES.map(|source| {
            let mut buffer = vec![0; BUFFER_BYTES];
            buffer.iter_mut().enumerate().for_each(|(index, byte)| *byte = pattern(source, index));
            (source, Buffered { device: Device::new(source, 512, PAGE_SIZE), buffer: Mutex::new(buffer) })
        });
        Self { host, vtd, devices: devices.into() }
    }

    /// Transfers page by page, and continues after a refused page as QEMU's devices do. Afterwards, it waits until
    /// all walks and all other work of the unit are done.
    fn transfer(
        &self,
        source: SourceId,
        iova: Iova,
        (at, len): (usize, usize),
        mut piece: impl FnMut(&Device, Iova, &mut [u8]) -> Result<(), DmaError>,
    ) -> Result<(), Trouble> {
        let device = self
            .devices
            .get(&source)
            .ok_or_else(|| Trouble::Broken(format!("no device {:04x}", source.requester())))?;
        let mut buffer = device.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = buffer.get_mut(at..at + len).ok_or_else(|| Trouble::Broken("beyond the buffer".to_owned()))?;
        let mut iova = iova;
        while !rest.is_empty() {
            let bytes = rest.len().min((PAGE_SIZE - iova.page_offset()) as usize);
            let (now, later) = rest.split_at_mut(bytes);
            // The device does not learn of errors: refusals are in the fault registers, and an access to an address
            // without memory does nothing.
            let _: Result<(), DmaError> = piece(&device.device, iova, now);
            iova = Iova::new(iova.as_u64().wrapping_add(bytes as u64));
            rest = later;
        }
        while let Some(next_ps) = self.vtd.next_event_ps() {
            self.host.advance_ps(next_ps.saturating_sub(self.host.now_ps()).max(1));
        }
        Ok(())
    }
}

// SAFETY: these are the registers of one unit, at every call. The unit's devices reach only the memory of the rig,
// which holds no Rust objects.
unsafe impl Mmio for ModelRig {
    fn read32(&self, offset: u32) -> u32 {
        self.vtd.read_register(self.host.now_ps(), offset, 4) as u32
    }

    fn read64(&self, offset: u32) -> u64 {
        self.vtd.read_register(self.host.now_ps(), offset, 8)
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.vtd.write_register(self.host.now_ps(), offset, 4, value.into());
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.vtd.write_register(self.host.now_ps(), offset, 8, value);
    }
}

impl Rig for ModelRig {
    fn allocate(&self) -> Result<PhysAddr, NoMemory> {
        self.host.ram().allocate()
    }

    fn free(&self, page: PhysAddr) {
        self.host.ram().free(page);
    }

    fn lent(&self) -> usize {
        self.host.ram().allocated()
    }

    fn frame(&self, page: PhysAddr) -> &Frame {
        self.host.ram().frame(page)
    }

    fn flush(&self, entries: &[Entry]) {
        self.host.table_barrier(entries, false);
    }

    fn load(&self, at: PhysAddr, out: &mut [u8]) {
        self.host.ram().read_bytes(at, out).expect("checks look at memory only");
    }

    fn store(&self, at: PhysAddr, data: &[u8]) {
        assert!(self.host.ram().write_bytes(at, data), "checks write to memory only");
    }

    fn now_us(&self) -> u64 {
        Platform::now_us(&self.host)
    }

    fn pause(&self) {
        Platform::pause(&self.host, Wait::Invalidation);
    }

    fn device_reads(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble> {
        self.transfer(device, iova, (at, len), |device, iova, piece| {
            let read = device.read(&self.vtd, self.host.ram(), self.host.now_ps(), iova, piece);
            if read.is_err() {
                piece.fill(0);
            }
            read
        })
    }

    fn device_writes(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble> {
        self.transfer(device, iova, (at, len), |device, iova, piece| {
            device.write(&self.vtd, self.host.ram(), self.host.now_ps(), iova, piece)
        })
    }

    fn iotlb_hits(&self) -> Option<u64> {
        Some(self.vtd.counters().iotlb_hits)
    }

    fn health(&self) -> Result<(), Trouble> {
        match self.vtd.counters().walks_into_freed {
            0 => Ok(()),
            walks => Err(Trouble::Mismatch(format!("S4: {walks} walks read a table page that had been freed"))),
        }
    }
}
