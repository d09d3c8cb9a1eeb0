//! The record of a leaf table: which of its units have been given back, and when its turn comes.
//!
//! ```text
//! state  63          48 47        40 39        32 31               0
//!        +-------------+------------+------------+------------------+
//!        | log         | seen       | due        | given back       |   a bit for each unit
//!        +-------------+------------+------------+------------------+
//! ```
//!
//! A chunk is *out* from when its table is opened until the stream that took it gives it back, spent. A table is
//! *ready* when so many units have been given back that `due` has reached [`READY`]. Each unit adds one to it, in the
//! step that sets its bit. The caller whose chunk makes the table ready adds it to the ready tables of `log`, and to no
//! other list. From then until it is opened it is in exactly one list: nothing but [`open`](TableRecord::open) and
//! [`call_in`](TableRecord::call_in) changes `due` otherwise.

use super::geometry::{CHUNK_UNITS, TABLE_UNITS, unit_entries};
use super::page_states::{self, Idle};
use crate::platform::{Platform, Step};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::Frame;

/// All units of a table.
const ALL: u32 = u32::MAX >> (u32::BITS - TABLE_UNITS);
/// The number of units in a chunk of most streams, see [`TableRecord::link`].
const GROUP: usize = CHUNK_UNITS as usize;

/// What is known of a table, apart from its page. The links of most chunks share the first cache line with the state.
#[repr(C, align(64))]
pub(super) struct TableRecord {
    state: AtomicU64,
    /// The generation that each unit is in, of two, as a bit. Entries do not tell: an unmap that has raced with another
    /// may have left an older one in an entry.
    generations: AtomicU32,
    /// The neighbours in the list that the table is in, each as its number and 1; 0 if there is none. Changed under the
    /// lock of that list.
    pub(super) before: AtomicU32,
    pub(super) after: AtomicU32,
    links: [AtomicU32; TABLE_UNITS as usize],
}

/// The value of `due` from which a table is ready. So many units and as many again do not overflow the field, and one
/// bit tells.
const READY: u32 = 64;
const _: () = assert!(READY.is_power_of_two() && READY >= TABLE_UNITS && READY + TABLE_UNITS < 2 * READY);

/// The value of `state`.
#[derive(Clone, Copy)]
struct State(u64);

impl State {
    const fn new(given_back: u32, due: u32, log: u64) -> Self {
        Self(log << 48 | (due as u64) << 32 | given_back as u64)
    }

    /// No unit is out.
    const SPENT: Self = Self::new(ALL, READY, 0);

    const fn given_back(self) -> u32 {
        self.0 as u32
    }

    const fn due(self) -> u32 {
        (self.0 >> 32) as u8 as u32
    }

    /// The number of units that had been given back when the table was looked at last.
    const fn seen(self) -> u32 {
        (self.0 >> 40) as u8 as u32
    }

    const fn log(self) -> u64 {
        self.0 >> 48
    }

    const fn is_ready(self) -> bool {
        self.due() & READY != 0
    }
}

impl TableRecord {
    /// The record of a table whose page is all zero. No unit of it is out.
    pub(super) fn new() -> Self {
        let none = || AtomicU32::new(0);
        Self {
            state: AtomicU64::new(State::SPENT.0),
            generations: none(),
            before: none(),
            after: none(),
            links: core::array::from_fn(|_| none()),
        }
    }

    /// Makes it the record of a new table under the same number.
    pub(super) fn renew(&self) {
        // Relaxed: the lists that it goes through order this.
        self.state.store(State::SPENT.0, Ordering::Relaxed);
        self.generations.store(0, Ordering::Relaxed);
    }

    /// The link from the chunk that begins at `unit` to the next one of its stream. Only the stream that the chunk is
    /// out to uses it.
    #[inline]
    pub(super) fn link(&self, unit: u32) -> &AtomicU32 {
        const LINKS: usize = TABLE_UNITS as usize;
        // Those of the first units of chunks come first: `unit % GROUP * (LINKS / GROUP) + unit / GROUP`.
        let unit = unit as usize;
        &self.links[(unit * (LINKS / GROUP) + unit / GROUP) % LINKS]
    }

    /// The generation that `unit`, which is out, is in.
    #[inline]
    pub(super) fn generation(&self, unit: u32) -> Idle {
        // Relaxed: it was written before the unit was handed out.
        if self.generations.load(Ordering::Relaxed) & 1 << unit == 0 { Idle::FIRST } else { Idle::FIRST.next() }
    }

