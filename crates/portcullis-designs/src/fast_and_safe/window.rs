//! The record of a window: a run of pages that is handed out from its first page on, and comes back as a whole.
//!
//! ```text
//! state   63                       16 15          8 7           0
//!        +---------------------------+-------------+-------------+
//!        |         openings          | pages left  | ranges out  |
//!        +---------------------------+-------------+-------------+
//! ```
//!
//! After each opening a page is handed out at most once. The window ends with the step that leaves no page left and
//! no range out. There can be only one such step: the last range comes back to a window with nothing left, or a
//! window with nothing out is sealed. The CPU that takes this step gives the window to the allocator underneath.
//! Partial use, frees in any order and frees from other CPUs are therefore safe without further care.

use crate::sync::{AtomicU64, Ordering};

/// Pages of the largest window: the bits of a word.
pub(super) const WINDOW_PAGES_MAX: u64 = u64::BITS as u64;

/// One range out.
const OUT: u64 = 1;
/// One page left.
const LEFT: u64 = 1 << 8;
/// One more opening.
const OPENING: u64 = 1 << 16;

/// The record of the pages of a window. It also serves ranges smaller than a window that lie where no window is.
///
/// It has its own cache line, because neighbouring windows belong to different CPUs.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Window {
    state: AtomicU64,
    /// A bit for the first page of each unclaimed mapping.
    first: AtomicU64,
    /// A bit for each page whose mapping continues on the next page. Bits of mappings that are gone may remain: their
    /// pages are in no other mapping until the window is opened again.
    joined: AtomicU64,
}

/// One opening of a window. Operations on an opening that has ended find nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Opening(u64);

/// Why a claim failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unclaimed {
    /// No unclaimed mapping begins there.
    NotMapped,
    /// The mapping that begins there has this many pages.
    Pages(u64),
}

impl Opening {
    /// No opening: page 0 is never handed out, so there is no window 0.
    pub(super) const NONE: Self = Self(0);
    /// Bits of the window number: enough for windows of one page of 48-bit addresses.
    const NUMBER_BITS: u32 = 36;

    /// The current opening of window `number`, from its `state`. It keeps 28 bits of the count of openings. If a CPU
    /// stalls for that many openings of one window, two streams share the window.
    const fn of(number: u64, state: u64) -> Self {
        Self((state / OPENING) << Self::NUMBER_BITS | number)
    }

    /// The number of the window.
    pub(super) const fn number(self) -> u64 {
        self.0 % (1 << Self::NUMBER_BITS)
    }

    /// The opening as one word.
    pub(super) const fn word(self) -> u64 {
        self.0
    }

    /// The opening from such a word.
    pub(super) const fn from_word(word: u64) -> Self {
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
    /// Begins to hand out window `number`, and takes its first `pages` pages at once.
    ///
    /// The caller has the window from the allocator underneath, and no range of it is out.
    pub(super) fn open(&self, number: u64, size: u64, pages: u64) -> Opening {
        let before = self.state.load(Ordering::Relaxed);
        debug_assert_eq!((before % OPENING, self.first.load(Ordering::Relaxed)), (0, 0));
        let state = before.wrapping_add(OPENING) + (size - pages) * LEFT + OUT;
        // Relaxed: a CPU that reads it has read `state` or `first` before, which are written below.
        self.joined.store(0, Ordering::Relaxed);
        // Release: a CPU that sees the opening sees the cleared marks.
        self.state.store(state, Ordering::Release);
        self.mark(0, pages);
        Opening::of(number, state)
    }

    /// Takes the next `pages` pages, if that many are left. Returns the first.
    pub(super) fn take(&self, opening: Opening, size: u64, pages: u64) -> Option<u64> {
        let before = self.step(opening, |state| (left(state) >= pages).then(|| state - pages * LEFT + OUT))?;
        let at = size - left(before);
        self.mark(at, pages);
        Some(at)
    }

    /// Hands out no more of the window. Returns whether that ended it.
    pub(super) fn seal(&self, opening: Opening) -> bool {
        let before = self.step(opening, |state| (left(state) > 0).then(|| state - left(state) * LEFT));
        before.is_some_and(|before| out(before) == 0)
    }

    /// Seals the window if no range is out. Returns whether that ended it.
    pub(super) fn seal_idle(&self, opening: Opening) -> bool {
        let idle = |state| left(state) > 0 && out(state) == 0;
        self.step(opening, |state| idle(state).then(|| state - left(state) * LEFT)).is_some()
    }

    /// Takes back a claimed range. Returns whether that ended the window.
    pub(super) fn give_back(&self) -> bool {
        // Release: what this user did happens before the end. Acquire: at the end, what all users did has happened.
        let before = self.state.fetch_sub(OUT, Ordering::AcqRel);
        debug_assert!(out(before) > 0, "a range that was out");
        before % OPENING == OUT
    }

    /// Advances the state by one step, and returns the previous state. Does nothing if `step` allows no step, or if
    /// the window is in another opening.
    ///
    /// Acquire: for the first page taken, this makes the cleared marks visible; for the end, it makes visible what
    /// all users did. Each retry follows a step of another CPU, and there are only a few steps for each page.
    fn step(&self, opening: Opening, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let step = |state| step(state).filter(|_| Opening::of(opening.number(), state) == opening);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, step).ok()
    }

