//! How long hardware and timers may add to what a design says.

use super::Job;

/// How late a timer may be seen to be, for each core, in picoseconds: a core that holds the lock of a flush queue or
/// of an allocator masks its interrupts for as long as a flush or a search of some hundreds of ranges takes, and every other core may
/// be in front of it.
const LATE_PER_CORE_PS: u64 = 20_000_000;
/// Descriptors that a full invalidation queue holds: what the hardware may have to work off first.
const QUEUE_DESCRIPTORS: u64 = 256;
const PS_PER_US: u64 = 1_000_000;

impl Job<'_> {
    /// How much longer than its design says a buffer may be reached, for reasons that are not the design's: the bound is until the
    /// hardware is told. The timer that tells it goes by whole microseconds and may be [late](LATE_PER_CORE_PS), and the hardware
    /// may have a full queue to work off first, and then the flush itself.
    pub(crate) fn grace_ps(&self) -> u64 {
        let iommu = &self.machine.iommu;
        let descriptor_ps = iommu.invalidation_ps.max(iommu.wait_ps);
        PS_PER_US + LATE_PER_CORE_PS * self.work.cores() as u64 + (QUEUE_DESCRIPTORS + 2) * descriptor_ps
    }
}
