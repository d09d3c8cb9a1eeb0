//! Virtual cores in virtual time.
//!
//! Each core is a fiber, and so is each *actor*: what acts beside the CPUs, such as devices and clients. One OS thread runs them all. A core has a clock of its own, and everything that it does adds to it.
//! Before it touches anything shared it calls [`Engine::sync`], which lets every core with an earlier clock go first; so
//! shared state changes in the order of virtual time, whatever the order in which fibers happen to run. Ties go to the lower
//! core number, so that a run is the same every time.

mod cost;
#[allow(unsafe_code, reason = "a fiber suspends itself through a pointer into its own stack")]
mod fiber;
mod interrupts;
mod lock;
#[allow(unsafe_code, reason = "a value for one thread, behind a check")]
mod one_thread;
mod unmapping;
mod waiting;

pub use cost::CostBook;
pub use lock::LabLock;
pub(crate) use one_thread::OneThread;

use crate::account::Account;
use fiber::{Fiber, Suspender};
use interrupts::Pending;
use lock::Turnstile;
use portcullis::platform::{Phase, Step, Wait};
use portcullis_model::Vtd;
use rustc_hash::FxHashMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use waiting::Waiters;

/// Number of a virtual core. Actors are numbered behind the CPUs.
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// What a core or an actor does from the beginning of a run to its end.
pub type Body = Box<dyn FnOnce()>;

/// A core that wants to go on at a time. Ordered by time, then core.
type Turn = Reverse<(u64, Core)>;

/// How often each step of the protection layer was charged.
pub(crate) type StepCounts = FxHashMap<Step, u64>;

/// The state of one virtual core or actor.
struct CoreState {
    /// An actor's time passes while it sleeps and waits. Nothing is ever charged to it, and it takes no interrupts.
    is_actor: bool,
    now_ps: Cell<u64>,
    /// When its turn is, while it is among the ready. Its other entries there are out of date.
    turn_ps: Cell<Option<u64>>,
    /// Since when it rests, where an interrupt may cut that short.
    resting_since_ps: Cell<Option<u64>>,
    /// What it waits for.
    waits_for: Cell<Option<Event>>,
    /// How many locks it holds: interrupts are masked meanwhile.
    masked: Cell<u32>,
    in_interrupt: Cell<bool>,
    /// When its timer fires.
    timer_ps: Cell<Option<u64>>,
    /// Interrupts of devices that it has not taken yet.
    interrupts: RefCell<Pending>,
    /// Cycles of work that is not protection.
    busy_cycles: Cell<u64>,
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
    /// The CPUs, and behind them the actors.
    cores: Vec<CoreState>,
    cpus: usize,
    ready: RefCell<BinaryHeap<Turn>>,
    waiters: RefCell<Waiters>,
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
    on_interrupt: RefCell<Option<Rc<dyn Fn(u8)>>>,
    on_taken_down: RefCell<Option<Rc<dyn Fn()>>>,
}

/// A run that cannot go on: its cores wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// How many of them wait.
    pub cores: usize,
}

/// Leaves the engine with no core running, however a run ends.
struct Stop<'e>(&'e Engine);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.current.set(None);
        self.0.ready.borrow_mut().clear();
        self.0.waiters.borrow_mut().clear();
        for core in &self.0.cores {
            core.suspender.borrow_mut().take();
            core.turn_ps.set(None);
            core.resting_since_ps.set(None);
            core.waits_for.set(None);
            core.interrupts.borrow_mut().clear();
            core.masked.set(0);
            core.taking_down.set(false);
        }
        for lock in self.0.locks.borrow_mut().iter_mut() {
            lock.abandon();
        }
    }
}

