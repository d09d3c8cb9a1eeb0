//! The register block of a unit, mapped into the address space.

use crate::mmio::Mmio;

/// Registers that are accessed by pointer. A kernel maps them uncached, from the base address that firmware's [DMAR
/// table](crate::dmar) reports.
pub struct MappedRegisters {
    base: *mut u8,
    bytes: u32,
}

impl MappedRegisters {
    /// The registers that are mapped at `base`, `bytes` of them: at least a page. [`Unit::bring_up`] refuses a unit
    /// that has registers beyond them.
    ///
    /// # Safety
    /// `base` points to the register block of a unit, of which `bytes` are mapped, uncached, for as long as this value
    /// lives. Everything that [`Mmio`] promises about the registers holds: the unit has no other driver,
    /// except as [`Interrupts::Foreign`](crate::Interrupts::Foreign) allows it, and its devices reach memory only
    /// through it.
    ///
    /// [`Unit::bring_up`]: crate::Unit::bring_up
    pub const unsafe fn new(base: *mut u8, bytes: u32) -> Self {
        Self { base, bytes }
    }

    #[inline]
    const fn at<T>(&self, offset: u32) -> *mut T {
        self.base.wrapping_add(offset as usize).cast()
    }
}

// SAFETY: a register block may be used from any CPU.
unsafe impl Send for MappedRegisters {}
// SAFETY: accesses are single volatile loads and stores, which registers accept from several CPUs at once.
unsafe impl Sync for MappedRegisters {}

// SAFETY: the caller of `new` has promised this. The registers are uncached, so a write leaves the CPU after every
// store that precedes it, and no write is merged.
unsafe impl Mmio for MappedRegisters {
    fn bytes(&self) -> u32 {
        self.bytes
    }

    #[inline]
    fn read32(&self, offset: u32) -> u32 {
        // SAFETY: within the block: the driver checks every register that the unit reports against `bytes`.
        unsafe { self.at::<u32>(offset).read_volatile() }
    }

    #[inline]
    fn read64(&self, offset: u32) -> u64 {
        // SAFETY: as above.
        unsafe { self.at::<u64>(offset).read_volatile() }
    }

    #[inline]
    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: as above.
        unsafe { self.at::<u32>(offset).write_volatile(value) }
    }

    #[inline]
    unsafe fn write64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        unsafe { self.at::<u64>(offset).write_volatile(value) }
    }
}
