//! The chunks that are out to the streams of a line of cursors. Only the stream that a chunk is out to finds out that
//! it is spent: mostly it has filled it, so the entries are in the caches of its CPU.
//!
//! A chunk that is out is in exactly one list here, and is taken out of it by the one caller that has found it spent.
//! So it is given back once, and a look that came late never takes the next generation for this one (S3).

#[cfg(all(test, not(loom)))]
mod tests;

use super::geometry::TABLE_UNITS;
use super::open_tables::Chunk;
use super::page_states::{self, Idle};
use super::table_record::TableRecord;
use super::table_records::TableRecords;
use super::tables::ChunkTables;
use crate::platform::{Platform, Step};
use crate::sync::{AtomicU32, Ordering, plain};
use core::num::NonZeroU32;

/// The streams of a line that are told apart: the first two directions, and all others together.
const STREAMS: usize = 3;
/// The number of lists: two for each stream.
const LISTS: usize = 2 * STREAMS;
/// The most spent chunks that are taken at a time.
const TAKEN_MAX: usize = 3;

/// A chunk that is out, and the generation that it is in. In one word, so that a link holds it, or 0 for none: a chunk
/// has at least one unit.
///
/// ```text
/// 31  30 29    24 23             0
/// +-----+--------+----------------+
/// | gen | units  | first unit     |
/// +-----+--------+----------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Out(NonZeroU32);

const GENERATION: u32 = 1 << 30;
const UNITS_SHIFT: u32 = 24;
const FIRST: u32 = (1 << UNITS_SHIFT) - 1;

impl Out {
    /// `chunk`, which was just taken from an open table.
    #[inline]
    fn of(chunk: Chunk, records: &TableRecords) -> Self {
        let (record, unit) = (records.get(chunk.table()), chunk.first % TABLE_UNITS);
        // Nothing is behind it. Written first: that brings the cache line here, once, for the generation too.
        record.link(unit).store(0, Ordering::Relaxed);
        let generation = match record.generation(unit) {
            Idle::FIRST => 0,
            _ => GENERATION,
        };
        Self::from_link(generation | chunk.units << UNITS_SHIFT | chunk.first).expect("a chunk has a unit")
    }

    fn from_link(link: u32) -> Option<Self> {
        NonZeroU32::new(link).map(Self)
    }

    /// The link to `out`.
    fn to_link(out: Option<Self>) -> u32 {
        out.map_or(0, |out| out.0.get())
    }

    pub(super) const fn chunk(self) -> Chunk {
        let bits = self.0.get();
        Chunk { first: bits & FIRST, units: (bits & !GENERATION) >> UNITS_SHIFT }
    }

    #[inline]
    fn record(self, records: &TableRecords) -> &TableRecord {
        records.get(self.chunk().table())
    }

    /// The link to the next chunk, in the record of its table.
    #[inline]
    fn link(self, record: &TableRecord) -> &AtomicU32 {
        record.link(self.chunk().first % TABLE_UNITS)
    }

    // Relaxed, both: the line's lock orders the accesses while the chunk is out, and what happens between `give_back`
    // and the next `take` before and after.
    #[inline]
    fn next(self, record: &TableRecord) -> Option<Self> {
        Self::from_link(self.link(record).load(Ordering::Relaxed))
    }

    #[inline]
    fn set_next(self, record: &TableRecord, next: Option<Self>) {
        self.link(record).store(Self::to_link(next), Ordering::Relaxed);
    }

    /// If all pages of the chunk are spent, its generation ends: the caller removes it from its list. Then returns the
    /// record of its table.
    fn ends_spent<P: Platform>(self, Lookup { platform, records, tables }: Lookup<'_, P>) -> Option<&TableRecord> {
        let generation = if self.0.get() & GENERATION == 0 { Idle::FIRST } else { Idle::FIRST.next() };
        let chunk = self.chunk();
        let (entries, pages) = (tables.linked(chunk.table()), chunk.pages());
        // The last page first: mostly it is the last to be spent.
        if !page_states::is_spent(&entries[pages.end - 1], generation) {
            platform.probe(Step::TableScan { entries: 1 });
            return None;
        }
        let (is_over, looks) = match chunk.units {
            // Its mappings are long: skips what is not their first page.
            TABLE_UNITS => page_states::mappings_are_spent(&entries[pages.clone()], generation),
            _ => (page_states::all_are_spent(&entries[pages.clone()], generation), pages.len()),
        };
        platform.probe(Step::TableScan { entries: looks });
        if !is_over {
            return None;
        }
        let record = self.record(records);
        // Before the link is read, so that the cache line comes once.
        record.end_generation(chunk.mask());
        Some(record)
    }
}

/// Where chunks and their entries are found.
pub(super) struct Lookup<'c, P> {
    pub(super) platform: &'c P,
    pub(super) records: &'c TableRecords,
    pub(super) tables: &'c ChunkTables,
}

impl<P> Clone for Lookup<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Lookup<'_, P> {}

/// A list of chunks that are out, linked through the records of their tables.
#[derive(Default)]
struct OutList {
    first: Option<Out>,
    last: Option<Out>,
    len: u32,
}

impl OutList {
    /// Adds a chunk behind which nothing is.
    #[inline]
    fn push_back(&mut self, records: &TableRecords, out: Out) {
        self.append(records, out, out, 1);
    }