impl CoreState {
    fn new(is_actor: bool) -> Self {
        Self {
            is_actor,
            now_ps: Cell::new(0),
            turn_ps: Cell::new(None),
            resting_since_ps: Cell::new(None),
            waits_for: Cell::new(None),
            masked: Cell::new(0),
            in_interrupt: Cell::new(false),
            timer_ps: Cell::new(None),
            interrupts: RefCell::default(),
            busy_cycles: Cell::new(0),
            charging: Cell::new(false),
            taking_down: Cell::new(false),
            account: RefCell::default(),
            steps: RefCell::default(),
            suspender: RefCell::default(),
        }
    }

    #[cold]
    fn count(&self, step: Step) {
        *self.steps.borrow_mut().entry(step).or_default() += 1;
    }
}

impl Engine {
    /// `cpus` idle CPUs at time zero.
    pub fn new(cpus: usize, frequency: Frequency, costs: CostBook, coherent: bool) -> Self {
        Self {
            cores: (0..cpus).map(|_| CoreState::new(false)).collect(),
            cpus,
            ready: RefCell::default(),
            waiters: RefCell::default(),
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
            on_interrupt: RefCell::default(),
            on_taken_down: RefCell::default(),
        }
    }

    /// With so many actors beside the CPUs.
    #[must_use]
    pub fn with_actors(mut self, actors: usize) -> Self {
        self.cores.extend((0..actors).map(|_| CoreState::new(true)));
        self
    }

    /// Names the hardware whose completions spinning cores wait for.
    pub(crate) fn connect(&self, hardware: Arc<Vtd>) {
        assert!(self.hardware.set(hardware).is_ok(), "the hardware is connected once");
    }

    /// What runs on a core whose timer has fired.
    pub(crate) fn on_timer(&self, handler: Option<Rc<dyn Fn()>>) {
        *self.on_timer.borrow_mut() = handler;
    }

    /// Number of CPUs. Actors do not count.
    pub fn cores(&self) -> usize {
        self.cpus
    }

