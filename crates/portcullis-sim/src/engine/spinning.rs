//! How cores spin on the hardware.

use super::{CoreState, Engine};
use portcullis::platform::Wait;
use portcullis_model::Vtd;
use std::sync::Arc;

impl Engine {
    /// One turn of a spin on the hardware: sleeps until the hardware has an event or an interrupt comes, and charges
    /// the time.
    pub(crate) fn pause(&self, _wait: Wait) {
        // With actors, most events of the hardware are walks for devices, for which no CPU spins.
        let has_actors = self.cores.len() > self.cpus;
        let next = |hardware: &Arc<Vtd>| match has_actors {
            true => hardware.next_queue_event_ps(),
            false => hardware.next_event_ps(),
        };
        let next_ps = self.hardware.get().and_then(next);
        let Some((core, state)) = self.running() else {
            let step_ps = self.frequency.picoseconds(self.costs.poll);
            self.outside_ps.set(next_ps.unwrap_or(0).max(self.outside_ps.get() + step_ps));
            return;
        };
        self.watch(core);
        let start_ps = state.now_ps.get();
        let until_ps = next_ps.unwrap_or(0).max(start_ps + self.frequency.picoseconds(self.costs.poll));
        state.spins.set(true);
        self.rest_until(core, state, until_ps);
        state.spins.set(false);
        if state.charging.get() {
            state.account.borrow_mut().hardware_wait(self.frequency.cycles(state.now_ps.get() - start_ps));
        }
        self.sync();
        // Polling reads memory, not the unit, so the unit must have written its statuses by now.
        if let Some(hardware) = self.hardware.get() {
            hardware.advance(state.now_ps.get());
        }
    }

    /// The core of `state` posts a command. Cores that spin see that with their next poll: one of them may have the
    /// duty to submit it.
    pub(super) fn rouse(&self, state: &CoreState) {
        let at_ps = state.now_ps.get() + self.frequency.picoseconds(self.costs.poll);
        for (core, spinning) in self.cores.iter().enumerate().filter(|(_, state)| state.spins.get()) {
            let Some(since_ps) = spinning.resting_since_ps.get() else { continue };
            let wake_ps = at_ps.max(since_ps);
            if wake_ps < spinning.now_ps.get() && spinning.turn_ps.get().is_some() {
                spinning.now_ps.set(wake_ps);
                self.make_ready(wake_ps, core);
            }
        }
    }
}
