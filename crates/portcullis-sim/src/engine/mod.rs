//! Virtual cores in virtual time.
//!
//! Each core is a fiber, and one OS thread runs them all. A core has its own clock, and everything that it does
//! advances this clock. Before a core touches anything shared, it calls [`Engine::sync`], which first lets every core
//! with an earlier clock run. Shared state therefore changes in the order of virtual time, regardless of the order in
//! which fibers run. Ties go to the lower core number, so that every run is the same.

mod cost;
#[allow(unsafe_code, reason = "a fiber suspends itself through a pointer into its own stack")]
mod fiber;
mod lock;
#[allow(unsafe_code, reason = "a value for one thread, behind a check")]
mod one_thread;
mod unmapping;

pub use cost::CostBook;
pub use lock::LabLock;
pub(crate) use one_thread::OneThread;

use crate::account::Account;
use fiber::{Fiber, Suspender};
use lock::Turnstile;
use portcullis::platform::{Phase, Step, Wait};
use portcullis_model::Vtd;
use rustc_hash::FxHashMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;

/// Number of a virtual core.
pub type Core = usize;

/// Converts between core cycles and picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Frequency {
    /// Picoseconds of a cycle, times 2^[`FRACTION_BITS`].
    cycle: u64,
    /// Cycles of a picosecond, times 2^[`FRACTION_BITS`].
    picosecond: u64,
}

const FRACTION_BITS: u32 = 32;

impl Frequency {
    /// A clock of `hz` cycles per second.
    pub fn new(hz: f64) -> Self {
        let unit = (1u64 << FRACTION_BITS) as f64;
        Self { cycle: (1e12 / hz * unit) as u64, picosecond: (hz / 1e12 * unit) as u64 }
    }

    /// The time that `cycles` take, in picoseconds.
    pub fn picoseconds(self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.cycle) + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS) as u64
    }

    /// The cycles that pass in this time, rounded up.
    pub fn cycles(self, picoseconds: u64) -> u64 {
        (u128::from(picoseconds) * u128::from(self.picosecond)).div_ceil(1 << FRACTION_BITS) as u64
    }
}

/// Something that cores wait for, identified by a number that the workload chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event(pub u64);

/// A core that can continue at a time. Ordered by time, then by core.
type Turn = Reverse<(u64, Core)>;

/// How often each step of the protection layer was charged.
pub(crate) type StepCounts = FxHashMap<Step, u64>;

/// The state of one virtual core.
struct CoreState {
    now_ps: Cell<u64>,
    /// How many locks it holds. Interrupts are masked while it holds any.
    masked: Cell<u32>,
    in_interrupt: Cell<bool>,
    /// When its timer fires, if it is armed.
    timer_ps: Cell<Option<u64>>,
    /// Whether its work is now charged as protection.
    charging: Cell<bool>,
    /// Whether it is inside a single unmap that has not cleared its mapping yet.
    taking_down: Cell<bool>,
    account: RefCell<Account>,
    /// How often each step was charged, if that is counted.
    steps: RefCell<StepCounts>,
    suspender: RefCell<Option<Suspender>>,
}

/// The engine. One per simulated machine, on one thread.
pub struct Engine {
    cores: Vec<CoreState>,
    ready: RefCell<BinaryHeap<Turn>>,
    /// Cores that wait for an event, see [`Engine::wait_until`].
    waiting: RefCell<Vec<(Core, Event)>>,
    current: Cell<Option<Core>>,
    /// Before this moment the running core need not wait for another core, and has no interrupt to take. It is the
    /// earlier of the first turn among the ready cores and the core's own timer. Zero if it must be computed.
    horizon_ps: Cell<u64>,
    /// The clock while no core runs: before and after a run.
    outside_ps: Cell<u64>,
    locks: RefCell<Vec<Turnstile>>,
    counts_steps: Cell<bool>,
    costs: CostBook,
    frequency: Frequency,
    coherent: bool,
    hardware: OnceCell<Arc<Vtd>>,
    on_timer: RefCell<Option<Rc<dyn Fn()>>>,
    on_taken_down: RefCell<Option<Rc<dyn Fn()>>>,
}

