//! A host on which an interrupt may occur before every announced step, before every flush, around every lock, around
//! every addition to a word of a CPU, and during every wait.

use portcullis::Platform;
use portcullis::forward_platform;
use portcullis::platform::fake::{self, FakeHost, FakeLock};
use portcullis::platform::{Lock, LockClass, Step, Wait, WordLines};
use portcullis::table::Entry;
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

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        interrupt(self.handler, Moment::BeforeLock);
        let result = masked(|| self.lock.try_with(critical));
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

    forward_platform!(self => self.host;
        walk, walks_now, walks_are_over, cpu, cpus, cpu_words, exchange_at, allocate_frame, allocate_frames, frame, free_frame, copies, now_us);

    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T> {
        MaskingLock { lock: self.host.lock(class, value), handler: self.handler }
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        self.interrupt(Moment::BeforeFlush);
        self.host.table_barrier(entries, coherent);
    }

    fn add_here(&self, words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
        self.interrupt(Moment::BeforeAddition);
        let added = self.host.add_here(words, word, amount);
        self.interrupt(Moment::AfterAddition);
        added
    }

    fn pause(&self, wait: Wait) {
        self.interrupt(Moment::Waiting);
        self.host.pause(wait);
    }

    fn probe(&self, step: Step) {
        self.interrupt(Moment::Before(step));
    }
}
