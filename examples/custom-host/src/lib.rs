//! A host of one's own: what Portcullis asks of a kernel, a hypervisor or a driver in user space, in its simplest form.
//!
//! Its table pages are a range of memory that it is given once, each with its physical address and the place where it is mapped. It has the locks,
//! the clock and the threads of `std`; a kernel has its own, and masks interrupts where a lock is held.

use portcullis::platform::{Context, CpuHint, Lock, LockClass, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// CPUs that this host speaks of. Threads share them.
const CPUS: u32 = 8;

/// The host.
pub struct Host {
    /// Where each table page is mapped.
    pages: BTreeMap<PhysAddr, &'static Frame>,
    /// Those that are not lent.
    free: Mutex<Vec<PhysAddr>>,
    begun: Instant,
}

impl Host {
    /// A host with these table pages.
    ///
    /// # Safety
    /// Each is a page of memory at that physical address, mapped there, and nothing else uses it.
    pub unsafe fn new(pages: impl IntoIterator<Item = (PhysAddr, &'static Frame)>) -> Self {
        let pages: BTreeMap<_, _> = pages.into_iter().collect();
        let free = Mutex::new(pages.keys().copied().collect());
        Self { pages, free, begun: Instant::now() }
    }

    /// Table pages that are lent now.
    pub fn lent(&self) -> usize {
        self.pages.len() - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

// SAFETY: a page is in the list of free ones or lent, is zeroed when it is lent, and stays where it is. Locks are mutexes that a panic poisons.
// Words of CPUs and walks are as the trait has them.
unsafe impl Platform for Host {
    type Lock<T: Send> = HostLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _: LockClass, value: T) -> HostLock<T> {
        HostLock(Mutex::new(value))
    }

    /// A kernel reads it from a register. Here each thread gets a number when it first asks.
    fn cpu(&self) -> CpuHint {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        thread_local! {
            static CPU: u32 = NEXT.fetch_add(1, Ordering::Relaxed) % CPUS;
        }
        CpuHint(CPU.with(|cpu| *cpu))
    }

    fn cpus(&self) -> u32 {
        CPUS
    }

    fn allocate_frame(&self, _: Context) -> Result<PhysAddr, NoMemory> {
        let page = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().ok_or(NoMemory)?;
        self.pages[&page].iter().for_each(|entry| entry.store_bits(0));
        Ok(page)
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        self.pages[&frame]
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
    }

    /// Walkers that snoop the caches see an entry when it is stored. For others the cache lines of the entries are flushed here.
    fn table_barrier(&self, _: &[Entry], coherent: bool) {
        assert!(coherent, "the units of this host snoop the caches");
        fence(Ordering::SeqCst);
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn pause(&self, _: Wait) {
        std::thread::yield_now();
    }
}

/// A lock of [`Host`].
pub struct HostLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for HostLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        critical(&mut self.0.lock().expect("no panic while it was held"))
    }
}
