//! A host and an IOMMU of which any hook may panic.

use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::iommu::{AttachError, SourceId};
use portcullis::platform::fake::{FakeHost, FakeLock};
use portcullis::platform::{CpuHint, CpuWords, Lock, LockClass, Step, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{Capabilities, DomainId, Invalidation, Iommu, NoMemory, PhysAddr, Platform, QueueError, Translation};
use std::cell::Cell;
use std::panic::resume_unwind;

thread_local! {
    /// Hooks until one panics; none does at zero.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    /// Locks that are held.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// Whether one was when a hook panicked.
    static WITH_A_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// Has hook number `number` from now on panic. None at zero.
pub(super) fn panic_at(number: usize) {
    LEFT.set(number);
    WITH_A_LOCK.set(false);
}

/// Whether the hook has panicked that was to.
pub(super) fn has_panicked() -> bool {
    LEFT.get() == 0
}

/// Whether it did so with a lock held.
pub(super) fn with_a_lock() -> bool {
    WITH_A_LOCK.get()
}

fn hook() {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    if left == 1 {
        WITH_A_LOCK.set(HELD.get() > 0);
        // Without a word on standard error.
        resume_unwind(Box::new("a hook"));
    }
}

/// What `act` gives, between two hooks.
fn hooked<R>(act: impl FnOnce() -> R) -> R {
    hook();
    let result = act();
    hook();
    result
}

/// A lock of the fake host, with hooks inside.
pub(super) struct HookedLock<T>(FakeLock<T>);

impl<T: Send> Lock<T> for HookedLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        struct Held;
        impl Drop for Held {
            fn drop(&mut self) {
                HELD.set(HELD.get() - 1);
            }
        }
        self.0.with(|value| {
            HELD.set(HELD.get() + 1);
            let _held = Held;
            hooked(|| critical(value))
        })
    }
}

/// The fake host, with hooks.
pub(super) struct HookedHost<'h>(pub(super) &'h FakeHost);

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Platform for HookedHost<'_> {
    type Lock<T: Send> = HookedLock<T>;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> HookedLock<T> {
        HookedLock(hooked(|| self.0.lock(class, value)))
    }

    fn cpu(&self) -> CpuHint {
        hooked(|| self.0.cpu())
    }

    fn cpus(&self) -> u32 {
        hooked(|| self.0.cpus())
    }

    fn allocate_frame(&self) -> Result<PhysAddr, NoMemory> {
        hooked(|| self.0.allocate_frame())
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        hook();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.frame(frame) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.free_frame(frame) });
    }

    fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        hooked(|| self.0.allocate_bytes(bytes, below))
    }

    unsafe fn free_bytes(&self, at: PhysAddr, bytes: u64) {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.free_bytes(at, bytes) });
    }

    fn table_barrier(&self, entries: &[Entry]) {
        hooked(|| self.0.table_barrier(entries));
    }

    fn add_here(&self, words: &CpuWords, word: usize, amount: u64) -> (usize, u64) {
        hooked(|| self.0.add_here(words, word, amount))
    }

    fn exchange_at(&self, words: &CpuWords, line: usize, word: usize, old: u64, new: u64) -> bool {
        hooked(|| self.0.exchange_at(words, line, word, old, new))
    }

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        hooked(|| self.0.walk(|| hooked(walk)))
    }

    fn walks_now(&self) -> u64 {
        hooked(|| self.0.walks_now())
    }

    fn walks_are_over(&self, then: u64) -> bool {
        hooked(|| self.0.walks_are_over(then))
    }

    fn now_us(&self) -> u64 {
        hooked(|| self.0.now_us())
    }

    fn pause(&self, wait: Wait) {
        hooked(|| self.0.pause(wait));
    }

    fn probe(&self, _step: Step) {
        hook();
    }
}

/// The fake IOMMU, with hooks.
pub(super) struct HookedIommu<'h>(pub(super) &'h FakeIommu<'h>);

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Iommu for HookedIommu<'_> {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        hooked(|| self.0.capabilities())
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.open_domain(translation) })
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.close_domain(domain) })
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        hooked(|| self.0.attach(domain, device))
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        hooked(|| self.0.detach(domain, device))
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        hooked(|| self.0.submit(commands))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        hooked(|| self.0.is_done(ticket))
    }
}
