//! What streams take their next chunk from: the tables that are being filled, a word each. No lock is taken for a chunk, only
//! for a table.
//!
//! There are logs of tables that all share, so that what many streams use at the same time lies in few tables. A few CPUs or
//! rings have one each instead: a table more for each is no matter then, and the entries that one CPU writes no other has in its
//! cache.
//!
//! ```text
//! 63             32 31              0
//! +----------------+-----------------+
//! | table          | left            |   a bit for the first unit of each chunk that is left; none: another table is opened
//! +----------------+-----------------+
//! ```

use super::chunks::{CHUNK_UNITS, SLOW_UNITS, TABLE_UNITS};
use super::rate::StreamRates;
use crate::error::NoMemory;
use crate::platform::memory::try_slice;
use crate::platform::{Context, Padded, Platform};
use crate::sync::{AtomicU64, Ordering};
use alloc::boxed::Box;

/// The log of most streams, and that of slow ones.
const COMMON: usize = 0;
const SLOW: usize = 1;
/// Logs behind them, for lines of cursors that have one of their own: as long as no more lines have come than these. The model
/// checker sees none, but all share.
const OWN_LOGS: usize = if cfg!(loom) { 0 } else { 16 };
/// Logs that tables are filled for.
pub(super) const LOGS: usize = 2 + OWN_LOGS;
const TABLE_SHIFT: u32 = 32;

/// What chunk a stream needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// A small one will do.
    Small,
    /// One of 64 pages.
    Chunk,
    /// A whole table.
    Table,
}

/// A run of units that a stream hands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    /// Number of its first unit.
    pub(super) first: u32,
    /// How many.
    pub(super) units: u32,
}

/// The tables that are being filled.
pub(super) struct OpenTables {
    open: Box<[Padded<AtomicU64>]>,
    /// Of the streams.
    rates: StreamRates,
}

impl OpenTables {
    /// Of nothing yet, for so many streams.
    pub(super) fn new<P: Platform>(platform: &P, streams: usize) -> Result<Self, NoMemory> {
        let open = try_slice(platform, Context::MaySleep, LOGS, || Ok(Padded(AtomicU64::new(0))))?;
        Ok(Self { open, rates: StreamRates::new(platform, streams)? })
    }

    /// The log that the stream of cursor number `cursor` takes its next chunk from, and how many units that has.
    pub(super) fn log_of(&self, cursor: usize, wanted: Wanted) -> (usize, u32) {
        let (line, lines) = self.rates.line(cursor);
        let is_alone = lines <= OWN_LOGS as u64;
        // What is left in an own table from when there were few comes first.
        let own = (line < OWN_LOGS as u64).then_some(2 + line as usize).filter(|own| is_alone || self.is_open(*own));
        let log = own.unwrap_or(COMMON);
        match wanted {
            Wanted::Table => (log, TABLE_UNITS),
            Wanted::Small if self.rates.is_slow(cursor) => (SLOW, SLOW_UNITS),
            Wanted::Small | Wanted::Chunk => (log, CHUNK_UNITS),
        }
    }

    /// The stream of `cursor` has been given its next chunk, of so many units.
    pub(super) fn note(&self, cursor: usize, units: u32) {
        // Few have logs of their own, whatever their pace is. So they write nothing that all of them read.
        if self.rates.lines() > OWN_LOGS as u64 {
            self.rates.note(cursor, units);
        }
    }

    /// Takes a chunk of so many units, if the open table of `log` has one left.
    pub(super) fn take(&self, log: usize, units: u32) -> Option<Chunk> {
        let take_lowest = |word| Self::has_left(word).then(|| word & (word - 1));
        // Acquire: with the chunk come its entries as whoever opened the table has found or left them. Those who have taken
        // others from it since go on with the release of `open`.
        let word = self.open[log].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, take_lowest).ok()?;
        let number = (word >> TABLE_SHIFT) as u32;
        Some(Chunk { first: number * TABLE_UNITS + word.trailing_zeros(), units })
    }

    /// Takes a chunk that will do from whatever open table has one: for those who find no other table any more.
    pub(super) fn take_anywhere(&self, wanted: Wanted) -> Option<Chunk> {
        (0..LOGS).find_map(|log| match wanted {
            Wanted::Table => None,
            Wanted::Chunk if log == SLOW => None,
            Wanted::Small if log == SLOW => self.take(log, SLOW_UNITS),
            Wanted::Small | Wanted::Chunk => self.take(log, CHUNK_UNITS),
        })
    }

    /// Whether the open table of `log` has a chunk left. Where it has none, that stays so as long as the caller holds the lock
    /// of the [`TableLog`](super::table_log::TableLog).
    pub(super) fn is_open(&self, log: usize) -> bool {
        // Relaxed: only under that lock is a table opened.
        Self::has_left(self.open[log].0.load(Ordering::Relaxed))
    }

    /// Opens table `number` for `log`, whose last one has nothing left. The chunks that begin at the units `firsts` are handed
    /// out by it, all of them spent.
    pub(super) fn open(&self, log: usize, number: u32, firsts: u32) {
        // Release: as `take` says. A store, for there is nothing left that anybody could take meanwhile.
        self.open[log].0.store(u64::from(number) << TABLE_SHIFT | u64::from(firsts), Ordering::Release);
    }

    /// Memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.rates.bytes()
    }

    const fn has_left(word: u64) -> bool {
        word as u32 != 0
    }
}
