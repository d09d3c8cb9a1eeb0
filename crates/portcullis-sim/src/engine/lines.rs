//! What it costs to move cache lines between CPUs, and locks with the data behind them.

use super::{Core, CoreState, CostBook, Engine, LockKind, Sharing};
use portcullis::platform::LockClass;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::Range;

/// The lines of a machine.
pub(super) struct Lines {
    /// The socket of each CPU.
    sockets: Vec<u32>,
    /// Moving a line within a socket, and between sockets, in cycles.
    near: u64,
    far: u64,
    /// What each core that still waits adds to a hand-off.
    per_waiter: u64,
    iova_lock_lines: u64,
    queue_lock_lines: u64,
    /// The CPU that has last written each line of the memory that hardware walks.
    writers: RefCell<FxHashMap<usize, Core>>,
}

impl Lines {
    /// All CPUs are in one socket, and locks stand alone.
    pub(super) fn of_one_socket(costs: &CostBook) -> Self {
        Self::new(costs, &Sharing::default(), 1, 0)
    }

    /// Those of `cpus` CPUs of a machine of `cores` cores.
    pub(super) fn new(costs: &CostBook, sharing: &Sharing, cores: u32, cpus: usize) -> Self {
        let per_waiter = match sharing.lock_kind {
            LockKind::Ticket => costs.handoff_per_waiter,
            LockKind::Queued => 0,
        };
        Self {
            sockets: (0..cpus).map(|cpu| sharing.socket_of(cpu, cores)).collect(),
            near: costs.line_transfer,
            far: sharing.line_transfer_far,
            per_waiter,
            iova_lock_lines: sharing.iova_lock_lines,
            queue_lock_lines: sharing.queue_lock_lines,
            writers: RefCell::default(),
        }
    }

    /// Whether two CPUs are in one socket.
    pub(super) fn are_near(&self, one: Core, other: Core) -> bool {
        // An actor is in no socket.
        let socket = |core: Core| self.sockets.get(core);
        socket(one).zip(socket(other)).is_none_or(|(one, other)| one == other)
    }

    /// Moving a line from one CPU to another.
    pub(super) fn transfer(&self, from: Core, to: Core) -> u64 {
        if self.are_near(from, to) { self.near } else { self.far }
    }

    /// Moving a line between two CPUs, on average over all pairs.
    pub(super) fn mean(&self) -> u64 {
        let cpus = 0..self.sockets.len();
        let pairs = cpus.clone().flat_map(|from| cpus.clone().filter(move |to| *to != from).map(move |to| (from, to)));
        let (sum, count) = pairs.fold((0, 0), |(sum, count), (from, to)| (sum + self.transfer(from, to), count + 1));
        sum.checked_div(count).unwrap_or(self.near)
    }

    /// Moving a lock from the CPU that held it last, with the lines of data behind it.
    pub(super) fn lock(&self, class: LockClass, from: Core, to: Core) -> u64 {
        let behind = match class {
            LockClass::IovaAllocator => self.iova_lock_lines,
            LockClass::InvalidationQueue | LockClass::CentralFlushQueue => self.queue_lock_lines,
            _ => 0,
        };
        self.transfer(from, to) * (1 + behind)
    }

    /// Handing a lock on to the first of its waiters, while `waiters` more wait. After the hand-off writes the line of
    /// a ticket lock, every waiter reads it, one after the other.
    pub(super) fn handoff(&self, class: LockClass, from: Core, to: Core, waiters: usize) -> u64 {
        self.lock(class, from, to) + self.per_waiter * waiters as u64
    }
}

impl Engine {
    /// Charges what it costs to make `entries` entries on these lines visible to the walker, which counts as many lines
    /// as the entries fill. Lines that other CPUs have written last move here, beside each other. Stores do not wait
    /// for that. What flushes the lines does, and so does the next lock, post or claim of a table.
    // A flush counts the lines that entries fill, not those that they touch, because published costs were split so.
    // The doorbell and the hand-off of a lock do not wait either: here they overtake stores, by one transfer at most.
    pub(crate) fn barrier(&self, entries: usize, lines: Range<usize>) {
        const ENTRIES_PER_LINE: usize = 8;
        let Some((core, state)) = self.running() else { return };
        let mut writers = self.lines.writers.borrow_mut();
        let last = lines.filter_map(|line| writers.insert(line, core));
        let transfers = last.filter(|last| *last != core).map(|last| self.lines.transfer(last, core));
        let moved = transfers.fold(0, u64::max);
        drop(writers);
        let come_ps = state.now_ps.get() + self.frequency.picoseconds(moved);
        state.stored_ps.set(state.stored_ps.get().max(come_ps));
        let visible = if self.coherent {
            self.costs.store_fence
        } else {
            self.await_stores(state);
            let further_lines = entries.div_ceil(ENTRIES_PER_LINE).saturating_sub(1) as u64;
            self.costs.line_flush + self.costs.line_flush_next * further_lines
        };
        self.charge_to(state, visible);
        self.sync_on(core, state);
    }

