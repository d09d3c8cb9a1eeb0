//! Checks that each unmap is invalidated before it returns.

use portcullis::Iova;
use portcullis_coherence::CPUS_MAX;
use std::sync::atomic::{AtomicU64, Ordering};

const NONE: u64 = u64::MAX;

/// What the hardware has seen of the unmaps that are going on. Its words are not those of a CPU, so they cost nothing.
pub(crate) struct Witness {
    /// The page that each CPU unmaps, until it is invalidated.
    unmapped: [AtomicU64; CPUS_MAX],
    commands: AtomicU64,
}

impl Default for Witness {
    fn default() -> Self {
        Self { unmapped: [const { AtomicU64::new(NONE) }; CPUS_MAX], commands: AtomicU64::new(0) }
    }
}

impl Witness {
    /// CPU number `cpu` is about to unmap a page.
    pub(crate) fn begin(&self, cpu: usize, page: Iova) {
        self.unmapped[cpu].store(page.pfn(), Ordering::Relaxed);
    }

    /// The hardware has executed a command for 2^`mask` pages around `first`.
    pub(crate) fn invalidated(&self, first: Iova, mask: u8) {
        self.commands.fetch_add(1, Ordering::Relaxed);
        for unmapped in &self.unmapped {
            if (unmapped.load(Ordering::Relaxed) ^ first.pfn()) >> mask == 0 {
                unmapped.store(NONE, Ordering::Relaxed);
            }
        }
    }

    /// Whether the last unmap of CPU number `cpu` was invalidated.
    pub(crate) fn has_seen(&self, cpu: usize) -> bool {
        self.unmapped[cpu].load(Ordering::Relaxed) == NONE
    }

    pub(crate) fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }
}
