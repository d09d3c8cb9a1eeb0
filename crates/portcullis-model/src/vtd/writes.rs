//! Posted writes that were translated and have not landed.

use crate::ram::Ram;
use crate::schedule::Schedule;
use portcullis::PhysAddr;
use smallvec::SmallVec;

struct Write {
    phys: PhysAddr,
    /// Most writes are completions of a network card, whose words have 16 or 24 bytes.
    bytes: SmallVec<[u8; 24]>,
}

/// Writes in flight. Those that land at the same time land in the order in which they were issued.
#[derive(Default)]
pub(super) struct Writes(Schedule<Write>);

impl Writes {
    pub(super) fn post(&mut self, lands_ps: u64, phys: PhysAddr, bytes: &[u8]) {
        self.0.add(lands_ps, Write { phys, bytes: SmallVec::from_slice(bytes) });
    }

    /// When the next write lands; `u64::MAX` if none is in flight.
    pub(super) fn next_ps(&self) -> u64 {
        self.0.first_ps().unwrap_or(u64::MAX)
    }

    /// When the last write lands.
    pub(super) fn last_ps(&self) -> Option<u64> {
        self.0.last_ps()
    }

    /// Lands the write that is due first.
    pub(super) fn land(&mut self, ram: &Ram) {
        if let Some((_, Write { phys, bytes })) = self.0.take(u64::MAX) {
            // `post` is only called for addresses in memory, so this write succeeds.
            ram.write_bytes(phys, &bytes);
        }
    }
}
