//! Which table is used next: the order in which leaf tables are filled and come back.
//!
//! Tables are filled like a log. The open table hands out its chunks one after the other, to whoever comes ([`OpenTables`]): so
//! what all streams fill at the same time, and what their devices will walk to at the same time, lies in few tables. Full
//! tables queue behind one another, and the oldest, once all of it is spent, is filled again. A table that younger ones
//! overtake has a straggler in it: what is spent of it is filled before another table is begun, so that a straggler pins a
//! chunk and not a table. Before a table is added, each log looks at the others' first ones as well.
//!
//! Streams that are much slower than the others, acknowledgements beside data, would each keep a chunk in some table of long
//! ago. Where there are many streams, the slow ones have a log of their own, with chunks of a quarter.

use super::chunks::TABLE_UNITS;
use super::open_tables::{Chunk, LOGS, OpenTables};
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

/// Tables that nothing is in, kept for the next chunks. The model checker sees each of them go.
pub const TABLE_RESERVE: usize = if cfg!(loom) { 0 } else { 16 };
/// Tables that are looked at before another is begun: the oldest, and those with stragglers. The time under the lock is bounded
/// by it.
pub(super) const LOOKS: usize = 8;
/// Queues of tables.
pub(super) const QUEUES: usize = 2 * LOGS;
/// Where the larger part of a table is spent, its time has come; what is older and has less of it spent has stragglers.
const OVERTAKEN: u32 = TABLE_UNITS / 2 + 1;

/// Tables that are filled one after the other, for some of the streams.
#[derive(Default)]
struct Log {
    /// The table that is being filled, or was until nothing was left of it. What is left is for [`OpenTables`] to say.
    open: Option<u32>,
    /// Full tables, the oldest first.
    full: VecDeque<u32>,
    /// Which of them was looked at last, beside the oldest.
    further: usize,
    /// Those with stragglers.
    lingering: VecDeque<u32>,
}

/// The tables of a domain, but for their pages.
pub(super) struct TableLog {
    logs: Box<[Log]>,
    records: Vec<TableRecord>,
    /// Tables that are there.
    linked: usize,
    /// Numbers that may be given to tables.
    numbers: u32,
    /// Those given before, whose tables went back to the host.
    unlinked: Vec<u32>,
    /// Tables with nothing in them.
    idle: VecDeque<u32>,
    /// The fewest of those since the last sweep.
    idle_min: usize,
    /// Table numbers that reserved addresses lie in: first, and one past the last.
    reserved: Vec<(u64, u64)>,
    /// Tables that each list has room for, so that nothing is allocated to move one from list to list.
    room: usize,
}

/// Lists with room for more tables, made with no lock held.
pub(super) struct Lists {
    room: usize,
    queues: Vec<VecDeque<u32>>,
    records: Vec<TableRecord>,
    unlinked: Vec<u32>,
}

impl Lists {
    /// Empty lists with room for so many tables.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new<P: Platform>(platform: &P, context: Context, room: usize) -> Result<Self, NoMemory> {
        // Those of the logs, and that of tables with nothing in them.
        let mut queues = try_reserve(platform, context, QUEUES + 1)?;
        for _ in 0..=QUEUES {
            push_within(&mut queues, VecDeque::from(try_reserve(platform, context, room)?));
        }
        let (records, unlinked) = (try_reserve(platform, context, room)?, try_reserve(platform, context, room)?);
        Ok(Self { room, queues, records, unlinked })
    }
}

impl TableLog {
    /// No tables, of `numbers` that there may be; those that touch a range in `reserved` may not.
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

    /// The same behind its lock, made in the box: to move it there would take room in the frames of its callers.
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

    /// Opens another table for chunks of so many units, if the last one has nothing left. Returns whether there is one open now;
    /// where not, another has to be added.
    #[inline(never)]
    pub(super) fn open_table<P: Platform>(
        &mut self,
        platform: &P,
        tables: &ChunkTables,
        open_tables: &OpenTables,
        log: usize,
        units: u32,
    ) -> bool {
        if open_tables.is_open(log) {
            return true;
        }
        self.close_table(log);
        let Some(number) = self.find(platform, tables, log, units) else { return false };
        let record = &mut self.records[number as usize];
        let firsts = runs(record.spent(), units);
        let mut rest = firsts;
        // As if they all were handed out now: until somebody takes them, they are fresh.
        while rest != 0 {
            record.hand_out(platform, number, tables, run(rest.trailing_zeros(), units));
            rest &= rest - 1;
        }
        open_tables.open(log, number, firsts);
        self.logs[log].open = Some(number);
        true
    }

    /// A table that has nothing left is full.
    fn close_table(&mut self, log: usize) {
        let Log { open, full, .. } = &mut self.logs[log];
        if let Some(number) = open.take() {
            push_back_within(full, number);
        }
    }

    /// A chunk of a whole table. `None` where another has to be added.
    pub(super) fn take_table<P: Platform>(&mut self, platform: &P, tables: &ChunkTables, log: usize) -> Option<Chunk> {
        let number = self.find(platform, tables, log, TABLE_UNITS)?;
        self.records[number as usize].hand_out(platform, number, tables, ALL);
        push_back_within(&mut self.logs[log].full, number);
        Some(Chunk { first: number * TABLE_UNITS, units: TABLE_UNITS })
    }

