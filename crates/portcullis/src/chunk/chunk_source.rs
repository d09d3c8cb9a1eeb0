//! Where streams get their chunks, and what becomes of the chunks afterwards.
//!
//! A stream takes a chunk of the [open table](OpenTables) of its log, and keeps it among the [chunks that are
//! out](OutChunks). Whenever it takes one, it looks whether its oldest ones are spent, and gives those back to the
//! [records](TableRecords) of their tables: one atomic addition. The stream that makes a table ready by that adds it to
//! the [ready tables](TableLog) of its log. When the open table has nothing left, the first ready one is opened. None
//! of this takes a lock that more CPUs or rings use than share a log, but for slow streams.
//!
//! Only if no table is ready, others are searched: those of the [pool](TablePool), those that another log does not
//! need, and those of which a straggler keeps a part. If there is none, a table is added.
//!
//! No other code looks at entries to find out what is spent, and no two locks are held at the same time.

use super::geometry::TABLE_UNITS;
use super::open_tables::{Chunk, Need, OpenTables, Wanted};
use super::out_chunks::{Lookup, Out, OutChunks};
use super::page_states;
use super::table_log::{LOOKS, TableLog};
use super::table_pool::{self, TablePool};
use super::table_records::TableRecords;
use super::tables::ChunkTables;
use crate::error::{NewDomainError, NoMemory};
use crate::in_place::in_place;
use crate::platform::memory::{boxed, try_reserve, try_slice};
use crate::platform::{CPU_WORDS, Context, Deadline, Lock, LockClass, Padded, Platform, Walk};
use crate::sync::plain;
use crate::table::{ENTRIES, Frame};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

/// How long unused table pages are kept, in microseconds: the time from one sweep to the next. The first sweep after
/// the last use of a table finds that it is unused. The second unlinks it, together with at most 63 others. The third
/// frees its page if no software walk that began before the unlinking is still running.
pub const TABLE_IDLE_US: u64 = 100_000;

/// What tables are added to.
pub(super) trait Ground<'g>: Copy {
    /// Holds the addresses of table `number` for chunks. Returns false if some of them are in use.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn hold(self, number: u32) -> Result<bool, NoMemory>;

    /// Adds the leaf table of these addresses to the domain's table. All its entries are zero.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn grow(self, number: u32) -> Result<&'g Frame, NoMemory>;
}

/// The answer to a stream that needs a chunk.
pub(super) enum Next {
    /// The chunk for the stream.
    Chunk(Chunk),
    /// It does not need one any more.
    NotNeeded,
    /// The largest number of tables has been reached.
    Full,
}

/// The answer of a log.
enum Answer {
    /// A chunk for the stream.
    Chunk(Chunk),
    /// The stream does not need one any more.
    NotNeeded,
    /// A table is open.
    Opened,
    /// No table is ready.
    NoTable,
}

/// The first page of table `number`, counted from that of table 0.
const fn first_page(number: u32) -> u64 {
    number as u64 * ENTRIES as u64
}

/// Values behind locks of their own, which lie on cache lines of their own.
type Locks<P, T> = Box<[Padded<<P as Platform>::Lock<T>>]>;

/// What the chunks of a domain are taken from.
pub(super) struct ChunkSource<P: Platform> {
    pub(super) tables: ChunkTables,
    records: TableRecords,
    /// Written at the end of every chunk. They lie on other cache lines than what every map and unmap reads.
    open_tables: OpenTables,
    logs: Locks<P, TableLog>,
    /// For each line of cursors. Only interrupts, callers that were moved to another CPU, and sweeps wait for its lock,
    /// and the CPUs that serve one ring.
    out: Locks<P, OutChunks>,
    pool: Box<Padded<P::Lock<TablePool>>>,
    /// When the next sweep of the tables is due.
    pub(super) sweep_due: Deadline,
}

