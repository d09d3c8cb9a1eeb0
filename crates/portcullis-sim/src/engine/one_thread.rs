//! A value that may be moved between threads but is used on one only. The engine needs it because traits require
//! `Sync`.
//!
//! Like the `send_wrapper` crate, but the check is two loads, because every step of a simulation makes it.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static NUMBER: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
}

/// The number of the running thread. Numbers are never reused.
fn thread_number() -> NonZeroU64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // `try_with` is inlined, and `get` is not.
    NUMBER.try_with(Cell::get).ok().flatten().unwrap_or_else(|| {
        // Relaxed: only uniqueness matters.
        let number = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).expect("fewer than 2^64 threads");
        NUMBER.set(Some(number));
        number
    })
}

/// A value that is usable only on the thread that made it. On another thread, use panics, and so does dropping it.
pub(crate) struct OneThread<T> {
    owner: NonZeroU64,
    value: ManuallyDrop<T>,
}

// SAFETY: every access to the value, including dropping it, first checks that the running thread is the one that made
// it.
unsafe impl<T> Send for OneThread<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for OneThread<T> {}

impl<T> OneThread<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { owner: thread_number(), value: ManuallyDrop::new(value) }
    }

    #[inline]
    fn check(&self) {
        // A thread without a number has made no value. `try_with` is inlined, and `get` is not.
        let number = NUMBER.try_with(Cell::get).ok().flatten();
        assert!(number == Some(self.owner), "the laboratory is used on one thread");
    }
}

impl<T> Deref for OneThread<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.check();
        &self.value
    }
}

impl<T: Clone> Clone for OneThread<T> {
    fn clone(&self) -> Self {
        Self::new(T::clone(self))
    }
}

impl<T> Drop for OneThread<T> {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the value is dropped only here, and only once.
        unsafe { ManuallyDrop::drop(&mut self.value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn another_thread_is_refused() {
        let value = OneThread::new(Rc::new(5));
        assert_eq!(**value, 5);
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| **value).join());
        assert!(elsewhere.is_err(), "the value was used on another thread");
    }
}
