//! Access to the registers of a unit.

use crate::spec::registers::BLOCK_BYTES;

/// The register block of one unit. Offsets are in bytes from its base; those of 64-bit accesses are multiples of 8.
///
/// A write is posted in program order after every store to memory that this CPU made visible with
/// [`Platform::table_barrier`](portcullis::Platform::table_barrier). A read returns what the hardware shows at that
/// moment. Implementations must not cache or merge accesses.
///
/// # Safety
/// The driver gives memory back to its owners because these registers say that it may. Implementations promise the
/// following.
/// - The registers are those of one unit, and of the same unit at every call.
/// - The devices of that unit reach memory through it and in no other way.
/// - Nothing but these calls writes the registers, except as
///   [`Interrupts::Foreign`](crate::Interrupts::Foreign) allows it.
/// - If several values stand for one unit, no two of them are brought up at the same time.
///   [`Unit::bring_up`](crate::Unit::bring_up) checks whether the unit is on, but does not claim it in the same step.
pub unsafe trait Mmio: Send + Sync {
    /// Length of the register block in bytes: the driver accesses no register beyond it. A unit can have its fault
    /// records far from its base ([`Capability::register_bytes`](crate::spec::registers::Capability::register_bytes)),
    /// and firmware may report a shorter block. Every unit has a page, which is the default.
    fn bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    /// Reads the 32-bit register at `offset`.
    fn read32(&self, offset: u32) -> u32;

    /// Reads the 64-bit register at `offset`.
    fn read64(&self, offset: u32) -> u64;

    /// Writes the 32-bit register at `offset`.
    ///
    /// # Safety
    /// The caller is the driver that owns the unit. One write can open all memory to every device.
    unsafe fn write32(&self, offset: u32, value: u32);

    /// Writes the 64-bit register at `offset`.
    ///
    /// # Safety
    /// As for [`write32`](Mmio::write32).
    unsafe fn write64(&self, offset: u32, value: u64);
}

// SAFETY: forwards to registers that keep the promises.
unsafe impl<M: Mmio + ?Sized> Mmio for &M {
    fn bytes(&self) -> u32 {
        (**self).bytes()
    }

    fn read32(&self, offset: u32) -> u32 {
        (**self).read32(offset)
    }

    fn read64(&self, offset: u32) -> u64 {
        (**self).read64(offset)
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).write32(offset, value) };
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        unsafe { (**self).write64(offset, value) };
    }
}
