//! The order in which leaf tables are filled, and filled again.
//!
//! Tables are filled like a log. The open table hands out its chunks one after the other to all streams
//! ([`OpenTables`]), so the pages that streams fill at the same time, and that their devices will walk to at the same
//! time, lie in few tables. Full tables queue in order, and the oldest is filled again once all of it is spent. If
//! younger tables overtake a table, it has a straggler in it. Its spent parts are then filled before another table is
//! begun, so that a straggler pins a chunk and not a table. Before a table is added, a log also looks at the first
//! tables of the other logs. But the log of a CPU leaves what is in use to the log of another CPU at work, and so a few
//! spent tables: that CPU will need them next, and has their entries in its caches. If no table can be added, it takes
//! them all the same.
//!
//! Streams that are much slower than the others, such as acknowledgements next to data, would each keep a chunk in
//! some old table. If there are many streams, the slow ones have a log of their own, with chunks of a quarter of the
//! size.

use super::geometry::TABLE_UNITS;
use super::open_tables::{Chunk, LOGS, Need, OpenTables, is_own};
use super::page_states;
use super::table_record::{ALL, TableRecord, run, runs};
use super::tables::ChunkTables;
use crate::error::NoMemory;
use crate::platform::memory::{boxed, move_into, push_back_within, push_within, try_reserve, try_slice};
use crate::platform::{Context, LockClass, Padded, Platform};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

/// The number of empty tables that are kept for the next chunks. Zero under the model checker, so that it sees every
/// one of them freed.
pub const TABLE_RESERVE: usize = if cfg!(loom) { 0 } else { 16 };
/// The number of tables that are looked at before another is begun: the oldest ones, and those with stragglers. It
/// bounds the time under the lock.
pub(super) const LOOKS: usize = 8;
/// The number of queues of tables: two for each log.
pub(super) const QUEUES: usize = 2 * LOGS;
/// When a table has at least this many units spent, its turn has come; older tables with fewer have stragglers.
const OVERTAKEN: u32 = TABLE_UNITS / 2 + 1;
/// The number of spent tables that are left to a log in use. It needs the first of them next.
const LEFT: usize = 2;

/// A sequence of tables that are filled one after the other, for some of the streams.
#[derive(Default)]
struct Log {
    /// The table that is being filled, or whose last chunk has been taken. [`OpenTables`] records what is left of it.
    open: Option<u32>,
    /// Full tables, the oldest first.
    full: VecDeque<u32>,
    /// The index in `full` of the table that was looked at last, beyond the oldest ones.
    further: usize,
    /// Tables with stragglers.
    lingering: VecDeque<u32>,
    /// Whether it has got a table since the last sweep, and since the one before.
    is_used: bool,
    was_used: bool,
}

/// What is known of the tables of a domain, apart from their pages.
pub(super) struct TableLog {
    logs: Box<[Log]>,
    records: Vec<TableRecord>,
    /// The number of linked tables.
    linked: usize,
    /// How many numbers there are for tables.
    numbers: u32,
    /// Numbers that were used before, and whose tables were freed.
    unlinked: Vec<u32>,
    /// Tables with nothing in them.
    idle: VecDeque<u32>,
    /// The smallest length of `idle` since the last sweep.
    idle_min: usize,
    /// Ranges of table numbers that contain reserved addresses: first, and one past the last.
    reserved: Vec<(u64, u64)>,
    /// The capacity of each list in tables, so that moving a table from list to list allocates nothing.
    room: usize,
}

/// Lists with room for more tables, allocated while no lock is held.
pub(super) struct Lists {
    room: usize,
    queues: Vec<VecDeque<u32>>,
    records: Vec<TableRecord>,
    unlinked: Vec<u32>,
}

