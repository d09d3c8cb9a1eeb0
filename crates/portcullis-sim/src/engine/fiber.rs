//! One stackful coroutine per virtual core.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

/// Where a running fiber suspends itself.
type Exit = Rc<Cell<Option<NonNull<Yielder<(), ()>>>>>;

/// The code of a virtual core, stopped somewhere in the middle.
pub(super) struct Fiber {
    coroutine: Coroutine<(), (), ()>,
    exit: Exit,
}

/// Takes the way out back when a body ends.
struct Running<'e>(&'e Exit);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// What a fiber needs to stop itself from deep inside its own calls.
pub(super) struct Suspender(Exit);

impl Fiber {
    /// A fiber that will run `body` when first resumed.
    pub(super) fn new(body: impl FnOnce() + 'static) -> Self {
        let exit = Exit::default();
        let inner = exit.clone();
        let coroutine = Coroutine::new(move |yielder: &Yielder<(), ()>, ()| {
            inner.set(Some(NonNull::from(yielder)));
            // Emptied when the body ends, by a panic as well.
            let _running = Running(&inner);
            body();
        });
        Self { coroutine, exit }
    }

    /// The handle to suspend it with.
    pub(super) fn suspender(&self) -> Suspender {
        Suspender(self.exit.clone())
    }

    /// Runs until it suspends itself or ends. Returns whether it has ended.
    pub(super) fn resume(&mut self) -> bool {
        matches!(self.coroutine.resume(()), CoroutineResult::Return(()))
    }
}

impl Suspender {
    /// Stops the fiber until it is resumed. To be called from inside it.
    ///
    /// # Panics
    /// If the fiber is not running.
    pub(super) fn suspend(&self) {
        let yielder = self.0.get().expect("only a running fiber can suspend itself");
        // SAFETY: the yielder lives on the stack of the running fiber for as long as its body runs, and `exit` is emptied
        // when the body ends, also by unwinding. The engine gives each fiber its own suspender and resumes one fiber at a time, on one thread,
        // so whoever gets here is that fiber.
        unsafe { yielder.as_ref() }.suspend(());
    }
}
