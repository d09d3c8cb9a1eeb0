//! The lab as a platform: the protection layer runs on it unchanged.

mod host_memory;

pub(crate) use host_memory::buffers_end;

use crate::engine::{Engine, LabLock, OneThread};
use host_memory::HostMemory;
use portcullis::platform::{Context, CopyMemory, CpuHint, LockClass, Step, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use portcullis_model::{Clock, Ram};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Virtual cores over modelled memory. Clones share both. Usable only on the thread that made it.
#[derive(Clone)]
pub struct LabPlatform {
    engine: OneThread<Rc<Engine>>,
    ram: Arc<Ram>,
    memory: OneThread<Rc<RefCell<HostMemory>>>,
    walks: OneThread<Rc<Walks>>,
}

/// The software walks in progress. A core may be suspended in the middle of one.
#[derive(Default)]
struct Walks {
    era: Cell<u64>,
    /// The era in which each walk began.
    begun: RefCell<Vec<u64>>,
}

impl LabPlatform {
    /// The platform of `engine`, with table pages from `ram`. `seed` decides how the other memory is used.
    pub fn new(engine: Rc<Engine>, ram: Arc<Ram>, seed: u64) -> Self {
        let memory = OneThread::new(Rc::new(RefCell::new(HostMemory::new(seed))));
        Self { engine: OneThread::new(engine), ram, memory, walks: OneThread::new(Rc::default()) }
    }

    /// The host's memory apart from the tables.
    pub(crate) fn memory(&self) -> &RefCell<HostMemory> {
        &self.memory
    }

    fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }
}

/// The lab's memory has addresses but no bytes. The cost of copying is charged by its step.
struct WithoutBytes;

// SAFETY: there are no bytes to copy.
unsafe impl CopyMemory for WithoutBytes {
    unsafe fn copy(&self, _from: PhysAddr, _to: PhysAddr, _len: u64) {}

    unsafe fn clear(&self, _at: PhysAddr, _len: u64) {}
}

/// The clock of the modelled hardware is that of the core that reads it.
impl Clock for LabPlatform {
    fn now_ps(&self) -> u64 {
        self.engine.now_ps()
    }
}

// SAFETY: `Ram` returns zeroed pages that nothing else uses until they are freed, and never moves them. `Slab` returns
// objects that do not overlap, each aligned to its size.
unsafe impl Platform for LabPlatform {
    type Lock<T: Send> = LabLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> LabLock<T> {
        LabLock::new(self.engine().clone(), class, value)
    }

    fn cpu(&self) -> CpuHint {
        CpuHint(self.engine.current().unwrap_or(0) as u32)
    }

    fn cpus(&self) -> u32 {
        self.engine.cores() as u32
    }

    fn allocate_frame(&self, _context: Context) -> Result<PhysAddr, NoMemory> {
        self.ram.allocate()
    }

    fn allocate_frames(&self, _context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        self.ram.allocate_run(count)
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        self.ram.frame(frame)
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        self.ram.free(frame);
    }

    fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        self.memory.borrow_mut().allocate_bytes(bytes, below)
    }

    unsafe fn free_bytes(&self, at: PhysAddr, _bytes: u64) {
        self.memory.borrow_mut().free_bytes(at);
    }

    fn copies(&self) -> Option<&dyn CopyMemory> {
        Some(&WithoutBytes)
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        self.engine.barrier(entries.len(), self.ram.lines(entries));
        if !coherent && self.ram.needs_flushing() {
            self.ram.flush(entries);
        }
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    #[inline]
    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        let walks = &self.walks;
        let era = walks.era.get();
        walks.begun.borrow_mut().push(era);
        let result = walk();
        let mut begun = walks.begun.borrow_mut();
        // Walks of the same era are interchangeable, so any of them may be removed.
        if let Some(at) = begun.iter().rposition(|begun| *begun == era) {
            begun.swap_remove(at);
        }
        result
    }

    fn walks_now(&self) -> Option<u64> {
        Some(self.walks.era.replace(self.walks.era.get() + 1))
    }

    fn walks_are_over(&self, then: u64) -> bool {
        self.walks.begun.borrow().iter().all(|era| *era > then)
    }

    fn now_us(&self) -> u64 {
        self.engine.now_ps() / 1_000_000
    }

    fn pause(&self, wait: Wait) {
        self.engine.pause(wait);
    }

    #[inline(always)]
    fn probe(&self, step: Step) {
        self.engine.step(step);
    }
}