impl Lists {
    /// Empty lists with room for `room` tables.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new<P: Platform>(platform: &P, context: Context, room: usize) -> Result<Self, NoMemory> {
        // The queues of the logs, and the list of idle tables.
        let mut queues = try_reserve(platform, context, QUEUES + 1)?;
        for _ in 0..=QUEUES {
            push_within(&mut queues, VecDeque::from(try_reserve(platform, context, room)?));
        }
        let (records, unlinked) = (try_reserve(platform, context, room)?, try_reserve(platform, context, room)?);
        Ok(Self { room, queues, records, unlinked })
    }
}

impl TableLog {
    /// A log with no tables. There may be up to `numbers`, except those that touch a range in `reserved`.
    pub(super) fn new<P: Platform>(platform: &P, numbers: u32, reserved: Vec<(u64, u64)>) -> Result<Self, NoMemory> {
        Ok(Self {
            logs: try_slice(platform, Context::MaySleep, LOGS, || Ok(Log::default()))?,
            records: Vec::new(),
            linked: 0,
            numbers,
            unlinked: Vec::new(),
            idle: VecDeque::new(),
            idle_min: 0,
            reserved,
            room: 0,
        })
    }

    /// Makes the log behind its lock, directly in the box: moving it there would take space in the stack frames of its
    /// callers.
    #[inline(never)]
    pub(super) fn boxed<P: Platform>(
        platform: &P,
        numbers: u32,
        reserved: Vec<(u64, u64)>,
    ) -> Result<Box<Padded<P::Lock<Self>>>, NoMemory> {
        let room = try_reserve(platform, Context::MaySleep, 1)?;
        let table_log = Self::new(platform, numbers, reserved)?;
        Ok(boxed(room, Padded(platform.lock(LockClass::IovaAllocator, table_log))))
    }

    /// Opens another table for such chunks if the last one has nothing left. Returns whether a table is open now; if
    /// not, one has to be added.
    #[inline(never)]
    pub(super) fn open_table<P: Platform>(
        &mut self,
        platform: &P,
        tables: &ChunkTables,
        open_tables: &OpenTables,
        need: Need,
    ) -> bool {
        let (log, units) = (need.log(), need.units());
        if open_tables.is_open(log) {
            return true;
        }
        self.close_table(log);
        let Some(number) = self.find(platform, tables, need) else { return false };
        let record = &mut self.records[number as usize];
        let firsts = runs(record.spent(), units);
        let mut rest = firsts;
        // All chunks are recorded as handed out now. Their entries stay fresh until a stream takes them.
        while rest != 0 {
            record.hand_out(platform, number, tables, run(rest.trailing_zeros(), units));
            rest &= rest - 1;
        }
        open_tables.open(log, number, firsts);
        self.logs[log].open = Some(number);
        true
    }

    /// Moves an open table that has nothing left to the full ones.
    fn close_table(&mut self, log: usize) {
        let Log { open, full, .. } = &mut self.logs[log];
        if let Some(number) = open.take() {
            push_back_within(full, number);
        }
    }

    /// A chunk of a whole table. `None` if a table has to be added.
    pub(super) fn take_table<P: Platform>(&mut self, platform: &P, tables: &ChunkTables, need: Need) -> Option<Chunk> {
        let number = self.find(platform, tables, need)?;
        self.records[number as usize].hand_out(platform, number, tables, ALL);
        push_back_within(&mut self.logs[need.log()].full, number);
        Some(Chunk { first: number * TABLE_UNITS, units: TABLE_UNITS })
    }