    /// Ends the generation that `units` are in. All of them are out to the caller, and spent.
    #[inline]
    pub(super) fn end_generation(&self, units: u32) {
        // Relaxed: published when they are given back.
        self.generations.fetch_xor(units, Ordering::Relaxed);
    }

    /// Gives back the `count` units of `units`, whose pages are fresh. Returns the log whose ready tables the caller
    /// must add the table to, if this has made it ready.
    #[inline]
    pub(super) fn give_back(&self, units: u32, count: u32) -> Option<usize> {
        debug_assert_eq!(units.count_ones(), count);
        let more = State::new(units, count, 0).0;
        // Release: the caller that opens the table knows that the invalidations of all these units have completed, and
        // has all accesses to their entries and links behind it. Acquire: so does the one that adds it to a list.
        // An addition, because x86 has no OR that returns the old value: each of these bits is clear, and stays so,
        // because its unit is out to the caller alone.
        let was = State(self.state.fetch_add(more, Ordering::AcqRel));
        debug_assert_eq!(was.given_back() & units, 0, "given back twice");
        (State(was.0 + more).is_ready() && !was.is_ready()).then_some(was.log() as usize)
    }

    /// Makes the table ready before its turn, if it is not ready and some of it is given back, but nothing since it was
    /// looked at last: it has stragglers. With `at_once`, does not wait for a second look. Returns whether it has done
    /// so. Then the caller alone has the table, and adds it to a list.
    pub(super) fn call_in(&self, at_once: bool) -> bool {
        let look = |state| {
            let state = State(state);
            let units = state.given_back().count_ones();
            let due = if at_once || state.seen() == units { READY } else { state.due() };
            (!state.is_ready() && units > 0)
                .then(|| State::new(state.given_back(), due, state.log()).0 | u64::from(units) << 40)
        };
        // Acquire: the list that the table was in before it was opened has been left. `open` acquires what was given
        // back.
        let was = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, look);
        was.is_ok_and(|was| look(was).is_some_and(|is| State(is).is_ready()))
    }

    /// Whether a chunk of `units` units can be handed out.
    pub(super) fn fits(&self, units: u32) -> bool {
        runs(self.given_back(), units) != 0
    }

    /// Whether no unit is out.
    pub(super) fn is_spent(&self) -> bool {
        // Acquire: all who gave back a unit are done with the table. The lock of its list orders only the one that made
        // it ready.
        State(self.state.load(Ordering::Acquire)).given_back() == ALL
    }

    /// The log that it was opened for last.
    pub(super) fn log(&self) -> usize {
        // Relaxed, and in `given_back`: a hint. `open` acquires the units that it takes.
        State(self.state.load(Ordering::Relaxed)).log() as usize
    }

    pub(super) fn given_back(&self) -> u32 {
        State(self.state.load(Ordering::Relaxed)).given_back()
    }

    /// Opens the table, which the caller has just taken out of a list, for chunks of `units` units of `log`. Returns a
    /// bit for the first unit of each chunk. All of these are out from now on, and their pages are fresh.
    ///
    /// The table becomes ready again when three quarters of them have come back. By the time its turn comes, the
    /// others mostly have, too; those that have not are left out, so a straggler keeps a chunk and not a table.
    pub(super) fn open<P: Platform>(&self, platform: &P, entries: &Frame, log: usize, units: u32) -> u32 {
        let mut firsts = 0;
        let open = |state| {
            let given_back = State(state).given_back();
            firsts = runs(given_back, units);
            let due = READY - (firsts.count_ones() * units * 3 / 4).max(1);
            Some(State::new(given_back & !chunks(firsts, units), due, log as u64).0)
        };
        // Acquire: see `give_back`. Release: the list that the table was in has been left, see `call_in`.
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open);
        let out = chunks(firsts, units);
        let generations = self.generations.load(Ordering::Relaxed);
        let odd = (generations ^ chunks(generations & firsts, units)) & out;
        if odd != 0 {
            self.even_out(platform, entries, odd);
        }
        firsts
    }

    /// Brings units into the generation of the first unit of their chunk: a mapping may extend over several units, and
    /// takes its generation from its first page. They differ if they were handed out in smaller chunks before.
    #[cold]
    #[inline(never)]
    fn even_out<P: Platform>(&self, platform: &P, table: &Frame, odd: u32) {
        for unit in (0..TABLE_UNITS).filter(|unit| odd & 1 << unit != 0) {
            let entries = unit_entries(table, unit);
            platform.probe(Step::ChunkClear { entries: entries.len() });
            page_states::spend_unused(entries);
        }
        // Relaxed: published by the word of the open table.
        self.generations.fetch_xor(odd, Ordering::Relaxed);
    }
}

