//! A host without virtual cores, for tests and examples: std's locks, the model's memory, and a clock that is
//! advanced by hand.

use crate::mmio::Clock;
use crate::ram::Ram;
use crate::slab::{PagePool, Slab};
use crate::vtd::Vtd;
use portcullis::platform::{Context, CpuHint, Lock, LockClass, Platform, Unreadable, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// The time that one turn of a spin takes, in picoseconds: 100 ns.
const PAUSE_PS: u64 = 100_000;
const PS_PER_US: u64 = 1_000_000;
/// The zone of small allocations. No memory is behind its addresses, so it may be anywhere.
const ZONE_BASE: PhysAddr = PhysAddr::new(1 << 20);
const ZONE_BYTES: u64 = 15 << 20;

/// A lock of [`Host`].
#[derive(Debug)]
pub struct HostLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for HostLock<T> {
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

/// A platform over the model's memory.
///
/// Its clock advances when told to, and by 100 ns with every turn of a spin. Hardware that was
/// [added](Host::add_hardware) advances with it, so that code that spins on a status in memory sees it change.
pub struct Host {
    ram: Arc<Ram>,
    small: Mutex<Slab>,
    now_ps: AtomicU64,
    hardware: Mutex<Vec<Arc<Vtd>>>,
}

impl Host {
    /// A host over `ram`, at time zero. Entries must be flushed if the memory [says so](Ram::needs_flushing).
    pub fn new(ram: Arc<Ram>) -> Self {
        let small = Mutex::new(Slab::new(PagePool::new(ZONE_BASE, ZONE_BYTES)));
        Self { ram, small, now_ps: AtomicU64::new(0), hardware: Mutex::default() }
    }

    /// A host with separate memory, of which walkers see only what was flushed.
    pub fn non_coherent(base: PhysAddr, bytes: u64) -> Self {
        Self::new(Arc::new(Ram::with_flushing(base, bytes)))
    }

    /// The memory.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Makes `vtd` advance with this host's clock.
    pub fn add_hardware(&self, vtd: Arc<Vtd>) {
        vtd.advance(self.now_ps());
        self.hardware.lock().unwrap_or_else(PoisonError::into_inner).push(vtd);
    }

    /// Advances the clock, and the hardware with it.
    pub fn advance_ps(&self, ps: u64) {
        let now_ps = self.now_ps.fetch_add(ps, Ordering::Relaxed) + ps;
        for vtd in self.hardware.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            vtd.advance(now_ps);
        }
    }
}

impl Clock for Host {
    fn now_ps(&self) -> u64 {
        self.now_ps.load(Ordering::Relaxed)
    }
}

// SAFETY: `Ram` hands a page out to one caller at a time, zeroed. Its pages do not move for as long as it lives.
unsafe impl Platform for Host {
    type Lock<T: Send> = HostLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _class: LockClass, value: T) -> HostLock<T> {
        HostLock(Mutex::new(value))
    }

    fn cpu(&self) -> CpuHint {
        CpuHint(0)
    }

    fn cpus(&self) -> u32 {
        1
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

    fn read_foreign(&self, at: PhysAddr, words: &mut [u64]) -> Result<(), Unreadable> {
        for (offset, word) in (0..).step_by(8).zip(words) {
            let at = at.checked_add(offset).ok_or(Unreadable)?;
            *word = self.ram.read_u64(at).ok_or(Unreadable)?;
        }
        Ok(())
    }

    fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        self.small.lock().unwrap_or_else(PoisonError::into_inner).allocate(bytes, below)
    }

    unsafe fn free_bytes(&self, at: PhysAddr, _bytes: u64) {
        self.small.lock().unwrap_or_else(PoisonError::into_inner).free(at);
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        // Entries are stored with release and read with acquire. So if walkers snoop, nothing else is needed.
        if !coherent {
            self.ram.flush(entries);
        }
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    fn now_us(&self) -> u64 {
        self.now_ps() / PS_PER_US
    }

    fn pause(&self, _wait: Wait) {
        self.advance_ps(PAUSE_PS);
    }
}