    /// A table with spent chunks of the size that is needed.
    fn find<P: Platform>(&mut self, platform: &P, tables: &ChunkTables, need: Need) -> Option<u32> {
        let (log, units) = (need.log(), need.units());
        // Idle tables come last. Those that are not needed then stay idle, however much is mapped, and are freed.
        let found = self
            .oldest(platform, tables, log)
            .or_else(|| self.lingering(platform, tables, log, units, LOOKS))
            .or_else(|| self.take_idle())
            .or_else(|| {
                // Before a table is added, looks in the other logs. One call after the other, so that their stack
                // frames do not add up.
                let others = (0..LOGS).filter(|other| *other != log);
                let mut one = others.map(|other| {
                    let Log { is_used, was_used, .. } = self.logs[other];
                    if !need.is_short && is_own(log) && is_own(other) && (is_used || was_used) {
                        return self.left_over(platform, tables, other);
                    }
                    self.oldest_if_worn(platform, tables, other, units)
                        .or_else(|| self.lingering(platform, tables, other, units, 1))
                });
                one.find_map(|found| found)
            })?;
        self.logs[log].is_used = true;
        Some(found)
    }

    /// The oldest full table of a log, if it is spent and not one of those that are left to the log.
    #[inline(never)]
    fn left_over<P: Platform>(&mut self, platform: &P, tables: &ChunkTables, log: usize) -> Option<u32> {
        let full = &mut self.logs[log].full;
        for at in [LEFT, 0] {
            let number = *full.get(at)?;
            let record = &mut self.records[number as usize];
            record.look(platform, number, tables);
            if record.spent() != ALL {
                return None;
            }
        }
        full.pop_front()
    }

    /// A table with stragglers and room for a chunk, if there is one among the next `looks`.
    #[inline(never)]
    fn lingering<P: Platform>(
        &mut self,
        platform: &P,
        tables: &ChunkTables,
        log: usize,
        units: u32,
        looks: usize,
    ) -> Option<u32> {
        let lingering = &mut self.logs[log].lingering;
        for _ in 0..looks.min(lingering.len()) {
            let number = lingering.pop_front()?;
            let record = &mut self.records[number as usize];
            record.look(platform, number, tables);
            if runs(record.spent(), units) != 0 {
                return Some(number);
            }
            push_back_within(lingering, number);
        }
        None
    }

    /// The oldest full table of a log, if most of it is spent and it has room for a chunk.
    #[inline(never)]
    fn oldest_if_worn<P: Platform>(
        &mut self,
        platform: &P,
        tables: &ChunkTables,
        log: usize,
        units: u32,
    ) -> Option<u32> {
        let full = &mut self.logs[log].full;
        let number = *full.front()?;
        let record = &mut self.records[number as usize];
        record.look(platform, number, tables);
        let is_worn = record.spent().count_ones() >= OVERTAKEN && runs(record.spent(), units) != 0;
        if is_worn { full.pop_front() } else { None }
    }

    fn take_idle(&mut self) -> Option<u32> {
        let number = self.idle.pop_back();
        self.idle_min = self.idle_min.min(self.idle.len());
        number
    }

    /// The oldest full table if it is spent, or else the first that is. Tables that it has overtaken are moved to
    /// `lingering`.
    #[inline(never)]
    fn oldest<P: Platform>(&mut self, platform: &P, tables: &ChunkTables, log: usize) -> Option<u32> {
        let Log { full, lingering, further, .. } = &mut self.logs[log];
        let mut overtaken = 0;
        for at in 0..LOOKS.min(full.len()) {
            let record = &mut self.records[full[at] as usize];
            record.look(platform, full[at], tables);
            if record.spent() == ALL {
                move_first(full, lingering, at);
                return full.pop_front();
            }
            if at >= 2 && record.spent().count_ones() >= OVERTAKEN {
                overtaken = at - 1;
            }
        }
        move_first(full, lingering, overtaken);
        // If the first tables do not become spent, a later one may be: looks at a few others each time.
        for _ in 0..LOOKS.min(full.len().saturating_sub(LOOKS)) {
            let at = if (LOOKS..full.len() - 1).contains(further) { *further + 1 } else { LOOKS };
            *further = at;
            let record = &mut self.records[full[at] as usize];
            record.look(platform, full[at], tables);
            if record.spent() == ALL {
                move_first(full, lingering, at);
                return full.pop_front();
            }
        }
        None
    }

