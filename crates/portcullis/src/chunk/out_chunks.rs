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
use super::table_records::TableRecords;
use super::tables::ChunkTables;
use crate::platform::{Platform, Step};
use crate::sync::{AtomicU32, Ordering, plain};

/// The streams of a line that are told apart: the first two directions, and all others together.
const STREAMS: usize = 3;
/// The number of lists: two for each stream.
const LISTS: usize = 2 * STREAMS;
/// The most chunks that are given back when a stream takes one.
const GIVEN_BACK_MAX: usize = 3;

/// A chunk that is out, and the generation that it is in. In one word, so that a link holds it.
///
/// ```text
/// 31  30  29 24 23             0
/// +---+---+-----+---------------+
/// | 1 |gen|units| first unit    |
/// +---+---+-----+---------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Out(u32);

const IS_OUT: u32 = 1 << 31;
const GENERATION: u32 = 1 << 30;
const UNITS_SHIFT: u32 = 24;
const FIRST: u32 = (1 << UNITS_SHIFT) - 1;

impl Out {
    /// `chunk`, which was just taken from an open table.
    fn of(chunk: Chunk, records: &TableRecords) -> Self {
        let (record, unit) = (records.get(chunk.table()), chunk.first % TABLE_UNITS);
        // Nothing is behind it. Written first: that brings the cache line here, once, for the generation too.
        record.link(unit).store(0, Ordering::Relaxed);
        let generation = match record.generation(unit) {
            Idle::FIRST => 0,
            _ => GENERATION,
        };
        Self(IS_OUT | generation | chunk.units << UNITS_SHIFT | chunk.first)
    }

    const fn from_link(link: u32) -> Option<Self> {
        if link & IS_OUT == 0 { None } else { Some(Self(link)) }
    }

    pub(super) const fn chunk(self) -> Chunk {
        let units = (self.0 & !IS_OUT & !GENERATION) >> UNITS_SHIFT;
        Chunk { first: self.0 & FIRST, units }
    }

    /// Whether all pages of the chunk are spent. If so, its generation ends: the caller removes it from its list.
    fn ends_spent<P: Platform>(self, Lookup { platform, records, tables }: Lookup<'_, P>) -> bool {
        let generation = if self.0 & GENERATION == 0 { Idle::FIRST } else { Idle::FIRST.next() };
        let chunk = self.chunk();
        let (entries, pages) = (tables.linked(chunk.table()), chunk.pages());
        // The last page first: mostly it is the last to be spent.
        if !page_states::is_spent(&entries[pages.end - 1], generation) {
            platform.probe(Step::TableScan { entries: 1 });
            return false;
        }
        let (is_over, looks) = match chunk.units {
            // Its mappings are long: skips what is not their first page.
            TABLE_UNITS => {
                let (unspent, looks) = page_states::first_unspent(entries, pages.start, pages.end, generation);
                (unspent >= pages.end, looks)
            }
            _ => (page_states::all_are_spent(&entries[pages.clone()], generation), pages.len()),
        };
        platform.probe(Step::TableScan { entries: looks });
        if !is_over {
            return false;
        }
        // Before the link is read, so that the cache line comes once.
        records.get(chunk.table()).end_generation(chunk.mask());
        true
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
    first: u32,
    last: u32,
    len: u32,
}

impl OutList {
    fn first(&self) -> Option<Out> {
        Out::from_link(self.first)
    }

    /// Adds a chunk behind which nothing is.
    fn push_back(&mut self, records: &TableRecords, out: Out) {
        match Out::from_link(self.last) {
            Some(last) => set_next(records, last, Some(out)),
            None => self.first = out.0,
        }
        self.last = out.0;
        self.len += 1;
    }

    /// Removes the chunks up to `last`, of which there are `count`.
    fn remove_up_to(&mut self, records: &TableRecords, last: Out, count: u32) {
        self.first = next(records, last).map_or(0, |next| next.0);
        self.len -= count;
        if self.first == 0 {
            self.last = 0;
        }
    }

    /// Takes the first chunk, `first`, if it is spent.
    fn take_first<P: Platform>(&mut self, lookup: Lookup<'_, P>, first: Out) -> Option<Out> {
        if !first.ends_spent(lookup) {
            return None;
        }
        self.remove_up_to(lookup.records, first, 1);
        Some(first)
    }

