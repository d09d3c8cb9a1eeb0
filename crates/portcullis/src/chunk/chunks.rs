//! Chunks: runs of pages from which streams allocate consecutive addresses.
//!
//! A stream is one direction of a ring or, if the driver names no ring, of a CPU. It has a current chunk and a cursor
//! in it, so consecutive requests get consecutive pages. Taking pages is one addition to a word; the word of a CPU's
//! stream is not touched by any other CPU. The tables themselves record what is free ([`page_states`]). The next chunk
//! comes from the [`ChunkSource`]. Large requests of a stream have a cursor of their own, whose chunks are whole
//! tables.
//!
//! ```text
//! cursor  63             32 31              0
//!        +-----------------+-----------------+
//!        | end of chunk    | next page       |   both count the pages of all tables
//!        +-----------------+-----------------+
//! ```
//!
//! Once the next page has reached the end, the stream needs another chunk. The addition comes first; then the previous
//! value is checked. The first request that overruns the chunk spends its unused tail. Every request that the chunk
//! could not serve looks for the next chunk, which happens once in 64 pages.

use super::chunk_source::{ChunkSource, Ground, Next};
use super::geometry::{CHUNK_PAGES, TABLE_PAGES, TABLE_UNITS, TABLES_MAX, UNIT_PAGES};
use super::open_tables::{Chunk, Wanted};
use super::page_states::{self, MAPPING_PAGES_MAX};
use crate::address::IovaRange;
use crate::error::{NewDomainError, NoMemory};
use crate::in_place::in_place;
use crate::iova::IovaRequest;
use crate::platform::memory::{push_within, try_reserve};
use crate::platform::{CPU_WORDS, Context, CpuWords, Deadline, Padded, Platform, Step, Walk, WordLines};
use crate::proof::Proof;
use crate::request::{Access, Stream};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{ENTRIES, Entry, Walker};
use core::mem::MaybeUninit;

/// A quarter of a 16-page chunk. Larger requests need a 64-page chunk.
const SMALL_PAGES_MAX: u64 = UNIT_PAGES.div_ceil(4);
/// Half a chunk. Larger requests have cursors of their own, whose chunks are whole tables.
const MIDDLE_PAGES_MAX: u64 = CHUNK_PAGES / 2;
/// The largest request that chunks serve, in pages.
pub const CHUNKED_PAGES_MAX: u64 = if TABLE_PAGES < MAPPING_PAGES_MAX { TABLE_PAGES } else { MAPPING_PAGES_MAX };
/// The number of cursor lines for rings. Rings whose numbers are equal modulo this share one.
const RINGS: usize = if cfg!(loom) { 1 } else { 128 };
/// The smallest number of tables for which chunks are worthwhile.
const TABLES_MIN: u64 = if cfg!(loom) { 1 } else { 64 };
/// The first page if there are no chunks: so far beyond all addresses that none is near it.
const NOWHERE: u64 = 1 << 63;
/// A cursor that has no chunk yet: at the end of a chunk of no pages.
const NO_CHUNK: u64 = 0;

/// Pages that were taken. No other caller gets them until they are spent.
#[derive(Clone, Copy)]
pub(crate) struct Taken<'c> {
    /// The pages.
    pub(crate) range: IovaRange,
    /// Their entries.
    pub(crate) entries: &'c [Entry],
}

/// The chunks of a domain.
pub(crate) struct Chunks<P: Platform> {
    /// The first page of table 0.
    first_pfn: u64,
    cpus: P::CpuWords,
    rings: WordLines,
    source: ChunkSource<P>,
}

/// The entries of `run` among those from its first page on.
#[inline(always)]
fn of_run(entries: &[Entry], run: IovaRange) -> &[Entry] {
    &entries[..entries.len().min(run.pages() as usize)]
}

const END_SHIFT: u32 = 32;

/// The end of the chunk that a cursor is in, and the next page.
#[inline(always)]
const fn split(cursor: u64) -> (u64, u64) {
    (cursor >> END_SHIFT, cursor & ((1 << END_SHIFT) - 1))
}

/// A cursor at the first page of `chunk`.
const fn begin(chunk: Chunk) -> u64 {
    let (unit, table) = ((chunk.first % TABLE_UNITS) as u64, (chunk.first / TABLE_UNITS) as u64);
    let first = table * ENTRIES as u64 + unit * UNIT_PAGES;
    (first + chunk.units as u64 * UNIT_PAGES) << END_SHIFT | first
}

