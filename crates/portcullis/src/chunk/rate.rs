//! How fast streams use up their chunks, and which streams are slow compared with the others.

use super::geometry::{CHUNK_UNITS, TABLE_UNITS, UNIT_PAGES};
use crate::error::NewDomainError;
use crate::in_place::in_place;
use crate::platform::memory::try_slice;
use crate::platform::{CPU_WORDS, Context, CpuWords, Platform, WordLines};
use crate::sync::{AtomicU64, Ordering};
use alloc::boxed::Box;
use core::mem::MaybeUninit;

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

/// The rates of the streams of a log. Time is measured in pages that all of them together were handed, so no clock is
/// read.
#[derive(Default)]
#[repr(align(64))]
struct LogRate {
    /// The number of pages handed out so far.
    handed: AtomicU64,
    /// The number of pages handed out to all streams while one stream is handed 64, as a mean over pages.
    mean: AtomicU64,
    /// The number of streams that have appeared.
    streams: AtomicU64,
}

/// The rates of streams, each compared with the others of its log. So no word is written by more CPUs than share a log.
///
/// All accesses are Relaxed and may miss a concurrent change: the rates only influence which addresses are chosen.
pub(super) struct StreamRates {
    logs: Box<[LogRate]>,
    /// The number of streams that have appeared, and of the lines of cursors that they are in.
    streams: AtomicU64,
    lines: AtomicU64,
    /// The number of each line, counted from 1 in the order of appearance; [`COMING`] while it is being assigned, and
    /// 0 before.
    numbers: Box<[AtomicU64]>,
    /// The value of `handed` when each stream last got a chunk; the low bits hold the number of units in that chunk.
    last: WordLines,
}

impl StreamRates {
    /// The rates of `streams` streams in `logs` logs, none of which has appeared yet. They are made in `to`, which is
    /// uninitialized if that fails.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`].
    pub(super) fn new_in<'t, P: Platform>(
        to: &'t mut MaybeUninit<Self>,
        platform: &P,
        streams: usize,
        logs: usize,
    ) -> Result<&'t mut Self, NewDomainError> {
        let count = streams.div_ceil(CPU_WORDS);
        Ok(in_place!(to => Self {
            logs <- |to| {
                Ok(to.write(try_slice(platform, Context::MaySleep, logs, || Ok(LogRate::default()))?))
            },
            streams: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            numbers <- |to| {
                Ok(to.write(try_slice(platform, Context::MaySleep, count, || Ok(AtomicU64::new(0)))?))
            },
            last <- |to| Ok(to.write(WordLines::with_lines(platform, count, 0)?)),
        }))
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
        (is - 1, self.lines.load(Ordering::Relaxed))
    }

    /// The lines of cursors that have appeared.
    pub(super) fn lines_seen(&self) -> impl Iterator<Item = usize> {
        (0..self.numbers.len()).filter(|line| self.numbers[*line].load(Ordering::Relaxed) != 0)
    }

    /// Records that the stream of `cursor` in `log` is about to be given its next chunk, of `units` units, or of
    /// `slow_units` if it is slow compared with the others. Returns whether it is.
    pub(super) fn note(&self, cursor: usize, log: usize, units: u32, slow_units: u32) -> bool {
        let rate = &self.logs[log];
        let pages = |units: u32| u64::from(units) * UNIT_PAGES;
        // Written first: that brings the cache line here, once.
        let handed = rate.handed.fetch_add(pages(units), Ordering::Relaxed);
        let last_chunk = self.last.word(cursor / CPU_WORDS, cursor % CPU_WORDS);
        let came = last_chunk.load(Ordering::Relaxed);
        let (then, last) = (came >> UNIT_BITS, (came & ((1 << UNIT_BITS) - 1)) as u32);
        // What all streams were handed meanwhile, scaled to a chunk of 64 pages. The number of units is a power of two,
        // so a shift replaces the division.
        let turn = (handed.saturating_sub(then) * u64::from(CHUNK_UNITS)) >> last.max(1).ilog2();
        let mean = rate.mean.load(Ordering::Relaxed);
        let equal = rate.streams.load(Ordering::Relaxed) * pages(CHUNK_UNITS);
        let are_many = self.streams.load(Ordering::Relaxed) > FEW_STREAMS;
        // Among many streams, a new one counts as slow until it has shown otherwise.
        let is_slow = are_many && (last == 0 || turn > SLOW * mean.max(equal));
        if is_slow {
            rate.handed.fetch_sub(pages(units - slow_units), Ordering::Relaxed);
        }
        let units = if is_slow { slow_units } else { units };
        let mean = (mean * (PACE_PAGES - pages(last)) + turn * pages(last)) / PACE_PAGES;
        rate.mean.store(mean, Ordering::Relaxed);
        let came = (handed + pages(units)) << UNIT_BITS | u64::from(units);
        if last != 0 {
            last_chunk.store(came, Ordering::Relaxed);
        } else if last_chunk.swap(came, Ordering::Relaxed) == 0 {
            // No other caller has recorded this stream meanwhile.
            rate.streams.fetch_add(1, Ordering::Relaxed);
            self.streams.fetch_add(1, Ordering::Relaxed);
        }
        is_slow
    }

    /// The memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.logs) + size_of_val(self.last.as_slice()) + size_of_val(&*self.numbers)
    }
}
