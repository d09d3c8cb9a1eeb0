//! The common interface of the units that checks run on: a VT-d unit, memory, and devices that do DMA.

use super::Trouble;
use portcullis::iommu::SourceId;
use portcullis::table::{Entry, Frame};
use portcullis::{Iova, NoMemory, PhysAddr};
use portcullis_vtd::Mmio;

/// Device 3, function 0.
pub const A: SourceId = SourceId::new(0, 3, 0);
/// Device 3, function 4: another function of the same device.
pub const B: SourceId = SourceId::new(0, 3, 4);
/// Device 4.
pub const C: SourceId = SourceId::new(0, 4, 0);
/// The devices of a rig.
pub const DEVICES: [SourceId; 3] = [A, B, C];

/// The bytes of a device's buffer that a DMA can use.
pub const BUFFER_BYTES: usize = crate::edu::DMA_BYTES_MAX;
/// Offset in the buffer at which fetched bytes are stored. Below it are the bytes that the device writes:
/// [`pattern`].
pub const FETCHED: usize = 2048;
/// The lowest table page, as an address.
pub const TABLES_BASE: u64 = 16 << 20;
/// Data may lie from here up to [`MEMORY_END`].
pub const DATA_BASE: u64 = 64 << 20;
/// The first address without memory.
pub const MEMORY_END: u64 = 256 << 20;

/// The kind of unit that a check needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hardware {
    /// Like QEMU's: 48-bit addresses, an IOTLB of 1024 entries, walks that do not snoop, one fault register.
    Standard,
    /// 39-bit addresses.
    Narrow,
    /// Absent entries may be cached.
    CachingMode,
    /// Paging-structure caches, and support for the invalidation hint. QEMU has neither.
    PagingCaches,
    /// Eight fault registers. QEMU has one.
    FaultRegisters,
    /// No page-selective invalidation. QEMU always has it.
    WholeDomains,
}

/// The byte at `index` of the bytes that `device` writes. Its top bit is clear.
pub const fn pattern(device: SourceId, index: usize) -> u8 {
    (device.requester() as usize * 37 + index * 11 + 5) as u8 & 0x7f
}

/// A unit with memory and devices. The unit is in its reset state, and no driver has used it.
///
/// Memory ends at [`MEMORY_END`]. Table pages are allocated from [`TABLES_BASE`] up, so the same steps get the same
/// addresses on every rig.
pub trait Rig: Mmio + Send {
    /// Writes a 32-bit register without a driver.
    fn poke32(&self, offset: u32, value: u32) {
        // SAFETY: the devices then reach only the memory of the rig, which holds no Rust objects.
        unsafe { self.write32(offset, value) };
    }

    /// Writes a 64-bit register without a driver.
    fn poke64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        unsafe { self.write64(offset, value) };
    }

    /// Allocates a table page. It is zeroed, also in the view of the unit.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn allocate(&self) -> Result<PhysAddr, NoMemory>;

    /// Frees a table page.
    fn free(&self, page: PhysAddr);

    /// The number of table pages that are not freed yet.
    fn lent(&self) -> usize;

    /// The entries of a table page.
    fn frame(&self, page: PhysAddr) -> &Frame;

    /// Makes entries of a table page visible to walks.
    fn flush(&self, entries: &[Entry]);

    /// Reads data in memory.
    fn load(&self, at: PhysAddr, out: &mut [u8]);

    /// Writes data to memory.
    fn store(&self, at: PhysAddr, data: &[u8]);

    /// Microseconds since a fixed moment.
    fn now_us(&self) -> u64;

    /// Lets a little time pass for the unit.
    fn pause(&self);

    /// Makes `device` read `len` bytes at `iova` into its buffer at `at`. If the access is refused, it reads zeros.
    ///
    /// # Errors
    /// [`Trouble::Broken`] if the device does not work.
    fn device_reads(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble>;

    /// Makes `device` write `len` bytes from `at` in its buffer to `iova`.
    ///
    /// # Errors
    /// As [`device_reads`](Rig::device_reads).
    fn device_writes(&self, device: SourceId, iova: Iova, at: usize, len: usize) -> Result<(), Trouble>;

    /// The number of requests that the IOTLB has served, if the rig can tell.
    fn iotlb_hits(&self) -> Option<u64> {
        None
    }

    /// Checks what must hold after every check.
    ///
    /// # Errors
    /// [`Trouble::Mismatch`].
    fn health(&self) -> Result<(), Trouble>;
}
