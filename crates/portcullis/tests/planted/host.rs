//! A host with a flaw.

use portcullis::platform::fake::FakeHost;
use portcullis::platform::{CpuHint, LockClass, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};

/// Never makes an entry visible to a walker that does not snoop.
pub(crate) struct ForgetsToFlush<'h>(pub(crate) &'h FakeHost);

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Platform for ForgetsToFlush<'_> {
    type Lock<T: Send> = <FakeHost as Platform>::Lock<T>;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T> {
        self.0.lock(class, value)
    }

    fn cpu(&self) -> CpuHint {
        self.0.cpu()
    }

    fn cpus(&self) -> u32 {
        self.0.cpus()
    }

    fn allocate_frame(&self) -> Result<PhysAddr, NoMemory> {
        self.0.allocate_frame()
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.frame(frame) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.free_frame(frame) }
    }

    fn table_barrier(&self, _entries: &[Entry]) {}

    fn now_us(&self) -> u64 {
        self.0.now_us()
    }

    fn pause(&self, wait: Wait) {
        self.0.pause(wait)
    }
}
