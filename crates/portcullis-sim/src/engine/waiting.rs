//! How time passes on a core apart from protection: busy work, sleep, and waiting for events.

use super::{Core, CoreState, Engine, Event};

/// What waits for which event: the actors, always, and the waiting CPUs. There are usually none of these, or few.
#[derive(Default)]
pub(super) struct Waiters(Vec<(Event, Core)>);

impl Waiters {
    pub(super) fn add(&mut self, core: Core, event: Event) {
        self.0.push((event, core));
    }

    fn remove(&mut self, core: Core) {
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
        let Some((core, state)) = self.running() else { return };
        state.busy_cycles.set(state.busy_cycles.get() + cycles);
        self.watchdog.calm();
        let mut left_ps = self.frequency.picoseconds(cycles);
        while left_ps > 0 {
            let since_ps = state.now_ps.get();
            self.rest_until(core, state, since_ps + left_ps);
            left_ps -= state.now_ps.get() - since_ps;
            self.sync();
        }
    }

    /// Counts the time since `since_ps` as work of the running core that is not protection: it has waited without being
    /// able to do anything else.
    pub fn was_busy_since(&self, since_ps: u64) {
        if let Some((_, state)) = self.running() {
            let cycles = self.frequency.cycles(state.now_ps.get() - since_ps);
            state.busy_cycles.set(state.busy_cycles.get() + cycles);
        }
    }

    /// Lets the running core sleep, uncharged, until `at_ps`. It takes interrupts in the meantime, unless it holds a
    /// lock.
    pub fn sleep_until(&self, at_ps: u64) {
        let Some((core, state)) = self.running() else {
            self.outside_ps.set(self.outside_ps.get().max(at_ps));
            return;
        };
        self.watch(core);
        while state.now_ps.get() < at_ps {
            self.rest_until(core, state, at_ps);
            self.sync();
        }
    }

    /// Suspends the running core, uncharged, until `condition` holds. Another core makes it true and then
    /// [notifies](Engine::notify) `event`. The core takes interrupts in the meantime, unless it holds a lock.
    pub fn wait_until(&self, event: Event, condition: impl Fn() -> bool) {
        let Some((core, _)) = self.running() else { return };
        while !condition() {
            self.wait(core, event);
        }
    }

    /// Suspends the running core until `event` is notified, or an interrupt was taken.
    fn wait(&self, core: Core, event: Event) {
        let state = &self.cores[core];
        self.waiters.borrow_mut().add(core, event);
        state.waits_for.set(Some(event));
        if let Some(at_ps) = state.interrupt_ps().filter(|_| state.takes_interrupts()) {
            // The core gets a turn at that time. If it is woken before, `wake` replaces this turn.
            self.set_turn(at_ps.max(state.now_ps.get()), core);
        }
        self.suspend(core);
        if state.waits_for.take().is_some() {
            self.waiters.borrow_mut().remove(core);
            self.take_interrupt(state);
        }
    }

    /// Wakes the cores and actors that wait for `event`, so that they check their conditions. Their clocks advance at
    /// least to that of the running core.
    #[inline]
    pub fn notify(&self, event: Event) {
        if self.waiters.borrow().0.iter().any(|(awaited, _)| *awaited == event) {
            self.wake_those(self.now_ps(), |awaited| awaited == event);
        }
    }

    /// The order does not matter, because turns are ordered by time and core.
    // Apart, so that a call of `notify` for which nothing waits costs little.
    #[cold]
    #[inline(never)]
    fn wake_those(&self, now_ps: u64, wakes: impl Fn(Event) -> bool) {
        let (mut at, waiter) = (0, |at: usize| self.waiters.borrow().0.get(at).copied());
        while let Some((awaited, core)) = waiter(at) {
            if !wakes(awaited) {
                at += 1;
            } else if core < self.cpus {
                self.waiters.borrow_mut().0.swap_remove(at);
                self.wake(core, now_ps);
            } else {
                at += 1;
                // Unless it has been woken already, or acts.
                if self.cores[core].waits_for.get().is_some() {
                    self.wake(core, now_ps);
                }
            }
        }
    }

    /// Wakes everything that waits.
    pub fn notify_all(&self) {
        self.wake_all(self.now_ps());
    }

    pub(super) fn wake_all(&self, now_ps: u64) {
        self.wake_those(now_ps, |_| true);
    }

    fn wake(&self, core: Core, now_ps: u64) {
        let state = &self.cores[core];
        state.waits_for.set(None);
        state.now_ps.set(state.now_ps.get().max(now_ps));
        self.make_ready(state.now_ps.get(), core);
    }
}
