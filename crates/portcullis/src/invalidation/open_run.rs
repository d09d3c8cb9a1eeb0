//! The run of pages to which single unmaps of a CPU are joined while they wait for a flush: one word, so that to join it is one step.
//!
//! ```text
//!  63                    24 23    17 16       7 6      0
//! +------------------------+--------+----------+--------+
//! | end: next page number  |  left  |  pages   | unmaps |
//! +------------------------+--------+----------+--------+
//! ```
//!
//! It has `pages` pages of so many `unmaps`, and as many as `left` may yet join. All bits are zero where there is no run: page 0 is
//! never mapped, and none may join.
//!
//! A run is begun and closed with the lock of its queue held. Unmaps join it without: each by one exchange, which fails where another
//! has come before, or where the run was closed.

use super::Revoked;
use crate::address::IovaRange;
use crate::sync::{AtomicU64, Ordering};

const PAGES_SHIFT: u32 = 7;
const LEFT_SHIFT: u32 = 17;
const END_SHIFT: u32 = 24;
/// What seven bits count.
const UNMAPS_MAX: u64 = (1 << PAGES_SHIFT) - 1;
const NO_RUN: u64 = 0;

/// The run of a CPU.
pub(super) struct OpenRun(AtomicU64);

/// What it was when it was closed, or is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) range: IovaRange,
    pub(super) unmaps: usize,
}

impl Run {
    /// What one entry of a revocation covers.
    pub(super) fn of(revoked: Revoked) -> Self {
        Self { range: revoked.range, unmaps: revoked.unmaps }
    }
}

/// Runs that a CPU has open, begun in turn: so two streams of unmaps, of what devices write and of what they read, may go on beside each
/// other. Each is closed by itself, so the model checker sees one.
pub(super) const OPEN_RUNS: usize = if cfg!(loom) { 1 } else { 2 };

impl OpenRun {
    pub(super) fn none() -> Self {
        Self(AtomicU64::new(NO_RUN))
    }

    /// Joins an unmap to the run, if its pages are the next, another may join, and they lie in one aligned run of `WITHIN` pages. Returns
    /// whether it did. No mapping reaches beyond such a run.
    #[inline(always)]
    pub(super) fn join<const WITHIN: u64>(&self, range: IovaRange) -> bool {
        const { assert!(WITHIN.is_power_of_two() && WITHIN < 1 << (LEFT_SHIFT - PAGES_SHIFT)) };
        let (first, pages) = (range.first_pfn(), range.pages());
        let word = self.0.load(Ordering::Relaxed);
        // One comparison: where the end is another page the difference has bits above the fields, or wraps; where none may join it wraps as
        // well.
        let fields = word.wrapping_sub(first << END_SHIFT).wrapping_sub(1 << LEFT_SHIFT);
        if fields >= (1 << END_SHIFT) - (1 << LEFT_SHIFT) || first.is_multiple_of(WITHIN) {
            return false;
        }
        let joined = word + (pages << END_SHIFT) - (1 << LEFT_SHIFT) + (pages << PAGES_SHIFT) + 1;
        // Release: who closes the run finds the translations of this unmap cleared.
        self.0.compare_exchange(word, joined, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Begins a run of an unmap, which as many as `left` may join, 126 at most. There is none, and the lock is held.
    pub(super) fn begin(&self, range: IovaRange, left: usize) {
        debug_assert!(self.get().is_none());
        let left = (left as u64).min(UNMAPS_MAX - 1);
        let word = range.end_pfn() << END_SHIFT | left << LEFT_SHIFT | range.pages() << PAGES_SHIFT | 1;
        // Release: as `join`.
        self.0.store(word, Ordering::Release);
    }

    /// Closes the run, if there is one. The lock is held.
    #[inline]
    pub(super) fn close(&self) -> Option<Run> {
        // Relaxed: runs are begun with the lock held.
        if self.0.load(Ordering::Relaxed) == NO_RUN {
            return None;
        }
        // Acquire: pairs with `join`, each of which goes on with the release of the one before.
        Self::run(self.0.swap(NO_RUN, Ordering::Acquire))
    }

    /// Unmaps that it has and that may yet join.
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
        /// A run takes its next pages, as long as another unmap may join, and nothing else; closed, it is what has joined it.
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
                // None lies in two aligned runs.
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
