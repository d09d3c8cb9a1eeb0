//! The open tables, from which streams take their next chunk: one word for each. Taking a chunk needs no lock; opening
//! a table does.
//!
//! Most streams share a log of tables, so that what many streams use at the same time lies in few tables. If there are
//! only a few CPUs or rings, each has a log of its own instead. A few more tables do not matter then, and the entries
//! that one CPU writes are in no other CPU's cache.
//!
//! ```text
//! 63             32 31              0
//! +----------------+-----------------+
//! | table          | left            |   a bit for the first unit of each chunk that is left
//! +----------------+-----------------+
//! ```
//!
//! If no such bit is set, the next table is opened.

use super::geometry::{CHUNK_UNITS, SLOW_UNITS, TABLE_UNITS};
use super::rate::StreamRates;
use crate::error::NoMemory;
use crate::platform::memory::try_slice;
use crate::platform::{Context, Padded, Platform};
use crate::sync::{AtomicU64, Ordering};
use alloc::boxed::Box;

/// The log of most streams. The log of slow streams.
const COMMON: usize = 0;
const SLOW: usize = 1;
/// The number of further logs, each for one line of cursors. A CPU uses its own as long as no more lines than this have
/// appeared. Under the model checker there are none, so that all streams share.
const OWN_LOGS: usize = if cfg!(loom) { 0 } else { 16 };
/// The number of lines up to which a ring uses its own. Tables that many rings have for themselves are more than the
/// paging-structure caches hold.
const OWN_LOGS_OF_RINGS: usize = OWN_LOGS / 2;
/// The number of logs.
pub(super) const LOGS: usize = 2 + OWN_LOGS;
/// Whether one CPU or ring alone uses a log.
pub(super) const fn is_own(log: usize) -> bool {
    log > SLOW
}
const TABLE_SHIFT: u32 = 32;

/// The kind of chunk that a stream needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// A small one is enough.
    Small,
    /// A chunk of 64 pages.
    Chunk,
    /// A whole table.
    Table,
}

/// What a stream asks the table log for. It is small, so that it takes one register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    log: u16,
    units: u16,
    /// Whether no table can be added. Then the log takes tables of any other.
    pub(super) is_short: bool,
}

impl Need {
    pub(super) const fn new(log: usize, units: u32) -> Self {
        Self { log: log as u16, units: units as u16, is_short: false }
    }

    /// The log whose tables it takes.
    pub(super) const fn log(self) -> usize {
        self.log as usize
    }

    /// The number of units of the chunk.
    pub(super) const fn units(self) -> u32 {
        self.units as u32
    }
}

/// A run of units that a stream hands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    /// The number of its first unit, counted over all tables.
    pub(super) first: u32,
    /// The number of units.
    pub(super) units: u32,
}

/// The open tables, one for each log.
pub(super) struct OpenTables {
    open: Box<[Padded<AtomicU64>]>,
    /// The number of the first cursor of a ring. Those before it are of CPUs.
    first_of_rings: usize,
    /// The rates of the streams.
    rates: StreamRates,
}

impl OpenTables {
    /// No open tables yet, for `streams` streams, of which those from number `first_of_rings` on are of rings.
    pub(super) fn new<P: Platform>(platform: &P, streams: usize, first_of_rings: usize) -> Result<Self, NoMemory> {
        let open = try_slice(platform, Context::MaySleep, LOGS, || Ok(Padded(AtomicU64::new(0))))?;
        Ok(Self { open, first_of_rings, rates: StreamRates::new(platform, streams)? })
    }

    /// The number of lines up to which the stream of `cursor` has its own log.
    const fn own_logs(&self, cursor: usize) -> u64 {
        (if cursor < self.first_of_rings { OWN_LOGS } else { OWN_LOGS_OF_RINGS }) as u64
    }

