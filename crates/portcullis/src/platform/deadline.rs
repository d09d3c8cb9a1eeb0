//! When something is due: one moment, shared by all CPUs.

use super::Platform;
use crate::sync::{AtomicU64, Ordering};

/// No moment.
const NEVER: u64 = u64::MAX;

/// A moment on the platform's clock, in microseconds, or none.
///
/// All accesses are Relaxed. What else has to be seen is ordered by its users: by a lock, or by a fence where there is none.
pub(crate) struct Deadline(AtomicU64);

impl Deadline {
    /// None.
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// The moment, if there is one.
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|due_us| *due_us != NEVER)
    }

    /// Sets it `delay_us` from now, whatever it was.
    pub(crate) fn set<P: Platform>(&self, platform: &P, delay_us: u64) {
        self.0.store(platform.now_us() + delay_us, Ordering::Relaxed);
    }

    /// Sets it `delay_us` from now, unless one is set. Where one is, that takes a read and no more: the line stays shared.
    #[inline]
    pub(crate) fn set_if_none<P: Platform>(&self, platform: &P, delay_us: u64) {
        if self.0.load(Ordering::Relaxed) == NEVER {
            let due_us = platform.now_us() + delay_us;
            // Where it fails another CPU has set one meanwhile.
            let _ = self.0.compare_exchange(NEVER, due_us, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes it away.
    pub(crate) fn clear(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }

    /// Whether it has come.
    pub(crate) fn is_due<P: Platform>(&self, platform: &P) -> bool {
        self.get().is_some_and(|due_us| due_us <= platform.now_us())
    }

    /// Takes it away if it has come, and returns whether this caller did.
    pub(crate) fn take_if_due<P: Platform>(&self, platform: &P) -> bool {
        let Some(due_us) = self.get().filter(|due_us| *due_us <= platform.now_us()) else { return false };
        self.0.compare_exchange(due_us, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
