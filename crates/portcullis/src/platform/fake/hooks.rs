//! A fake host any of whose hooks can be made to panic, once. It is for tests of the state that a panic leaves behind.
//! Other parts of a test add their own hooks with [`hooked`].

use super::{FakeHost, FakeLock};
use crate::address::PhysAddr;
use crate::entry::Frame;
use crate::forward_platform;
use crate::platform::{CopyMemory, Lock, LockClass, Platform, Step, WordLines};
use std::boxed::Box;
use std::cell::Cell;
use std::panic::resume_unwind;

std::thread_local! {
    /// The number of hooks until one panics; 0 if none is to panic.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    /// The number of locks held.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// Whether a lock was held when a hook panicked.
    static WITH_A_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// Makes hook number `number`, counted from now on this thread, panic. 0 means no panic.
pub fn panic_at(number: usize) {
    LEFT.set(number);
    WITH_A_LOCK.set(false);
}

/// Whether the panic has happened.
pub fn has_panicked() -> bool {
    LEFT.get() == 0
}

/// Whether a lock was held when it happened.
pub fn with_a_lock() -> bool {
    WITH_A_LOCK.get()
}

fn hook() {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    if left == 1 {
        WITH_A_LOCK.set(HELD.get() > 0);
        // Prints nothing to standard error.
        resume_unwind(Box::new("a hook"));
    }
}

/// Runs `act` between two hooks.
pub fn hooked<R>(act: impl FnOnce() -> R) -> R {
    hook();
    let result = act();
    hook();
    result
}

/// A lock of the fake host, with hooks inside it.
#[derive(Debug)]
pub struct HookedLock<T>(FakeLock<T>);

impl<T: Send> Lock<T> for HookedLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(inside(critical))
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_with(inside(critical))
    }
}

/// `critical` between two hooks that know that a lock is held.
fn inside<T, R>(critical: impl FnOnce(&mut T) -> R) -> impl FnOnce(&mut T) -> R {
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }
    |value| {
        HELD.set(HELD.get() + 1);
        let _held = Held;
        hooked(|| critical(value))
    }
}

/// The fake host, with hooks before and after each of its operations.
#[derive(Debug)]
pub struct HookedHost<'h>(pub &'h FakeHost);

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Platform for HookedHost<'_> {
    type Lock<T: Send> = HookedLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> HookedLock<T> {
        HookedLock(hooked(|| self.0.lock(class, value)))
    }

    forward_platform!(self => self.0, through hooked;
        cpu, cpus, cpu_words, add_here, exchange_at, allocate_frame, allocate_frames, free_frame, table_barrier,
        allocate_bytes, free_bytes, walks_now, walks_are_over, now_us, pause);

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        hook();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.frame(frame) }
    }

    fn copies(&self) -> Option<&dyn CopyMemory> {
        hooked(|| self.0.copies().map(|_| self as &dyn CopyMemory))
    }

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        hooked(|| self.0.walk(|| hooked(walk)))
    }

    fn probe(&self, _step: Step) {
        hook();
    }
}

// SAFETY: forwards to the fake, which keeps the promises where it copies.
unsafe impl CopyMemory for HookedHost<'_> {
    unsafe fn copy(&self, from: PhysAddr, to: PhysAddr, len: u64) {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.copy(from, to, len) });
    }

    unsafe fn clear(&self, at: PhysAddr, len: u64) {
        // SAFETY: as above.
        hooked(|| unsafe { self.0.clear(at, len) });
    }
}
