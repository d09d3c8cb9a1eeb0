//! The register block of a VT-d unit, by pointer.

use portcullis_vtd::Mmio;

/// Registers mapped into the address space, uncached.
pub(crate) struct Registers(*mut u8);

impl Registers {
    /// # Safety
    /// `base` points to the mapped register block of a VT-d unit that has no other driver, and the block stays mapped
    /// as long as this value lives.
    pub(crate) unsafe fn new(base: *mut u8) -> Self {
        Self(base)
    }

    fn at<T>(&self, offset: u32) -> *mut T {
        self.0.wrapping_add(offset as usize).cast()
    }
}

// SAFETY: a register block may be used from any CPU.
unsafe impl Send for Registers {}
// SAFETY: accesses are single volatile loads and stores, which the registers accept from several CPUs at once.
unsafe impl Sync for Registers {}

// SAFETY: the registers are those of a unit that has no other driver, as promised to `new`.
unsafe impl Mmio for Registers {
    #[inline(never)]
    fn read32(&self, offset: u32) -> u32 {
        // SAFETY: within the block that was promised to `new`. The driver accesses only registers that the block
        // reports.
        unsafe { self.at::<u32>(offset).read_volatile() }
    }

    #[inline(never)]
    fn read64(&self, offset: u32) -> u64 {
        // SAFETY: as above.
        unsafe { self.at::<u64>(offset).read_volatile() }
    }

    #[inline(never)]
    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: as above.
        unsafe { self.at::<u32>(offset).write_volatile(value) }
    }

    #[inline(never)]
    unsafe fn write64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        unsafe { self.at::<u64>(offset).write_volatile(value) }
    }
}