    /// Looks at the first chunk, and takes it if it is spent. Otherwise moves it to the back.
    fn turn<P: Platform>(&mut self, lookup: Lookup<'_, P>) -> Option<Out> {
        let first = self.first()?;
        let spent = self.take_first(lookup, first);
        if spent.is_none() {
            self.remove_up_to(lookup.records, first, 1);
            set_next(lookup.records, first, None);
            self.push_back(lookup.records, first);
        }
        spent
    }
}

// Relaxed, both: the line's lock orders the accesses while the chunk is out, and what happens between `give_back` and
// the next `take` before and after.
fn next(records: &TableRecords, out: Out) -> Option<Out> {
    Out::from_link(link(records, out).load(Ordering::Relaxed))
}

fn set_next(records: &TableRecords, out: Out, next: Option<Out>) {
    link(records, out).store(next.map_or(0, |next| next.0), Ordering::Relaxed);
}

fn link(records: &TableRecords, out: Out) -> &AtomicU32 {
    let chunk = out.chunk();
    records.get(chunk.table()).link(chunk.first % TABLE_UNITS)
}

/// The chunks that are out to one stream.
#[derive(Default)]
struct Stream {
    /// In the order in which they were taken.
    young: OutList,
    /// Those that a younger chunk has overtaken: stragglers are in them.
    late: OutList,
    /// The chunk of `young`, behind the first one, that was looked at last, or 0; and how many are up to there.
    looked: u32,
    looked_len: u32,
}

impl Stream {
    /// Takes a spent chunk: the oldest one or, if it is not spent, the next one that was not looked at. Those before
    /// that one are late then.
    fn oldest<P: Platform>(&mut self, lookup: Lookup<'_, P>) -> Option<Out> {
        let records = lookup.records;
        let first = self.young.first()?;
        let (before, len) = Out::from_link(self.looked).map_or((first, 1), |looked| (looked, self.looked_len));
        (self.looked, self.looked_len) = (0, 0);
        if let Some(first) = self.young.take_first(lookup, first) {
            return Some(first);
        }
        let at = next(records, before)?;
        if !at.ends_spent(lookup) {
            (self.looked, self.looked_len) = (at.0, len + 1);
            return None;
        }
        self.young.remove_up_to(records, at, len + 1);
        set_next(records, before, None);
        match Out::from_link(self.late.last) {
            Some(last) => set_next(records, last, Some(first)),
            None => self.late.first = first.0,
        }
        self.late.last = before.0;
        self.late.len += len;
        Some(at)
    }
}

/// The number of the stream of cursor `word` of a line.
fn stream_of(word: usize) -> usize {
    word.min(STREAMS - 1)
}

/// The number of the list of that stream's chunks that are not late.
pub(super) fn young_list(word: usize) -> usize {
    2 * stream_of(word)
}

/// The chunks that are out to the streams of a line.
#[derive(Default)]
pub(super) struct OutChunks([Stream; STREAMS]);

impl OutChunks {
    /// Adds a chunk that the stream of cursor `word` has taken. Takes spent ones of that stream: mostly as many as it
    /// adds, sometimes one more, and one that is late, so that it never has many that it could give back.
    pub(super) fn add<P: Platform>(
        &mut self,
        lookup: Lookup<'_, P>,
        word: usize,
        chunk: Chunk,
    ) -> [Option<Out>; GIVEN_BACK_MAX] {
        plain(self, true);
        let own = stream_of(word);
        self.push(lookup, own, chunk);
        let stream = &mut self.0[own];
        // A stream of whole tables looks before it takes one.
        let first = if chunk.units == TABLE_UNITS { None } else { stream.oldest(lookup) };
        let is_more = first.is_some() && chunk.first.is_multiple_of(TABLE_UNITS / 2);
        let second = if is_more { stream.oldest(lookup) } else { None };
        [first, second, stream.late.turn(lookup)]
    }

    fn push<P: Platform>(&mut self, Lookup { records, .. }: Lookup<'_, P>, stream: usize, chunk: Chunk) {
        self.0[stream].young.push_back(records, Out::of(chunk, records));
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
