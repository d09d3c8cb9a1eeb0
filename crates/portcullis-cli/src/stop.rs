//! Ctrl-C: results that are there are kept.

use crate::Failure;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit status after Ctrl-C, as shells have it: 128 and the number of the signal.
pub(crate) const STOPPED: u8 = 130;

/// Relaxed everywhere: only the flag itself is shared.
static IS_ASKED_FOR: AtomicBool = AtomicBool::new(false);

/// Whether the user wants no more runs.
pub(crate) fn is_asked_for() -> bool {
    IS_ASKED_FOR.load(Ordering::Relaxed)
}

/// From now on, the first Ctrl-C lets the runs under way end, and the second ends the program.
pub(crate) fn listen() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if IS_ASKED_FOR.swap(true, Ordering::Relaxed) {
            std::process::exit(STOPPED.into());
        }
        eprintln!("portcullis: stopping after the runs under way; once more ends the program at once");
    })
    .map_err(Failure::input)
}

/// Fails if the user stopped the program, so that its exit status says that results are missing.
pub(crate) fn verdict() -> Result<(), Failure> {
    if is_asked_for() { Err(Failure::Stopped) } else { Ok(()) }
}