    /// The core or actor that runs, if any does.
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
        self.cores[..self.cpus].iter().map(|core| core.steps.borrow().clone()).collect()
    }

    /// The cycles that have been charged to each core.
    pub(crate) fn cycles_by_core(&self) -> Vec<u64> {
        self.cores[..self.cpus].iter().map(|core| core.account.borrow().cycles()).collect()
    }

    /// The cycles of [work that is not protection](Engine::busy) on each core.
    pub fn busy_cycles_by_core(&self) -> Vec<u64> {
        self.cores[..self.cpus].iter().map(|core| core.busy_cycles.get()).collect()
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
    pub fn run(self: &Rc<Self>, bodies: Vec<Body>) -> u64 {
        self.run_beside(bodies, Vec::new())
            .unwrap_or_else(|stuck| panic!("{} virtual cores wait for each other and none can go on", stuck.cores))
    }

    /// Runs one body per core beside one body per actor, all from the same moment. When all cores have ended, actors are stopped
    /// where they are. Returns how long the longest core took, in picoseconds.
    ///
    /// # Errors
    /// [`Stuck`] where cores remain, and neither they nor the actors can go on.
    ///
    /// # Panics
    /// If there are more bodies than cores or actors.
    pub fn run_beside(self: &Rc<Self>, bodies: Vec<Body>, actors: Vec<Body>) -> Result<u64, Stuck> {
        assert!(bodies.len() <= self.cpus, "more bodies than cores");
        assert!(actors.len() <= self.cores.len() - self.cpus, "more bodies than actors");
        let start_ps = self.outside_ps.get();
        let mut running = bodies.len();
        let mut fibers: Vec<Option<Fiber>> = self.cores.iter().map(|_| None).collect();
        for (core, body) in bodies.into_iter().enumerate().chain((self.cpus..).zip(actors)) {
            let fiber = Fiber::new(body);
            self.cores[core].now_ps.set(start_ps);
            *self.cores[core].suspender.borrow_mut() = Some(fiber.suspender());
            fibers[core] = Some(fiber);
            self.set_turn(start_ps, core);
        }
        // Dropped before the fibers: while they are unwound after a panic, no core runs, and engine calls do nothing.
        let stop = Stop(self);
        let mut end_ps = start_ps;
        while running > 0 {
            let Some((at_ps, core)) = self.first_turn() else { return Err(Stuck { cores: running }) };
            self.ready.borrow_mut().pop();
            let state = &self.cores[core];
            state.turn_ps.set(None);
            state.now_ps.set(state.now_ps.get().max(at_ps));
            self.current.set(Some(core));
            self.horizon_ps.set(0);
            let ended = fibers[core].as_mut().expect("what has a turn has a body").resume();
            self.current.set(None);
            if ended && !state.is_actor {
                running -= 1;
                end_ps = end_ps.max(state.now_ps.get());
                self.wake_all(state.now_ps.get());
            }
        }
        drop(stop);
        self.outside_ps.set(end_ps);
        Ok(end_ps - start_ps)
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
        self.let_earlier_go(core, state);
        self.take_interrupt(state);
        self.find_horizon(state);
    }

    /// Stops the running core until none is earlier.
    fn let_earlier_go(&self, core: Core, state: &CoreState) {
        let now_ps = state.now_ps.get();
        if self.first_turn().is_some_and(|first| first < (now_ps, core)) {
            self.set_turn(now_ps, core);
            self.suspend(state);
        }
    }

    fn find_horizon(&self, state: &CoreState) {
        let first_ps = self.first_turn().map_or(u64::MAX, |(at_ps, _)| at_ps);
        self.horizon_ps.set(state.interrupt_ps().map_or(first_ps, |interrupt_ps| interrupt_ps.min(first_ps)));
    }

    /// The earliest turn among the ready.
    fn first_turn(&self) -> Option<(u64, Core)> {
        let mut ready = self.ready.borrow_mut();
        loop {
            let Reverse((at_ps, core)) = *ready.peek()?;
            if self.cores[core].turn_ps.get() == Some(at_ps) {
                return Some((at_ps, core));
            }
            ready.pop();
        }
    }

    /// Gives a core its turn, in place of the one that it has, if it has one.
    fn set_turn(&self, at_ps: u64, core: Core) {
        self.cores[core].turn_ps.set(Some(at_ps));
        self.ready.borrow_mut().push(Reverse((at_ps, core)));
    }

    /// Puts a core among the ready.
    fn make_ready(&self, at_ps: u64, core: Core) {
        self.set_turn(at_ps, core);
        self.horizon_ps.set(self.horizon_ps.get().min(at_ps));
    }

    fn suspend(&self, state: &CoreState) {
        let suspender = state.suspender.borrow_mut().take().expect("a running core has a suspender");
        suspender.suspend();
        *state.suspender.borrow_mut() = Some(suspender);
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
        if let Some(state) = self.state().filter(|state| !state.is_actor) {
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
        // Beside actors most of what happens in the hardware is walks for devices, and no CPU spins for those.
        let has_actors = self.cores.len() > self.cpus;
        let next = |hardware: &Arc<Vtd>| match has_actors {
            true => hardware.next_queue_event_ps(),
            false => hardware.next_event_ps(),
        };
        let next_ps = self.hardware.get().and_then(next);
        let Some(core) = self.current.get() else {
            let step_ps = self.frequency.picoseconds(self.costs.poll);
            self.outside_ps.set(next_ps.unwrap_or(0).max(self.outside_ps.get() + step_ps));
            return;
        };
        let state = &self.cores[core];
        let start_ps = state.now_ps.get();
        let until_ps = next_ps.unwrap_or(0).max(start_ps + self.frequency.picoseconds(self.costs.poll));
        self.rest_until(core, state, until_ps);
        if state.charging.get() {
            state.account.borrow_mut().hardware_wait(self.frequency.cycles(state.now_ps.get() - start_ps));
        }
        self.sync();
        // Polling reads memory, not the unit: it must have written its statuses by now.
        if let Some(hardware) = self.hardware.get() {
            hardware.advance(state.now_ps.get());
        }
    }
}
