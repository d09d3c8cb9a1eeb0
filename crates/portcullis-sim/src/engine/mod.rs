//! Virtual cores in virtual time.
//!
//! Each core is a fiber; one OS thread runs them all. A core has a clock of its own, and everything that it does adds to it.
//! Before it touches anything shared it calls [`Engine::sync`], which lets every core with an earlier clock go first; so
//! shared state changes in the order of virtual time, whatever the order in which fibers happen to run. Ties go to the lower
//! core number, so that a run is the same every time.

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

/// Core cycles on one side, picoseconds on the other.
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

    /// How long that many cycles take, in picoseconds.
    pub fn picoseconds(self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.cycle) + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS) as u64
    }

    /// How many cycles pass in that time, rounded up.
    pub fn cycles(self, picoseconds: u64) -> u64 {
        (u128::from(picoseconds) * u128::from(self.picosecond)).div_ceil(1 << FRACTION_BITS) as u64
    }
}

/// Something that cores wait for, by a number that the workload chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event(pub u64);

/// A core that wants to go on at a time. Ordered by time, then core.
type Turn = Reverse<(u64, Core)>;

/// How often each step of the protection layer was charged.
pub(crate) type StepCounts = FxHashMap<Step, u64>;

/// The state of one virtual core.
struct CoreState {
    now_ps: Cell<u64>,
    /// How many locks it holds: interrupts are masked meanwhile.
    masked: Cell<u32>,
    in_interrupt: Cell<bool>,
    /// When its timer fires.
    timer_ps: Cell<Option<u64>>,
    /// Whether what it does now is protection, and charged as such.
    charging: Cell<bool>,
    /// Whether it is inside a single unmap that has not taken the mapping down yet.
    taking_down: Cell<bool>,
    account: RefCell<Account>,
    /// How often each step was charged, where that is counted.
    steps: RefCell<StepCounts>,
    suspender: RefCell<Option<Suspender>>,
}

/// The engine. One per simulated machine, on one thread.
pub struct Engine {
    cores: Vec<CoreState>,
    ready: RefCell<BinaryHeap<Turn>>,
    /// Cores that wait for another core to get somewhere, see [`Engine::wait_until`].
    waiting: RefCell<Vec<(Core, Event)>>,
    current: Cell<Option<Core>>,
    /// Before this moment the running core has nobody to wait for and no interrupt to take: the earlier of the first turn
    /// among the ready and its own timer. Zero where that must be looked up.
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

/// Leaves the engine with no core running, however a run ends.
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
    /// `cores` idle cores at time zero.
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

    /// Names the hardware whose completions spinning cores wait for.
    pub(crate) fn connect(&self, hardware: Arc<Vtd>) {
        assert!(self.hardware.set(hardware).is_ok(), "the hardware is connected once");
    }

