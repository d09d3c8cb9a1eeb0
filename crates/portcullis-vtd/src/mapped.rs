//! The register block of a unit that is mapped into the address space.

use crate::mmio::Mmio;

/// Registers by pointer: a kernel maps them uncached, from the base on that firmware's [table](crate::dmar) names.
pub struct MappedRegisters(*mut u8);

impl MappedRegisters {
    /// Those that are mapped at `base`.
    ///
    /// # Safety
    /// `base` points to the register block of a unit, mapped uncached for as long as this value
    /// lives; all that [`Mmio`] promises of them is so: the unit has no other driver, and its devices reach memory through it alone.
    pub const unsafe fn new(base: *mut u8) -> Self {
        Self(base)
    }

    #[inline]
    const fn at<T>(&self, offset: u32) -> *mut T {
        self.0.wrapping_add(offset as usize).cast()
    }
}

// SAFETY: a register block may be used from any CPU.
unsafe impl Send for MappedRegisters {}
// SAFETY: accesses are single volatile loads and stores, which registers take from several CPUs at once.
unsafe impl Sync for MappedRegisters {}

// SAFETY: as `new` was promised. They are uncached, so that a write leaves the CPU behind every store that came before it, and none is merged.
unsafe impl Mmio for MappedRegisters {
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
