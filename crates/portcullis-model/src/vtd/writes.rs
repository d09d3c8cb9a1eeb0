//! Posted writes that were translated and have not landed.

use crate::ram::Ram;
use portcullis::PhysAddr;

struct Write {
    lands_ps: u64,
    phys: PhysAddr,
    bytes: Box<[u8]>,
}

/// Writes in flight, in the order in which they were issued.
#[derive(Default)]
pub(super) struct Writes(Vec<Write>);

impl Writes {
    pub(super) fn post(&mut self, lands_ps: u64, phys: PhysAddr, bytes: &[u8]) {
        self.0.push(Write { lands_ps, phys, bytes: bytes.into() });
    }

    /// When the next write lands; `u64::MAX` if none is in flight.
    pub(super) fn next_ps(&self) -> u64 {
        self.0.iter().map(|write| write.lands_ps).min().unwrap_or(u64::MAX)
    }

    /// When the last write lands.
    pub(super) fn last_ps(&self) -> Option<u64> {
        self.0.iter().map(|write| write.lands_ps).max()
    }

    /// Lands the write that is due first.
    pub(super) fn land(&mut self, ram: &Ram) {
        if let Some(first) = (0..self.0.len()).min_by_key(|&at| self.0[at].lands_ps) {
            let Write { phys, bytes, .. } = self.0.remove(first);
            // `post` is only called for addresses in memory, so this write succeeds.
            ram.write_bytes(phys, &bytes);
        }
    }
}