impl<P: Platform> Chunks<P> {
    /// Chunks in the upper half of the addresses below `2^width`, except for the ranges in `reserved`, each given as
    /// its first page number and one past its last. If too few addresses are left, the result [is
    /// empty](Self::is_none).
    ///
    /// They are made in `to`, which is uninitialized if that fails.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`].
    pub(crate) fn new_in<'t>(
        to: &'t mut MaybeUninit<Self>,
        platform: &P,
        width: u8,
        reserved: &[(u64, u64)],
    ) -> Result<&'t mut Self, NewDomainError> {
        let first_pfn = 1u64 << (u32::from(width) - 1 - crate::PAGE_SHIFT);
        let numbers = (first_pfn / ENTRIES as u64).min(TABLES_MAX);
        let (first_pfn, numbers) = if numbers < TABLES_MIN { (NOWHERE, 0) } else { (first_pfn, numbers) };
        let mut tables = try_reserve(platform, Context::MaySleep, reserved.len())?;
        let number = |pfn: u64| pfn.saturating_sub(first_pfn) / ENTRIES as u64;
        let above = reserved.iter().filter(|(_, end)| *end > first_pfn);
        above.for_each(|(first, end)| push_within(&mut tables, (number(*first), number(end - 1) + 1)));
        Ok(in_place!(to => Self {
            first_pfn: first_pfn,
            cpus: platform.cpu_words(NO_CHUNK)?,
            rings: WordLines::with_lines(platform, RINGS, NO_CHUNK)?,
            source <- |to| {
                ChunkSource::new_in(to, platform, numbers as u32, tables, cpus.lines() + RINGS, cpus.lines())
            },
        }))
    }

    /// Whether there is no room for chunks.
    pub(crate) const fn is_none(&self) -> bool {
        self.first_pfn == NOWHERE
    }

    /// Whether `range` may lie in a chunk, because chunks have pages that lie as high.
    #[inline(always)]
    pub(crate) const fn reach(&self, range: IovaRange) -> bool {
        range.first_pfn() >= self.first_pfn
    }

    /// Whether the addresses of `range` are held for chunks.
    pub(crate) fn hold(&self, range: IovaRange) -> bool {
        self.reach(range) && self.source.tables.holds(range.first_pfn() - self.first_pfn)
    }

    /// Takes the next pages of the stream that `request` belongs to, at most [`CHUNKED_PAGES_MAX`]. `None` if no table
    /// can be added, because there are no more addresses for it.
    ///
    /// The caller must write the pages and, in the end, spend them.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(always)]
    pub(crate) fn take<'g>(
        &self,
        platform: &P,
        request: &IovaRequest,
        ground: impl Ground<'g>,
    ) -> Result<Option<Taken<'_>>, NoMemory> {
        let direction = request.access as usize;
        let (word, wanted) = if request.pages <= SMALL_PAGES_MAX {
            (direction, Wanted::Small)
        } else if request.pages <= MIDDLE_PAGES_MAX {
            (direction, Wanted::Chunk)
        } else {
            (direction + 3, Wanted::Table)
        };
        loop {
            platform.probe(Step::ChunkTake);
            let (cursor, before) = self.advance(platform, request.stream, word, request.pages);
            let (end, next) = split(before);
            if next + request.pages <= end {
                return Ok(Some(self.taken(next, request.pages)));
            }
            if !self.replace_chunk(platform, cursor, before, wanted, ground)? {
                return Ok(None);
            }
        }
    }

    /// Takes pages for one-page mappings: all that the current chunk of `stream` has left, but at most `pages`. `None`
    /// if no table can be added.
    ///
    /// The caller must write the pages and, in the end, spend them.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(always)]
    pub(crate) fn take_pages<'g>(
        &self,
        platform: &P,
        (access, stream): (Access, Stream),
        pages: u64,
        ground: impl Ground<'g>,
    ) -> Result<Option<Taken<'_>>, NoMemory> {
        loop {
            platform.probe(Step::ChunkTake);
            let (cursor, before) = self.advance(platform, stream, access as usize, pages);
            let (end, next) = split(before);
            if next < end {
                // The request that overruns the chunk gets all of its remaining pages.
                return Ok(Some(self.taken(next, pages.min(end - next))));
            }
            if !self.replace_chunk(platform, cursor, before, Wanted::Small, ground)? {
                return Ok(None);
            }
        }
    }

    /// Advances a stream's cursor. Returns its number and previous value. After a migration the number may be another
    /// CPU's: that cursor is replaced only if it too is at its end; the next request replaces the advanced one.
    #[inline(always)]
    fn advance(&self, platform: &P, stream: Stream, word: usize, pages: u64) -> (usize, u64) {
        match stream {
            Stream(None) => {
                let (line, before) = platform.add_here(&self.cpus, word, pages);
                (line * CPU_WORDS + word, before)
            }
            Stream(Some(ring)) => {
                let line = ring as usize % RINGS;
                // Any CPU may serve a ring. Acquire: as in `add_here`.
                let before = self.rings.word(line, word).fetch_add(pages, Ordering::Acquire);
                ((self.cpus.lines() + line) * CPU_WORDS + word, before)
            }
        }
    }

    /// The line and word of cursor number `cursor` among the cursors of CPUs or of rings, and whether it is one of a
    /// ring.
    fn word_of(&self, cursor: usize) -> (usize, usize, bool) {
        let (line, word, cpus) = (cursor / CPU_WORDS, cursor % CPU_WORDS, self.cpus.lines());
        if line < cpus { (line, word, false) } else { (line - cpus, word, true) }
    }

    #[inline(always)]
    fn taken(&self, next: u64, pages: u64) -> Taken<'_> {
        let (number, index) = ((next / ENTRIES as u64) as u32, next as usize % ENTRIES);
        Taken {
            range: IovaRange::of(self.first_pfn + next, pages),
            entries: &self.source.tables.linked(number)[index..index + pages as usize],
        }
    }

    /// Spends the unused tail of a chunk; `before` is the cursor value before the overrun.
    fn give_up(&self, platform: &P, before: u64) {
        let (end, next) = split(before);
        if next < end {
            let rest = self.taken(next, end - next).entries;
            platform.probe(Step::ChunkClear { entries: rest.len() });
            page_states::spend_unused(rest);
        }
    }

    /// Spends the unused tail of the chunk of cursor number `cursor`, whose value was `before`, and gives the cursor
    /// the next chunk. Returns false if there is none because no table can be added.
    #[cold]
    fn replace_chunk<'g>(
        &self,
        platform: &P,
        cursor: usize,
        before: u64,
        wanted: Wanted,
        ground: impl Ground<'g>,
    ) -> Result<bool, NoMemory> {
        self.give_up(platform, before);
        let position = self.position(cursor);
        let replace = |now, new| self.exchange(platform, cursor, now, new);
        let end = split(before).0;
        // Relaxed: it only tells whether anything is left to do. If not, another request of the stream has replaced
        // the chunk.
        let at_end =
            || Some(position.load(Ordering::Relaxed)).filter(|now| split(*now).0 == end && split(*now).1 >= end);
        let Some(mut now) = at_end() else { return Ok(true) };
        // If there is no chunk, the cursor is set back to the end: each request that found nothing has added to it,
        // and these additions must never carry into the upper half. If the exchange fails, the next request does so.
        let next = match self.source.next(platform, cursor, wanted, || at_end().is_some(), ground) {
            Ok(Next::Chunk(next)) => next,
            Ok(Next::NotNeeded) => return Ok(true),
            none => {
                replace(now, end << END_SHIFT | end);
                return none.map(|_| false);
            }
        };
        while !replace(now, begin(next)) {
            match at_end().filter(|then| *then != now) {
                // The addition of another request has overrun the chunk meanwhile.
                Some(then) => now = then,
                // Another request of the stream was faster, or this is no longer the CPU of the cursor.
                None => {
                    self.give_up(platform, begin(next));
                    break;
                }
            }
        }
        Ok(true)
    }

    fn position(&self, cursor: usize) -> &AtomicU64 {
        let (line, word, is_ring) = self.word_of(cursor);
        if is_ring { self.rings.word(line, word) } else { self.cpus.word(line, word) }
    }

    /// Changes a cursor from `old` to `new`. Returns whether it did so: the cursor was not at `old`, or belongs to
    /// another CPU than this one.
    fn exchange(&self, platform: &P, cursor: usize, old: u64, new: u64) -> bool {
        let (line, word, is_ring) = self.word_of(cursor);
        match is_ring {
            false => platform.exchange_at(&self.cpus, line, word, old, new),
            // Release: publishes the table together with the chunk. Acquire: the next caller may spend the rest of it.
            true => {
                let position = self.rings.word(line, word);
                position.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }
        }
    }

    /// Gives up the chunks of all streams, except perhaps those of other CPUs, so that they come back once their
    /// mappings are gone.
    #[inline(never)]
    fn retire_all(&self, platform: &P) {
        let cursors = self.source.lines().flat_map(|line| line * CPU_WORDS..(line + 1) * CPU_WORDS);
        for cursor in cursors {
            // Relaxed: the exchange acquires the chunk.
            let before = self.position(cursor).load(Ordering::Relaxed);
            let (end, next) = split(before);
            if next < end && self.exchange(platform, cursor, before, end << END_SHIFT | end) {
                self.give_up(platform, before);
            }
        }
    }

    /// Lends all addresses of which nothing is out: calls `let_go` for each table of them. Returns whether there were
    /// any.
    #[cold]
    #[inline(never)]
    pub(crate) fn lend(&self, platform: &P, let_go: impl Fn(u32)) -> bool {
        // One after the other, so that their stack frames do not add up.
        self.retire_all(platform);
        self.source.close_all();
        self.source.sweep(platform);
        self.source.lend(let_go)
    }

    /// The first page that table `number` translates.
    pub(crate) const fn table_pfn(&self, number: u32) -> u64 {
        self.first_pfn + number as u64 * ENTRIES as u64
    }

    /// Sees to it that `tables` tables can be added without memory except for their pages.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn reserve<'g>(&self, platform: &P, tables: usize, ground: impl Ground<'g>) -> Result<(), NoMemory> {
        self.source.reserve(platform, tables, ground)
    }

    /// Gives back a number from [`unlink`](Self::unlink) after its table page was freed.
    pub(crate) fn give_number_back(&self, number: u32, _proof: &Proof) {
        self.source.give_number_back(number);
    }

    /// Unlinks a table that was not needed since the last sweep. From now on only walks that had begun before may find
    /// it.
    pub(crate) fn unlink(&self) -> Option<u32> {
        self.source.unlink()
    }

    /// Finds the tables that are spent.
    pub(crate) fn sweep(&self, platform: &P) {
        self.source.sweep(platform);
    }

    /// When the next sweep of the tables is due.
    pub(super) fn sweep_due(&self) -> &Deadline {
        &self.source.sweep_due
    }

    /// Whether there are more tables than the reserve.
    pub(crate) fn is_large(&self) -> bool {
        self.source.is_large()
    }

    /// Whether the next sweep will find a table to free, unless the table is needed before that.
    pub(crate) fn has_superfluous(&self) -> bool {
        self.source.has_superfluous()
    }

    /// The entries from page `pfn` to the end of its table. Nothing is mapped in them if there is no table.
    #[inline(always)]
    pub(crate) fn entries<'w>(&'w self, walk: Walk<'w>, pfn: u64) -> &'w [Entry] {
        // A page below the first one wraps to one beyond the last table.
        self.source.tables.entries(walk, pfn.wrapping_sub(self.first_pfn))
    }

    /// Makes the cleared entries of a run of mappings visible. Each cache line is flushed once.
    #[inline]
    pub(crate) fn make_visible(&self, walker: Walker<'_, P>, run: IovaRange) {
        self.with_run(walker.platform(), run, |entries| page_states::make_visible(walker, entries));
    }

    /// Spends a run of cleared mappings.
    #[inline]
    pub(crate) fn spend(&self, platform: &P, run: IovaRange, proof: &Proof) {
        self.with_run(platform, run, |entries| page_states::spend(platform, entries, proof));
    }

    /// Does the same if the addresses of `run` are held for chunks. Returns whether they are.
    #[inline(always)]
    pub(crate) fn spend_if_held(&self, platform: &P, run: IovaRange, proof: &Proof) -> bool {
        self.reach(run)
            && Walk::on(platform, |walk| {
                let entries = self.source.tables.held_entries(walk, run.first_pfn() - self.first_pfn);
                let spend = |entries| page_states::spend(platform, of_run(entries, run), proof);
                entries.map(spend).is_some()
            })
    }

    /// Runs `act` on the entries of a run of pages, which lie in one table. This is done in a walk: a mapping that is
    /// not spent keeps its table, but if two unmaps raced for a mapping, the other one may have spent it by now.
    #[inline(always)]
    fn with_run(&self, platform: &P, run: IovaRange, act: impl FnOnce(&[Entry])) {
        Walk::on(platform, |walk| act(of_run(self.entries(walk, run.first_pfn()), run)));
    }

    /// The number of mappings that are not spent. Exact only while no map or unmap is running.
    pub(crate) fn live(&self, platform: &P) -> usize {
        self.source.live(platform)
    }

    /// The memory of the records, in bytes.
    pub(crate) fn record_bytes(&self) -> usize {
        let words = (self.cpus.lines() + RINGS) * size_of::<Padded<[u64; CPU_WORDS]>>();
        words + self.source.bytes()
    }
}

