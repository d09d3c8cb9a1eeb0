//! Cleanup after a panic in a hook of the host.

/// Runs `act`, and runs `then` if `act` unwinds.
#[inline(always)]
pub fn on_unwind<R>(then: impl Fn(), act: impl FnOnce() -> R) -> R {
    struct Unwinding<F: Fn()>(F);
    impl<F: Fn()> Drop for Unwinding<F> {
        #[cold]
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let unwinding = Unwinding(then);
    let result = act();
    core::mem::forget(unwinding);
    result
}