    /// A table with spent chunks of so many units.
    fn find<P: Platform>(&mut self, platform: &P, tables: &ChunkTables, log: usize, units: u32) -> Option<u32> {
        // The idle ones when nothing else is found: so those that are not needed stay idle however much is mapped, and go back.
        self.oldest(platform, tables, log)
            .or_else(|| self.lingering(platform, tables, log, units, LOOKS))
            .or_else(|| self.take_idle())
            .or_else(|| {
                // Of the others, before a table is added. One after the other on the stack, not one below the other.
                let others = (0..LOGS).filter(|other| *other != log);
                let mut one = others.map(|other| {
                    self.oldest_if_worn(platform, tables, other, units)
                        .or_else(|| self.lingering(platform, tables, other, units, 1))
                });
                one.find_map(|found| found)
            })
    }

    /// A table with stragglers and room for a chunk, if one of the next `looks` is.
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

    /// The oldest full table of a log, if most of it is spent, and there is room for a chunk.
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

    /// The oldest full table, if it is spent, or else the first that is; those that it has overtaken linger.
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
        // Should those in front stay as they are, one behind them may be spent: some others each time.
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

    /// A number for another table, until [`add`](Self::add) or [`give_number_back`](Self::give_number_back). `None` where there
    /// is none left.
    ///
    /// # Errors
    /// [`NoMemory`] where the lists, or what has room for `linkable` tables, have none for another.
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

    /// Numbers that were given to tables, or passed over.
    pub(super) fn numbered(&self) -> usize {
        self.records.len()
    }

    /// The same, once there are so many tables more.
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

    /// Tables that the lists have room for.
    pub(super) const fn room(&self) -> usize {
        self.room
    }

    /// Goes on with these lists, if they have more room. Afterwards they are those that are not needed; the caller frees them.
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

    /// A new table, with nothing in it, under a number from [`number`](Self::number).
    pub(super) fn add(&mut self, number: u32) {
        self.records[number as usize] = TableRecord::default();
        self.linked += 1;
        push_back_within(&mut self.idle, number);
    }

    /// A number that was not used, or whose table has gone back to the host.
    pub(super) fn give_number_back(&mut self, number: u32) {
        push_within(&mut self.unlinked, number);
    }

    /// Takes out a table that may go back to the host: it was not needed since the last sweep.
    pub(super) fn take_superfluous(&mut self) -> Option<u32> {
        if self.idle_min <= TABLE_RESERVE {
            return None;
        }
        self.idle_min -= 1;
        self.linked -= 1;
        // The one that has been there longest: the next chunks come from those that were used last.
        self.idle.pop_front()
    }

    /// How many tables are in a queue: those full of each log, and those lingering.
    pub(super) fn queue_len(&mut self, queue: usize) -> usize {
        self.queue(queue).len()
    }

    fn queue(&mut self, queue: usize) -> &mut VecDeque<u32> {
        let Log { full, lingering, .. } = &mut self.logs[queue / 2];
        if queue.is_multiple_of(2) { full } else { lingering }
    }

    /// Of the first `count` tables of a queue takes out those that are spent, and puts the others behind the last: once round,
    /// and they are in their order again.
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

    /// Sees which of the open tables are full.
    pub(super) fn close_tables(&mut self, open_tables: &OpenTables) {
        (0..LOGS).filter(|log| !open_tables.is_open(*log)).for_each(|log| self.close_table(log));
    }

    /// All queues were swept.
    pub(super) fn end_sweep(&mut self) {
        self.idle_min = self.idle.len();
    }

    /// Whether there are more tables than are kept in any case.
    pub(super) const fn is_large(&self) -> bool {
        self.linked > TABLE_RESERVE
    }

    /// Whether the next sweep finds a table to give back, unless it is needed until then.
    pub(super) fn has_superfluous(&self) -> bool {
        self.idle.len() > TABLE_RESERVE
    }

    /// Memory of the lists, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let queues = self.logs.iter().flat_map(|log| [&log.full, &log.lingering]).chain([&self.idle]);
        let numbers = queues.map(VecDeque::capacity).sum::<usize>() + self.unlinked.capacity();
        numbers * size_of::<u32>() + self.records.capacity() * size_of::<TableRecord>()
    }

    /// Mappings whose generations have not ended.
    pub(super) fn live(&self, tables: &ChunkTables) -> usize {
        let of_log = |log: &Log| {
            let of = |number: &u32| page_states::live(tables.linked(*number));
            let open = log.open.as_ref().map_or(0, of);
            open + log.full.iter().chain(&log.lingering).map(of).sum::<usize>()
        };
        self.logs.iter().map(of_log).sum()
    }
}

/// Moves the first `count` of a list behind the last of another, one by one: a drain takes more stack.
fn move_first(from: &mut VecDeque<u32>, to: &mut VecDeque<u32>, count: usize) {
    for _ in 0..count {
        if let Some(number) = from.pop_front() {
            push_back_within(to, number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::chunks::UNIT_PAGES;
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
            // What lies right behind the last is passed over with the next.
            assert!((table_log.numbered()..=table_log.numbered_after(1)).contains(&ahead), "{tables}: {ahead}");
            assert_eq!(table_log.numbered_after(0), table_log.numbered());
        }
    }

    /// A table of which more than half is spent has overtaken those before it, but the one just before. One of which half is has not.
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
            table_log.take_table(&host, &tables, 0).expect("the table just added");
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
