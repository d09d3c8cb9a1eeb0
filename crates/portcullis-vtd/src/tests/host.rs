//! The fake host with a record of its steps, and a switch that suppresses barriers.

use portcullis::forward_platform;
use portcullis::platform::fake::{FakeHost, FakeLock};
use portcullis::platform::{Context, Lock, LockClass, Step, Unreadable, Wait, WordLines};
use portcullis::table::Entry;
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr, Platform};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

thread_local! {
    /// What another CPU does when this thread releases a lock the next time.
    static AT_UNLOCK: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Makes another CPU do `act` when this thread releases a lock the next time, before it goes on.
pub(super) fn at_next_unlock(act: impl FnOnce() + 'static) {
    AT_UNLOCK.set(Some(Box::new(act)));
}

/// A lock of the fake host, after which another CPU may come first.
pub(super) struct HostLock<T>(FakeLock<T>);

impl<T: Send> Lock<T> for HostLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        after_unlock(self.0.with(critical))
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        after_unlock(self.0.try_with(critical))
    }
}

/// Lets the other CPU act.
fn after_unlock<R>(result: R) -> R {
    if let Some(act) = AT_UNLOCK.take() {
        act();
    }
    result
}

pub(super) struct Host {
    pub(super) fake: FakeHost,
    /// Whether the walkers of its units snoop, unless a test sets otherwise.
    pub(super) coherent: bool,
    pub(super) forget_barriers: AtomicBool,
    steps: Mutex<Vec<Step>>,
    /// The places of entries in their pages that barriers have covered.
    covered: Mutex<Vec<usize>>,
    /// Words of memory that belongs to another kernel, by address. Its page zero exists and is empty.
    foreign: Mutex<BTreeMap<u64, u64>>,
    /// An interrupt that comes in every turn of every spin.
    on_pause: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// An interrupt that comes before every page allocation.
    on_lend: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Host {
    pub(super) fn new(coherent: bool) -> Self {
        Self {
            fake: FakeHost::default(),
            coherent,
            forget_barriers: AtomicBool::new(false),
            steps: Mutex::default(),
            covered: Mutex::default(),
            foreign: Mutex::new((0..PAGE_SIZE / 8).map(|word| (word * 8, 0)).collect()),
            on_pause: OnceLock::new(),
            on_lend: OnceLock::new(),
        }
    }

    /// Makes `interrupt` come in every turn of every spin from now on.
    pub(super) fn on_pause(&self, interrupt: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_pause.set(Box::new(interrupt)).is_ok(), "one interrupt");
    }

    /// Makes `interrupt` come before every page allocation from now on.
    pub(super) fn on_lend(&self, interrupt: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_lend.set(Box::new(interrupt)).is_ok(), "one interrupt");
    }

    /// Writes an entry of two quadwords into memory of another kernel. The rest of its page is zero unless written
    /// before.
    pub(super) fn write_foreign(&self, page: u64, index: usize, [low, high]: [u64; 2]) {
        let mut foreign = self.foreign.lock().expect("not poisoned");
        (0..PAGE_SIZE / 8).for_each(|word| _ = foreign.entry(page + word * 8).or_insert(0));
        let at = page + index as u64 * 16;
        foreign.extend([(at, low), (at + 8, high)]);
    }

    /// All words of the other kernel's memory.
    pub(super) fn foreign(&self) -> BTreeMap<u64, u64> {
        self.foreign.lock().expect("not poisoned").clone()
    }

    /// The word at `phys` in memory of this host or of another kernel, as hardware reads it with or without snooping.
    pub(super) fn hardware_read(&self, phys: PhysAddr, snoops: bool) -> Option<u64> {
        let foreign = self.foreign.lock().expect("not poisoned").get(&phys.as_u64()).copied();
        foreign.or_else(|| self.fake.hardware_read(phys, snoops))
    }

    /// The places of entries in their pages that barriers have covered since the last call.
    pub(super) fn take_covered(&self) -> Vec<usize> {
        core::mem::take(&mut self.covered.lock().expect("not poisoned"))
    }

    pub(super) fn take_steps(&self) -> Vec<Step> {
        core::mem::take(&mut self.steps.lock().expect("not poisoned"))
    }
}

// SAFETY: forwards to the fake host, which keeps the promises.
unsafe impl Platform for Host {
    type Lock<T: Send> = HostLock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.fake; cpu, cpus, cpu_words, frame, free_frame, now_us);

    fn lock<T: Send>(&self, class: LockClass, value: T) -> HostLock<T> {
        HostLock(self.fake.lock(class, value))
    }

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        if let Some(interrupt) = self.on_lend.get() {
            interrupt();
        }
        self.fake.allocate_frame(context)
    }

    fn read_foreign(&self, at: PhysAddr, words: &mut [u64]) -> Result<(), Unreadable> {
        for (address, word) in (at.as_u64()..).step_by(8).zip(words) {
            *word = self.hardware_read(PhysAddr::new(address), true).ok_or(Unreadable)?;
        }
        Ok(())
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        let first = entries.as_ptr().addr() % PAGE_SIZE as usize / size_of::<Entry>();
        self.covered.lock().expect("not poisoned").extend(first..first + entries.len());
        if !self.forget_barriers.load(Ordering::Relaxed) {
            self.fake.table_barrier(entries, coherent);
        }
    }

    fn pause(&self, wait: Wait) {
        self.fake.pause(wait);
        if let Some(interrupt) = self.on_pause.get() {
            interrupt();
        }
        std::thread::yield_now();
    }

    fn probe(&self, step: Step) {
        self.steps.lock().expect("not poisoned").push(step);
    }
}