    /// Records that a mapping of `pages` pages begins at page `at`.
    fn mark(&self, at: u64, pages: u64) {
        if pages > 1 {
            self.joined.fetch_or(bits(at, pages - 1), Ordering::Relaxed);
        }
        // Release: a CPU that sees the first page sees how long the mapping is.
        self.first.fetch_or(bits(at, 1), Ordering::Release);
    }

    /// Records a mapping on pages that belong to no window, where marks of earlier mappings may remain.
    pub(super) fn mark_alone(&self, at: u64, pages: u64) {
        self.joined.fetch_and(!bits(at, pages), Ordering::Relaxed);
        self.mark(at, pages);
    }

    /// Claims the mapping of exactly `pages` pages that begins at page `at`. The first of two claims clears its mark.
    pub(super) fn claim(&self, at: u64, pages: u64) -> Result<(), Unclaimed> {
        let first = bits(at, 1);
        // The length is checked before the claim, so that a claim with a wrong length disturbs no claim with the
        // right one. It is checked again afterwards: in between, another CPU may have unmapped the mapping, and the
        // window may have been opened again. From the claim on the mapping stays, so the second check sees the
        // mapping that was claimed.
        //
        // Acquire: the length of the mapping is visible with the mark of its first page.
        if self.first.load(Ordering::Acquire) & first == 0 {
            return Err(Unclaimed::NotMapped);
        }
        self.has(at, pages)?;
        if self.first.fetch_and(!first, Ordering::Acquire) & first == 0 {
            return Err(Unclaimed::NotMapped);
        }
        self.has(at, pages).inspect_err(|_| {
            // Relaxed: the next claim still synchronizes with the store that first set the mark, because this step
            // continues its release sequence.
            self.first.fetch_or(first, Ordering::Relaxed);
        })
    }

    /// Whether the mapping that begins at page `at` has `pages` pages.
    fn has(&self, at: u64, pages: u64) -> Result<(), Unclaimed> {
        let mapped = u64::from((self.joined.load(Ordering::Relaxed) >> at).trailing_ones()) + 1;
        if mapped == pages { Ok(()) } else { Err(Unclaimed::Pages(mapped)) }
    }

    /// Pages left to hand out in `opening`. The number may be outdated by the time it is used.
    pub(super) fn left_in(&self, opening: Opening) -> u64 {
        let state = self.state.load(Ordering::Relaxed);
        if Opening::of(opening.number(), state) == opening { left(state) } else { 0 }
    }

    /// Pages left to hand out. A statistic.
    pub(super) fn left(&self) -> u64 {
        left(self.state.load(Ordering::Relaxed))
    }

    /// Ranges out. A CPU that holds one sees it counted.
    pub(super) fn out(&self) -> usize {
        out(self.state.load(Ordering::Relaxed)) as usize
    }
}
