//! Virtual cores in virtual time.
//!
//! Each core is a fiber. One OS thread runs them all. A core has its own clock, and everything that it does advances
//! this clock. Before a core touches anything shared, it calls [`Engine::sync`], which first lets every core with an
//! earlier clock run. Shared state therefore changes in the order of virtual time, regardless of the order in which
//! fibers run. Ties go to the lower core number, so that every run is the same.
//!
//! Beside the CPUs there are *actors*, such as devices and clients. An actor has turns like a core, but acts at a
//! moment and never has to wait in the middle. So it is a function, and a core that lets it go first calls it.

mod cost;
mod frequency;
mod interrupts;
mod lines;
mod lock;
#[allow(unsafe_code, reason = "a value for one thread, behind a check")]
mod one_thread;
mod sharing;
mod spinning;
mod stuck;
mod turns;
mod unmapping;
mod waiting;

pub use cost::CostBook;
pub use frequency::Frequency;
pub use lock::LabLock;
pub(crate) use one_thread::OneThread;
pub use sharing::{LockKind, Numbering, Sharing};
pub use stuck::{Stuck, StuckCore};

use crate::account::{Account, is_of_addresses};
use interrupts::{InterruptHandler, Pending};
use lines::Lines;
use lock::Turnstile;
use portcullis::platform::{Phase, Step};
use portcullis_coherence::fiber::{self, Fiber};
use portcullis_model::Vtd;
use rustc_hash::FxHashMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use stuck::Watchdog;
use turns::Turns;
use waiting::Waiters;

/// Number of a virtual core. Actors are numbered after the CPUs.
pub type Core = usize;

/// The number of no core.
const NO_CORE: Core = Core::MAX;

/// Something that cores wait for, identified by a number that the workload chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// What a core runs.
pub type Body = Box<dyn FnOnce()>;

/// What an actor does at its turns. The first is at the start of a run.
pub struct Actor {
    /// The event that gives it a turn before the time that it has asked for.
    pub event: Event,
    /// Acts, and returns when it wants its next turn, if it does not only wait for the event. It must not sleep or wait
    /// itself.
    pub act: Box<dyn FnMut() -> Option<u64>>,
}

/// How often each step of the protection layer was charged.
pub(crate) type StepCounts = FxHashMap<Step, u64>;

/// The state of a virtual core or an actor.
struct CoreState {
    /// Whether this is an actor. Time passes for an actor only between its turns. Nothing is charged to it, and it
    /// takes no interrupts.
    is_actor: bool,
    actor: RefCell<Option<Actor>>,
    now_ps: Cell<u64>,
    /// The time of its turn, while it is ready.
    turn_ps: Cell<Option<u64>>,
    /// When its present rest began, if an interrupt may shorten it.
    resting_since_ps: Cell<Option<u64>>,
    /// The event that it waits for. An actor waits for its event whenever it does not act.
    waits_for: Cell<Option<Event>>,
    /// It spins on the hardware.
    spins: Cell<bool>,
    /// When the lines of its stores have come.
    stored_ps: Cell<u64>,
    /// How many locks it holds. Interrupts are masked while it holds any.
    masked: Cell<u32>,
    in_interrupt: Cell<bool>,
    /// Whether its body has ended, or none has begun.
    has_ended: Cell<bool>,
    /// When its timer fires, if it is armed.
    timer_ps: Cell<Option<u64>>,
    /// Device interrupts that were raised and not taken.
    interrupts: RefCell<Pending>,
    /// Cycles of work that is not protection.
    busy_cycles: Cell<u64>,
    /// Whether its work is now charged as protection.
    charging: Cell<bool>,
    /// Whether it is inside a single unmap that has not cleared its mapping yet.
    taking_down: Cell<bool>,
    account: RefCell<Account>,
    /// How often each step was charged, if that is counted.
    steps: RefCell<StepCounts>,
}

