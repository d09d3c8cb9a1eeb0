//! The run of pages that single unmaps of a CPU join while they wait for a flush. It is one word, so that joining is
//! one atomic step.
//!
//! ```text
//!  63                    24 23    17 16       7 6      0
//! +------------------------+--------+----------+--------+
//! | end: next page number  |  left  |  pages   | unmaps |
//! +------------------------+--------+----------+--------+
//! ```
//!
//! The run has `pages` pages, from `unmaps` unmaps, and `left` more unmaps may join it. All bits are zero if there is
//! no run: page 0 is never mapped, and no unmap may join.
//!
//! A run is begun and closed with the lock of its queue held. Unmaps join it without the lock, each by one
//! compare-and-exchange. That fails if another unmap has joined first, or if the run was closed.

use super::Revoked;
use crate::address::IovaRange;
use crate::sync::{AtomicU64, Ordering};

const PAGES_SHIFT: u32 = 7;
const LEFT_SHIFT: u32 = 17;
const END_SHIFT: u32 = 24;
/// The largest number that seven bits hold.
const UNMAPS_MAX: u64 = (1 << PAGES_SHIFT) - 1;
const NO_RUN: u64 = 0;

/// An open run of a CPU, or none.
pub(super) struct OpenRun(AtomicU64);

/// The contents of a run: when it was closed, or now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) range: IovaRange,
    pub(super) unmaps: usize,
}

impl Run {
    /// The run that one entry of a revocation covers.
    pub(super) fn of(revoked: Revoked) -> Self {
        Self { range: revoked.range, unmaps: revoked.unmaps }
    }
}

/// Runs that a CPU has open. They are begun in turn, so that two streams of unmaps can proceed side by side: those of
/// buffers that devices write, and those of buffers that devices read. Each run is closed by itself, so one is enough
/// for the model checker.
pub(super) const OPEN_RUNS: usize = if cfg!(loom) { 1 } else { 2 };

impl OpenRun {
    pub(super) fn none() -> Self {
        Self(AtomicU64::new(NO_RUN))
    }

    /// Joins an unmap to the run. This needs three things: its pages come next, another unmap may join, and all lie
    /// in one aligned run of `WITHIN` pages. Returns whether the unmap joined. No mapping crosses the end of such an
    /// aligned run.
    #[inline(always)]
    pub(super) fn join<const WITHIN: u64>(&self, range: IovaRange) -> bool {
        const { assert!(WITHIN.is_power_of_two() && WITHIN < 1 << (LEFT_SHIFT - PAGES_SHIFT)) };
        let (first, pages) = (range.first_pfn(), range.pages());
        let word = self.0.load(Ordering::Relaxed);
        // This is one comparison. If the run ends at another page, the difference has bits above the fields, or
        // wraps. If no unmap may join, it wraps as well.
        let fields = word.wrapping_sub(first << END_SHIFT).wrapping_sub(1 << LEFT_SHIFT);
        if fields >= (1 << END_SHIFT) - (1 << LEFT_SHIFT) || first.is_multiple_of(WITHIN) {
            return false;
        }
        let joined = word + (pages << END_SHIFT) - (1 << LEFT_SHIFT) + (pages << PAGES_SHIFT) + 1;
        // Release: the CPU that closes the run sees the translations of this unmap cleared.
        self.0.compare_exchange(word, joined, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Begins a run with one unmap, which `left` more may join, at most 126. There must be no run, and the lock must
    /// be held.
    pub(super) fn begin(&self, range: IovaRange, left: usize) {
        debug_assert!(self.get().is_none());
        let left = (left as u64).min(UNMAPS_MAX - 1);
        let word = range.end_pfn() << END_SHIFT | left << LEFT_SHIFT | range.pages() << PAGES_SHIFT | 1;
        // Release: as in `join`.
        self.0.store(word, Ordering::Release);
    }

    /// Closes the run, if there is one. The lock must be held.
    #[inline]
    pub(super) fn close(&self) -> Option<Run> {
        // Relaxed: runs are begun with the lock held.
        if self.0.load(Ordering::Relaxed) == NO_RUN {
            return None;
        }
        // Acquire: pairs with `join`. Each join continues the release sequence of the one before.
        Self::run(self.0.swap(NO_RUN, Ordering::Acquire))
    }

    /// Unmaps in the run, plus those that may still join.
    pub(super) fn room(&self) -> usize {
        let word = self.0.load(Ordering::Relaxed);
        ((word & UNMAPS_MAX) + (word >> LEFT_SHIFT & UNMAPS_MAX)) as usize
    }

    /// The run as it is now, if there is one.
    pub(super) fn get(&self) -> Option<Run> {
        Self::run(self.0.load(Ordering::Relaxed))
    }

    fn run(word: u64) -> Option<Run> {
        let pages = word >> PAGES_SHIFT & ((1 << (LEFT_SHIFT - PAGES_SHIFT)) - 1);
        let range = IovaRange::new((word >> END_SHIFT).checked_sub(pages)?, pages)?;
        Some(Run { range, unmaps: (word & UNMAPS_MAX) as usize })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pages(first: u64, pages: u64) -> IovaRange {
        IovaRange::new(first, pages).expect("a range")
    }

    proptest! {
        /// A run accepts its next pages as long as another unmap may join, and nothing else. When closed, it holds
        /// what has joined it.
        #[test]
        fn a_run_is_what_has_joined_it(
            first in 1..1u64 << 35, left in 0..200usize, unmaps in prop::collection::vec((-2..3i64, 1..65u64), 0..200),
        ) {
            const WITHIN: u64 = 512;
            let open = OpenRun::none();
            prop_assert!(!open.join::<WITHIN>(pages(first, 1)) && open.close().is_none());
            open.begin(pages(first, 1), left);
            let (mut end, mut left, mut joined) = (first + 1, left.min(126), 1);
            for (off, count) in unmaps {
                let off = if off.abs() == 2 { off } else { 0 };
                let next = end.saturating_add_signed(off).max(1);
                // No mapping lies in two aligned runs.
                let count = if count % 3 == 0 { count.min(WITHIN - next % WITHIN) } else { 1 };
                let joins = next == end && left > 0 && !end.is_multiple_of(WITHIN);
                prop_assert_eq!(open.join::<WITHIN>(pages(next, count)), joins, "{} at {}, {} left", next, end, left);
                if joins {
                    (end, left, joined) = (end + count, left - 1, joined + 1);
                }
            }
            let run = Some(Run { range: pages(first, end - first), unmaps: joined });
            prop_assert_eq!(open.get(), run);
            prop_assert_eq!(open.close(), run);
            prop_assert!(open.close().is_none() && !open.join::<WITHIN>(pages(end, 1)));
        }
    }
}
