//! The code of a virtual CPU, as a coroutine.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

/// The stack of a virtual CPU in bytes.
const STACK_BYTES: usize = 256 << 10;

type Handle = Rc<Cell<Option<NonNull<Yielder<(), ()>>>>>;

/// The code of a virtual CPU, which suspends itself now and then.
pub(crate) struct Fiber {
    coroutine: Coroutine<(), (), ()>,
    handle: Handle,
}

/// What a fiber suspends itself with.
#[derive(Clone)]
pub(crate) struct Suspender(Handle);

impl Fiber {
    pub(crate) fn new(body: impl FnOnce() + 'static) -> Self {
        struct Ended<'h>(&'h Handle);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.set(None);
            }
        }
        let handle = Handle::default();
        let inner = handle.clone();
        let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            inner.set(Some(NonNull::from(yielder)));
            // Clears the handle when the body ends, also by a panic.
            let _ended = Ended(&inner);
            body();
        });
        Self { coroutine, handle }
    }

    pub(crate) fn suspender(&self) -> Suspender {
        Suspender(self.handle.clone())
    }

    /// Runs it until it suspends itself or ends. Returns whether it has ended.
    pub(crate) fn resume(&mut self) -> bool {
        matches!(self.coroutine.resume(()), CoroutineResult::Return(()))
    }
}

impl Suspender {
    /// Suspends the fiber that runs, to which the suspender must belong.
    pub(crate) fn suspend(&self) {
        let yielder = self.0.get().expect("the fiber runs");
        // SAFETY: the yielder is on the stack of the fiber for as long as its body runs; then the handle is cleared.
        // One fiber runs at a time, on one thread, and calls this for itself.
        unsafe { yielder.as_ref() }.suspend(());
    }
}
