//! Interrupts of a core's timer, and of devices by vector. A core takes them where it yields, unless it holds a lock or
//! handles another interrupt.

use super::{Core, CoreState, Engine};
use std::rc::Rc;

/// Handles a device interrupt, of which it gets the vector.
pub(super) type InterruptHandler = Rc<dyn Fn(u8)>;

/// Device interrupts that were raised and not taken, and the masked vectors.
#[derive(Default)]
pub(super) struct Pending {
    /// Each with the time from which it may be taken. A vector that is raised twice before it is taken is taken once.
    raised: Vec<(u64, u8)>,
    masked: [u64; VECTOR_WORDS],
}

/// A core has 256 vectors, as many as a number of eight bits tells apart.
const VECTOR_WORDS: usize = 256 / u64::BITS as usize;

/// The word and the bit of a vector.
fn place_of(vector: u8) -> (usize, u64) {
    (usize::from(vector) / u64::BITS as usize, 1 << (u32::from(vector) % u64::BITS))
}

impl Pending {
    fn is_masked(&self, vector: u8) -> bool {
        let (word, bit) = place_of(vector);
        self.masked[word] & bit != 0
    }

    fn raise(&mut self, at_ps: u64, vector: u8) {
        match self.raised.iter_mut().find(|(_, raised)| *raised == vector) {
            Some((raised_ps, _)) => *raised_ps = (*raised_ps).min(at_ps),
            None => self.raised.push((at_ps, vector)),
        }
    }

    /// The first interrupt that is not masked.
    fn first(&self) -> Option<(u64, u8)> {
        self.raised.iter().copied().filter(|(_, vector)| !self.is_masked(*vector)).min()
    }

    fn take_due(&mut self, now_ps: u64) -> Option<u8> {
        let (_, vector) = self.first().filter(|(at_ps, _)| *at_ps <= now_ps)?;
        self.raised.retain(|(_, raised)| *raised != vector);
        Some(vector)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl CoreState {
    pub(super) fn takes_interrupts(&self) -> bool {
        !self.is_actor && self.masked.get() == 0 && !self.in_interrupt.get()
    }

    /// When the next unmasked interrupt is due.
    pub(super) fn interrupt_ps(&self) -> Option<u64> {
        let device_ps = self.interrupts.borrow().first().map(|(at_ps, _)| at_ps);
        self.timer_ps.get().into_iter().chain(device_ps).min()
    }
}

impl Engine {
    /// Sets the handler of device interrupts, which gets the vector. Only what it charges itself is charged.
    pub fn on_interrupt(&self, handler: Option<Rc<dyn Fn(u8)>>) {
        *self.on_interrupt.borrow_mut() = handler;
    }

    /// Raises a device interrupt on `cpu` at `at_ps`, or now if that is later. The CPU takes it as soon as interrupts
    /// are enabled there and the vector is not masked.
    ///
    /// # Panics
    /// If there is no such CPU.
    pub fn raise(&self, cpu: Core, at_ps: u64, vector: u8) {
        assert!(cpu < self.cpus, "no CPU {cpu}");
        self.cores[cpu].interrupts.borrow_mut().raise(at_ps.max(self.now_ps()), vector);
        self.attend(cpu);
    }

    /// Masks a vector of the running core. Its interrupts stay pending.
    pub fn mask(&self, vector: u8) {
        if let Some(state) = self.state() {
            let (word, bit) = place_of(vector);
            state.interrupts.borrow_mut().masked[word] |= bit;
        }
    }

    /// Unmasks a vector of the running core.
    pub fn unmask(&self, vector: u8) {
        if let Some((core, state)) = self.running() {
            let (word, bit) = place_of(vector);
            state.interrupts.borrow_mut().masked[word] &= !bit;
            self.attend(core);
        }
    }

    /// Gives a core a turn when its first interrupt is due.
    fn attend(&self, cpu: Core) {
        let state = &self.cores[cpu];
        if self.current.get() == cpu {
            return self.horizon_ps.set(0);
        }
        let Some(due_ps) = state.interrupt_ps().filter(|_| state.takes_interrupts()) else { return };
        if let Some(since_ps) = state.resting_since_ps.get() {
            let wake_ps = due_ps.max(since_ps);
            if wake_ps < state.now_ps.get() {
                state.now_ps.set(wake_ps);
                // Without a turn, the core waits only for the actor that raises the interrupt.
                if state.turn_ps.get().is_some() {
                    self.make_ready(wake_ps, cpu);
                }
            }
        } else if state.waits_for.get().is_some() {
            let wake_ps = due_ps.max(state.now_ps.get());
            if state.turn_ps.get().is_none_or(|turn_ps| wake_ps < turn_ps) {
                self.make_ready(wake_ps, cpu);
            }
        }
    }

    /// Runs `work` with interrupts disabled on the running core.
    pub fn uninterrupted<R>(&self, work: impl FnOnce() -> R) -> R {
        let Some(state) = self.state() else { return work() };
        state.masked.set(state.masked.get() + 1);
        let result = work();
        state.masked.set(state.masked.get() - 1);
        self.horizon_ps.set(0);
        result
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

    /// Runs the handler of an interrupt if one is due and interrupts are enabled. It is nested in the core's current
    /// work. The timer comes first. Other due interrupts are taken at the next yield.
    pub(super) fn take_interrupt(&self, state: &CoreState) {
        if !state.takes_interrupts() {
            return;
        }
        let now_ps = state.now_ps.get();
        if state.timer_ps.get().is_some_and(|timer_ps| timer_ps <= now_ps) {
            state.timer_ps.set(None);
            let handler = self.on_timer.borrow().clone();
            if let Some(handler) = handler {
                // The timer's work is protection.
                self.handle(state, true, || handler());
            }
            return;
        }
        let vector = state.interrupts.borrow_mut().take_due(now_ps);
        let handler = self.on_interrupt.borrow().clone();
        if let Some((vector, handler)) = vector.zip(handler) {
            self.handle(state, false, || handler(vector));
        }
    }

    fn handle(&self, state: &CoreState, charging: bool, handler: impl FnOnce()) {
        let place = state.account.borrow().place();
        state.in_interrupt.set(true);
        let before = state.charging.replace(charging);
        handler();
        state.charging.set(before);
        state.in_interrupt.set(false);
        state.account.borrow_mut().resume(place);
    }
}
