//! The open tables, from which streams take their next chunk: one word for each log. Taking a chunk needs no lock;
//! opening a table does.
//!
//! If there are only a few CPUs or rings, each line of cursors has a log of its own, and the entries that one CPU
//! writes are in no other CPU's cache. Otherwise four CPUs share a log, or eight rings, in the order in which they have
//! appeared: what they use at the same time lies in few tables, and however many there are, no more than a dozen meet
//! at a word or at the lock of a log, but for slow streams. Each prefers places of its own in a table, so it mostly
//! gets a chunk that it had before.
//!
//! Streams that are much slower than the others of their log, such as acknowledgements next to data, would each keep a
//! chunk in some old table. If there are many streams, all slow ones share a log, with chunks of a quarter of the size.
//!
//! ```text
//! 63             32 31              0
//! +----------------+-----------------+
//! | table          | left            |   a bit for the first unit of each chunk that is left
//! +----------------+-----------------+
//! ```
//!
//! If no such bit is set, the next table is opened.

use super::geometry::{CHUNK_UNITS, SLOW_UNITS, TABLE_UNITS, UNIT_PAGES};
use super::rate::StreamRates;
use super::table_record::chunks;
use crate::error::NewDomainError;
use crate::in_place::in_place;
use crate::platform::memory::try_slice;
use crate::platform::{CPU_WORDS, Context, Padded, Platform};
use crate::sync::{AtomicU64, Ordering};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use core::ops::Range;

/// The log of slow streams.
const SLOW: usize = 0;
/// The first log of one line, or of the first lines.
const FIRST: usize = 1;
/// The number of lines up to which a CPU has a log of its own. Under the model checker there are none, so that all
/// streams share.
const OWN_LOGS: usize = if cfg!(loom) { 0 } else { 16 };
/// The number of lines up to which a ring has a log of its own. Tables that many rings have for themselves are more
/// than the paging-structure caches hold.
const OWN_LOGS_OF_RINGS: usize = OWN_LOGS / 2;
/// The number of chunks of a table.
const PLACES: u32 = TABLE_UNITS / CHUNK_UNITS;
/// The numbers of lines that share a log beyond that. With four, twice as many tables are in use at a time as with
/// eight, but half as many CPUs meet. What a device walks to counts more for rings, which are many. Under the model
/// checker two CPUs share one.
const SHARERS: usize = if cfg!(loom) { 2 } else { 4 };
const SHARERS_OF_RINGS: usize = PLACES as usize;
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

/// What a stream asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    log: u16,
    units: u8,
    /// Whether no table can be added. Then it may be a chunk of any log.
    pub(super) is_short: bool,
    /// The units that it prefers; 0 if it has no preference.
    preferred: u32,
}

impl Need {
    const fn new(log: usize, units: u32) -> Self {
        Self { log: log as u16, units: units as u8, is_short: false, preferred: 0 }
    }

    /// The log whose tables it takes.
    pub(super) const fn log(self) -> usize {
        self.log as usize
    }

    /// The number of units of the chunk.
    pub(super) const fn units(self) -> u32 {
        self.units as u32
    }

    /// The bit of the preferred chunk of those that begin at `firsts`.
    const fn pick(self, firsts: u32) -> u32 {
        let preferred = firsts & self.preferred;
        let among = if preferred == 0 { firsts } else { preferred };
        among & among.wrapping_neg()
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

impl Chunk {
    /// The number of its table.
    pub(super) const fn table(self) -> u32 {
        self.first / TABLE_UNITS
    }

    /// Its units, each as a bit.
    pub(super) const fn mask(self) -> u32 {
        chunks(1 << (self.first % TABLE_UNITS), self.units)
    }

    /// The indices of its pages in the table.
    pub(super) const fn pages(self) -> Range<usize> {
        let first = (self.first % TABLE_UNITS) as usize * UNIT_PAGES as usize;
        first..first + self.units as usize * UNIT_PAGES as usize
    }
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
    /// No open tables yet, for `streams` streams, of which those from number `first_of_rings` on are of rings. They are
    /// made in `to`, which is uninitialized if that fails.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`].
    pub(super) fn new_in<'t, P: Platform>(
        to: &'t mut MaybeUninit<Self>,
        platform: &P,
        streams: usize,
        first_of_rings: usize,
    ) -> Result<&'t mut Self, NewDomainError> {
        let logs = FIRST + OWN_LOGS.max((streams / CPU_WORDS).div_ceil(SHARERS));
        Ok(in_place!(to => Self {
            open: try_slice(platform, Context::MaySleep, logs, || Ok(Padded(AtomicU64::new(0))))?,
            first_of_rings: first_of_rings,
            rates <- |to| StreamRates::new_in(to, platform, streams, logs),
        }))
    }

