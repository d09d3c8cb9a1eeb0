//! How much hardware and timers may add to the bound that a design states.

use super::Job;

/// How late a timer may fire, for each core, in picoseconds. A core that holds the lock of a flush queue or of an
/// allocator masks its interrupts for the time of a flush, or of a search of a few hundred ranges, and every other
/// core may be in front of it.
const LATE_PER_CORE_PS: u64 = 20_000_000;
/// The descriptors of a full invalidation queue, which the hardware may have to process first.
const QUEUE_DESCRIPTORS: u64 = 256;
const PS_PER_US: u64 = 1_000_000;

impl Job<'_> {
    /// How much longer than its bound a buffer may be reached, for reasons outside the design. The bound ends when the
    /// hardware is told. The timer that tells it has a resolution of one microsecond and may be
    /// [late](LATE_PER_CORE_PS). The hardware may first have to process a full queue, and then the flush itself.
    pub(crate) fn grace_ps(&self) -> u64 {
        let iommu = &self.machine.iommu;
        let descriptor_ps = iommu.invalidation_ps.max(iommu.wait_ps);
        PS_PER_US + LATE_PER_CORE_PS * self.work.cores() as u64 + (QUEUE_DESCRIPTORS + 2) * descriptor_ps
    }
}