/// Leaves the engine with no core running, even if a run ends by a panic.
struct Stop<'e>(&'e Engine);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.current.set(None);
        self.0.ready.borrow_mut().clear();
        self.0.waiting.borrow_mut().clear();
        for core in &self.0.cores {
            core.suspender.borrow_mut().take();
            core.masked.set(0);
            core.taking_down.set(false);
        }
        for lock in self.0.locks.borrow_mut().iter_mut() {
            lock.abandon();
        }
    }
}

impl CoreState {
    #[cold]
    fn count(&self, step: Step) {
        *self.steps.borrow_mut().entry(step).or_default() += 1;
    }

    fn takes_interrupts(&self) -> bool {
        self.masked.get() == 0 && !self.in_interrupt.get()
    }
}

impl Engine {
    /// An engine of `cores` idle cores at time zero.
    pub fn new(cores: usize, frequency: Frequency, costs: CostBook, coherent: bool) -> Self {
        let core = || CoreState {
            now_ps: Cell::new(0),
            masked: Cell::new(0),
            in_interrupt: Cell::new(false),
            timer_ps: Cell::new(None),
            charging: Cell::new(false),
            taking_down: Cell::new(false),
            account: RefCell::default(),
            steps: RefCell::default(),
            suspender: RefCell::default(),
        };
        Self {
            cores: (0..cores).map(|_| core()).collect(),
            ready: RefCell::default(),
            waiting: RefCell::default(),
            current: Cell::new(None),
            horizon_ps: Cell::new(0),
            outside_ps: Cell::new(0),
            locks: RefCell::default(),
            counts_steps: Cell::new(false),
            costs,
            frequency,
            coherent,
            hardware: OnceCell::new(),
            on_timer: RefCell::default(),
            on_taken_down: RefCell::default(),
        }
    }

    /// Sets the hardware for whose completions spinning cores wait.
    pub(crate) fn connect(&self, hardware: Arc<Vtd>) {
        assert!(self.hardware.set(hardware).is_ok(), "the hardware is connected once");
    }

