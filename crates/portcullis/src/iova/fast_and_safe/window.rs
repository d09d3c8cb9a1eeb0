//! The record of a window: a run of pages that is handed out from its first page on, and comes back as a whole.
//!
//! ```text
//! state   63                       16 15          8 7           0
//!        +---------------------------+-------------+-------------+
//!        |         openings          | pages left  | ranges out  |
//!        +---------------------------+-------------+-------------+
//! ```
//!
//! After each opening a page is handed out once at most. The step that leaves neither a page left nor a range out is the end
//! of the window, and only one can be: the last range that comes back to a window with nothing left, or the seal of one with
//! nothing out. Whoever takes it gives the window to the allocator underneath. So partial use, frees in any order and frees
//! from other CPUs need no thought of their own.

use crate::sync::{AtomicU64, Ordering};

/// Pages of the largest window: bits in a word.
pub(in crate::iova) const WINDOW_PAGES_MAX: u64 = u64::BITS as u64;

/// One range out.
const OUT: u64 = 1;
/// One page left.
const LEFT: u64 = 1 << 8;
/// One more opening.
const OPENING: u64 = 1 << 16;

/// What is known of the pages of a window; also of ranges smaller than a window that lie where none is.
///
/// On a cache line of its own: neighbours belong to different CPUs.
#[derive(Default)]
#[repr(align(64))]
pub(in crate::iova) struct Window {
    state: AtomicU64,
    /// The first page of each mapping that nobody has claimed.
    first: AtomicU64,
    /// The pages whose mapping goes on with the next page. Those of mappings that are gone may still say so: their pages
    /// are in no other mapping until the window is opened again.
    joined: AtomicU64,
}

/// A window, and which of its openings. What is asked of an opening that has ended finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::iova) struct Opening(u64);

/// Why a claim failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::iova) enum Unclaimed {
    /// No mapping begins there that is not claimed already.
    NotMapped,
    /// The mapping that begins there has so many pages.
    Pages(u64),
}

impl Opening {
    /// No opening: page 0 is never handed out, so there is no window 0.
    pub(in crate::iova) const NONE: Self = Self(0);
    /// Bits of the number: enough for windows of one page of 48-bit addresses.
    const NUMBER_BITS: u32 = 36;

    /// The opening of window `number` that `state` is in. Of the count it keeps 28 bits; should a CPU stand still for
    /// that many openings of one window, two streams share it.
    const fn of(number: u64, state: u64) -> Self {
        Self((state / OPENING) << Self::NUMBER_BITS | number)
    }

    /// The number of the window.
    pub(in crate::iova) const fn number(self) -> u64 {
        self.0 % (1 << Self::NUMBER_BITS)
    }

    /// As one word.
    pub(in crate::iova) const fn word(self) -> u64 {
        self.0
    }

    /// From such a word.
    pub(in crate::iova) const fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// Bits for `pages` pages from page `at` on.
const fn bits(at: u64, pages: u64) -> u64 {
    u64::MAX >> (u64::BITS as u64 - pages) << at
}

/// Pages left.
const fn left(state: u64) -> u64 {
    state % OPENING / LEFT
}

/// Ranges out.
const fn out(state: u64) -> u64 {
    state % LEFT
}

impl Window {
    /// Begins to hand out window `number`, of which `pages` pages are taken at once.
    ///
    /// The caller has it from the allocator underneath, and nothing of it is out.
    pub(in crate::iova) fn open(&self, number: u64, size: u64, pages: u64) -> Opening {
        let before = self.state.load(Ordering::Relaxed);
        debug_assert_eq!((before % OPENING, self.first.load(Ordering::Relaxed)), (0, 0));
        let state = before.wrapping_add(OPENING) + (size - pages) * LEFT + OUT;
        // Relaxed: whoever reads it has read `state` or `first` before, which are written below.
        self.joined.store(0, Ordering::Relaxed);
        // Release: with the opening come the cleared marks.
        self.state.store(state, Ordering::Release);
        self.mark(0, pages);
        Opening::of(number, state)
    }

    /// Takes the next `pages` pages, if so many are left. Returns the first.
    pub(in crate::iova) fn take(&self, opening: Opening, size: u64, pages: u64) -> Option<u64> {
        let before = self.step(opening, |state| (left(state) >= pages).then(|| state - pages * LEFT + OUT))?;
        let at = size - left(before);
        self.mark(at, pages);
        Some(at)
    }

