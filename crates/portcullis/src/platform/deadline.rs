//! A point in time when work is due, shared by all CPUs.

use super::Platform;
use crate::sync::{AtomicU64, Ordering};

/// Stands for no deadline.
const NEVER: u64 = u64::MAX;

/// A time on the platform's clock, in microseconds, or none.
///
/// All accesses are Relaxed. Its users order everything else that must be seen, by a lock, or by a fence if there is
/// none.
pub struct Deadline(AtomicU64);

impl Deadline {
    /// No deadline.
    pub fn none() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// The deadline, if one is set.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|due_us| *due_us != NEVER)
    }

    /// Sets it to `delay_us` from now, whatever it was.
    pub fn set<P: Platform>(&self, platform: &P, delay_us: u64) {
        self.0.store(platform.now_us() + delay_us, Ordering::Relaxed);
    }

    /// Sets it to `delay_us` from now if none is set. If one is set, this costs a single read, and the cache line
    /// stays shared.
    #[inline]
    pub fn set_if_none<P: Platform>(&self, platform: &P, delay_us: u64) {
        if self.0.load(Ordering::Relaxed) == NEVER {
            let due_us = platform.now_us() + delay_us;
            // If this fails, another CPU has just set one.
            let _ = self.0.compare_exchange(NEVER, due_us, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Clears it.
    pub fn clear(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }

    /// Whether it has passed.
    pub fn is_due<P: Platform>(&self, platform: &P) -> bool {
        self.get().is_some_and(|due_us| due_us <= platform.now_us())
    }

    /// Clears it if it has passed. Returns whether this caller cleared it.
    pub(crate) fn take_if_due<P: Platform>(&self, platform: &P) -> bool {
        let Some(due_us) = self.get().filter(|due_us| *due_us <= platform.now_us()) else { return false };
        self.0.compare_exchange(due_us, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