    /// A number for another table. The caller then calls [`add`](Self::add) or
    /// [`give_number_back`](Self::give_number_back). `None` if no number is left.
    ///
    /// # Errors
    /// [`NoMemory`] if the lists, or the array with room for `linkable` tables, have no room for another.
    pub(super) fn number(&mut self, linkable: usize) -> Result<Option<u32>, NoMemory> {
        if let Some(number) = self.unlinked.pop() {
            return Ok(Some(number));
        }
        while (self.records.len() as u64) < u64::from(self.numbers) {
            let number = self.records.len() as u64;
            if self.records.len() >= self.room.min(linkable) {
                return Err(NoMemory);
            }
            push_within(&mut self.records, TableRecord::default());
            if self.reserved.iter().all(|&(first, end)| number < first || end <= number) {
                return Ok(Some(number as u32));
            }
        }
        Ok(None)
    }

    /// How many numbers were given to tables or skipped.
    pub(super) fn numbered(&self) -> usize {
        self.records.len()
    }

    /// How many numbers will have been given or skipped after `tables` more tables.
    pub(super) fn numbered_after(&self, tables: usize) -> usize {
        let numbered = self.numbered() as u64;
        let passed_over = |end: u64, &(first, one_past): &(u64, u64)| {
            let is_ahead = one_past > numbered && first < end;
            if is_ahead { end.saturating_add(one_past - first.max(numbered)) } else { end }
        };
        // The ranges are in order.
        let end = self.reserved.iter().fold(numbered.saturating_add(tables as u64), passed_over);
        usize::try_from(end).unwrap_or(usize::MAX)
    }

    /// The number of tables that the lists have room for.
    pub(super) const fn room(&self) -> usize {
        self.room
    }

    /// Replaces the lists by these if these have more room. `lists` then holds the ones that are not needed, which the
    /// caller frees.
    #[inline(never)]
    pub(super) fn take(&mut self, lists: &mut Lists) {
        if lists.room > self.room {
            let queues = self.logs.iter_mut().flat_map(|log| [&mut log.full, &mut log.lingering]);
            for (queue, larger) in queues.chain([&mut self.idle]).zip(&mut lists.queues) {
                queue.drain(..).for_each(|number| push_back_within(larger, number));
                mem::swap(queue, larger);
            }
            move_into(&mut self.records, &mut lists.records);
            move_into(&mut self.unlinked, &mut lists.unlinked);
            mem::swap(&mut self.room, &mut lists.room);
        }
    }

    /// Adds an empty table, under a number from [`number`](Self::number).
    pub(super) fn add(&mut self, number: u32) {
        self.records[number as usize] = TableRecord::default();
        self.linked += 1;
        push_back_within(&mut self.idle, number);
    }

    /// Gives back a number that was not used, or whose table was freed.
    pub(super) fn give_number_back(&mut self, number: u32) {
        push_within(&mut self.unlinked, number);
    }

    /// Removes a table that was not needed since the last sweep, so that it can be freed.
    pub(super) fn take_superfluous(&mut self) -> Option<u32> {
        if self.idle_min <= TABLE_RESERVE {
            return None;
        }
        self.idle_min -= 1;
        self.linked -= 1;
        // The one that has been idle longest: the next chunks come from the tables that were used last.
        self.idle.pop_front()
    }

    /// The number of tables in a queue. Each log has two: full tables, and tables with stragglers.
    pub(super) fn queue_len(&mut self, queue: usize) -> usize {
        self.queue(queue).len()
    }

    fn queue(&mut self, queue: usize) -> &mut VecDeque<u32> {
        let Log { full, lingering, .. } = &mut self.logs[queue / 2];
        if queue.is_multiple_of(2) { full } else { lingering }
    }

