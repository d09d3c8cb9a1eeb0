//! The moment within a single unmap when the mapping is cleared and its buffer is not yet handed back.

use super::{CoreState, Engine};
use portcullis::platform::Phase;
use std::rc::Rc;

impl Engine {
    /// Sets the handler that runs on a core at that moment of an [unmap](Engine::unmapping), uncharged.
    pub(crate) fn on_taken_down(&self, handler: Option<Rc<dyn Fn()>>) {
        *self.on_taken_down.borrow_mut() = handler;
    }

    /// Runs a single unmap, and charges its cost as protection. Also returns whether the moment came. It does not come
    /// if the pages stay mapped for other mappings.
    pub(crate) fn unmapping<R>(&self, unmap: impl FnOnce() -> R) -> (R, bool) {
        let Some(state) = self.state() else { return (unmap(), false) };
        // An interrupt handler may unmap during this unmap.
        let outer = state.taking_down.replace(true);
        let result = self.charged(unmap);
        (result, !state.taking_down.replace(outer))
    }

    /// Called when the running core enters `phase`. An unmap that turns to the hardware, or frees the address without
    /// it, has cleared the mapping. Phases that an interrupt enters meanwhile do not belong to this unmap.
    #[inline]
    pub(super) fn taken_down_at(&self, phase: Phase, state: &CoreState) {
        let turns = matches!(phase, Phase::Invalidate | Phase::IovaFree);
        if turns && state.taking_down.get() && !state.in_interrupt.get() {
            self.taken_down(state);
        }
    }

    #[cold]
    fn taken_down(&self, state: &CoreState) {
        state.taking_down.set(false);
        let handler = self.on_taken_down.borrow().clone();
        if let Some(handler) = handler {
            let place = state.account.borrow().place();
            let charging = state.charging.replace(false);
            handler();
            state.charging.set(charging);
            state.account.borrow_mut().resume(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Machine;
    use crate::engine::Engine;
    use portcullis::platform::{Phase, Step};
    use std::cell::Cell;
    use std::rc::Rc;

    /// An engine of one core, and a counter of moments. The handler takes a step in another phase. Neither must show
    /// in the account.
    fn engine() -> (Rc<Engine>, Rc<Cell<u32>>) {
        let machine = Machine::by_id("r210-cx3").expect("a machine");
        let engine = Rc::new(Engine::new(1, machine.frequency(), machine.costs.clone(), true));
        let moments = Rc::new(Cell::new(0));
        let (weak, counted) = (Rc::downgrade(&engine), moments.clone());
        engine.on_taken_down(Some(Rc::new(move || {
            counted.set(counted.get() + 1);
            let engine = weak.upgrade().expect("it runs");
            engine.step(Step::Enter(Phase::Other));
            engine.step(Step::Map);
        })));
        (engine, moments)
    }

    /// Runs `body` on the core.
    fn on_core(engine: &Rc<Engine>, body: impl FnOnce(&Engine) + 'static) {
        let inner = engine.clone();
        engine.run(vec![Box::new(move || body(&inner))]);
    }

    fn enter(engine: &Engine, phase: Phase) {
        engine.step(Step::Enter(phase));
    }

    #[test]
    fn it_comes_once_and_is_not_charged() {
        for first in [Phase::Invalidate, Phase::IovaFree] {
            let (engine, moments) = engine();
            let seen = moments.clone();
            on_core(&engine, move |engine| {
                let ((), came) = engine.unmapping(|| {
                    // How many moments have come by the end of each of these phases.
                    for (phase, times) in [(Phase::Table, 0), (first, 1), (Phase::Invalidate, 1), (Phase::IovaFree, 1)]
                    {
                        enter(engine, phase);
                        assert_eq!(seen.get(), times, "{phase:?} after {first:?}");
                        if phase == first && times == 1 {
                            engine.step(Step::Unmap);
                        }
                    }
                });
                assert!(came);
            });
            let account = engine.account();
            assert!(account.cycles() > 0, "what comes after the moment is charged");
            assert_eq!(account.cycles(), account.phase_cycles(first), "and nothing else is");
        }
    }

    #[test]
    fn without_an_announcement_it_does_not_come_and_nothing_is_left() {
        let (engine, moments) = engine();
        on_core(&engine, |engine| {
            let (_, came) = engine.unmapping(|| enter(engine, Phase::Table));
            assert!(!came);
            enter(engine, Phase::Invalidate);
        });
        assert_eq!(moments.get(), 0, "what comes later is not of that unmap");
    }

    #[test]
    fn it_is_not_that_of_an_interrupt() {
        let (engine, moments) = engine();
        let (weak, interrupts) = (Rc::downgrade(&engine), Rc::new(Cell::new(0)));
        let taken = interrupts.clone();
        engine.on_timer(Some(Rc::new(move || {
            taken.set(taken.get() + 1);
            enter(&weak.upgrade().expect("it runs"), Phase::Invalidate);
        })));
        let seen = moments.clone();
        on_core(&engine, move |engine| {
            engine.unmapping(|| {
                engine.arm_timer(engine.now_ps());
                engine.sync();
                assert_eq!((interrupts.get(), seen.get()), (1, 0), "an interrupt came, and not the moment");
                enter(engine, Phase::Invalidate);
            });
        });
        assert_eq!(moments.get(), 1);
    }
}
