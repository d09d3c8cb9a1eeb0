//! What happens in a run, for those who watch it. The run knows none of them by name.

mod exposure;
mod over_time;
mod residual;

pub(in crate::run) use exposure::Exposure;
pub(in crate::run) use residual::Residual;

use crate::run::live::{Live, Slot};
use crate::run::world::World;

/// Something that has just happened in a run.
#[derive(Clone, Copy)]
pub(in crate::run) enum RunEvent<'e> {
    /// Warm-up is over: what is measured begins.
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
        /// What it is.
        live: &'e Live,
    },
    /// A core has ended its map, whatever came of it.
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
    /// A mapping is its device's no longer, and the buffer not yet its owner's.
    Cleared {
        /// Its number.
        slot: Slot,
        /// What it was.
        live: &'e Live,
        /// Whether the design has announced an invalidation of it; `None` where it announces nothing.
        announced: Option<bool>,
    },
    /// The buffer of a mapping is its owner's again.
    HandedBack {
        /// The number of the mapping.
        slot: Slot,
        /// What it was.
        live: &'e Live,
    },
    /// The timers of the domains have been served.
    Ticked,
    /// The work is done, and no timer is due.
    Ended,
    /// The core that runs has had nothing to do for a while.
    Idle,
}

/// Who watches a run.
pub(in crate::run) trait Observer {
    /// Takes note of `event`. Nothing else happens meanwhile.
    fn note(&mut self, world: &World, event: &RunEvent<'_>);

    /// Whether it acts as well, and so changes the run.
    fn acts(&self) -> bool {
        false
    }

    /// Acts on `event`, which it has noted. Other cores may have acted in between.
    fn act(&mut self, _world: &World, _event: &RunEvent<'_>) {}
}