    /// Hands out no more of it. Returns whether that was its end.
    pub(in crate::iova) fn seal(&self, opening: Opening) -> bool {
        let before = self.step(opening, |state| (left(state) > 0).then(|| state - left(state) * LEFT));
        before.is_some_and(|before| out(before) == 0)
    }

    /// Seals it if nothing is out. Returns whether that was its end.
    pub(in crate::iova) fn seal_idle(&self, opening: Opening) -> bool {
        let idle = |state| left(state) > 0 && out(state) == 0;
        self.step(opening, |state| idle(state).then(|| state - left(state) * LEFT)).is_some()
    }

    /// Takes a claimed range back. Returns whether that was the end of the window.
    pub(in crate::iova) fn give_back(&self) -> bool {
        // Release: what its user did is done before the end. Acquire: at the end, what all users did is.
        let before = self.state.fetch_sub(OUT, Ordering::AcqRel);
        debug_assert!(out(before) > 0, "a range that was out");
        before % OPENING == OUT
    }

    /// Takes the state a step further, and returns what it was; nothing happens where there is no such step, nor in another
    /// opening.
    ///
    /// Acquire: for the first page taken, the cleared marks; for the end, what all users did. Each turn follows a step of
    /// another CPU, and there are no more than a few for each page.
    fn step(&self, opening: Opening, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let step = |state| step(state).filter(|_| Opening::of(opening.number(), state) == opening);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, step).ok()
    }

    /// Notes that a mapping of `pages` pages begins at page `at`.
    fn mark(&self, at: u64, pages: u64) {
        if pages > 1 {
            self.joined.fetch_or(bits(at, pages - 1), Ordering::Relaxed);
        }
        // Release: whoever sees the first page sees how far the mapping goes.
        self.first.fetch_or(bits(at, 1), Ordering::Release);
    }

    /// Notes a mapping at pages that belong to no window: marks of earlier ones may be left there.
    pub(in crate::iova) fn mark_alone(&self, at: u64, pages: u64) {
        self.joined.fetch_and(!bits(at, pages), Ordering::Relaxed);
        self.mark(at, pages);
    }

    /// Claims the mapping of exactly `pages` pages that begins at page `at`: the first of two claims takes its mark away.
    pub(in crate::iova) fn claim(&self, at: u64, pages: u64) -> Result<(), Unclaimed> {
        let first = bits(at, 1);
        // Looked at before the claim, so that a wrong length disturbs nobody who has the right one. And once more after it:
        // another CPU may have unmapped what was there, and the window may have come round, in between. From the claim on
        // the mapping stays, so the second look is at the mapping that was claimed.
        //
        // Acquire: with the mark of the first page comes how far the mapping goes.
        if self.first.load(Ordering::Acquire) & first == 0 {
            return Err(Unclaimed::NotMapped);
        }
        self.has(at, pages)?;
        if self.first.fetch_and(!first, Ordering::Acquire) & first == 0 {
            return Err(Unclaimed::NotMapped);
        }
        self.has(at, pages).inspect_err(|_| {
            // Relaxed: the next claim still reads from what the mark was first set by, one step further.
            self.first.fetch_or(first, Ordering::Relaxed);
        })
    }

    /// Whether the mapping that begins at page `at` has `pages` pages.
    fn has(&self, at: u64, pages: u64) -> Result<(), Unclaimed> {
        let mapped = u64::from((self.joined.load(Ordering::Relaxed) >> at).trailing_ones()) + 1;
        if mapped == pages { Ok(()) } else { Err(Unclaimed::Pages(mapped)) }
    }

    /// Pages left to hand out in that opening. It may be wrong by the time it is used.
    pub(in crate::iova) fn left_in(&self, opening: Opening) -> u64 {
        let state = self.state.load(Ordering::Relaxed);
        if Opening::of(opening.number(), state) == opening { left(state) } else { 0 }
    }

    /// Pages left to hand out. A statistic.
    pub(in crate::iova) fn left(&self) -> u64 {
        left(self.state.load(Ordering::Relaxed))
    }

    /// Ranges out. Whoever holds one finds it counted.
    pub(in crate::iova) fn out(&self) -> usize {
        out(self.state.load(Ordering::Relaxed)) as usize
    }
}
