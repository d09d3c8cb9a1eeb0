//! How the card of a driver joins segments of TCP streams, and the pages that the driver keeps ready for them.

use portcullis::PAGE_SIZE;
use portcullis_model::JOINED_PAGES_MAX;
use serde::{Deserialize, Serialize};

/// Joining of segments ("TPA" of bnx2x). The first segment of a packet takes an entry of its receive ring. What follows
/// is written to pages of a second ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentJoining {
    /// The bytes of a packet at most, with its headers. Zero: the card joins nothing, and there is no ring of pages.
    pub joined_bytes: u32,
    /// The packets that may be open at once in a receive ring. The driver has a spare buffer for each.
    pub packets_max: u32,
    /// A packet ends when no segment of it has come for this time.
    pub silence_ps: u64,
    /// The pages of each receive ring. All are mapped while the card is open.
    pub pages: u32,
    /// The driver gives pages back in blocks of so many.
    pub block_pages: u32,
    /// The bytes of a completion.
    pub completion_bytes: u32,
}

impl SegmentJoining {
    /// The value that cannot be, if there is one.
    pub(super) fn checks(&self) -> [(&'static str, bool, &'static str); 6] {
        let most = JOINED_PAGES_MAX as u32 * PAGE_SIZE as u32;
        let held = self.packets_max.saturating_mul(JOINED_PAGES_MAX as u32);
        [
            ("joined_bytes", self.joined_bytes <= most, "at most 32768"),
            ("packets_max", (1..=4096).contains(&self.packets_max), "from 1 to 4096"),
            ("silence_ps", self.silence_ps <= 1_000_000_000_000, "at most 10^12, a second"),
            ("block_pages", self.block_pages > 0, "at least 1"),
            (
                "pages",
                self.pages <= 1 << 16 && self.pages > held.saturating_add(self.block_pages),
                "at most 65536, and more than open packets and a block may hold",
            ),
            (
                "completion_bytes",
                self.completion_bytes.is_power_of_two() && (64..=4096).contains(&self.completion_bytes),
                "a power of two from 64 to 4096",
            ),
        ]
    }
}