    /// Sets the handler that runs on a core whose timer fires.
    pub(crate) fn on_timer(&self, handler: Option<Rc<dyn Fn()>>) {
        *self.on_timer.borrow_mut() = handler;
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The running core, if there is one.
    pub fn current(&self) -> Option<Core> {
        self.current.get()
    }

    /// The clock of the running core in picoseconds, or the outside clock if no core runs.
    pub fn now_ps(&self) -> u64 {
        match self.current.get() {
            Some(core) => self.cores[core].now_ps.get(),
            None => self.outside_ps.get(),
        }
    }

    /// What has been charged to all cores together.
    pub fn account(&self) -> Account {
        let mut total = Account::default();
        for core in &self.cores {
            total.add(&core.account.borrow());
        }
        total
    }

    /// Starts counting how often each step is charged.
    pub(crate) fn count_steps(&self) {
        self.counts_steps.set(true);
    }

    /// Resets the counts of steps.
    pub(crate) fn forget_steps(&self) {
        self.cores.iter().for_each(|core| core.steps.borrow_mut().clear());
    }

    /// The counts of steps, by core.
    pub(crate) fn steps_by_core(&self) -> Vec<StepCounts> {
        self.cores.iter().map(|core| core.steps.borrow().clone()).collect()
    }

    /// The cycles charged to each core.
    pub(crate) fn cycles_by_core(&self) -> Vec<u64> {
        self.cores.iter().map(|core| core.account.borrow().cycles()).collect()
    }

    /// Resets the longest search, because the measured part begins now.
    pub(crate) fn forget_longest_search(&self) {
        self.cores.iter().for_each(|core| core.account.borrow_mut().forget_longest_search());
    }

    /// Runs one body per core until all have ended. All start at the same moment. Returns how long the longest body
    /// took, in picoseconds.
    ///
    /// # Panics
    /// Panics if the remaining cores wait for each other: the workload is deadlocked.
    pub fn run(self: &Rc<Self>, bodies: Vec<Box<dyn FnOnce()>>) -> u64 {
        assert!(bodies.len() <= self.cores.len(), "more bodies than cores");
        let start_ps = self.outside_ps.get();
        let mut fibers: Vec<Fiber> = Vec::with_capacity(bodies.len());
        for (core, body) in bodies.into_iter().enumerate() {
            let fiber = Fiber::new(body);
            self.cores[core].now_ps.set(start_ps);
            *self.cores[core].suspender.borrow_mut() = Some(fiber.suspender());
            fibers.push(fiber);
            self.ready.borrow_mut().push(Reverse((start_ps, core)));
        }
        // Dropped before the fibers: while a panic unwinds them, no core runs, and calls to the engine do nothing.
        let stop = Stop(self);
        let mut running = fibers.len();
        let mut end_ps = start_ps;
        while running > 0 {
            let turn = self.ready.borrow_mut().pop();
            let Some(Reverse((_, core))) = turn else {
                panic!("{running} virtual cores wait for each other and none can go on");
            };
            self.current.set(Some(core));
            self.horizon_ps.set(0);
            let ended = fibers[core].resume();
            self.current.set(None);
            if ended {
                running -= 1;
                end_ps = end_ps.max(self.cores[core].now_ps.get());
                self.wake(self.cores[core].now_ps.get(), |_| true);
            }
        }
        drop(stop);
        self.outside_ps.set(end_ps);
        end_ps - start_ps
    }

    fn state(&self) -> Option<&CoreState> {
        self.current.get().map(|core| &self.cores[core])
    }

    /// First lets every core with an earlier clock run.
    #[inline]
    pub fn sync(&self) {
        let Some(core) = self.current.get() else { return };
        if self.cores[core].now_ps.get() >= self.horizon_ps.get() {
            self.sync_with_others(core);
        }
    }

    #[cold]
    fn sync_with_others(&self, core: Core) {
        let state = &self.cores[core];
        let mine = Reverse((state.now_ps.get(), core));
        // `Reverse` makes the greatest turn the earliest.
        let earlier = self.ready.borrow().peek().is_some_and(|first| *first > mine);
        if earlier {
            self.ready.borrow_mut().push(mine);
            self.suspend(state);
        }
        self.take_interrupt(state);
        self.find_horizon(state);
    }

    fn find_horizon(&self, state: &CoreState) {
        let first_ps = self.ready.borrow().peek().map_or(u64::MAX, |Reverse((at_ps, _))| *at_ps);
        self.horizon_ps.set(state.timer_ps.get().map_or(first_ps, |timer_ps| timer_ps.min(first_ps)));
    }

    /// Makes a core ready at a time.
    fn make_ready(&self, at_ps: u64, core: Core) {
        self.ready.borrow_mut().push(Reverse((at_ps, core)));
        self.horizon_ps.set(self.horizon_ps.get().min(at_ps));
    }

    fn suspend(&self, state: &CoreState) {
        let suspender = state.suspender.borrow_mut().take().expect("a running core has a suspender");
        suspender.suspend();
        *state.suspender.borrow_mut() = Some(suspender);
    }

    /// Runs the timer's handler if it is due and interrupts are enabled. It is nested in the core's current work.
    fn take_interrupt(&self, state: &CoreState) {
        let due = state.timer_ps.get().is_some_and(|timer_ps| timer_ps <= state.now_ps.get());
        if !due || !state.takes_interrupts() {
            return;
        }
        let handler = self.on_timer.borrow().clone();
        state.timer_ps.set(None);
        if let Some(handler) = handler {
            let phase = state.account.borrow().phase();
            state.in_interrupt.set(true);
            let charging = state.charging.replace(true);
            handler();
            state.charging.set(charging);
            state.in_interrupt.set(false);
            state.account.borrow_mut().resume(phase);
        }
    }

    /// Arms the timer of the running core for `at_ps`, unless it is armed for an earlier time.
    pub fn arm_timer(&self, at_ps: u64) {
        if let Some(state) = self.state() {
            let earliest = state.timer_ps.get().map_or(at_ps, |timer_ps| timer_ps.min(at_ps));
            state.timer_ps.set(Some(earliest));
            self.horizon_ps.set(self.horizon_ps.get().min(earliest));
        }
    }

    /// When the timer of the running core fires, if it is armed.
    pub fn own_timer_ps(&self) -> Option<u64> {
        self.state().and_then(|state| state.timer_ps.get())
    }

    /// Runs `work` and charges its cost as protection.
    pub fn charged<R>(&self, work: impl FnOnce() -> R) -> R {
        let Some(state) = self.state() else { return work() };
        let before = state.charging.replace(true);
        let result = work();
        state.charging.set(before);
        state.account.borrow_mut().enter(Phase::Other);
        result
    }

    /// Adds `cycles` of work to the running core.
    #[inline]
    fn charge(&self, cycles: u64) {
        if let Some(state) = self.state() {
            state.now_ps.set(state.now_ps.get() + self.frequency.picoseconds(cycles));
            if state.charging.get() {
                state.account.borrow_mut().work(cycles);
            }
        }
    }

    /// Charges a step of the protection layer, then waits for its place in virtual time.
    // Inlined, so that the kind of step, a constant at the call, costs no branch.
    #[inline(always)]
    pub(crate) fn step(&self, step: Step) {
        let Some(state) = self.state() else { return };
        match step {
            Step::Enter(phase) => {
                state.account.borrow_mut().enter(phase);
                return self.taken_down_at(phase, state);
            }
            Step::TreeSearch { nodes } => state.account.borrow_mut().search(nodes),
            _ => {}
        }
        let cycles = self.costs.of(step);
        self.charge(cycles);
        if self.counts_steps.get() && state.charging.get() {
            state.count(step);
        }
        if step == Step::RegisterRead && state.charging.get() {
            // A read stalls the core until the hardware answers.
            state.account.borrow_mut().of_which_hardware_wait(cycles);
        }
        // A step whose effect only the holder of a lock can see needs no separate place in virtual time.
        let private = matches!(
            step,
            Step::Map
                | Step::Unmap
                | Step::ChunkMap
                | Step::ChunkUnmap
                | Step::TreeSearch { .. }
                | Step::TreeFind
                | Step::TreeInsert
                | Step::TreeErase
                | Step::HashFind
                | Step::SegmentSplit
                | Step::SegmentJoin
                | Step::FlushQueuePush
        );
        if !private {
            self.sync();
        }
    }

    /// Charges the cost of making `entries` visible to the walker. It counts as many cache lines as these entries
    /// fill.
    pub(crate) fn barrier(&self, entries: usize) {
        const ENTRIES_PER_LINE: usize = 8;
        let cycles = if self.coherent {
            self.costs.store_fence
        } else {
            let further_lines = entries.div_ceil(ENTRIES_PER_LINE).saturating_sub(1) as u64;
            self.costs.line_flush + self.costs.line_flush_next * further_lines
        };
        self.charge(cycles);
        self.sync();
    }

    /// One turn of a spin on the hardware: sleeps until the hardware has an event or an interrupt comes, and charges
    /// the time.
    pub(crate) fn pause(&self, _wait: Wait) {
        let next_ps = self.hardware.get().and_then(|hardware| hardware.next_event_ps());
        let Some(state) = self.state() else {
            let step_ps = self.frequency.picoseconds(self.costs.poll);
            self.outside_ps.set(next_ps.unwrap_or(0).max(self.outside_ps.get() + step_ps));
            return;
        };
        let start_ps = state.now_ps.get();
        let mut until_ps = next_ps.unwrap_or(0).max(start_ps + self.frequency.picoseconds(self.costs.poll));
        if state.takes_interrupts() {
            until_ps = state.timer_ps.get().map_or(until_ps, |timer_ps| until_ps.min(timer_ps.max(start_ps)));
        }
        state.now_ps.set(until_ps);
        if state.charging.get() {
            state.account.borrow_mut().hardware_wait(self.frequency.cycles(until_ps - start_ps));
        }
        self.sync();
        // Polling reads memory, not the unit, so the unit must have written its statuses by now.
        if let Some(hardware) = self.hardware.get() {
            hardware.advance(state.now_ps.get());
        }
    }

    /// Lets the running core sleep, uncharged, until `at_ps`. Its timer may fire in the meantime, unless it holds a
    /// lock.
    pub fn sleep_until(&self, at_ps: u64) {
        let Some(state) = self.state() else {
            self.outside_ps.set(self.outside_ps.get().max(at_ps));
            return;
        };
        while state.now_ps.get() < at_ps {
            let timer_ps = state.timer_ps.get().filter(|_| state.takes_interrupts());
            let until_ps = timer_ps.map_or(at_ps, |timer_ps| timer_ps.clamp(state.now_ps.get(), at_ps));
            state.now_ps.set(until_ps);
            self.sync();
        }
    }

    /// Suspends the running core, uncharged, until `condition` holds. Another core makes it true and then
    /// [notifies](Engine::notify) `event`. The timer of the running core may fire in the meantime, unless it holds a
    /// lock.
    pub fn wait_until(&self, event: Event, condition: impl Fn() -> bool) {
        let Some(core) = self.current.get() else { return };
        let state = &self.cores[core];
        while !condition() {
            self.waiting.borrow_mut().push((core, event));
            let timer_ps = state.timer_ps.get().filter(|_| state.takes_interrupts());
            if let Some(timer_ps) = timer_ps {
                // The core gets a turn for its timer. If it is woken before, `wake` removes this turn.
                self.make_ready(timer_ps.max(state.now_ps.get()), core);
            }
            self.suspend(state);
            let woken_by_timer = self.waiting.borrow().iter().any(|(waiting, _)| *waiting == core);
            if let Some(timer_ps) = timer_ps.filter(|_| woken_by_timer) {
                self.waiting.borrow_mut().retain(|(waiting, _)| *waiting != core);
                state.now_ps.set(state.now_ps.get().max(timer_ps));
                self.take_interrupt(state);
            }
        }
    }

    /// Wakes the cores that wait for `event`, so that they check their conditions. Their clocks advance at least to
    /// that of the running core.
    #[inline]
    pub fn notify(&self, event: Event) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        self.wake(self.now_ps(), |waited_for| waited_for == event);
    }

    /// Wakes every waiting core.
    pub fn notify_all(&self) {
        self.wake(self.now_ps(), |_| true);
    }

    fn wake(&self, now_ps: u64, wanted: impl Fn(Event) -> bool) {
        let mut waiting = self.waiting.borrow_mut();
        let mut index = 0;
        while index < waiting.len() {
            let (core, event) = waiting[index];
            if !wanted(event) {
                index += 1;
                continue;
            }
            waiting.remove(index);
            let state = &self.cores[core];
            if state.timer_ps.get().is_some() {
                // Removes the turn for its timer.
                self.ready.borrow_mut().retain(|Reverse((_, ready))| *ready != core);
            }
            state.now_ps.set(state.now_ps.get().max(now_ps));
            self.make_ready(state.now_ps.get(), core);
        }
    }
}