    /// Adds `count` chunks, which are linked from `first` to `last`. Nothing is behind `last`.
    #[inline]
    fn append(&mut self, records: &TableRecords, first: Out, last: Out, count: u32) {
        match self.last {
            Some(last) => last.set_next(last.record(records), Some(first)),
            None => self.first = Some(first),
        }
        self.last = Some(last);
        self.len += count;
    }

    /// Removes the chunks before `next`, of which there are `count`.
    #[inline]
    fn remove_before(&mut self, next: Option<Out>, count: u32) {
        self.first = next;
        self.len -= count;
        if self.first.is_none() {
            self.last = None;
        }
    }

    /// Takes the first chunk, `first`, if it is spent.
    fn take_first<P: Platform>(&mut self, lookup: Lookup<'_, P>, first: Out) -> Option<Out> {
        let record = first.ends_spent(lookup)?;
        self.remove_before(first.next(record), 1);
        Some(first)
    }

    /// Looks at the first chunk, and takes it if it is spent. Otherwise moves it to the back.
    #[inline]
    fn turn<P: Platform>(&mut self, lookup: Lookup<'_, P>) -> Option<Out> {
        self.first.and_then(|first| self.turn_first(lookup, first))
    }

    #[inline(never)]
    fn turn_first<P: Platform>(&mut self, lookup: Lookup<'_, P>, first: Out) -> Option<Out> {
        let spent = self.take_first(lookup, first);
        if spent.is_none() {
            let record = first.record(lookup.records);
            self.remove_before(first.next(record), 1);
            first.set_next(record, None);
            self.push_back(lookup.records, first);
        }
        spent
    }
}

/// The chunks that are out to one stream.
#[derive(Default)]
struct Stream {
    /// In the order in which they were taken.
    young: OutList,
    /// Those that a younger chunk has overtaken: stragglers are in them.
    late: OutList,
    /// The chunk of `young`, behind the first one, that was looked at last; and how many are up to there.
    looked: Option<Out>,
    looked_len: u32,
}

impl Stream {
    /// Takes a spent chunk: the oldest one or, if it is not spent, the next one that was not looked at. Those before
    /// that one are late then.
    #[inline]
    fn oldest<P: Platform>(&mut self, lookup: Lookup<'_, P>) -> Option<Out> {
        let first = self.young.first?;
        let looked = self.looked.take();
        match self.young.take_first(lookup, first) {
            Some(first) => Some(first),
            None => self.overtake(lookup, first, looked),
        }
    }

    /// Takes the chunk behind `looked`, or behind `first`, if it is spent.
    #[inline(never)]
    fn overtake<P: Platform>(&mut self, lookup: Lookup<'_, P>, first: Out, looked: Option<Out>) -> Option<Out> {
        let records = lookup.records;
        let (before, len) = looked.map_or((first, 1), |looked| (looked, self.looked_len));
        let record_before = before.record(records);
        let at = before.next(record_before)?;
        let Some(record) = at.ends_spent(lookup) else {
            (self.looked, self.looked_len) = (Some(at), len + 1);
            return None;
        };
        self.young.remove_before(at.next(record), len + 1);
        before.set_next(record_before, None);
        self.late.append(records, first, before, len);
        Some(at)
    }
}

/// The number of the stream of cursor `word` of a line.
fn stream_of(word: usize) -> usize {
    word.min(STREAMS - 1)
}

/// The chunks that are out to the streams of a line.
#[derive(Default)]
pub(super) struct OutChunks([Stream; STREAMS]);

impl OutChunks {
    /// Adds a chunk that the stream of cursor `word` has taken.
    pub(super) fn add<P: Platform>(&mut self, Lookup { records, .. }: Lookup<'_, P>, word: usize, chunk: Chunk) {
        plain(self, true);
        self.0[stream_of(word)].young.push_back(records, Out::of(chunk, records));
    }

    /// Takes spent chunks of the stream of cursor `word`: the oldest one, the next one if `is_more`, and one that is
    /// late. A stream that does so for each chunk that it takes gives back as many as it takes, and with `is_more` now
    /// and then what has come together besides.
    pub(super) fn take_spent<P: Platform>(
        &mut self,
        lookup: Lookup<'_, P>,
        word: usize,
        is_more: bool,
    ) -> [Option<Out>; TAKEN_MAX] {
        plain(self, true);
        let stream = &mut self.0[stream_of(word)];
        let first = stream.oldest(lookup);
        debug_assert!(first.is_none() || stream.looked.is_none(), "the count up to there begins at the first one");
        let Stream { young, late, .. } = stream;
        let next = young.first.filter(|_| is_more && first.is_some());
        [first, next.and_then(|next| young.take_first(lookup, next)), late.turn(lookup)]
    }

    /// The number of chunks in each list.
    pub(super) fn lens(&self) -> [u32; LISTS] {
        plain(self, false);
        core::array::from_fn(|list| {
            let Stream { young, late, .. } = &self.0[list / 2];
            if list % 2 == 0 { young.len } else { late.len }
        })
    }

    /// Looks at chunks of a list and takes the first that is spent. Each look is subtracted from `looks`; when there
    /// are none left, returns `None`.
    pub(super) fn look<P: Platform>(&mut self, lookup: Lookup<'_, P>, list: usize, looks: &mut u32) -> Option<Out> {
        plain(self, true);
        let stream = &mut self.0[list / 2];
        while *looks > 0 {
            *looks -= 1;
            let spent = match list % 2 {
                0 => stream.oldest(lookup),
                _ => stream.late.turn(lookup),
            };
            if spent.is_some() {
                return spent;
            }
        }
        None
    }
}