    /// The log from which the stream of cursor number `cursor` takes its next chunk, and the number of units in that
    /// chunk.
    pub(super) fn need_of(&self, cursor: usize, wanted: Wanted) -> Need {
        let (line, lines) = self.rates.line(cursor);
        let own_logs = self.own_logs(cursor);
        let is_alone = lines <= own_logs;
        // A table of the stream's own log that is still open, from the time when there were few lines, is used up
        // first.
        let own = (line < own_logs).then_some(2 + line as usize).filter(|own| is_alone || self.is_open(*own));
        let log = own.unwrap_or(COMMON);
        match wanted {
            Wanted::Table => Need::new(log, TABLE_UNITS),
            Wanted::Small if self.rates.is_slow(cursor) => Need::new(SLOW, SLOW_UNITS),
            Wanted::Small | Wanted::Chunk => Need::new(log, CHUNK_UNITS),
        }
    }

    /// Records that the stream of `cursor` was given its next chunk, of `units` units.
    pub(super) fn note(&self, cursor: usize, units: u32) {
        // While each line has its own log, rates do not matter, so nothing is written that all of them would read.
        if self.rates.lines() > self.own_logs(cursor) {
            self.rates.note(cursor, units);
        }
    }

    /// Takes a chunk if the open table of its log has one left.
    pub(super) fn take(&self, need: Need) -> Option<Chunk> {
        let take_lowest = |word| Self::has_left(word).then(|| word & (word - 1));
        // Acquire: with the chunk, its entries are visible as the CPU that opened the table has found or left them.
        // The exchanges of other CPUs since then continue the release sequence of `open`.
        let word = self.open[need.log()].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, take_lowest).ok()?;
        let number = (word >> TABLE_SHIFT) as u32;
        Some(Chunk { first: number * TABLE_UNITS + word.trailing_zeros(), units: need.units() })
    }

    /// Takes a suitable chunk from any open table, when no other table can be found or added.
    pub(super) fn take_anywhere(&self, wanted: Wanted) -> Option<Chunk> {
        (0..LOGS).find_map(|log| match wanted {
            Wanted::Table => None,
            Wanted::Chunk if log == SLOW => None,
            Wanted::Small if log == SLOW => self.take(Need::new(log, SLOW_UNITS)),
            Wanted::Small | Wanted::Chunk => self.take(Need::new(log, CHUNK_UNITS)),
        })
    }

    /// Whether the open table of `log` has a chunk left. If it has none, that does not change while the caller holds
    /// the lock of the [`TableLog`](super::table_log::TableLog).
    pub(super) fn is_open(&self, log: usize) -> bool {
        // Relaxed: tables are opened only under that lock.
        Self::has_left(self.open[log].0.load(Ordering::Relaxed))
    }

    /// Opens table `number` for `log`, whose last table has nothing left. Its chunks begin at the units `firsts`, and
    /// all of them are spent.
    pub(super) fn open(&self, log: usize, number: u32, firsts: u32) {
        // Release: pairs with the Acquire in `take`. A plain store, because nothing is left that another CPU could
        // take meanwhile.
        self.open[log].0.store(u64::from(number) << TABLE_SHIFT | u64::from(firsts), Ordering::Release);
    }

    /// The memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.rates.bytes()
    }

    const fn has_left(word: u64) -> bool {
        word as u32 != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::CPU_WORDS;
    use crate::platform::fake::FakeHost;

    /// As many lines as there are logs: each of a CPU has its own, and of those of rings only the first have.
    #[test]
    fn more_cpus_than_rings_have_logs_of_their_own() {
        let (host, lines) = (FakeHost::default(), OWN_LOGS);
        let (first_of_rings, streams) = (lines * CPU_WORDS, 2 * lines * CPU_WORDS);
        let own = |first: usize, lines: usize| {
            let open_tables = OpenTables::new(&host, streams, first_of_rings).expect("memory");
            let log = |line: usize| open_tables.need_of(first + line * CPU_WORDS, Wanted::Chunk).log();
            (0..lines).map(log).filter(|log| *log != COMMON).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!(own(0, lines), OWN_LOGS);
        assert_eq!(own(first_of_rings, OWN_LOGS_OF_RINGS), OWN_LOGS_OF_RINGS);
        assert_eq!(own(first_of_rings, lines), OWN_LOGS_OF_RINGS);
    }
}