    /// The number of logs.
    pub(super) const fn logs(&self) -> usize {
        self.open.len()
    }

    /// A number of logs, beyond which none has been used.
    pub(super) fn logs_used(&self) -> usize {
        let lines = self.lines().count();
        (FIRST + lines.min(OWN_LOGS).max(lines.div_ceil(SHARERS))).min(self.logs())
    }

    /// The log of the line of `cursor`, and the units of its places if others share the log.
    #[inline]
    fn log_of(&self, cursor: usize) -> (usize, Option<u32>) {
        let (own_logs, sharers) = match cursor < self.first_of_rings {
            true => (OWN_LOGS, SHARERS),
            false => (OWN_LOGS_OF_RINGS, SHARERS_OF_RINGS),
        };
        let (line, lines) = self.rates.line(cursor);
        // A line whose number is just being assigned has a very large one.
        let log = |number: u64| (FIRST + number as usize).min(self.open.len() - 1);
        if lines <= own_logs as u64 {
            return (log(line), None);
        }
        let (units, place) = (TABLE_UNITS / sharers as u32, (line % sharers as u64) as u32);
        (log(line / sharers as u64), Some(u32::MAX >> (u32::BITS - units) << (place * units)))
    }

    /// The log from which the stream of cursor number `cursor` takes its next chunk, and the number of units in that
    /// chunk.
    #[inline]
    pub(super) fn need_of(&self, cursor: usize, wanted: Wanted) -> Need {
        let (log, preferred) = self.log_of(cursor);
        let units = if wanted == Wanted::Table { TABLE_UNITS } else { CHUNK_UNITS };
        // While a line has its own log, rates do not matter.
        let Some(preferred) = preferred else { return Need::new(log, units) };
        let slow_units = if wanted == Wanted::Small { SLOW_UNITS } else { units };
        let is_slow = self.rates.note(cursor, log, units, slow_units);
        match wanted {
            Wanted::Small if is_slow => Need::new(SLOW, SLOW_UNITS),
            _ => Need { preferred, ..Need::new(log, units) },
        }
    }

    /// All lines of cursors that have appeared.
    pub(super) fn lines(&self) -> impl Iterator<Item = usize> {
        self.rates.lines_seen()
    }

    /// One of these lines; another one for each `turn`.
    pub(super) fn one_line(&self, turn: usize) -> impl Iterator<Item = usize> {
        let lines = self.lines().count();
        self.lines().skip(turn % lines.max(1)).take(1)
    }

    /// Takes a chunk if the open table of its log has one left: the preferred one, or else the first.
    #[inline]
    pub(super) fn take(&self, need: Need) -> Option<Chunk> {
        // Acquire: with the chunk, its entries are visible as the CPU that opened the table has found or left them. The
        // exchanges of other CPUs since then continue the release sequence of `open`.
        let take = |word| Self::has_left(word).then(|| word & !u64::from(need.pick(word as u32)));
        let word = self.open[need.log()].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
        Some(Self::chunk((word >> TABLE_SHIFT) as u32, need, word as u32))
    }

    /// The chunk of table `number` that `need` picks of those that begin at `firsts`.
    const fn chunk(number: u32, need: Need, firsts: u32) -> Chunk {
        Chunk { first: number * TABLE_UNITS + need.pick(firsts).trailing_zeros(), units: need.units() }
    }

    /// Takes a suitable chunk from any open table, when no other table can be found or added.
    pub(super) fn take_anywhere(&self, wanted: Wanted) -> Option<Chunk> {
        (0..self.logs()).find_map(|log| match wanted {
            Wanted::Table => None,
            Wanted::Chunk if log == SLOW => None,
            Wanted::Small if log == SLOW => self.take(Need::new(log, SLOW_UNITS)),
            Wanted::Small | Wanted::Chunk => self.take(Need::new(log, CHUNK_UNITS)),
        })
    }

