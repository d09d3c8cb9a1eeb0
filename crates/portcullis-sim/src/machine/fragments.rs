//! Receive buffers that do not begin at the beginning of a page.

use serde::{Deserialize, Serialize};

/// Buffers that are cut one after another from runs of pages, as `netdev_alloc_frag` of Linux does. Some of them cross
/// the end of a page. A run is used again when all of its buffers are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fragments {
    /// The bytes that a buffer takes of its run. Zero: each buffer has a page of its own.
    pub fragment_bytes: u32,
    /// The bytes at its beginning that are not mapped.
    pub unmapped_bytes: u32,
    /// The bytes of a run.
    pub run_bytes: u32,
    /// Whether each buffer has a page of its own when the card is opened.
    pub opens_with_pages: bool,
}

impl Fragments {
    /// The buffers of a run.
    pub fn of_run(&self) -> u32 {
        self.run_bytes.checked_div(self.fragment_bytes).unwrap_or_default()
    }

    /// The value that cannot be, if there is one, where a buffer has so many bytes.
    pub(super) fn checks(&self, buffer_bytes: u32) -> [(&'static str, bool, &'static str); 2] {
        let least = self.unmapped_bytes.saturating_add(buffer_bytes);
        [
            (
                "fragment_bytes",
                self.fragment_bytes == 0 || (least..=self.run_bytes).contains(&self.fragment_bytes),
                "0, or enough for a receive buffer and at most a run",
            ),
            (
                "run_bytes",
                self.run_bytes.is_multiple_of(4096) && self.run_bytes <= 1 << 20,
                "a multiple of 4096, at most 2^20",
            ),
        ]
    }
}
