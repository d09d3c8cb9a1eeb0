//! The run of pages to which single unmaps of a CPU are joined while they wait for a flush: one word, so that to join it is one step.
//!
//! ```text
//!  63                    28 27    21 20    14 13     7 6 0
//! +------------------------+--------+--------+--------+---+
//! | end: next page number  |  left  | pages  | unmaps | 0 |
//! +------------------------+--------+--------+--------+---+
//! ```
//!
//! It has `pages` pages of so many `unmaps`, and as many as `left` may yet join. All bits are zero where there is no run: page 0 is
//! never mapped, and none may join.
//!
//! A run is begun and closed with the lock of its queue held. Unmaps join it without: each by one exchange, which fails where another
//! has come before, or where the run was closed.

use crate::address::IovaRange;
use crate::sync::{AtomicU64, Ordering};

const UNMAPS_SHIFT: u32 = 7;
const PAGES_SHIFT: u32 = 14;
const LEFT_SHIFT: u32 = 21;
const END_SHIFT: u32 = 28;
/// What seven bits count.
const COUNT_MAX: u64 = (1 << 7) - 1;
const NO_RUN: u64 = 0;

/// The run of a CPU.
pub(super) struct OpenRun(AtomicU64);

/// What it was when it was closed, or is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) range: IovaRange,
    pub(super) unmaps: usize,
}

impl OpenRun {
    pub(super) fn none() -> Self {
        Self(AtomicU64::new(NO_RUN))
    }

    /// Joins an unmap to the run, if its pages are the next and may. Returns whether it did.
    #[inline(always)]
    pub(super) fn join(&self, range: IovaRange) -> bool {
        let (first, pages) = (range.first_pfn(), range.pages());
        if pages > COUNT_MAX {
            return false;
        }
        let word = self.0.load(Ordering::Relaxed);
        // One comparison: where the end is another page the difference has bits above the fields, or wraps; where fewer pages are left it
        // wraps as well.
        let above = word.wrapping_sub(first << END_SHIFT).wrapping_sub(pages << LEFT_SHIFT);
        if above >= (1 << END_SHIFT) - (pages << LEFT_SHIFT) {
            return false;
        }
        let joined = word + (pages << END_SHIFT) - (pages << LEFT_SHIFT) + (pages << PAGES_SHIFT) + (1 << UNMAPS_SHIFT);
        // Release: who closes the run finds the translations of this unmap cleared.
        self.0.compare_exchange(word, joined, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Begins a run, which as many pages as `left` may join. There is none, and the lock is held.
    pub(super) fn begin(&self, Run { range, unmaps }: Run, left: u64) {
        let (pages, left) = (range.pages(), left.min(COUNT_MAX.saturating_sub(range.pages())));
        debug_assert!(pages <= COUNT_MAX && unmaps as u64 <= pages && self.get().is_none());
        let word =
            range.end_pfn() << END_SHIFT | left << LEFT_SHIFT | pages << PAGES_SHIFT | (unmaps as u64) << UNMAPS_SHIFT;
        // Release: as `join`.
        self.0.store(word, Ordering::Release);
    }

    /// Closes the run, if there is one. The lock is held.
    pub(super) fn close(&self) -> Option<Run> {
        // Acquire: pairs with `join`, each of which goes on with the release of the one before.
        Self::run(self.0.swap(NO_RUN, Ordering::Acquire))
    }

    /// The run as it is now, if there is one.
    pub(super) fn get(&self) -> Option<Run> {
        Self::run(self.0.load(Ordering::Relaxed))
    }

    fn run(word: u64) -> Option<Run> {
        let count = |shift| word >> shift & COUNT_MAX;
        let range = IovaRange::new((word >> END_SHIFT).checked_sub(count(PAGES_SHIFT))?, count(PAGES_SHIFT))?;
        Some(Run { range, unmaps: count(UNMAPS_SHIFT) as usize })
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
        /// A run takes its next pages, as long as any are left, and nothing else; closed, it is what has joined it.
        #[test]
        fn a_run_is_what_has_joined_it(
            first in 1..1u64 << 36 - 10, left in 0..64u64, unmaps in prop::collection::vec((-2..3i64, 1..130u64), 0..80),
        ) {
            let open = OpenRun::none();
            prop_assert!(!open.join(pages(first, 1)) && open.close().is_none());
            open.begin(Run { range: pages(first, 1), unmaps: 1 }, left);
            let (mut end, mut left, mut joined) = (first + 1, left, 1);
            for (off, count) in unmaps {
                let off = if off.abs() == 2 { off } else { 0 };
                let count = if count % 3 == 0 { count } else { 1 };
                let next = pages(end.saturating_add_signed(off).max(1), count);
                let joins = next.first_pfn() == end && count <= left;
                prop_assert_eq!(open.join(next), joins, "{} at {}, {} left", next, end, left);
                if joins {
                    (end, left, joined) = (end + count, left - count, joined + 1);
                }
            }
            let run = Some(Run { range: pages(first, end - first), unmaps: joined });
            prop_assert_eq!(open.get(), run);
            prop_assert_eq!(open.close(), run);
            prop_assert!(open.close().is_none() && !open.join(pages(end, 1)));
        }
    }
}
