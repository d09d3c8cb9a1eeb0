//! What a network card is like.

use serde::{Deserialize, Serialize};

/// A network card on a PCIe bus and a link. Times are in picoseconds.
///
/// Posted writes wait for the IOMMU's `hit_ps` and `memory_read_ps` in a window of bytes. These three belong together: they are one fit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicParameters {
    /// What the link carries each way, in Gb/s, everything counted that is on the wire.
    pub link_gbps: f64,
    /// Bytes on the wire beside those of a frame in memory: preamble, checksum, gap.
    pub frame_overhead_bytes: u32,
    /// From a CPU's write of a register of the card to its arrival there.
    pub doorbell_ps: u64,
    /// From a read on the bus that is translated to its data.
    pub read_ps: u64,
    /// Bytes of reads that may be under way at once: tags times the largest request.
    pub read_window_bytes: u64,
    /// Bytes of posted writes that may be under way at once.
    pub write_window_bytes: u64,
    /// Bytes of a transaction on the bus.
    pub transaction_bytes: u64,
    /// Entries of a ring that one read fetches at most.
    pub fetch_entries: u32,
    /// Room for frames that have arrived and are not in memory yet. What finds no room is dropped.
    pub receive_buffer_bytes: u64,
}

impl NicParameters {
    /// How long a frame of `bytes` takes on the wire.
    pub fn wire_ps(&self, bytes: u32) -> u64 {
        (f64::from(bytes + self.frame_overhead_bytes) * 8.0 * 1e3 / self.link_gbps) as u64
    }
}

/// When a card announces what it has completed: after this time, or so many frames, whichever is first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moderation {
    /// From the first completion that is not announced.
    pub delay_ps: u64,
    /// Frames at most; none where only time counts.
    pub frames: Option<u32>,
}
