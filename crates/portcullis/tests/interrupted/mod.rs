//! A host on which an interrupt may come before every step that is announced and before every flush.

use portcullis::platform::fake::FakeHost;
use portcullis::platform::{CpuHint, LockClass, Step, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::sync::atomic::{AtomicBool, Ordering};

/// When an interrupt comes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Moment {
    Before(Step),
    BeforeFlush,
}

/// The fake host with a handler, which is told of every moment, its own excepted.
pub(crate) struct Interrupted<'h> {
    host: &'h FakeHost,
    handler: &'h (dyn Fn(Moment) + Sync),
    handling: AtomicBool,
}

impl<'h> Interrupted<'h> {
    pub(crate) fn new(host: &'h FakeHost, handler: &'h (dyn Fn(Moment) + Sync)) -> Self {
        Self { host, handler, handling: AtomicBool::new(false) }
    }

    fn interrupt(&self, moment: Moment) {
        if !self.handling.swap(true, Ordering::Relaxed) {
            (self.handler)(moment);
            self.handling.store(false, Ordering::Relaxed);
        }
    }
}

// SAFETY: forwards to a host that keeps the promises.
unsafe impl Platform for Interrupted<'_> {
    type Lock<T: Send> = <FakeHost as Platform>::Lock<T>;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T> {
        self.host.lock(class, value)
    }

    fn cpu(&self) -> CpuHint {
        self.host.cpu()
    }

    fn cpus(&self) -> u32 {
        self.host.cpus()
    }

    fn allocate_frame(&self) -> Result<PhysAddr, NoMemory> {
        self.host.allocate_frame()
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.host.frame(frame) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.host.free_frame(frame) }
    }

    fn table_barrier(&self, entries: &[Entry]) {
        self.interrupt(Moment::BeforeFlush);
        self.host.table_barrier(entries);
    }

    fn now_us(&self) -> u64 {
        self.host.now_us()
    }

    fn pause(&self, wait: Wait) {
        self.host.pause(wait);
    }

    fn probe(&self, step: Step) {
        self.interrupt(Moment::Before(step));
    }
}
