//! The fake host with a record of the steps it is told of, and a switch that breaks it.

use portcullis::platform::fake::{FakeHost, FakeLock};
use portcullis::platform::{CpuHint, LockClass, Step, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

pub(super) struct Host {
    pub(super) fake: FakeHost,
    pub(super) forget_barriers: AtomicBool,
    steps: Mutex<Vec<Step>>,
    /// An interrupt that comes in every turn of every spin.
    on_pause: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Host {
    pub(super) fn new(coherent: bool) -> Self {
        Self {
            fake: FakeHost::new(coherent),
            forget_barriers: AtomicBool::new(false),
            steps: Mutex::default(),
            on_pause: OnceLock::new(),
        }
    }

    /// Has `interrupt` come in every turn of every spin from now on.
    pub(super) fn on_pause(&self, interrupt: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_pause.set(Box::new(interrupt)).is_ok(), "one interrupt");
    }

    pub(super) fn take_steps(&self) -> Vec<Step> {
        core::mem::take(&mut self.steps.lock().expect("not poisoned"))
    }
}

// SAFETY: forwards to the fake host, which keeps the promises.
unsafe impl Platform for Host {
    type Lock<T: Send> = FakeLock<T>;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> FakeLock<T> {
        self.fake.lock(class, value)
    }

    fn cpu(&self) -> CpuHint {
        self.fake.cpu()
    }

    fn cpus(&self) -> u32 {
        self.fake.cpus()
    }

    fn allocate_frame(&self) -> Result<PhysAddr, NoMemory> {
        self.fake.allocate_frame()
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.fake.frame(frame) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.fake.free_frame(frame) }
    }

    fn table_barrier(&self, entries: &[Entry]) {
        if !self.forget_barriers.load(Ordering::Relaxed) {
            self.fake.table_barrier(entries);
        }
    }

    fn now_us(&self) -> u64 {
        self.fake.now_us()
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