    /// A locked instruction waits until the lines of all earlier stores have come.
    pub(super) fn await_stores(&self, state: &CoreState) {
        let left_ps = state.stored_ps.get().saturating_sub(state.now_ps.get());
        if left_ps > 0 {
            self.charge_to(state, self.frequency.cycles(left_ps));
        }
    }

    /// Spreads its CPUs over the sockets of a machine of `cores` cores.
    #[must_use]
    pub fn with_sharing(mut self, sharing: &Sharing, cores: u32) -> Self {
        self.lines = Lines::new(&self.costs, sharing, cores, self.cpus);
        // What steps move goes from any CPU to any other.
        self.costs.line_transfer = self.lines.mean();
        self
    }

    /// Whether two CPUs are in one socket.
    pub fn are_near(&self, one: Core, other: Core) -> bool {
        self.lines.are_near(one, other)
    }
}

#[cfg(test)]
mod tests {
    use crate::Machine;
    use crate::engine::{Body, Engine, LabLock};
    use portcullis::PhysAddr;
    use portcullis::platform::{Lock, LockClass, Step};
    use portcullis_model::Ram;
    use std::ops::Range;
    use std::rc::Rc;
    use std::sync::{Arc, Mutex};

    /// Two CPUs of one socket, one behind the other, write as many entries of a table, and go on. For how many
    /// transfers of a line the second one waits.
    fn waits(written: [Range<usize>; 2], coherent: bool, go_on: fn(&Rc<Engine>)) -> u64 {
        let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
        let frequency = machine.frequency();
        let engine = Rc::new(Engine::new(2, frequency, machine.costs.clone(), coherent));
        let ram = Arc::new(Ram::new(PhysAddr::new(0), 1 << 16));
        let (page, cycles) = (ram.allocate().expect("a page"), Arc::new(Mutex::new([0; 2])));
        let bodies = written.into_iter().enumerate().map(|(cpu, entries)| -> Body {
            let (engine, ram, cycles) = (engine.clone(), ram.clone(), cycles.clone());
            Box::new(move || {
                engine.sleep_until(cpu as u64 * 1_000_000);
                let from_ps = engine.now_ps();
                engine.barrier(entries.len(), ram.lines(&ram.frame(page)[entries]));
                go_on(&engine);
                cycles.lock().expect("one thread")[cpu] = frequency.cycles(engine.now_ps() - from_ps);
            })
        });
        engine.run(bodies.collect());
        let [first, second] = *cycles.lock().expect("one thread");
        // Times are rounded to picoseconds.
        let line = machine.costs.line_transfer;
        (second - first + line / 2) / line
    }

    fn claim(engine: &Rc<Engine>) {
        engine.step(Step::TableClaim);
    }

    #[test]
    fn a_line_that_another_cpu_has_written_moves() {
        assert_eq!(waits([0..1, 7..8], true, claim), 1, "entries of one line");
        assert_eq!(waits([0..1, 8..9], true, claim), 0, "entries of two");
        assert_eq!(waits([0..16, 7..23], true, claim), 1, "three lines beside each other");
    }

    #[test]
    fn locked_instructions_and_flushes_wait_for_it_and_stores_do_not() {
        const LINE: [Range<usize>; 2] = [0..1, 7..8];
        assert_eq!(waits(LINE, true, |_| ()), 0);
        assert_eq!(waits(LINE, false, |_| ()), 1, "the flush");
        assert_eq!(waits(LINE, true, |engine| engine.step(Step::QueuePost)), 1);
        assert_eq!(waits(LINE, true, |engine| LabLock::new(engine.clone(), LockClass::Domain, ()).with(|()| ())), 1);
        let busy = |engine: &Rc<Engine>| {
            engine.charge(10_000);
            claim(engine);
        };
        assert_eq!(waits(LINE, true, busy), 0, "it came meanwhile");
    }
}
