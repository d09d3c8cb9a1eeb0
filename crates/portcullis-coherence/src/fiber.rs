//! One stackful coroutine per virtual CPU.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr::NonNull;

type Handle = Option<NonNull<Yielder<(), ()>>>;

thread_local! {
    /// The handle of the fiber whose body is running: the innermost one, if fibers run others. `None` outside of all.
    static RUNNING: Cell<Handle> = const { Cell::new(None) };
}

/// The fiber that runs this one, which goes on afterwards, also after a panic.
struct Outer(Handle);

impl Outer {
    #[inline]
    fn leave() -> Self {
        Self(RUNNING.take())
    }
}

impl Drop for Outer {
    #[inline]
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// The code of a virtual CPU, suspended at some point. If it is dropped before it has ended, its stack is unwound.
pub struct Fiber {
    /// `None` only while it is dropped.
    coroutine: Option<Coroutine<(), (), ()>>,
}

impl Fiber {
    /// A fiber that runs `body` when it is first resumed.
    pub fn new(body: impl FnOnce() + 'static) -> Self {
        let coroutine = Coroutine::new(move |yielder: &Yielder<(), ()>, ()| {
            RUNNING.set(Some(NonNull::from(yielder)));
            body();
        });
        Self { coroutine: Some(coroutine) }
    }

    /// Runs the fiber until it [suspends](suspend) itself or ends. Returns whether it has ended.
    ///
    /// # Panics
    /// If the body panics, and if the fiber has ended before.
    #[inline]
    pub fn resume(&mut self) -> bool {
        let _outer = Outer::leave();
        let coroutine = self.coroutine.as_mut().expect("it is not dropped");
        matches!(coroutine.resume(()), CoroutineResult::Return(()))
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // While its stack is unwound, no fiber runs that could be suspended.
        let _outer = Outer::leave();
        drop(self.coroutine.take());
    }
}

/// Suspends the fiber that calls it, from deep inside its own calls, until it is resumed.
///
/// # Panics
/// If the caller is not in a fiber, or if the stack of its fiber is being unwound because the fiber was dropped.
#[inline]
pub fn suspend() {
    let running = RUNNING.take().expect("only a running fiber can suspend itself");
    // SAFETY: the yielder lives on the stack of the fiber for as long as its body runs. `RUNNING` is the handle of the
    // innermost fiber that runs on this thread, which is the one that the caller is in: it is set when a body begins
    // and below, and `resume` and the drop put it back when a body has ended or is suspended.
    unsafe { running.as_ref() }.suspend(());
    RUNNING.set(Some(running));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    fn says(at: &Rc<Cell<u32>>, steps: u32) -> impl FnOnce() + 'static {
        let at = at.clone();
        move || {
            for step in 1..=steps {
                at.set(step);
                suspend();
            }
        }
    }

    #[test]
    fn fibers_take_turns_also_inside_each_other() {
        let (inner_at, outer_at) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (inner, seen) = (says(&inner_at, 2), outer_at.clone());
        let mut outer = Fiber::new(move || {
            let mut inner = Fiber::new(inner);
            while !inner.resume() {
                seen.set(seen.get() + 1);
                suspend();
            }
        });
        assert!(!outer.resume());
        assert_eq!((inner_at.get(), outer_at.get()), (1, 1));
        assert!(!outer.resume());
        assert_eq!((inner_at.get(), outer_at.get()), (2, 2));
        assert!(outer.resume());
    }

    #[test]
    #[should_panic(expected = "only a running fiber")]
    fn nothing_is_suspended_outside_of_fibers() {
        assert!(!Fiber::new(suspend).resume());
        suspend();
    }

    /// A fiber that is dropped inside another one must not suspend the other one in its stead.
    #[test]
    fn a_dropped_fiber_suspends_nothing() {
        struct Suspends(Rc<Cell<u32>>);
        impl Drop for Suspends {
            fn drop(&mut self) {
                self.0.set(if catch_unwind(AssertUnwindSafe(suspend)).is_err() { 2 } else { 1 });
            }
        }
        let at = Rc::new(Cell::new(0));
        let inner = at.clone();
        let mut outer = Fiber::new(move || {
            let mut dropped = Fiber::new(move || {
                let _suspends = Suspends(inner);
                suspend();
            });
            assert!(!dropped.resume());
            drop(dropped);
            suspend();
        });
        assert!(!outer.resume());
        assert_eq!(at.get(), 2, "refused");
        assert!(outer.resume());
    }

    #[test]
    fn a_panic_goes_to_whoever_resumes() {
        let mut fiber = Fiber::new(|| panic!("in a fiber"));
        assert!(catch_unwind(AssertUnwindSafe(|| fiber.resume())).is_err());
        assert!(RUNNING.get().is_none());
    }
}
