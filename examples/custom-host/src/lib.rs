//! An example of a host: what Portcullis needs of a kernel, a hypervisor or a driver in user space, in its simplest
//! form.
//!
//! It gets the memory for its table pages once, with the physical and the virtual address of each page. It uses the
//! locks, the clock and the threads of `std`. A kernel uses its own, and masks interrupts while a lock is held.

use portcullis::platform::{Context, CpuHint, Lock, LockClass, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The number of CPUs that this host reports. Threads share them.
const CPUS: u32 = 8;

/// The host.
pub struct Host {
    /// The virtual address of each table page.
    pages: BTreeMap<PhysAddr, &'static Frame>,
    /// The table pages that are not lent.
    free: Mutex<Vec<PhysAddr>>,
    begun: Instant,
}

impl Host {
    /// A host with these table pages.
    ///
    /// # Safety
    /// Each is a page of memory at that physical address and mapped at that reference, and nothing else uses it.
    pub unsafe fn new(pages: impl IntoIterator<Item = (PhysAddr, &'static Frame)>) -> Self {
        let pages: BTreeMap<_, _> = pages.into_iter().collect();
        let free = Mutex::new(pages.keys().copied().collect());
        Self { pages, free, begun: Instant::now() }
    }

    /// The number of table pages that are lent now.
    pub fn lent(&self) -> usize {
        self.pages.len() - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

// SAFETY: a page is either in the list of free pages or lent. It is zeroed when it is lent, and never moves. Locks are
// mutexes that a panic poisons. CPU words and walks are the trait's own.
unsafe impl Platform for Host {
    type Lock<T: Send> = HostLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _: LockClass, value: T) -> HostLock<T> {
        HostLock(Mutex::new(value))
    }

    /// A kernel reads this from a register. Here, each thread gets a number at its first call.
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

    /// A page walker that snoops the caches sees an entry once it is stored. For other walkers, a host flushes the
    /// cache lines of the entries here.
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
