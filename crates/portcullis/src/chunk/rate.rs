//! How fast streams use up what they are handed, and who is slow beside the others.

use super::chunks::{CHUNK_UNITS, TABLE_UNITS, UNIT_PAGES};
use crate::error::NoMemory;
use crate::platform::memory::try_fill;
use crate::platform::{CPU_WORDS, Context, Platform};
use crate::sync::{AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A stream is slow that takes so many times longer for its pages than the mean page has taken.
const SLOW: u64 = 4;
/// With so many streams of equal pace nobody is slow: the chunks of all of them lie in a handful of tables.
const FEW_STREAMS: u64 = 16;
/// Pages that the mean pace remembers.
const PACE_PAGES: u64 = 1 << 14;
/// The number of a line that is just coming.
const COMING: u64 = u64::MAX;
/// Bits that the units of a chunk take.
const UNIT_BITS: u32 = TABLE_UNITS.ilog2() + 1;

/// The pace of streams, in pages that all of them were handed meanwhile: no clock is asked.
///
/// All of it is Relaxed, and may miss what happens at the same moment: it decides where addresses are best, and nothing else.
pub(super) struct StreamRates {
    /// Pages handed out so far.
    handed: AtomicU64,
    /// Pages that are handed out to all while a stream is handed 64, in the mean over pages.
    mean: AtomicU64,
    /// Streams that have come, and lines of cursors that these are in.
    streams: AtomicU64,
    lines: AtomicU64,
    /// As which of all each line has come, counted from 1; [`COMING`] while that is being found out, and 0 before.
    numbers: Box<[AtomicU64]>,
    /// What `handed` was when each stream came last, above the units of the chunk that it was given.
    came: Box<[AtomicU64]>,
}

impl StreamRates {
    /// Of so many streams that have not come yet.
    pub(super) fn new<P: Platform>(platform: &P, streams: usize) -> Result<Self, NoMemory> {
        let zero = || AtomicU64::new(0);
        let zeros = |count| try_fill(platform, Context::MaySleep, count, zero).map(Vec::into_boxed_slice);
        let (came, numbers) = (zeros(streams)?, zeros(streams.div_ceil(CPU_WORDS))?);
        Ok(Self { handed: zero(), mean: zero(), streams: zero(), lines: zero(), numbers, came })
    }

    /// As which of all the line of cursor number `cursor` has come, from 0 on, and how many lines have by now: of CPUs or
    /// rings. It comes with this, if it has not before; to others who come for it at the same moment it looks late.
    pub(super) fn line(&self, cursor: usize) -> (u64, u64) {
        let number = &self.numbers[cursor / CPU_WORDS];
        let mut is = number.load(Ordering::Relaxed);
        if is == 0 {
            is = match number.compare_exchange(0, COMING, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => self.lines.fetch_add(1, Ordering::Relaxed) + 1,
                Err(other) => other,
            };
            if is != COMING {
                number.store(is, Ordering::Relaxed);
            }
        }
        (is - 1, self.lines())
    }

    /// Lines that have come.
    pub(super) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// Pages that all streams were handed while that of `cursor` used up its last chunk, as if that had 64; and the units of
    /// that chunk.
    fn turn(&self, cursor: usize) -> (u64, u64) {
        let came = self.came[cursor].load(Ordering::Relaxed);
        let (then, units) = (came >> UNIT_BITS, came & ((1 << UNIT_BITS) - 1));
        // A power of two, so no division.
        (
            (self.handed.load(Ordering::Relaxed).saturating_sub(then) * u64::from(CHUNK_UNITS)) >> units.max(1).ilog2(),
            units,
        )
    }

    /// Whether the stream of `cursor` is slower than the others.
    pub(super) fn is_slow(&self, cursor: usize) -> bool {
        let chunk_pages = u64::from(CHUNK_UNITS) * UNIT_PAGES;
        match self.turn(cursor) {
            // Among many, it has to show first that it is not.
            (_, 0) => self.streams.load(Ordering::Relaxed) > FEW_STREAMS,
            (turn, _) => {
                let mean = self.mean.load(Ordering::Relaxed).max(self.streams.load(Ordering::Relaxed) * chunk_pages);
                mean > FEW_STREAMS * chunk_pages && turn > SLOW * mean
            }
        }
    }

    /// The stream of `cursor` has been given its next chunk, of so many units.
    pub(super) fn note(&self, cursor: usize, units: u32) {
        let (turn, last) = self.turn(cursor);
        let pages = last * UNIT_PAGES;
        let mean = self.mean.load(Ordering::Relaxed);
        self.mean.store((mean * (PACE_PAGES - pages) + turn * pages) / PACE_PAGES, Ordering::Relaxed);
        let more = u64::from(units) * UNIT_PAGES;
        let handed = self.handed.fetch_add(more, Ordering::Relaxed) + more;
        let came = handed << UNIT_BITS | u64::from(units);
        if last != 0 {
            self.came[cursor].store(came, Ordering::Relaxed);
        } else if self.came[cursor].swap(came, Ordering::Relaxed) == 0 {
            // No other has come for it meanwhile.
            self.streams.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.came) + size_of_val(&*self.numbers)
    }
}
