//! How time passes on a core apart from protection: busy work, sleep, and waiting for events.

use super::{Core, CoreState, Engine, Event};

/// The waiting cores. There is usually none, or few.
#[derive(Default)]
pub(super) struct Waiters(Vec<(Event, Core)>);

impl Waiters {
    /// Removes and returns a core that waits for `event`. The order does not matter, because turns are ordered by time
    /// and core.
    fn take(&mut self, event: Event) -> Option<Core> {
        let at = self.0.iter().position(|(awaited, _)| *awaited == event)?;
        Some(self.0.swap_remove(at).1)
    }

    pub(super) fn remove(&mut self, core: Core) {
        self.0.retain(|(_, waiting)| *waiting != core);
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
            self.wait(core, event);
        }
    }

    /// Suspends the running core until `event` is notified, or an interrupt was taken.
    fn wait(&self, core: Core, event: Event) {
        let state = &self.cores[core];
        self.await_event(core, state, event);
        if let Some(at_ps) = state.interrupt_ps().filter(|_| state.takes_interrupts()) {
            // The core gets a turn at that time. If it is woken before, `wake` replaces this turn.
            self.set_turn(at_ps.max(state.now_ps.get()), core);
        }
        self.suspend(core, state);
        if state.waits_for.take().is_some() {
            self.waiters.borrow_mut().remove(core);
            self.take_interrupt(state);
        }
    }

    /// Notes that a core or an actor waits from now on.
    pub(super) fn await_event(&self, core: Core, state: &CoreState, event: Event) {
        self.waiters.borrow_mut().0.push((event, core));
        state.waits_for.set(Some(event));
    }

    /// Wakes the cores that wait for `event`, so that they check their conditions. Their clocks advance at least to
    /// that of the running core.
    #[inline]
    pub fn notify(&self, event: Event) {
        let next = || self.waiters.borrow_mut().take(event);
        while let Some(core) = next() {
            self.wake(core, self.now_ps());
        }
    }

    /// Wakes every waiting core.
    pub fn notify_all(&self) {
        self.wake_all(self.now_ps());
    }

    pub(super) fn wake_all(&self, now_ps: u64) {
        let all = std::mem::take(&mut self.waiters.borrow_mut().0);
        all.into_iter().for_each(|(_, core)| self.wake(core, now_ps));
    }

    fn wake(&self, core: Core, now_ps: u64) {
        let state = &self.cores[core];
        state.waits_for.set(None);
        state.now_ps.set(state.now_ps.get().max(now_ps));
        self.make_ready(state.now_ps.get(), core);
    }
}