    /// Looks at the first `count` tables of a queue. Moves those that are spent to the idle ones, and the others to
    /// the back of the queue: after one complete round they are in their order again.
    pub(super) fn sweep_some<P: Platform>(&mut self, platform: &P, tables: &ChunkTables, queue: usize, count: usize) {
        for _ in 0..count {
            let Some(number) = self.queue(queue).pop_front() else { return };
            let record = &mut self.records[number as usize];
            record.look(platform, number, tables);
            if record.spent() == ALL {
                push_back_within(&mut self.idle, number);
            } else {
                push_back_within(self.queue(queue), number);
            }
        }
    }

    /// Moves the open tables that have nothing left to the full ones.
    pub(super) fn close_tables(&mut self, open_tables: &OpenTables) {
        (0..LOGS).filter(|log| !open_tables.is_open(*log)).for_each(|log| self.close_table(log));
    }

    /// Ends a sweep of all queues.
    pub(super) fn end_sweep(&mut self) {
        self.idle_min = self.idle.len();
        for log in &mut self.logs {
            log.was_used = mem::take(&mut log.is_used);
        }
    }

    /// Whether there are more tables than the reserve.
    pub(super) const fn is_large(&self) -> bool {
        self.linked > TABLE_RESERVE
    }

    /// Whether the next sweep will find a table to free, unless the table is needed before that.
    pub(super) fn has_superfluous(&self) -> bool {
        self.idle.len() > TABLE_RESERVE
    }

    /// The memory of the lists, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let queues = self.logs.iter().flat_map(|log| [&log.full, &log.lingering]).chain([&self.idle]);
        let numbers = queues.map(VecDeque::capacity).sum::<usize>() + self.unlinked.capacity();
        numbers * size_of::<u32>() + self.records.capacity() * size_of::<TableRecord>()
    }

    /// The number of mappings that are not spent.
    pub(super) fn live(&self, tables: &ChunkTables) -> usize {
        let of_log = |log: &Log| {
            let of = |number: &u32| page_states::live(tables.linked(*number));
            let open = log.open.as_ref().map_or(0, of);
            open + log.full.iter().chain(&log.lingering).map(of).sum::<usize>()
        };
        self.logs.iter().map(of_log).sum()
    }
}

