//! Locks in virtual time. They are fair. What a hand-off costs depends on the machine ([`Sharing`](crate::Sharing)).

use super::{Core, CoreState, Engine, OneThread};
use portcullis::platform::{Lock, LockClass};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::rc::Rc;

/// The holder of a lock, and the queue of waiters.
pub(super) struct Turnstile {
    class: LockClass,
    holder: Option<Core>,
    /// The core that last used the lock's cache line and the data behind it.
    last: Option<Core>,
    queue: VecDeque<Core>,
    /// When the holder took it, on its clock.
    taken_ps: u64,
    /// For how long cores have held it.
    held_ps: u64,
}

impl Turnstile {
    /// Empties the lock, because the run is over.
    pub(super) fn abandon(&mut self) {
        self.holder = None;
        self.queue.clear();
    }
}

/// A lock of the lab.
pub struct LabLock<T> {
    engine: OneThread<Rc<Engine>>,
    id: usize,
    /// Never borrowed twice, because the turnstile admits one core at a time.
    value: OneThread<RefCell<T>>,
}

impl<T> LabLock<T> {
    pub(crate) fn new(engine: Rc<Engine>, class: LockClass, value: T) -> Self {
        let mut locks = engine.locks.borrow_mut();
        let id = locks.len();
        locks.push(Turnstile { class, holder: None, last: None, queue: VecDeque::new(), taken_ps: 0, held_ps: 0 });
        drop(locks);
        Self { engine: OneThread::new(engine), id, value: OneThread::new(RefCell::new(value)) }
    }
}

impl<T: Send> Lock<T> for LabLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        self.engine.acquire(self.id);
        self.hold(critical)
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.engine.try_acquire(self.id).then(|| self.hold(critical))
    }
}

impl<T> LabLock<T> {
    /// Runs `critical`. The lock was acquired.
    fn hold<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        // A panic leaves the value borrowed, so that no other core can use it afterwards.
        let mut value = ManuallyDrop::new(self.value.borrow_mut());
        let result = critical(&mut value);
        drop(ManuallyDrop::into_inner(value));
        self.engine.release(self.id);
        result
    }
}

impl Engine {
    /// Whether what runs now can take every lock of a class. An actor cannot wait for one that a core holds.
    pub fn can_take(&self, class: LockClass) -> bool {
        let is_actor = self.current().is_some_and(|core| self.cores[core].is_actor);
        !is_actor || self.locks.borrow().iter().all(|lock| lock.class != class || lock.holder.is_none())
    }

    /// For how long each lock was held, in picoseconds.
    pub(crate) fn locks_held_ps(&self) -> Vec<u64> {
        self.locks.borrow().iter().map(|lock| lock.held_ps).collect()
    }

    /// Acquires a lock that no core holds. Returns whether it did so.
    fn try_acquire(&self, id: usize) -> bool {
        let Some((core, state)) = self.running() else { return true };
        let is_taken = self.acquire_at_once(id, core, state);
        if !is_taken {
            // It has read the line of the holder.
            let holder = self.locks.borrow()[id].last.unwrap_or(core);
            self.charge(self.lines.transfer(holder, core));
            self.end_masked(state);
        }
        is_taken
    }

    /// Masks interrupts, and takes the lock if no core holds it. Returns whether it did so.
    fn acquire_at_once(&self, id: usize, core: Core, state: &CoreState) -> bool {
        state.masked.set(state.masked.get() + 1);
        self.await_stores(state);
        self.charge(self.costs.lock);
        self.sync();
        let mut locks = self.locks.borrow_mut();
        let lock = &mut locks[id];
        if lock.holder.is_some() {
            return false;
        }
        lock.holder = Some(core);
        lock.taken_ps = state.now_ps.get();
        let (class, last) = (lock.class, lock.last.replace(core));
        drop(locks);
        if let Some(last) = last.filter(|last| *last != core) {
            self.charge(self.lines.lock(class, last, core));
        }
        true
    }

    fn acquire(&self, id: usize) {
        let Some((core, state)) = self.running() else { return };
        if self.acquire_at_once(id, core, state) {
            return;
        }
        let mut locks = self.locks.borrow_mut();
        let lock = &mut locks[id];
        let class = lock.class;
        lock.queue.push_back(core);
        drop(locks);
        let start_ps = state.now_ps.get();
        // The core that releases the lock sets this core's clock and makes it ready.
        self.suspend(core);
        if state.charging.get() {
            let spun = self.frequency.cycles(state.now_ps.get() - start_ps);
            state.account.borrow_mut().lock_wait(class, spun);
        }
    }

    fn release(&self, id: usize) {
        let Some(state) = self.state() else { return };
        // Cores that request the lock before this moment must be in the queue.
        self.sync();
        let mut locks = self.locks.borrow_mut();
        let lock = &mut locks[id];
        lock.held_ps += state.now_ps.get() - lock.taken_ps;
        // A hand-off belongs to the time of the next holder.
        lock.taken_ps = state.now_ps.get();
        lock.holder = lock.queue.pop_front();
        if let Some(next) = lock.holder {
            let last = lock.last.replace(next).unwrap_or(next);
            let cycles = self.lines.handoff(lock.class, last, next, lock.queue.len());
            let at_ps = state.now_ps.get() + self.frequency.picoseconds(cycles);
            self.cores[next].now_ps.set(at_ps);
            self.make_ready(at_ps, next);
        }
        drop(locks);
        self.end_masked(state);
    }

    fn end_masked(&self, state: &CoreState) {
        state.masked.set(state.masked.get() - 1);
        self.take_interrupt(state);
    }
}
