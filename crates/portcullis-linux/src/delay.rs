//! Planted for tests: an unmap that takes long to return, which the module has to stand.

use crate::host::Host;
use portcullis::Platform;

const DELAY_US: u64 = 5_000_000;

/// Delays the return of the unmap after which nothing is mapped any more. From then on protection may end.
pub(crate) fn delay(live_ranges: usize) {
    let begun = Host.now_us();
    while live_ranges == 0 && Host.now_us() - begun < DELAY_US {
        core::hint::spin_loop();
    }
}
