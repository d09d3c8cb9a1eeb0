//! The events of a run.

use super::live::{Live, Slot};

/// An event that has just happened in a run.
#[derive(Clone, Copy)]
pub(super) enum RunEvent<'e> {
    /// Warm-up is over, and the measured part begins.
    WarmedUp,
    /// A core begins a map.
    MapBegins {
        /// The core.
        core: usize,
    },
    /// A mapping has been made. No other core has acted since.
    Mapped {
        /// Its number.
        slot: Slot,
        /// The mapping.
        live: &'e Live,
    },
    /// A core has ended its map, successfully or not.
    MapEnds {
        /// The core.
        core: usize,
        /// The mapping, if there is one.
        slot: Slot,
    },
    /// A mapping is about to be unmapped.
    UnmapBegins {
        /// Its number.
        slot: Slot,
    },
    /// The device may no longer use a mapping, and the buffer is not yet handed back.
    Cleared {
        /// Its number.
        slot: Slot,
        /// The mapping.
        live: &'e Live,
        /// Whether the design has announced an invalidation of it; `None` if it announces nothing, or does not tell
        /// whether other mappings have its pages.
        announced: Option<bool>,
    },
    /// A batch was submitted. Its buffers are not handed back, and the core goes on.
    Submitted,
    /// The buffer of a mapping has been handed back to its owner.
    HandedBack {
        /// The number of the mapping.
        slot: Slot,
        /// The mapping.
        live: &'e Live,
    },
    /// The timers of the domains have been served.
    Ticked,
    /// The work is done, and no timer is due.
    Ended,
    /// The running core has been idle for a while.
    Idle,
}
