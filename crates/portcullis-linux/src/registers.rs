//! The registers of a unit, mapped uncached by the C half.

use portcullis_vtd::Mmio;

/// The address of the register block.
pub(crate) struct Registers(*mut u8);

impl Registers {
    /// # Safety
    /// `base` must point to the mapped register block of a unit that no other driver uses, until the module is
    /// unloaded.
    pub(crate) unsafe fn new(base: *mut u8) -> Self {
        Self(base)
    }

    fn at<T>(&self, offset: u32) -> *mut T {
        self.0.wrapping_add(offset as usize).cast()
    }
}

// SAFETY: registers may be used from any CPU.
unsafe impl Send for Registers {}
// SAFETY: each access is one instruction.
unsafe impl Sync for Registers {}

// SAFETY: the registers are those of one unit that no other driver uses, as the caller of `new` promised. They are
// uncached, so a write leaves the CPU after every earlier store.
unsafe impl Mmio for Registers {
    #[inline]
    fn read32(&self, offset: u32) -> u32 {
        // SAFETY: the offset is within the block, because the driver uses only registers that the unit reports.
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