impl<P: Platform> ChunkSource<P> {
    /// No tables yet. There may be up to `numbers`, except those in `reserved`. There are `lines` lines of cursors, of
    /// which those from number `first_of_rings` on are of rings. It is made in `to`, which is uninitialized if that
    /// fails.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`].
    pub(super) fn new_in<'t>(
        to: &'t mut MaybeUninit<Self>,
        platform: &P,
        numbers: u32,
        reserved: Vec<(u64, u64)>,
        lines: usize,
        first_of_rings: usize,
    ) -> Result<&'t mut Self, NewDomainError> {
        Ok(in_place!(to => Self {
            tables <- |to| Ok(to.write(ChunkTables::new(platform)?)),
            records: TableRecords::new(),
            open_tables <- |to| OpenTables::new_in(to, platform, lines * CPU_WORDS, first_of_rings * CPU_WORDS),
            logs <- |to| Ok(to.write(Self::locks(platform, open_tables.logs())?)),
            out <- |to| Ok(to.write(Self::locks(platform, lines)?)),
            pool <- |to| {
                let room = try_reserve(platform, Context::MaySleep, 1)?;
                let pool = platform.lock(LockClass::IovaAllocator, TablePool::new(numbers, reserved));
                Ok(to.write(boxed(room, Padded(pool))))
            },
            sweep_due: Deadline::none(),
        }))
    }

    /// As many empty values, each behind a lock of its own.
    fn locks<T: Default + Send>(platform: &P, count: usize) -> Result<Locks<P, T>, NoMemory> {
        let lock = || Ok(Padded(platform.lock(LockClass::IovaAllocator, T::default())));
        try_slice(platform, Context::MaySleep, count, lock)
    }

    /// The next chunk for the stream of `cursor`. For requests of a few pages it may be a small chunk.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn next<'g>(
        &self,
        platform: &P,
        cursor: usize,
        wanted: Wanted,
        is_needed: impl Fn() -> bool,
        ground: impl Ground<'g>,
    ) -> Result<Next, NoMemory> {
        let mut need = self.open_tables.need_of(cursor, wanted);
        // Of whole tables mostly none is ready, so a stream looks first.
        let mut is_own_looked_at = wanted == Wanted::Table;
        if is_own_looked_at {
            self.look(platform, cursor);
        }
        let mut is_drained = false;
        let chunk = loop {
            if wanted != Wanted::Table
                && let Some(chunk) = self.open_tables.take(need)
            {
                break chunk;
            }
            match self.ask_log(platform, wanted, need, &is_needed) {
                Answer::Chunk(chunk) => break chunk,
                Answer::NotNeeded => return Ok(Next::NotNeeded),
                Answer::Opened => continue,
                Answer::NoTable => {}
            }
            if !is_own_looked_at {
                is_own_looked_at = true;
                if self.look(platform, cursor) {
                    continue;
                }
            }
            if self.find(need) || is_drained && self.call_in(need) {
                continue;
            }
            if !is_drained {
                // One line each time, so that this takes no longer the more there are.
                is_drained = true;
                let turn = self.pool(TablePool::next_turn);
                self.drain(platform, self.open_tables.one_line(turn), LOOKS);
                continue;
            }
            // Done without a lock, because it asks the host for memory.
            match self.add_table(platform, ground) {
                Ok(true) => {}
                added if need.is_short => match self.open_tables.take_anywhere(wanted) {
                    Some(chunk) => break chunk,
                    None => return added.map(|_| Next::Full),
                },
                // If no table can be added, the oldest chunks of all streams and all logs are searched before the map
                // fails.
                Ok(false) | Err(NoMemory) => {
                    need.is_short = true;
                    self.drain(platform, self.open_tables.lines(), LOOKS);
                }
            }
        };
        self.remember(platform, cursor, chunk);
        Ok(Next::Chunk(chunk))
    }

    /// Opens the next ready table of the log.
    #[inline(never)]
    fn ask_log(&self, platform: &P, wanted: Wanted, need: Need, is_needed: &impl Fn() -> bool) -> Answer {
        let (log, units) = (need.log(), need.units());
        self.log(log, |ready| {
            // Another CPU of the same stream may have got a chunk while this one waited for the lock.
            if !is_needed() {
                return Answer::NotNeeded;
            }
            if wanted != Wanted::Table && self.open_tables.is_open(log) {
                return Answer::Opened;
            }
            let Some(number) = ready.next(&self.records, units) else { return Answer::NoTable };
            let firsts = self.records.get(number).open(platform, self.tables.linked(number), log, units);
            Answer::Chunk(match wanted {
                Wanted::Table => Chunk { first: number * TABLE_UNITS, units },
                Wanted::Small | Wanted::Chunk => self.open_tables.open(need, number, firsts),
            })
        })
    }

    /// Keeps the chunk that the stream of `cursor` has taken, and gives back those of its chunks that are spent. A
    /// stream of whole tables has looked for these before.
    #[inline(never)]
    fn remember(&self, platform: &P, cursor: usize, chunk: Chunk) {
        let (line, word, lookup) = (cursor / CPU_WORDS, cursor % CPU_WORDS, self.lookup(platform));
        let out = &self.out[line].0;
        if chunk.units == TABLE_UNITS {
            return out.with(|chunks| chunks.add(lookup, word, chunk));
        }
        let spent = out.with(|chunks| {
            chunks.add(lookup, word, chunk);
            chunks.take_spent(lookup, word, chunk.first.is_multiple_of(TABLE_UNITS / 2))
        });
        spent.into_iter().flatten().for_each(|out| self.give_back_chunk(out));
    }

    fn lookup<'s>(&'s self, platform: &'s P) -> Lookup<'s, P> {
        Lookup { platform, records: &self.records, tables: &self.tables }
    }

    /// Gives back spent chunks of the stream of `cursor`. Returns whether there were any.
    #[inline(never)]
    fn look(&self, platform: &P, cursor: usize) -> bool {
        let (line, word) = (cursor / CPU_WORDS, cursor % CPU_WORDS);
        let spent = self.out[line].0.with(|chunks| chunks.take_spent(self.lookup(platform), word, false));
        let spent = spent.into_iter().flatten();
        spent.inspect(|out| self.give_back_chunk(*out)).count() > 0
    }

    fn give_back_chunk(&self, out: Out) {
        let chunk = out.chunk();
        self.give_back(chunk.table(), chunk.mask(), chunk.units);
    }

    /// Gives back the `count` units of `units` of a table, whose pages are fresh.
    #[inline]
    fn give_back(&self, number: u32, units: u32, count: u32) {
        if let Some(log) = self.records.get(number).give_back(units, count) {
            self.add_ready(log, number);
        }
    }

    #[inline(never)]
    fn add_ready(&self, log: usize, number: u32) {
        self.log(log, |ready| ready.add(&self.records, number));
    }

    /// Gives back what is spent of the chunks that are out to the streams of `lines`. Looks at no more than `at_most`
    /// of each list. No lock is held for more than a few looks.
    #[inline(never)]
    fn drain(&self, platform: &P, lines: impl Iterator<Item = usize>, at_most: u32) {
        for line in lines {
            let out = &self.out[line].0;
            for (list, len) in out.with(|chunks| chunks.lens()).into_iter().enumerate() {
                let mut left = len.min(at_most);
                while left > 0 {
                    let mut looks = left.min(LOOKS);
                    left -= looks;
                    let spent = out.with(|chunks| chunks.look(self.lookup(platform), list, &mut looks));
                    left += looks;
                    spent.into_iter().for_each(|out| self.give_back_chunk(out));
                }
            }
        }
    }

    /// Finds a table for the log, and makes it the next of its ready tables. Idle ones come first, so that those of
    /// which a part is out are left alone; but those that are not needed stay idle, however much is mapped, and are
    /// freed. Then some of the other logs are asked, others at each turn, or all if no table can be added.
    #[inline(never)]
    fn find(&self, need: Need) -> bool {
        let (log, units, is_short) = (need.log(), need.units(), need.is_short);
        let (idle, turn) = self.pool(|pool| (pool.take_idle(&self.records), pool.turn()));
        let found = idle.or_else(|| {
            let logs = self.open_tables.logs_used();
            let asked = if is_short { logs } else { logs.min(LOOKS as usize) };
            let mut others = (0..asked).map(|at| (turn * asked + at) % logs).filter(|other| *other != log);
            let spare = |other| self.log(other, |ready| ready.spare(&self.records, units, is_short));
            others.find_map(spare)
        });
        self.add_first(log, found)
    }

    /// Finds a table with stragglers for the log, and makes it the next of its ready tables.
    #[inline(never)]
    fn call_in(&self, need: Need) -> bool {
        let (log, units) = (need.log(), need.units());
        let looks = if need.is_short { self.pool(|pool| pool.looks()) } else { 1 };
        let call_in = || self.pool(|pool| pool.call_in(&self.records, log, units, need.is_short));
        self.add_first(log, (0..looks).find_map(|_| call_in()))
    }

    fn add_first(&self, log: usize, table: Option<u32>) -> bool {
        table.inspect(|number| self.log(log, |ready| ready.add_first(&self.records, *number))).is_some()
    }

    fn log<R>(&self, log: usize, act: impl FnOnce(&mut TableLog) -> R) -> R {
        self.logs[log].0.with(|ready| {
            plain(ready, true);
            act(ready)
        })
    }

    fn pool<R>(&self, act: impl FnOnce(&mut TablePool) -> R) -> R {
        self.pool.0.with(|pool| {
            plain(pool, true);
            act(pool)
        })
    }

    /// Adds a table to the pool. Returns false if no number is left whose addresses are free.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(never)]
    fn add_table<'g>(&self, platform: &P, ground: impl Ground<'g>) -> Result<bool, NoMemory> {
        for _ in 0..table_pool::LOOKS {
            let number = self.with_room(platform, Context::Atomic, |pool| {
                pool.number(&self.records, |number| self.has_room(number))
            })?;
            let Some(number) = number else { return Ok(false) };
            let frame = self.hold_and_grow(number, ground);
            let Ok(Some(frame)) = frame else {
                self.give_number_back(number);
                // The addresses of another number may be free.
                frame?;
                continue;
            };
            let is_large = self.pool(|pool| {
                self.tables.link(number, frame);
                pool.add(&self.records, number);
                pool.is_large()
            });
            if is_large {
                self.sweep_due.set_if_none(platform, TABLE_IDLE_US);
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn hold_and_grow<'g>(&self, number: u32, ground: impl Ground<'g>) -> Result<Option<&'g Frame>, NoMemory> {
        if self.hold(number, ground)? { ground.grow(number).map(Some) } else { Ok(None) }
    }

    /// Holds the addresses of table `number`, unless they are held already. Returns false if some of them are in use.
    fn hold<'g>(&self, number: u32, ground: impl Ground<'g>) -> Result<bool, NoMemory> {
        if self.tables.holds(first_page(number)) {
            return Ok(true);
        }
        let is_held = ground.hold(number)?;
        if is_held {
            self.pool(|_| self.tables.hold(number));
        }
        Ok(is_held)
    }

    /// A number from the pool, with room for its table.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn with_room(
        &self,
        platform: &P,
        context: Context,
        number: impl Fn(&mut TablePool) -> Result<Option<u32>, u32>,
    ) -> Result<Option<u32>, NoMemory> {
        loop {
            match self.pool(&number) {
                Ok(number) => return Ok(number),
                Err(number) => self.make_room(platform, context, number)?,
            }
        }
    }

    /// Whether there is room for table `number`.
    fn has_room(&self, number: u32) -> bool {
        self.records.find(number).is_some() && self.tables.has_room(number)
    }

    /// Makes room for table `number`, and some around it. Must not be called with a lock held.
    #[cold]
    #[inline(never)]
    fn make_room(&self, platform: &P, context: Context, number: u32) -> Result<(), NoMemory> {
        let mut records = self.records.make(platform, context, number)?;
        let array = self.tables.make(platform, context, number)?;
        // What is not needed is freed without the lock.
        self.pool(|_| {
            self.records.add(&mut records);
            array.into_iter().for_each(|array| self.tables.take(array));
        });
        Ok(())
    }

    /// Sees to it that `tables` tables can be added without memory except for their pages, or as many as there are
    /// addresses for.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn reserve<'g>(&self, platform: &P, tables: usize, ground: impl Ground<'g>) -> Result<(), NoMemory> {
        let new = |pool: &mut TablePool| pool.new_number(|number| self.has_room(number));
        while self.pool(|pool| pool.unlinked()) < tables
            && let Some(number) = self.with_room(platform, Context::MaySleep, new)?
        {
            let held = self.hold(number, ground);
            self.give_number_back(number);
            held?;
        }
        Ok(())
    }

    /// Gives back a number that was not used, or whose table was freed.
    pub(super) fn give_number_back(&self, number: u32) {
        let is_held = self.tables.holds(first_page(number));
        self.pool(|pool| pool.give_number_back(&self.records, number, is_held));
    }

    /// Calls `let_go` for each table of which nothing is out: its addresses are no longer held for chunks, and its
    /// entries are zero. Returns whether there was any.
    #[cold]
    #[inline(never)]
    pub(super) fn lend(&self, let_go: impl Fn(u32)) -> bool {
        let mut is_any = false;
        while let Some(number) = self.pool(|pool| pool.take_unneeded(&self.records)) {
            // Only a mistaken unmap can still find the table. Its page stays in the domain's table, so no walk has to
            // be waited for.
            let entries = self.pool(|_| self.tables.let_go(number));
            entries.into_iter().flatten().for_each(|entry| entry.store_bits(0));
            let_go(number);
            self.give_number_back(number);
            is_any = true;
        }
        is_any
    }

    /// Gives back what all open tables have left.
    #[inline(never)]
    pub(super) fn close_all(&self) {
        (0..self.logs.len()).for_each(|log| self.give_rest_back(log, |_| true));
    }

    /// Gives back what the open table of `log` has left, if the log is as `may_be` says.
    fn give_rest_back(&self, log: usize, may_be: impl Fn(&TableLog) -> bool) {
        let open = self.log(log, |ready| if may_be(ready) { self.open_tables.close(log) } else { None });
        if let Some((number, units)) = open {
            self.give_back(number, units, units.count_ones());
        }
    }

    /// The lines of cursors that have appeared.
    pub(super) fn lines(&self) -> impl Iterator<Item = usize> {
        self.open_tables.lines()
    }

    /// Unlinks a table that was not needed since the last sweep. From now on only walks that had begun before may find
    /// it.
    pub(super) fn unlink(&self) -> Option<u32> {
        self.pool(|pool| pool.take_superfluous(&self.records).inspect(|number| self.tables.unlink(*number)))
    }

    /// Gives back all that is spent, and moves the tables of which nothing is out to the pool. No lock is held for more
    /// than a few tables.
    #[inline(never)]
    pub(super) fn sweep(&self, platform: &P) {
        self.drain(platform, self.open_tables.lines(), u32::MAX);
        for log in 0..self.logs.len() {
            // What an idle log has left of its open table is no chunk of any stream.
            self.give_rest_back(log, TableLog::is_idle);
            for _ in 0..self.log(log, |ready| ready.len()) {
                let spent = self.log(log, |ready| ready.turn(&self.records));
                spent.into_iter().for_each(|number| self.pool(|pool| pool.add_idle(&self.records, number)));
            }
            self.log(log, TableLog::end_sweep);
        }
        self.pool(TablePool::end_sweep);
    }

    /// Whether there are more tables than the reserve.
    pub(super) fn is_large(&self) -> bool {
        self.pool(|pool| pool.is_large())
    }

    /// Whether the next sweep will find a table to free, unless the table is needed before that.
    pub(super) fn has_superfluous(&self) -> bool {
        self.pool(|pool| pool.has_superfluous())
    }

    /// The number of mappings that are not spent. Exact only while no map or unmap is running. No lock is held, and
    /// tables of which nothing is out are passed over.
    pub(super) fn live(&self, platform: &P) -> usize {
        let is_out = |number: &u32| self.records.find(*number).is_some_and(|record| !record.is_spent());
        let live = |number| Walk::on(platform, |walk| page_states::live(self.tables.entries(walk, first_page(number))));
        self.tables.numbers().filter(is_out).map(live).sum()
    }

    /// The memory of the records, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let lists = size_of_val(&*self.logs) + size_of_val(&*self.out);
        self.tables.bytes() + self.records.bytes() + self.open_tables.bytes() + lists
    }
}
