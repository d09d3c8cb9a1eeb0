//! The parameters of a network card.

use serde::{Deserialize, Serialize};

/// A network card on a PCIe bus and a link. Times are in picoseconds.
///
/// The window of posted writes and the IOMMU's `hit_ps` and `memory_read_ps` belong together, because they come from
/// one published fit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicParameters {
    /// The rate of the link in each direction, in Gb/s, including everything on the wire.
    pub link_gbps: f64,
    /// Bytes on the wire in addition to those of a packet in memory: preamble, checksum, gap.
    pub frame_overhead_bytes: u32,
    /// The most payload of a packet. The card cuts a longer frame into packets, each with the headers of the frame.
    pub segment_bytes: u32,
    /// The headers of such a packet.
    pub header_bytes: u32,
    /// The time from a CPU's write to a register of the card until it arrives there.
    pub doorbell_ps: u64,
    /// The time from a translated read until its data arrives.
    pub read_ps: u64,
    /// Bytes of reads in flight at most: the number of tags times the largest request.
    pub read_window_bytes: u64,
    /// What the bus carries of reads, in Gb/s without its own headers. `None` if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_gbps: Option<f64>,
    /// Bytes of posted writes in flight at most.
    pub write_window_bytes: u64,
    /// Bytes of a transaction on the bus at most.
    pub transaction_bytes: u64,
    /// Ring entries that one read fetches at most.
    pub fetch_entries: u32,
    /// Bytes of frames that have arrived and are not in memory yet, at most. Other frames are dropped, and short ones
    /// too if there is no room for the longest: a frame does not say at its beginning how long it is. This is an
    /// assumption.
    pub receive_buffer_bytes: u64,
    /// Bytes of frames that the card has begun to read and has not sent, at most; one frame always has room. `None` if
    /// there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit_buffer_bytes: Option<u64>,
}

impl NicParameters {
    /// Whether a frame of `bytes` bytes has to wait for the link, if the card holds `unsent_bytes` of others.
    pub(super) fn is_full(&self, unsent_bytes: u64, bytes: u64) -> bool {
        unsent_bytes > 0 && self.transmit_buffer_bytes.is_some_and(|most| unsent_bytes + bytes > most)
    }

    /// The number of packets on the wire for a frame of `bytes` bytes.
    pub fn packets(&self, bytes: u32) -> u32 {
        bytes.saturating_sub(self.header_bytes).div_ceil(self.segment_bytes).max(1)
    }

    /// How long a frame of `bytes` bytes takes on the wire.
    pub fn wire_ps(&self, bytes: u32) -> u64 {
        let packets = self.packets(bytes);
        let overhead = packets * self.frame_overhead_bytes + (packets - 1) * self.header_bytes;
        (f64::from(bytes + overhead) * 8.0 * 1e3 / self.link_gbps) as u64
    }
}

/// When a card announces completions: after a time or a number of frames, whichever comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moderation {
    /// The time from the first unannounced completion, in picoseconds.
    pub delay_ps: u64,
    /// The number of frames, if it counts.
    pub frames: Option<u32>,
}
