//! Planted for tests: an unmap that takes long to return after the last buffer counts as gone, which the module has to
//! stand. The unmap is reported as not confirmed, and shutting the device out takes long.

use crate::host::Host;
use core::sync::atomic::{AtomicBool, Ordering};
use portcullis::Platform;

const DELAY_US: u64 = 5_000_000;

/// Relaxed: one task sets it and takes it back.
static IS_SLOW: AtomicBool = AtomicBool::new(false);

/// Whether the unmap that has left so many buffers is to be reported as not confirmed.
pub(crate) fn is_last(live_ranges: usize) -> bool {
    IS_SLOW.store(live_ranges == 0, Ordering::Relaxed);
    live_ranges == 0
}

/// Delays the detach of the device after that unmap.
pub(crate) fn delay() {
    let begun = Host.now_us();
    while IS_SLOW.load(Ordering::Relaxed) && Host.now_us() - begun < DELAY_US {
        core::hint::spin_loop();
    }
    IS_SLOW.store(false, Ordering::Relaxed);
}
