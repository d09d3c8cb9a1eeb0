//! One stackful coroutine per virtual core.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

/// The handle with which a running fiber suspends itself.
type Exit = Rc<Cell<Option<NonNull<Yielder<(), ()>>>>>;

/// The code of a virtual core, suspended at some point.
pub(super) struct Fiber {
    coroutine: Coroutine<(), (), ()>,
    exit: Exit,
}

/// Clears the fiber's handle when its body ends.
struct Running<'e>(&'e Exit);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Lets a fiber suspend itself from deep inside its own calls.
pub(super) struct Suspender(Exit);

impl Fiber {
    /// A fiber that runs `body` when it is first resumed.
    pub(super) fn new(body: impl FnOnce() + 'static) -> Self {
        let exit = Exit::default();
        let inner = exit.clone();
        let coroutine = Coroutine::new(move |yielder: &Yielder<(), ()>, ()| {
            inner.set(Some(NonNull::from(yielder)));
            // Clears `exit` when the body ends, also by a panic.
            let _running = Running(&inner);
            body();
        });
        Self { coroutine, exit }
    }

    /// The handle with which the fiber suspends itself.
    pub(super) fn suspender(&self) -> Suspender {
        Suspender(self.exit.clone())
    }

    /// Runs the fiber until it suspends itself or ends. Returns whether it has ended.
    pub(super) fn resume(&mut self) -> bool {
        matches!(self.coroutine.resume(()), CoroutineResult::Return(()))
    }
}

impl Suspender {
    /// Suspends the fiber until it is resumed. Must be called from inside it.
    ///
    /// # Panics
    /// Panics if the fiber is not running.
    pub(super) fn suspend(&self) {
        let yielder = self.0.get().expect("only a running fiber can suspend itself");
        // SAFETY: the yielder lives on the stack of the running fiber for as long as its body runs, and `exit` is
        // cleared when the body ends, also by unwinding. The engine gives each fiber its own suspender and resumes one
        // fiber at a time, on one thread, so the code that gets here runs on that fiber.
        unsafe { yielder.as_ref() }.suspend(());
    }
}
