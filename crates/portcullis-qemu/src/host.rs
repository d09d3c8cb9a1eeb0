//! The platform: tables in the machine's memory, and the locks and the clock of this process.

use super::memory::GuestMemory;
use portcullis::platform::{Context, CopyMemory, CpuHint, Lock, LockClass, Platform, Unreadable, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

/// A lock of [`QemuHost`].
#[derive(Debug)]
pub struct QemuLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for QemuLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        critical(&mut self.0.lock().expect("no panic while it was held"))
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            taken => Some(critical(&mut taken.expect("no panic while it was held"))),
        }
    }
}

/// A platform over a machine's memory.
#[derive(Clone)]
pub struct QemuHost {
    memory: Arc<GuestMemory>,
    begun: Instant,
}

impl QemuHost {
    /// A platform over `memory`, at time zero.
    pub fn new(memory: Arc<GuestMemory>) -> Self {
        Self { memory, begun: Instant::now() }
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }
}

#[allow(unsafe_code, reason = "the contract of table pages")]
// SAFETY: the memory hands a page out to one caller at a time, zeroed, and stays mapped for as long as it lives.
unsafe impl Platform for QemuHost {
    type Lock<T: Send> = QemuLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _class: LockClass, value: T) -> QemuLock<T> {
        QemuLock(Mutex::new(value))
    }

    fn cpu(&self) -> CpuHint {
        CpuHint(0)
    }

    fn cpus(&self) -> u32 {
        1
    }

    fn allocate_frame(&self, _context: Context) -> Result<PhysAddr, NoMemory> {
        self.memory.allocate()
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        self.memory.frame(frame)
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        self.memory.free(frame);
    }

    fn read_foreign(&self, at: PhysAddr, words: &mut [u64]) -> Result<(), Unreadable> {
        let len = words.len() as u64 * 8;
        at.as_u64().checked_add(len).filter(|end| *end <= self.memory.bytes()).ok_or(Unreadable)?;
        for (address, word) in (at.as_u64()..).step_by(8).zip(words) {
            *word = self.memory.read_u64(PhysAddr::new(address));
        }
        Ok(())
    }

    fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        self.memory.allocate_bytes(bytes, below)
    }

    unsafe fn free_bytes(&self, at: PhysAddr, _bytes: u64) {
        self.memory.free_bytes(at);
    }

    fn copies(&self) -> Option<&dyn CopyMemory> {
        Some(&*self.memory)
    }

    fn table_barrier(&self, _entries: &[Entry], _coherent: bool) {
        // QEMU walks tables through the CPU's caches, whatever its registers say. So a fence suffices here.
        fence(Ordering::SeqCst);
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn pause(&self, _wait: Wait) {
        std::thread::yield_now();
    }
}