/// The units that begin an aligned run of `length` units, all of which are in `units`.
pub(super) const fn runs(mut units: u32, length: u32) -> u32 {
    if length == TABLE_UNITS {
        return (units == ALL) as u32;
    }
    let mut covered = 1;
    while covered < length {
        units &= units >> covered;
        covered *= 2;
    }
    // Keeps every `length`th bit.
    units & (u32::MAX / ((1u64 << length) - 1) as u32)
}

/// All units of the chunks of `length` units that begin at `firsts`.
pub(super) const fn chunks(firsts: u32, length: u32) -> u32 {
    (firsts as u64 * ((1u64 << length) - 1)) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::geometry::SLOW_UNITS;
    use super::*;
    use crate::entry::Entry;
    use crate::platform::fake::FakeHost;

    /// A table that is open for chunks of so many units, and all of them.
    fn opened(units: u32) -> (TableRecord, std::vec::Vec<u32>) {
        let (host, record) = (FakeHost::default(), TableRecord::new());
        let entries: &Frame = &core::array::from_fn(|_| Entry::new(0));
        let firsts = record.open(&host, entries, 1, units);
        let all = (0..TABLE_UNITS / units).map(|at| chunks(1 << (at * units), units));
        assert_eq!(firsts, runs(ALL, units));
        (record, all.collect())
    }

    /// It becomes ready once, with three quarters of it given back.
    #[test]
    fn a_table_is_ready_at_three_quarters() {
        for units in [SLOW_UNITS, CHUNK_UNITS, TABLE_UNITS] {
            let (record, all) = opened(units);
            let made_ready: std::vec::Vec<_> = all.iter().map(|chunk| record.give_back(*chunk, units)).collect();
            let at = (all.len() * 3).div_ceil(4) - 1;
            let expected = (0..all.len()).map(|chunk| (chunk == at).then_some(1));
            assert!(made_ready.iter().copied().eq(expected), "{units}: {made_ready:?}");
        }
    }

    /// Only a table in which nothing moves between two looks has stragglers, and it is called in once.
    #[test]
    fn a_table_is_called_in_when_nothing_moves() {
        let (record, all) = opened(CHUNK_UNITS);
        assert!(!record.call_in(false) && !record.call_in(true), "nothing is given back");
        assert_eq!(record.give_back(all[0], CHUNK_UNITS), None);
        assert!(!record.call_in(false), "the first look");
        assert_eq!(record.give_back(all[1], CHUNK_UNITS), None);
        assert!(!record.call_in(false), "a chunk has come back since");
        assert!(record.call_in(false));
        assert!(!record.call_in(false) && !record.call_in(true), "it is in a list");
        // What comes back meanwhile makes it ready no second time, and is handed out with the rest.
        assert!(all[2..7].iter().all(|chunk| record.give_back(*chunk, CHUNK_UNITS).is_none()));
        let (host, entries) = (FakeHost::default(), core::array::from_fn(|_| Entry::new(0)));
        assert_eq!(record.open(&host, &entries, 2, CHUNK_UNITS).count_ones(), 7);
        assert!(record.give_back(all[7], CHUNK_UNITS).is_none() && record.call_in(true), "at once");
    }

    /// Units that fit no chunk stay given back. They count neither for the next turn nor against it.
    #[test]
    fn units_beside_a_chunk_wait() {
        let (record, all) = opened(SLOW_UNITS);
        // A chunk, and one unit of each other.
        let back = all.iter().enumerate().filter(|(at, _)| *at < 4 || at % 4 == 0);
        assert!(back.filter_map(|(_, unit)| record.give_back(*unit, 1)).next().is_none());
        assert!(record.fits(CHUNK_UNITS) && record.call_in(true));
        let (host, entries) = (FakeHost::default(), core::array::from_fn(|_| Entry::new(0)));
        assert_eq!(record.open(&host, &entries, 2, CHUNK_UNITS), 1);
        assert_eq!(record.given_back().count_ones(), TABLE_UNITS / CHUNK_UNITS - 1);
        assert_eq!(record.give_back(0b111, 3), Some(2), "three units of four");
    }
}
