//! A host that counts the nodes that searches pass.

use portcullis::platform::fake::FakeHost;
use portcullis::platform::{CpuHint, LockClass, Step, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The fake host, counting.
pub(crate) struct Counting<'h> {
    host: &'h FakeHost,
    searches: AtomicUsize,
}

impl<'h> Counting<'h> {
    pub(crate) fn new(host: &'h FakeHost) -> Self {
        Self { host, searches: AtomicUsize::new(0) }
    }

    /// Nodes that searches have passed so far.
    pub(crate) fn searches(&self) -> usize {
        self.searches.load(Ordering::Relaxed)
    }

    pub(crate) fn host(&self) -> &'h FakeHost {
        self.host
    }
}

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Platform for Counting<'_> {
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
        self.host.table_barrier(entries)
    }

    fn now_us(&self) -> u64 {
        self.host.now_us()
    }

    fn pause(&self, wait: Wait) {
        self.host.pause(wait)
    }

    fn probe(&self, step: Step) {
        if let Step::TreeSearch { nodes } = step {
            self.searches.fetch_add(nodes as usize, Ordering::Relaxed);
        }
    }
}