    /// What runs on a core whose timer has fired.
    pub(crate) fn on_timer(&self, handler: Option<Rc<dyn Fn()>>) {
        *self.on_timer.borrow_mut() = handler;
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The core that runs, if any does.
    pub fn current(&self) -> Option<Core> {
        self.current.get()
    }

    /// The clock of the core that runs, in picoseconds.
    pub fn now_ps(&self) -> u64 {
        match self.current.get() {
            Some(core) => self.cores[core].now_ps.get(),
            None => self.outside_ps.get(),
        }
    }

    /// What has been charged to every core together.
    pub fn account(&self) -> Account {
        let mut total = Account::default();
        for core in &self.cores {
            total.add(&core.account.borrow());
        }
        total
    }

    /// From now on counts how often each step is charged.
    pub(crate) fn count_steps(&self) {
        self.counts_steps.set(true);
    }

    /// What is counted begins now.
    pub(crate) fn forget_steps(&self) {
        self.cores.iter().for_each(|core| core.steps.borrow_mut().clear());
    }

    /// What has been counted, by core.
    pub(crate) fn steps_by_core(&self) -> Vec<StepCounts> {
        self.cores.iter().map(|core| core.steps.borrow().clone()).collect()
    }

    /// The cycles that have been charged to each core.
    pub(crate) fn cycles_by_core(&self) -> Vec<u64> {
        self.cores.iter().map(|core| core.account.borrow().cycles()).collect()
    }

    /// Forgets the longest search so far: what is measured begins now.
    pub(crate) fn forget_longest_search(&self) {
        self.cores.iter().for_each(|core| core.account.borrow_mut().forget_longest_search());
    }

    /// Runs one body per core, all from the same moment, until all have ended, and returns how long the longest took, in
    /// picoseconds.
    ///
    /// # Panics
    /// If cores remain that wait for each other: a workload that cannot go on.
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
        // Dropped before the fibers: while they are unwound after a panic, no core runs, and engine calls do nothing.
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

    /// Lets every core with an earlier clock go first.
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
        // `Reverse`: the greatest turn is the earliest.
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

    /// Puts a core among the ready.
    fn make_ready(&self, at_ps: u64, core: Core) {
        self.ready.borrow_mut().push(Reverse((at_ps, core)));
        self.horizon_ps.set(self.horizon_ps.get().min(at_ps));
    }

    fn suspend(&self, state: &CoreState) {
        let suspender = state.suspender.borrow_mut().take().expect("a running core has a suspender");
        suspender.suspend();
        *state.suspender.borrow_mut() = Some(suspender);
    }

    /// Runs the timer's handler where it is due and interrupts are enabled, nested in whatever the core was doing.
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

    /// Has the timer of the running core fire at `at_ps`, unless it is to fire earlier.
    pub fn arm_timer(&self, at_ps: u64) {
        if let Some(state) = self.state() {
            let earliest = state.timer_ps.get().map_or(at_ps, |timer_ps| timer_ps.min(at_ps));
            state.timer_ps.set(Some(earliest));
            self.horizon_ps.set(self.horizon_ps.get().min(earliest));
        }
    }

    /// When the timer of the running core fires.
    pub fn own_timer_ps(&self) -> Option<u64> {
        self.state().and_then(|state| state.timer_ps.get())
    }

    /// Runs `work`, whose cost is charged as protection.
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

    /// A step of the protection layer: charges it, then waits for its place in virtual time.
    // Inlined, so that the kind of step, a constant where it is announced, costs no branch.
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
        // What only the holder of a lock can see needs no place in time of its own.
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

    /// Makes `entries` visible to the walker: what it costs. As many lines are counted as hold so many entries.
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

    /// A turn of a spin on the hardware: sleeps until something happens there, or an interrupt comes, and charges the time.
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
        // Polling reads memory, not the unit: it must have written its statuses by now.
        if let Some(hardware) = self.hardware.get() {
            hardware.advance(state.now_ps.get());
        }
    }

    /// Lets the running core sleep, uncharged, until `at_ps`. Its timer may fire meanwhile, unless it holds a lock.
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

    /// Stops the running core until `condition` holds, which another core brings about and then [notifies](Engine::notify)
    /// of `event`. Uncharged. Its timer may fire meanwhile, unless it holds a lock.
    pub fn wait_until(&self, event: Event, condition: impl Fn() -> bool) {
        let Some(core) = self.current.get() else { return };
        let state = &self.cores[core];
        while !condition() {
            self.waiting.borrow_mut().push((core, event));
            let timer_ps = state.timer_ps.get().filter(|_| state.takes_interrupts());
            if let Some(timer_ps) = timer_ps {
                // A turn of its own, unless it is woken before: then `wake` has taken this one back.
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

    /// Wakes the cores that wait for `event`, to look again; they go on no earlier than the running core's clock.
    #[inline]
    pub fn notify(&self, event: Event) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        self.wake(self.now_ps(), |waited_for| waited_for == event);
    }

    /// Wakes every core that waits for anything.
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
                // The turn that it has for its timer.
                self.ready.borrow_mut().retain(|Reverse((_, ready))| *ready != core);
            }
            state.now_ps.set(state.now_ps.get().max(now_ps));
            self.make_ready(state.now_ps.get(), core);
        }
    }
}
