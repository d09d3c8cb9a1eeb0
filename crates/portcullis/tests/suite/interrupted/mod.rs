//! A host on which an interrupt may occur before every announced step, before every flush, around every lock, around
//! every addition to a word of a CPU, and during every wait.

use portcullis::platform::fake::{self, FakeHost, FakeLock};
use portcullis::platform::{Context, CopyMemory, CpuHint, Lock, LockClass, Step, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::cell::Cell;

/// The moment of an interrupt.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Moment {
    Before(Step),
    BeforeFlush,
    BeforeLock,
    AfterLock,
    BeforeAddition,
    AfterAddition,
    Waiting,
}

type Handler<'h> = &'h (dyn Fn(Moment) + Sync);

thread_local! {
    /// Whether interrupts are masked: by a lock, or by the handler.
    static MASKED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `critical` with interrupts masked.
fn masked<R>(critical: impl FnOnce() -> R) -> R {
    let before = MASKED.replace(true);
    let result = critical();
    MASKED.set(before);
    result
}

fn interrupt(handler: Handler<'_>, moment: Moment) {
    if !MASKED.get() {
        masked(|| fake::interrupt(|| handler(moment)));
    }
}

/// A lock of the fake host that masks interrupts.
pub(crate) struct MaskingLock<'h, T> {
    lock: FakeLock<T>,
    handler: Handler<'h>,
}

impl<T: Send> Lock<T> for MaskingLock<'_, T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        interrupt(self.handler, Moment::BeforeLock);
        let result = masked(|| self.lock.with(critical));
        interrupt(self.handler, Moment::AfterLock);
        result
    }
}

/// The fake host with a handler that runs at every moment, except at those of the handler itself.
pub(crate) struct Interrupted<'h> {
    host: &'h FakeHost,
    handler: Handler<'h>,
}

impl<'h> Interrupted<'h> {
    pub(crate) fn new(host: &'h FakeHost, handler: Handler<'h>) -> Self {
        Self { host, handler }
    }

    fn interrupt(&self, moment: Moment) {
        interrupt(self.handler, moment);
    }
}

// SAFETY: forwards to a host that keeps the promises.
unsafe impl<'h> Platform for Interrupted<'h> {
    type Lock<T: Send> = MaskingLock<'h, T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T> {
        MaskingLock { lock: self.host.lock(class, value), handler: self.handler }
    }

    fn cpu(&self) -> CpuHint {
        self.host.cpu()
    }

    fn cpus(&self) -> u32 {
        self.host.cpus()
    }

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        self.host.allocate_frame(context)
    }

    fn allocate_frames(&self, context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        self.host.allocate_frames(context, count)
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.host.frame(frame) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.host.free_frame(frame) }
    }

    fn copies(&self) -> Option<&dyn CopyMemory> {
        self.host.copies()
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        self.interrupt(Moment::BeforeFlush);
        self.host.table_barrier(entries, coherent);
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        self.host.cpu_words(value)
    }

    fn add_here(&self, words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
        self.interrupt(Moment::BeforeAddition);
        let added = self.host.add_here(words, word, amount);
        self.interrupt(Moment::AfterAddition);
        added
    }

    fn exchange_at(&self, words: &WordLines, line: usize, word: usize, old: u64, new: u64) -> bool {
        self.host.exchange_at(words, line, word, old, new)
    }

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        self.host.walk(walk)
    }

    fn walks_now(&self) -> Option<u64> {
        self.host.walks_now()
    }

    fn walks_are_over(&self, then: u64) -> bool {
        self.host.walks_are_over(then)
    }

    fn now_us(&self) -> u64 {
        self.host.now_us()
    }

    fn pause(&self, wait: Wait) {
        self.interrupt(Moment::Waiting);
        self.host.pause(wait);
    }

    fn probe(&self, step: Step) {
        self.interrupt(Moment::Before(step));
    }
}
