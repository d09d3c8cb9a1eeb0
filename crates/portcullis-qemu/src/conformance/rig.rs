//! What a check is made on: a VT-d unit, memory, and devices that do DMA, all behind one face.

use super::Trouble;
use portcullis::iommu::SourceId;
use portcullis::table::{Entry, Frame};
use portcullis::{Iova, NoMemory, PhysAddr};
use portcullis_vtd::Mmio;

/// Device 3, function 0.
pub const A: SourceId = SourceId(0x18);
/// Device 3, function 4: another function of the same device.
pub const B: SourceId = SourceId(0x1c);
/// Device 4.
pub const C: SourceId = SourceId(0x20);
/// The devices.
pub const DEVICES: [SourceId; 3] = [A, B, C];

/// Bytes of a device's buffer that a DMA can use.
pub const BUFFER_BYTES: usize = crate::edu::DMA_BYTES_MAX;
/// Where in the buffer what was fetched goes. Below lies what the device writes: [`pattern`].
pub const FETCHED: usize = 2048;
/// Where table pages come from, in bytes.
pub const TABLES_BASE: u64 = 16 << 20;
/// Where data may lie: up to [`MEMORY_END`].
pub const DATA_BASE: u64 = 64 << 20;
/// The first address without memory.
pub const MEMORY_END: u64 = 256 << 20;

/// What kind of unit a check needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hardware {
    /// As QEMU's: 48-bit addresses, an IOTLB of 1024 entries, walks that do not snoop, one fault register.
    Standard,
    /// 39-bit addresses.
    Narrow,
    /// Absent entries may be cached.
    CachingMode,
    /// Paging-structure caches, and regard for the invalidation hint. QEMU has neither.
    PagingCaches,
    /// Eight fault registers. QEMU has one.
    FaultRegisters,
    /// No page-selective invalidation. QEMU always has it.
    WholeDomains,
}

/// The byte at `index` of what `device` writes. Its top bit is clear.
pub const fn pattern(device: SourceId, index: usize) -> u8 {
    (device.0 as usize * 37 + index * 11 + 5) as u8 & 0x7f
}

/// A unit with memory and devices. The unit is out of reset; nobody has driven it yet.
///
/// Memory lies below [`MEMORY_END`]; table pages are handed out from [`TABLES_BASE`] up, so the same steps get the same
/// addresses on every rig.
pub trait Rig: Mmio + Send {
    /// Writes a 32-bit register, past any driver.
    fn poke32(&self, offset: u32, value: u32) {
        // SAFETY: what the devices reach then is the memory of the rig, in which nothing of Rust lies.
        unsafe { self.write32(offset, value) };
    }

    /// Writes a 64-bit register, past any driver.
    fn poke64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        unsafe { self.write64(offset, value) };
    }

    /// A table page, zeroed, and seen so by the unit.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn allocate(&self) -> Result<PhysAddr, NoMemory>;

    /// Takes a table page back.
    fn free(&self, page: PhysAddr);

    /// Table pages handed out and not yet back.
    fn lent(&self) -> usize;

    /// A table page.
    fn frame(&self, page: PhysAddr) -> &Frame;

    /// Makes entries of a table page visible to walks.
    fn flush(&self, entries: &[Entry]);

    /// Reads data in memory.
    fn load(&self, at: PhysAddr, out: &mut [u8]);

    /// Writes data to memory.
    fn store(&self, at: PhysAddr, data: &[u8]);

    /// Microseconds since some moment.
    fn now_us(&self) -> u64;

    /// Lets a little time pass for the unit.
    fn pause(&self);

    /// `device` reads `len` bytes at `iova` to `at` in its buffer; zeros where it is refused.
    ///
    /// # Errors
    /// [`Trouble::Broken`] where the device is.
    fn device_reads(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble>;

    /// `device` writes `len` bytes from `at` in its buffer to `iova`.
    ///
    /// # Errors
    /// As [`device_reads`](Rig::device_reads).
    fn device_writes(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble>;

    /// How many requests the IOTLB has served, where the rig can tell.
    fn iotlb_hits(&self) -> Option<u64> {
        None
    }

    /// What must hold after every check.
    ///
    /// # Errors
    /// [`Trouble::Mismatch`].
    fn health(&self) -> Result<(), Trouble>;
}
