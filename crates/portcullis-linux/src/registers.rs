//! The registers of a unit, mapped uncached by the C half.

use portcullis_vtd::Mmio;

/// Where they begin.
pub(crate) struct Registers(*mut u8);

impl Registers {
    /// # Safety
    /// `base` points to the mapped register block of a unit that has no other driver, until the module goes.
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

// SAFETY: those of one unit with no other driver, as `new` was promised. They are uncached, so that a write leaves the CPU behind
// every store that came before it.
unsafe impl Mmio for Registers {
    #[inline]
    fn read32(&self, offset: u32) -> u32 {
        // SAFETY: within the block: the driver keeps to the registers that it shows.
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
