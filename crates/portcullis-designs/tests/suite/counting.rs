//! A host that counts the steps of allocators, and the cache lines that are flushed.

use portcullis::Platform;
use portcullis::forward_platform;
use portcullis::platform::fake::FakeHost;
use portcullis::platform::{Step, WordLines};
use portcullis::table::Entry;
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

    forward_platform!(self => self.host;
        lock, walk, cpu, cpus, cpu_words, allocate_frame, frame, free_frame, now_us, pause);

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        let line = |entry: *const Entry| entry as usize / 64;
        let Range { start, end } = entries.as_ptr_range();
        self.steps.lock().expect("not poisoned").lines += line(end.wrapping_sub(1)) - line(start) + 1;
        self.host.table_barrier(entries, coherent)
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
