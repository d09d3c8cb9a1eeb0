//! How fast streams use up their chunks, and which streams are slow compared with the others.

use super::geometry::{CHUNK_UNITS, TABLE_UNITS, UNIT_PAGES};
use crate::error::NoMemory;
use crate::platform::memory::try_fill;
use crate::platform::{CPU_WORDS, Context, Platform};
use crate::sync::{AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A stream is slow if it takes more than this many times as long for its pages as the mean page has taken.
const SLOW: u64 = 4;
/// Up to this many streams of equal rate, no stream counts as slow: the chunks of all of them lie in a handful of
/// tables.
const FEW_STREAMS: u64 = 16;
/// The number of pages over which the mean is taken.
const PACE_PAGES: u64 = 1 << 14;
/// The number of a line while it is being assigned.
const COMING: u64 = u64::MAX;
/// The number of bits for the units of a chunk.
const UNIT_BITS: u32 = TABLE_UNITS.ilog2() + 1;

/// The rates of streams. Time is measured in pages that all streams together were handed, so no clock is read.
///
/// All accesses are Relaxed and may miss a concurrent change: the rates only influence which addresses are chosen.
pub(super) struct StreamRates {
    /// The number of pages handed out so far.
    handed: AtomicU64,
    /// The number of pages handed out to all streams while one stream is handed 64, as a mean over pages.
    mean: AtomicU64,
    /// The number of streams that have appeared, and of the lines of cursors that they are in.
    streams: AtomicU64,
    lines: AtomicU64,
    /// The number of each line, counted from 1 in the order of appearance; [`COMING`] while it is being assigned, and
    /// 0 before.
    numbers: Box<[AtomicU64]>,
    /// The value of `handed` when each stream last got a chunk; the low bits hold the number of units in that chunk.
    came: Box<[AtomicU64]>,
}

impl StreamRates {
    /// The rates of `streams` streams, none of which has appeared yet.
    pub(super) fn new<P: Platform>(platform: &P, streams: usize) -> Result<Self, NoMemory> {
        let zero = || AtomicU64::new(0);
        let zeros = |count| try_fill(platform, Context::MaySleep, count, zero).map(Vec::into_boxed_slice);
        let (came, numbers) = (zeros(streams)?, zeros(streams.div_ceil(CPU_WORDS))?);
        Ok(Self { handed: zero(), mean: zero(), streams: zero(), lines: zero(), numbers, came })
    }

    /// The number of the line of cursor number `cursor`, counted from 0 in the order of appearance, and the number of
    /// lines of CPUs and rings so far. The first call for a line assigns its number. Other callers at the same moment
    /// get a very large number.
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

    /// The number of lines that have appeared.
    pub(super) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// The number of pages that all streams were handed while the stream of `cursor` used up its last chunk, scaled to
    /// a chunk of 64 pages; and the number of units in that chunk.
    fn turn(&self, cursor: usize) -> (u64, u64) {
        let came = self.came[cursor].load(Ordering::Relaxed);
        let (then, units) = (came >> UNIT_BITS, came & ((1 << UNIT_BITS) - 1));
        // A power of two, so a shift replaces the division.
        (
            (self.handed.load(Ordering::Relaxed).saturating_sub(then) * u64::from(CHUNK_UNITS)) >> units.max(1).ilog2(),
            units,
        )
    }

    /// Whether the stream of `cursor` is slow compared with the others.
    pub(super) fn is_slow(&self, cursor: usize) -> bool {
        let chunk_pages = u64::from(CHUNK_UNITS) * UNIT_PAGES;
        match self.turn(cursor) {
            // Among many streams, a new one counts as slow until it has shown otherwise.
            (_, 0) => self.streams.load(Ordering::Relaxed) > FEW_STREAMS,
            (turn, _) => {
                let mean = self.mean.load(Ordering::Relaxed).max(self.streams.load(Ordering::Relaxed) * chunk_pages);
                mean > FEW_STREAMS * chunk_pages && turn > SLOW * mean
            }
        }
    }

    /// Records that the stream of `cursor` was given its next chunk, of `units` units.
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
            // No other caller has recorded this stream meanwhile.
            self.streams.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.came) + size_of_val(&*self.numbers)
    }
}
