//! Time that passes on a core: work of its own, sleep, and waiting for what another core brings about.

use super::{Core, CoreState, Engine, Event};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Who waits, by what they wait for.
#[derive(Default)]
pub(super) struct Waiters(FxHashMap<Event, SmallVec<[Core; 2]>>);

impl Waiters {
    fn add(&mut self, event: Event, core: Core) {
        self.0.entry(event).or_default().push(core);
    }

    fn remove(&mut self, event: Event, core: Core) {
        if let Some(cores) = self.0.get_mut(&event) {
            cores.retain(|waiting| *waiting != core);
            if cores.is_empty() {
                self.0.remove(&event);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Engine {
    /// Moves the clock of the running core to `until_ps`, or to an interrupt before that, and lets all that is earlier happen. What
    /// is due then happens at the next [`sync`](Engine::sync).
    pub(super) fn rest_until(&self, core: Core, state: &CoreState, until_ps: u64) {
        let since_ps = state.now_ps.get();
        let mut until_ps = until_ps;
        if state.takes_interrupts() {
            until_ps = state.interrupt_ps().map_or(until_ps, |at_ps| at_ps.clamp(since_ps, until_ps.max(since_ps)));
            state.resting_since_ps.set(Some(since_ps));
        }
        state.now_ps.set(until_ps);
        if until_ps >= self.horizon_ps.get() {
            self.let_earlier_go(core, state);
        }
        state.resting_since_ps.set(None);
    }

    /// Does `cycles` of work that is not protection, such as an application's. They are counted, and not charged. Interrupts may
    /// come in between, and lengthen it.
    pub fn busy(&self, cycles: u64) {
        let Some(core) = self.current.get() else { return };
        let state = &self.cores[core];
        state.busy_cycles.set(state.busy_cycles.get() + cycles);
        let mut left_ps = self.frequency.picoseconds(cycles);
        while left_ps > 0 {
            let since_ps = state.now_ps.get();
            self.rest_until(core, state, since_ps + left_ps);
            left_ps -= state.now_ps.get() - since_ps;
            self.sync();
        }
    }

    /// Lets the running core sleep, uncharged, until `at_ps`. Interrupts may come meanwhile, unless it holds a lock.
    pub fn sleep_until(&self, at_ps: u64) {
        let Some(core) = self.current.get() else {
            self.outside_ps.set(self.outside_ps.get().max(at_ps));
            return;
        };
        let state = &self.cores[core];
        while state.now_ps.get() < at_ps {
            self.rest_until(core, state, at_ps);
            self.sync();
        }
    }

    /// Stops the running core until `condition` holds, which another core brings about and then [notifies](Engine::notify)
    /// of `event`. Uncharged. Interrupts may come meanwhile, unless it holds a lock.
    pub fn wait_until(&self, event: Event, condition: impl Fn() -> bool) {
        let Some(core) = self.current.get() else { return };
        while !condition() {
            self.wait(core, event, None);
        }
    }

    /// Stops the running core or actor until it is [notified](Engine::notify) of `event`, or until `at_ps`. Uncharged.
    pub fn wait_for(&self, event: Event, at_ps: Option<u64>) {
        if let Some(core) = self.current.get() {
            self.wait(core, event, at_ps);
        }
    }

    /// Stops the running core until `event`, an interrupt, or `at_ps`.
    fn wait(&self, core: Core, event: Event, at_ps: Option<u64>) {
        let state = &self.cores[core];
        self.waiters.borrow_mut().add(event, core);
        state.waits_for.set(Some(event));
        let interrupt_ps = state.interrupt_ps().filter(|_| state.takes_interrupts());
        if let Some(at_ps) = interrupt_ps.into_iter().chain(at_ps).min() {
            // A turn of its own, unless it is woken before: then `wake` gives it an earlier one.
            self.make_ready(at_ps.max(state.now_ps.get()), core);
        }
        self.suspend(state);
        if state.waits_for.take().is_some() {
            self.waiters.borrow_mut().remove(event, core);
            self.take_interrupt(state);
        }
    }

    /// Wakes the cores that wait for `event`, to look again; they go on no earlier than the running core's clock.
    #[inline]
    pub fn notify(&self, event: Event) {
        // Mostly nothing waits, and this is asked often.
        if !self.waiters.borrow().0.is_empty() {
            let cores = self.waiters.borrow_mut().0.remove(&event);
            cores.into_iter().flatten().for_each(|core| self.wake(core, self.now_ps()));
        }
    }

    /// Wakes every core that waits for anything.
    pub fn notify_all(&self) {
        self.wake_all(self.now_ps());
    }

    pub(super) fn wake_all(&self, now_ps: u64) {
        let all = std::mem::take(&mut self.waiters.borrow_mut().0);
        // In whatever order: turns are ordered by time and core.
        all.into_values().flatten().for_each(|core| self.wake(core, now_ps));
    }

    fn wake(&self, core: Core, now_ps: u64) {
        let state = &self.cores[core];
        state.waits_for.set(None);
        state.now_ps.set(state.now_ps.get().max(now_ps));
        self.make_ready(state.now_ps.get(), core);
    }
}
