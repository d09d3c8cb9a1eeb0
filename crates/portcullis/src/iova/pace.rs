//! How fast streams use up what they are handed, and who is slow beside the others.

use super::chunks::{CHUNK_UNITS, UNIT_PAGES};
use crate::error::NoMemory;
use alloc::vec::Vec;

/// A stream is slow that takes so many times longer for its pages than the mean page has taken.
const SLOW: u64 = 4;
/// With so many streams of equal pace nobody is slow: the chunks of all of them lie in a handful of tables.
const FEW_STREAMS: u64 = 16;
/// Pages that the mean pace remembers.
const PACE_PAGES: u64 = 1 << 14;

/// The pace of streams, in pages that all of them were handed meanwhile: no clock is asked.
pub(super) struct Pace {
    /// Pages handed out so far.
    handed: u64,
    /// What that was when each stream came last, and the units of the chunk that it was given.
    came: Vec<(u64, u32)>,
    /// Streams that have come.
    streams: u64,
    /// Pages that are handed out to all while a stream is handed 64, in the mean over pages.
    mean: u64,
}

impl Pace {
    /// Of so many streams that have not come yet.
    pub(super) fn new(streams: usize) -> Result<Self, NoMemory> {
        let mut came = Vec::new();
        came.try_reserve_exact(streams).map_err(|_| NoMemory)?;
        came.resize(streams, (0, 0));
        Ok(Self { handed: 0, came, streams: 0, mean: 0 })
    }

    /// Pages that all streams were handed while this one used up its last chunk, as if that had 64.
    fn turn(&self, stream: usize) -> u64 {
        let (came, last) = self.came[stream];
        // A power of two, so no division.
        ((self.handed - came) * u64::from(CHUNK_UNITS)) >> last.max(1).ilog2()
    }

    /// Whether it is slower than the others.
    pub(super) fn is_slow(&self, stream: usize) -> bool {
        let chunk_pages = u64::from(CHUNK_UNITS) * UNIT_PAGES;
        match self.came[stream].1 {
            // Among many, it has to show first that it is not.
            0 => self.streams > FEW_STREAMS,
            _ => self.mean > FEW_STREAMS * chunk_pages && self.turn(stream) > SLOW * self.mean,
        }
    }

    /// A stream comes for the next chunk, of so many units.
    pub(super) fn note(&mut self, stream: usize, units: u32) {
        let (turn, last) = (self.turn(stream), self.came[stream].1);
        let pages = u64::from(last) * UNIT_PAGES;
        self.mean = (self.mean * (PACE_PAGES - pages) + turn * pages) / PACE_PAGES;
        self.handed += u64::from(units) * UNIT_PAGES;
        self.came[stream] = (self.handed, units);
        self.streams += u64::from(last == 0);
    }

    /// Memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.came)
    }
}