/// Moves the first `count` elements of a list to the back of another, one by one: a drain takes more stack.
fn move_first(from: &mut VecDeque<u32>, to: &mut VecDeque<u32>, count: usize) {
    for _ in 0..count {
        if let Some(number) = from.pop_front() {
            push_back_within(to, number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::geometry::UNIT_PAGES;
    use super::*;
    use crate::entry::{Entry, Frame};
    use crate::platform::fake::FakeHost;
    use alloc::boxed::Box;

    #[test]
    fn numbers_passed_over_are_seen_ahead() {
        let host = FakeHost::default();
        for tables in 1..20 {
            let mut table_log = TableLog::new(&host, 64, vec![(0, 2), (5, 6), (9, 20)]).expect("memory");
            table_log.take(&mut Lists::new(&host, Context::MaySleep, 64).expect("memory"));
            let ahead = table_log.numbered_after(tables);
            for _ in 0..tables {
                table_log.number(64).expect("room").expect("a number");
            }
            // Numbers that are skipped directly after the last one are counted with the next table.
            assert!((table_log.numbered()..=table_log.numbered_after(1)).contains(&ahead), "{tables}: {ahead}");
            assert_eq!(table_log.numbered_after(0), table_log.numbered());
        }
    }

    /// The log of a CPU takes tables of another CPU at work only if these are spent and not its last such, or if no
    /// table can be added. What all share, and what a CPU has left behind, is taken at any time.
    #[test]
    fn tables_of_cpus_at_work_are_left_to_them() {
        let host = FakeHost::default();
        let [common, one, other] = [0, 2, 3];
        // The log `of` has filled so many tables, the first of which has a straggler or none. After that there are
        // `sweeps`, which find none of them.
        let found = |of: usize, filled: usize, has_straggler: bool, sweeps: usize, by: usize, is_short: bool| {
            let tables = ChunkTables::new(&host, 64).expect("memory");
            let mut table_log = TableLog::new(&host, 64, Vec::new()).expect("memory");
            table_log.take(&mut Lists::new(&host, Context::MaySleep, 64).expect("memory"));
            let frames = [(); 4].map(|()| -> &Frame { Box::leak(Box::new(core::array::from_fn(|_| Entry::new(0)))) });
            for frame in &frames[..filled] {
                let number = table_log.number(tables.len()).expect("room").expect("a number");
                tables.link(number, frame);
                table_log.add(number);
                table_log.take_table(&host, &tables, Need::new(of, TABLE_UNITS)).expect("the table just added");
            }
            // The straggler is the last page, so that the units before it are spent.
            let pages = |at: usize| frames[at].len() - usize::from(at == 0 && has_straggler);
            (0..filled).for_each(|at| page_states::spend_unused(&frames[at][..pages(at)]));
            (0..sweeps).for_each(|_| table_log.end_sweep());
            let mut need = Need::new(by, 1);
            need.is_short = is_short;
            table_log.find(&host, &tables, need)
        };
        assert_eq!(found(other, LEFT, false, 0, one, false), None, "the other CPU is at work");
        assert_eq!(found(other, LEFT + 1, false, 0, one, false), Some(0), "it has more than it needs");
        assert_eq!(found(other, LEFT + 1, true, 0, one, false), None);
        assert_eq!(found(other, LEFT + 1, true, 1, one, false), None);
        assert_eq!(found(other, LEFT + 1, true, 2, one, false), Some(0), "it is idle");
        assert_eq!(found(other, 1, true, 0, one, true), Some(0), "no table can be added");
        assert_eq!(found(other, 1, true, 0, common, false), Some(0));
        assert_eq!(found(common, 1, true, 0, one, false), Some(0));
    }

    /// A table of which more than half is spent has overtaken the tables before it, except the one directly before it.
    /// A table of which exactly half is spent has not.
    #[test]
    fn what_a_spent_table_has_overtaken_lingers() {
        let host = FakeHost::default();
        let frames: [Box<Frame>; 4] = core::array::from_fn(|_| Box::new(core::array::from_fn(|_| Entry::new(0))));
        let tables = ChunkTables::new(&host, 64).expect("memory");
        let mut table_log = TableLog::new(&host, 64, Vec::new()).expect("memory");
        assert_eq!(table_log.number(tables.len()), Err(NoMemory), "no list has room");
        table_log.take(&mut Lists::new(&host, Context::MaySleep, 64).expect("memory"));
        for frame in &frames {
            let number = table_log.number(tables.len()).expect("room").expect("a number");
            tables.link(number, frame);
            table_log.add(number);
            table_log.take_table(&host, &tables, Need::new(0, TABLE_UNITS)).expect("the table just added");
        }
        let pages = |units: u32| units as usize * UNIT_PAGES as usize;
        let half = pages(TABLE_UNITS / 2);
        page_states::spend_unused(&frames[2][..half]);
        assert_eq!(table_log.oldest(&host, &tables, 0), None);
        assert_eq!((&table_log.logs[0].full, &table_log.logs[0].lingering), (&[0, 1, 2, 3].into(), &[].into()));
        page_states::spend_unused(&frames[2][half..half + pages(1)]);
        assert_eq!(table_log.oldest(&host, &tables, 0), None);
        assert_eq!((&table_log.logs[0].full, &table_log.logs[0].lingering), (&[1, 2, 3].into(), &[0].into()));
        page_states::spend_unused(&frames[2][half + pages(1)..]);
        assert_eq!(table_log.oldest(&host, &tables, 0), Some(2), "all of it is spent");
        assert_eq!((&table_log.logs[0].full, &table_log.logs[0].lingering), (&[3].into(), &[0, 1].into()));
    }
}