/// The engine. One per simulated machine, on one thread.
pub struct Engine {
    /// The CPUs, and behind them the actors.
    cores: Vec<CoreState>,
    cpus: usize,
    ready: RefCell<Turns>,
    /// What waits for an event, see [`Engine::wait_until`].
    waiters: RefCell<Waiters>,
    /// The running core or actor, or [`NO_CORE`].
    current: Cell<Core>,
    /// Before this moment the running core need not wait for another core, and has no interrupt to take. It is the
    /// earlier of the first turn among the ready cores and the core's own timer. Zero if it must be computed.
    horizon_ps: Cell<u64>,
    /// The clock while no core runs: before and after a run.
    outside_ps: Cell<u64>,
    locks: RefCell<Vec<Turnstile>>,
    counts_steps: Cell<bool>,
    costs: CostBook,
    lines: Lines,
    frequency: Frequency,
    coherent: bool,
    hardware: OnceCell<Arc<Vtd>>,
    on_timer: RefCell<Option<Rc<dyn Fn()>>>,
    on_interrupt: RefCell<Option<InterruptHandler>>,
    on_taken_down: RefCell<Option<Rc<dyn Fn()>>>,
    watchdog: Watchdog,
}

/// Leaves the engine with no core running, even if a run ends by a panic.
struct Stop<'e>(&'e Engine);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.current.set(NO_CORE);
        self.0.ready.borrow_mut().clear();
        self.0.waiters.borrow_mut().clear();
        for core in &self.0.cores {
            core.actor.borrow_mut().take();
            core.turn_ps.set(None);
            core.resting_since_ps.set(None);
            core.spins.set(false);
            core.stored_ps.set(0);
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
            actor: RefCell::default(),
            now_ps: Cell::new(0),
            turn_ps: Cell::new(None),
            resting_since_ps: Cell::new(None),
            waits_for: Cell::new(None),
            spins: Cell::new(false),
            stored_ps: Cell::new(0),
            masked: Cell::new(0),
            in_interrupt: Cell::new(false),
            has_ended: Cell::new(true),
            timer_ps: Cell::new(None),
            interrupts: RefCell::default(),
            busy_cycles: Cell::new(0),
            charging: Cell::new(false),
            taking_down: Cell::new(false),
            account: RefCell::default(),
            steps: RefCell::default(),
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
            current: Cell::new(NO_CORE),
            horizon_ps: Cell::new(0),
            outside_ps: Cell::new(0),
            locks: RefCell::default(),
            counts_steps: Cell::new(false),
            lines: Lines::of_one_socket(&costs),
            costs,
            frequency,
            coherent,
            hardware: OnceCell::new(),
            on_timer: RefCell::default(),
            on_interrupt: RefCell::default(),
            on_taken_down: RefCell::default(),
            watchdog: Watchdog::default(),
        }
    }

    /// Adds idle actors, which are numbered after the CPUs.
    #[must_use]
    pub fn with_actors(mut self, actors: usize) -> Self {
        self.cores.extend((0..actors).map(|_| CoreState::new(true)));
        self
    }

    /// Sets the hardware for whose completions spinning cores wait.
    pub(crate) fn connect(&self, hardware: Arc<Vtd>) {
        assert!(self.hardware.set(hardware).is_ok(), "the hardware is connected once");
    }

    /// Sets the handler that runs on a core whose timer fires.
    pub(crate) fn on_timer(&self, handler: Option<Rc<dyn Fn()>>) {
        *self.on_timer.borrow_mut() = handler;
    }

    /// Number of CPUs. Actors do not count.
    pub fn cores(&self) -> usize {
        self.cpus
    }

    /// The running core or actor, if there is one.
    pub fn current(&self) -> Option<Core> {
        self.running().map(|(core, _)| core)
    }

    /// The clock of the running core in picoseconds, or the outside clock if no core runs.
    pub fn now_ps(&self) -> u64 {
        self.state().map_or(self.outside_ps.get(), |state| state.now_ps.get())
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
        self.cores[..self.cpus].iter().map(|core| core.steps.borrow().clone()).collect()
    }

    /// The cycles charged to each core.
    pub(crate) fn cycles_by_core(&self) -> Vec<u64> {
        self.cores[..self.cpus].iter().map(|core| core.account.borrow().cycles()).collect()
    }

    /// The cycles of [work that is not protection](Engine::busy) on each core.
    pub fn busy_cycles_by_core(&self) -> Vec<u64> {
        self.cores[..self.cpus].iter().map(|core| core.busy_cycles.get()).collect()
    }

    /// Resets the longest search and the longest lists, because the measured part begins now.
    pub(crate) fn forget_longest(&self) {
        self.cores.iter().for_each(|core| core.account.borrow_mut().forget_longest());
    }

    /// Runs one body per core until all have ended. All start at the same moment. Returns how long the longest body
    /// took, in picoseconds.
    ///
    /// # Panics
    /// Panics if the remaining cores wait for each other, or for something that never comes.
    pub fn run(self: &Rc<Self>, bodies: Vec<Body>) -> u64 {
        self.run_beside(bodies, Vec::new()).unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    /// Runs one body per core beside actors, all from the same moment, until the bodies of all cores have ended. The
    /// actors then have no more turns. Returns how long the longest core took, in picoseconds.
    ///
    /// # Errors
    /// [`Stuck`] if neither the remaining cores nor the actors can continue, or if they take turns without getting
    /// anything done.
    ///
    /// # Panics
    /// If there are more bodies than cores, or more actors than [made](Engine::with_actors).
    pub fn run_beside(self: &Rc<Self>, bodies: Vec<Body>, actors: Vec<Actor>) -> Result<u64, Stuck> {
        assert!(bodies.len() <= self.cpus, "more bodies than cores");
        assert!(actors.len() <= self.cores.len() - self.cpus, "more actors than there are");
        let start_ps = self.outside_ps.get();
        let mut running = bodies.len();
        let mut fibers = Vec::with_capacity(bodies.len());
        for (core, body) in bodies.into_iter().enumerate() {
            fibers.push(Fiber::new(body));
            self.cores[core].now_ps.set(start_ps);
            self.cores[core].has_ended.set(false);
            self.set_turn(start_ps, core);
        }
        self.watchdog.calm();
        for (core, actor) in (self.cpus..).zip(actors) {
            self.waiters.borrow_mut().add(core, actor.event);
            *self.cores[core].actor.borrow_mut() = Some(actor);
            self.cores[core].now_ps.set(start_ps);
            self.set_turn(start_ps, core);
        }
        // Dropped before the fibers: while a panic unwinds them, no core runs, and calls to the engine do nothing.
        let stop = Stop(self);
        let mut end_ps = start_ps;
        while running > 0 {
            if self.watchdog.has_barked() {
                return Err(self.stuck(true));
            }
            let Some((_, core)) = self.first_turn() else { return Err(self.stuck(false)) };
            self.begin_turn(core);
            let state = &self.cores[core];
            if state.is_actor {
                self.act(core, state, None);
                continue;
            }
            let ended = fibers[core].resume();
            self.current.set(NO_CORE);
            if ended {
                state.has_ended.set(true);
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
        self.running().map(|(_, state)| state)
    }

    /// The running core or actor.
    #[inline(always)]
    fn running(&self) -> Option<(Core, &CoreState)> {
        let core = self.current.get();
        Some((core, self.cores.get(core)?))
    }

    /// First lets every core with an earlier clock run.
    #[inline]
    pub fn sync(&self) {
        if let Some((core, state)) = self.running() {
            self.sync_on(core, state);
        }
    }

    #[inline(always)]
    fn sync_on(&self, core: Core, state: &CoreState) {
        if state.now_ps.get() >= self.horizon_ps.get() {
            self.sync_with_others(core);
        }
    }

    #[cold]
    fn sync_with_others(&self, core: Core) {
        let state = &self.cores[core];
        if state.is_actor {
            return;
        }
        self.watch(core);
        self.let_earlier_go(core, state);
        self.take_interrupt(state);
        self.find_horizon(state);
    }

    /// Lets others go until no other turn is earlier. Actors act at once, and another core gets the thread.
    fn let_earlier_go(&self, core: Core, state: &CoreState) {
        loop {
            // An interrupt that an actor raises may end a rest early, and so set this clock back.
            let now_ps = state.now_ps.get();
            let Some((_, first)) = self.first_turn().filter(|first| *first < (now_ps, core)) else { return };
            let other = &self.cores[first];
            if !other.is_actor {
                self.set_turn(now_ps, core);
                return self.suspend(core);
            }
            self.begin_turn(first);
            self.act(first, other, Some((core, state)));
            self.resume(core);
            self.watch(core);
        }
    }

    fn find_horizon(&self, state: &CoreState) {
        let first_ps = self.first_turn().map_or(u64::MAX, |(at_ps, _)| at_ps);
        self.horizon_ps.set(state.interrupt_ps().map_or(first_ps, |interrupt_ps| interrupt_ps.min(first_ps)));
    }

    /// The earliest turn of the ready cores.
    fn first_turn(&self) -> Option<(u64, Core)> {
        self.ready.borrow().first()
    }

    /// Sets the turn of a core, and replaces the one that it may have.
    fn set_turn(&self, at_ps: u64, core: Core) {
        let before_ps = self.cores[core].turn_ps.replace(Some(at_ps));
        self.ready.borrow_mut().set(core, before_ps, at_ps);
    }

    /// Begins the earliest turn, which is that of `core`.
    fn begin_turn(&self, core: Core) {
        let state = &self.cores[core];
        self.ready.borrow_mut().remove_first();
        let at_ps = state.turn_ps.take().unwrap_or(0);
        state.now_ps.set(state.now_ps.get().max(at_ps));
        self.resume(core);
    }

    /// Makes `core` the running one.
    fn resume(&self, core: Core) {
        self.current.set(core);
        self.horizon_ps.set(0);
    }

    /// Makes a core ready at a time.
    fn make_ready(&self, at_ps: u64, core: Core) {
        self.set_turn(at_ps, core);
        self.horizon_ps.set(self.horizon_ps.get().min(at_ps));
    }

    /// Suspends the running core until its turn comes. Actors whose turns come first act at once, so that a core that
    /// waits only for actors keeps its fiber.
    fn suspend(&self, core: Core) {
        while let Some((_, first)) = self.first_turn().filter(|_| !self.watchdog.has_barked()) {
            let other = &self.cores[first];
            if first != core && !other.is_actor {
                break;
            }
            self.begin_turn(first);
            if first == core {
                return;
            }
            self.act(first, other, None);
        }
        fiber::suspend();
    }

    /// Lets an actor act, whose turn has begun, and then wait for its next one. If that comes before those of all
    /// others, it acts again. A core that rests meanwhile and has no turn in the list is one of these others.
    fn act(&self, core: Core, state: &CoreState, resting: Option<(Core, &CoreState)>) {
        let Some(actor) = &mut *state.actor.borrow_mut() else { return };
        loop {
            state.waits_for.set(None);
            let next_ps = (actor.act)();
            state.waits_for.set(Some(actor.event));
            self.watchdog.count();
            let Some(next_ps) = next_ps.filter(|_| !self.watchdog.has_barked()) else { break };
            let next = (next_ps.max(state.now_ps.get()), core);
            let rest = resting.map(|(resting, state)| (state.now_ps.get(), resting));
            if self.first_turn().into_iter().chain(rest).any(|other| other < next) {
                self.set_turn(next.0, core);
                break;
            }
            state.now_ps.set(next.0);
        }
        self.current.set(NO_CORE);
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
            self.charge_to(state, cycles);
        }
    }

    #[inline(always)]
    fn charge_to(&self, state: &CoreState, cycles: u64) {
        if !state.is_actor {
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
        let Some((core, state)) = self.running() else { return };
        match step {
            Step::Enter(phase) => {
                state.account.borrow_mut().enter(phase);
                return self.taken_down_at(phase, state);
            }
            Step::TreeSearch { nodes } => state.account.borrow_mut().search(nodes),
            Step::Map | Step::ChunkMap => self.done_by(state).map(),
            Step::Unmap | Step::ChunkUnmap => self.done_by(state).unmap(),
            Step::FlushQueuePush => state.account.borrow_mut().queue(),
            Step::ListPop => state.account.borrow_mut().free_lists().allocated(true),
            Step::TreeInsert => state.account.borrow_mut().free_lists().allocated(false),
            Step::ListPush => state.account.borrow_mut().free_lists().freed(true),
            Step::TreeErase => state.account.borrow_mut().free_lists().freed(false),
            Step::QueuePost => {
                self.await_stores(state);
                self.rouse(state);
            }
            Step::TableClaim => self.await_stores(state),
            _ => {}
        }
        if is_of_addresses(step) {
            state.account.borrow_mut().address_step();
        }
        let cycles = self.costs.of(step);
        self.charge_to(state, cycles);
        if self.counts_steps.get() && state.charging.get() {
            state.count(step);
        }
        if matches!(step, Step::RegisterRead) && state.charging.get() {
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
                | Step::TreeSettle { .. }
                | Step::TreeFind
                | Step::TreeInsert
                | Step::TreeErase
                | Step::HashFind
                | Step::SegmentSplit
                | Step::SegmentJoin
                | Step::FlushQueuePush
        );
        if !private {
            self.sync_on(core, state);
        }
    }
}
