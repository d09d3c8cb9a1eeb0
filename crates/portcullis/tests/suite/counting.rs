//! A host that counts the steps of allocators, and the cache lines that are flushed.

use portcullis::platform::fake::FakeHost;
use portcullis::platform::{Context, CpuHint, LockClass, Step, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::ops::Range;
use std::sync::Mutex;

/// How often each step was taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Steps {
    /// Nodes that searches passed.
    pub(crate) searched: usize,
    pub(crate) inserts: usize,
    pub(crate) erases: usize,
    pub(crate) pops: usize,
    pub(crate) pushes: usize,
    pub(crate) exchanges: usize,
    pub(crate) finds: usize,
    pub(crate) splits: usize,
    pub(crate) joins: usize,
    /// Cache lines flushed.
    pub(crate) lines: usize,
}

/// The fake host, with counters.
pub(crate) struct Counting<'h> {
    host: &'h FakeHost,
    steps: Mutex<Steps>,
}

impl<'h> Counting<'h> {
    pub(crate) fn new(host: &'h FakeHost) -> Self {
        Self { host, steps: Mutex::default() }
    }

    /// Takes the counts since the last call.
    pub(crate) fn take(&self) -> Steps {
        std::mem::take(&mut self.steps.lock().expect("not poisoned"))
    }

    pub(crate) fn host(&self) -> &'h FakeHost {
        self.host
    }
}

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Platform for Counting<'_> {
    type Lock<T: Send> = <FakeHost as Platform>::Lock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T> {
        self.host.lock(class, value)
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

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.host.frame(frame) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.host.free_frame(frame) }
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        let line = |entry: *const Entry| entry as usize / 64;
        let Range { start, end } = entries.as_ptr_range();
        self.steps.lock().expect("not poisoned").lines += line(end.wrapping_sub(1)) - line(start) + 1;
        self.host.table_barrier(entries, coherent)
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        self.host.cpu_words(value)
    }

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        self.host.walk(walk)
    }

    fn now_us(&self) -> u64 {
        self.host.now_us()
    }

    fn pause(&self, wait: Wait) {
        self.host.pause(wait)
    }

    fn probe(&self, step: Step) {
        let mut steps = self.steps.lock().expect("not poisoned");
        match step {
            Step::TreeSearch { nodes } => steps.searched += nodes as usize,
            Step::TreeInsert => steps.inserts += 1,
            Step::TreeErase => steps.erases += 1,
            Step::ListPop => steps.pops += 1,
            Step::ListPush => steps.pushes += 1,
            Step::DepotExchange => steps.exchanges += 1,
            Step::HashFind => steps.finds += 1,
            Step::SegmentSplit => steps.splits += 1,
            Step::SegmentJoin => steps.joins += 1,
            _ => {}
        }
    }
}