    /// Whether the open table of `log` has a chunk left. If it has none, that does not change while the caller holds
    /// the lock of its [`TableLog`](super::table_log::TableLog).
    pub(super) fn is_open(&self, log: usize) -> bool {
        // Relaxed: tables are opened only under that lock.
        Self::has_left(self.open[log].0.load(Ordering::Relaxed))
    }

    /// Opens table `number` for the log, whose last table has nothing left, and takes a chunk. Its chunks begin at the
    /// units `firsts`, and all of them are spent. The caller holds the lock of the log.
    pub(super) fn open(&self, need: Need, number: u32, firsts: u32) -> Chunk {
        // Release: pairs with the Acquire in `take`. A plain store, because nothing is left that another CPU could
        // take meanwhile.
        let word = u64::from(number) << TABLE_SHIFT | u64::from(firsts & !need.pick(firsts));
        self.open[need.log()].0.store(word, Ordering::Release);
        Self::chunk(number, need, firsts)
    }

    /// Takes all chunks that the open table of `log` has left. Returns its number and their units. The caller holds the
    /// lock of the log.
    pub(super) fn close(&self, log: usize) -> Option<(u32, u32)> {
        // Acquire: as in `take`.
        let word = self.open[log].0.swap(0, Ordering::Acquire);
        let units = if log == SLOW { SLOW_UNITS } else { CHUNK_UNITS };
        Self::has_left(word).then(|| ((word >> TABLE_SHIFT) as u32, chunks(word as u32, units)))
    }

    /// The memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.open) + self.rates.bytes()
    }

    const fn has_left(word: u64) -> bool {
        word as u32 != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::in_place::built;
    use crate::platform::fake::FakeHost;

    /// Each of the first lines has a log of its own. When there are more, four or eight share one.
    #[test]
    fn more_cpus_than_rings_have_logs_of_their_own() {
        let host = FakeHost::default();
        let (first_of_rings, streams) = (OWN_LOGS * 2 * CPU_WORDS, 4 * OWN_LOGS * CPU_WORDS);
        let logs = |first: usize, lines: usize| {
            let open_tables = built(|to| OpenTables::new_in(to, &host, streams, first_of_rings)).expect("memory");
            let log = |line: usize| open_tables.need_of(first + line * CPU_WORDS, Wanted::Chunk).log();
            // When all have appeared.
            (0..lines).for_each(|line| _ = log(line));
            let logs: std::vec::Vec<usize> = (0..lines).map(log).collect();
            assert!(logs.iter().all(|log| (FIRST..open_tables.logs()).contains(log)));
            logs
        };
        let own = |lines: usize| (FIRST..FIRST + lines).collect::<std::vec::Vec<_>>();
        let shared =
            |sharers: usize| (0..2 * OWN_LOGS).map(|line| FIRST + line / sharers).collect::<std::vec::Vec<_>>();
        assert_eq!(logs(0, OWN_LOGS), own(OWN_LOGS));
        assert_eq!(logs(0, 2 * OWN_LOGS), shared(SHARERS));
        assert_eq!(logs(first_of_rings, OWN_LOGS_OF_RINGS), own(OWN_LOGS_OF_RINGS));
        assert_eq!(logs(first_of_rings, 2 * OWN_LOGS), shared(SHARERS_OF_RINGS));
    }

    /// Sharers of a log that each want their own places get them, in whatever order they come.
    #[test]
    fn a_cpu_takes_the_places_that_it_had() {
        let host = FakeHost::default();
        let streams = 4 * OWN_LOGS * CPU_WORDS;
        let open_tables = built(|to| OpenTables::new_in(to, &host, streams, streams / 2)).expect("memory");
        let need = |line: usize| open_tables.need_of(line * CPU_WORDS, Wanted::Chunk);
        (0..=OWN_LOGS).for_each(|line| _ = need(line));
        let places = PLACES as usize / SHARERS;
        for turn in 0..SHARERS {
            let line_of = |at: usize| (at + turn) % SHARERS;
            let first = open_tables.open(need(line_of(0)), 7, u32::MAX / 15);
            let others = (1..PLACES as usize).map(|at| open_tables.take(need(line_of(at))).expect("a chunk is left"));
            for (at, chunk) in std::iter::once(first).chain(others).enumerate() {
                assert_eq!(chunk.table(), 7);
                assert_eq!((chunk.first % TABLE_UNITS / CHUNK_UNITS) as usize / places, line_of(at));
            }
            assert_eq!(open_tables.take(need(0)), None);
        }
    }
}