// The words of a line are in the order of `Access`.
const _: () = {
    use crate::request::Access;
    assert!(Access::DeviceReads as usize == 0 && Access::DeviceReadsAndWrites as usize == 2)
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_place::built;
    use crate::platform::fake::FakeHost;
    use crate::request::{Access, Lifetime};
    use crate::table::Frame;
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    /// Tables that are added to nothing.
    impl<'f> Ground<'f> for &'f [Box<Frame>] {
        fn hold(self, _: u32) -> Result<bool, NoMemory> {
            Ok(true)
        }

        fn grow(self, number: u32) -> Result<&'f Frame, NoMemory> {
            Ok(&self[number as usize])
        }
    }

    fn frames(count: usize) -> Vec<Box<Frame>> {
        (0..count).map(|_| Box::new(core::array::from_fn(|_| Entry::new(0)))).collect()
    }

    /// S7: the memory reported for records is the memory in use: a fixed part for each line of cursors and each log,
    /// and blocks of records for the tables.
    #[test]
    fn records_are_counted() {
        use crate::chunk::table_record::TableRecord;
        let host = FakeHost::default();
        let chunks = built(|to| Chunks::new_in(to, &host, 28, &[])).expect("memory");
        let frames = frames(17);
        let request = IovaRequest {
            pages: TABLE_PAGES,
            access: Access::DeviceWrites,
            stream: Stream(None),
            lifetime: Lifetime::Transient,
        };
        let take = || chunks.take(&host, &request, &*frames).expect("memory").expect("room");
        let lines = host.cpus() as usize + RINGS;
        // The cursors, their chunks, the rates of the streams, and the number of each line.
        let of_lines = lines * (3 * size_of::<Padded<[u64; CPU_WORDS]>>() + size_of::<u64>());
        // The open table, the ready ones and the rates of each log.
        let of_logs = (1 + lines.div_ceil(4)) * (2 * size_of::<Padded<u64>>() + 64);
        let fixed = of_lines + of_logs + chunks.source.tables.bytes();
        assert_eq!(chunks.record_bytes(), fixed);
        // The first table brings a directory of records and the first block of them.
        let first = 128 * size_of::<usize>() + 16 * size_of::<TableRecord>();
        (0..16).for_each(|_| _ = take());
        assert_eq!(chunks.record_bytes(), fixed + first);
        take();
        assert_eq!(chunks.record_bytes(), fixed + first + 16 * size_of::<TableRecord>());
    }

    /// When no further table may be added, every request still adds to its cursor and fails. The additions must never
    /// carry into the end of the chunk, however many there are.
    #[test]
    fn vain_additions_never_add_up() {
        let host = FakeHost::default();
        let chunks = built(|to| Chunks::new_in(to, &host, 28, &[])).expect("memory");
        // Nothing is spent, so all tables fill up. Ring 2 makes its first request when no chunk is left.
        let frames = frames(64);
        let take = |ring, pages| {
            let stream = Stream(ring);
            let request = IovaRequest { pages, access: Access::DeviceWrites, stream, lifetime: Lifetime::Transient };
            chunks.take(&host, &request, &*frames).expect("memory").is_some()
        };
        let requests = [(None, 1), (Some(1), CHUNKED_PAGES_MAX), (Some(1), 1), (None, CHUNKED_PAGES_MAX)];
        // At first one of each, then as many as there is room for.
        for at_most in [1, usize::MAX] {
            for (ring, pages) in requests {
                let taken = (0..at_most).take_while(|_| take(ring, pages)).count();
                assert!(taken == at_most || at_most > 1);
            }
        }
        for ring in [None, Some(1), Some(2)] {
            for pages in [1, MIDDLE_PAGES_MAX, CHUNKED_PAGES_MAX] {
                let word = Access::DeviceWrites as usize + if pages == CHUNKED_PAGES_MAX { 3 } else { 0 };
                let cursor = match ring {
                    None => chunks.cpus.word(0, word),
                    Some(ring) => chunks.rings.word(ring as usize, word),
                };
                let (end, _) = split(cursor.load(Ordering::Relaxed));
                for _ in 0..100 {
                    assert!(!take(ring, pages), "all is taken");
                    assert_eq!(split(cursor.load(Ordering::Relaxed)), (end, end), "{ring:?}, {pages} pages");
                }
            }
        }
    }
}
