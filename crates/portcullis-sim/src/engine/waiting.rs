//! How time passes on a core apart from protection: busy work, sleep, and waiting for events.

use super::{Core, CoreState, Engine, Event};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The waiting cores by event.
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
    /// Advances the clock of the running core to `until_ps`, or to an earlier interrupt, after all earlier turns of
    /// other cores. The interrupt is taken at the next [`sync`](Engine::sync).
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

    /// Does `cycles` of work that is not protection, such as that of an application. The cycles are counted and not
    /// charged. An interrupt in the meantime lengthens the work.
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

    /// Lets the running core sleep, uncharged, until `at_ps`. It takes interrupts in the meantime, unless it holds a
    /// lock.
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

    /// Suspends the running core, uncharged, until `condition` holds. Another core makes it true and then
    /// [notifies](Engine::notify) `event`. The core takes interrupts in the meantime, unless it holds a lock.
    pub fn wait_until(&self, event: Event, condition: impl Fn() -> bool) {
        let Some(core) = self.current.get() else { return };
        while !condition() {
            self.wait(core, event, None);
        }
    }

    /// Suspends the running core or actor, uncharged, until `event` is [notified](Engine::notify) or `at_ps` has come.
    pub fn wait_for(&self, event: Event, at_ps: Option<u64>) {
        if let Some(core) = self.current.get() {
            self.wait(core, event, at_ps);
        }
    }

    /// Suspends the running core until `event` is notified, an interrupt was taken, or `at_ps` has come.
    fn wait(&self, core: Core, event: Event, at_ps: Option<u64>) {
        let state = &self.cores[core];
        self.waiters.borrow_mut().add(event, core);
        state.waits_for.set(Some(event));
        let interrupt_ps = state.interrupt_ps().filter(|_| state.takes_interrupts());
        if let Some(at_ps) = interrupt_ps.into_iter().chain(at_ps).min() {
            // The core gets a turn at that time. If it is woken before, `wake` replaces this turn.
            self.make_ready(at_ps.max(state.now_ps.get()), core);
        }
        self.suspend(state);
        if state.waits_for.take().is_some() {
            self.waiters.borrow_mut().remove(event, core);
            self.take_interrupt(state);
        }
    }

    /// Wakes the cores that wait for `event`, so that they check their conditions. Their clocks advance at least to
    /// that of the running core.
    #[inline]
    pub fn notify(&self, event: Event) {
        // This is called often, and usually no core waits.
        if !self.waiters.borrow().0.is_empty() {
            let cores = self.waiters.borrow_mut().0.remove(&event);
            cores.into_iter().flatten().for_each(|core| self.wake(core, self.now_ps()));
        }
    }

    /// Wakes every waiting core.
    pub fn notify_all(&self) {
        self.wake_all(self.now_ps());
    }

    pub(super) fn wake_all(&self, now_ps: u64) {
        let all = std::mem::take(&mut self.waiters.borrow_mut().0);
        // The order does not matter, because turns are ordered by time and core.
        all.into_values().flatten().for_each(|core| self.wake(core, now_ps));
    }

    fn wake(&self, core: Core, now_ps: u64) {
        let state = &self.cores[core];
        state.waits_for.set(None);
        state.now_ps.set(state.now_ps.get().max(now_ps));
        self.make_ready(state.now_ps.get(), core);
    }
}
