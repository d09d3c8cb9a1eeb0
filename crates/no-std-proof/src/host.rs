//! A minimal host: one CPU, a fixed pool of table pages, and memory mapped at its physical addresses.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use portcullis::platform::{Context, CopyMemory, CpuHint, Lock, LockClass, Wait, WordLines};
use portcullis::table::{ENTRIES, Entry, Frame};
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr, Platform};

/// The number of table pages.
const FRAMES: usize = 256;

/// A page that becomes a [`Frame`]. It is made of words, because a static cannot be made of entries.
#[repr(C, align(4096))]
struct RawFrame([AtomicU64; ENTRIES]);

static POOL: [RawFrame; FRAMES] = [const { RawFrame([const { AtomicU64::new(0) }; ENTRIES]) }; FRAMES];
static TAKEN: [AtomicBool; FRAMES] = [const { AtomicBool::new(false) }; FRAMES];
static NOW_US: AtomicU64 = AtomicU64::new(0);

/// The host.
#[derive(Clone, Copy)]
pub(crate) struct Host;

/// The index in the pool of the page at `phys`.
fn index_of(phys: PhysAddr) -> usize {
    (phys.as_u64() - POOL.as_ptr().addr() as u64) as usize / PAGE_SIZE as usize
}

// SAFETY: a page of the pool is handed out zeroed, once until it comes back, and never moves.
unsafe impl Platform for Host {
    type Lock<T: Send> = TryLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _: LockClass, value: T) -> TryLock<T> {
        TryLock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline(never)]
    fn cpu(&self) -> CpuHint {
        CpuHint(0)
    }

    #[inline(never)]
    fn cpus(&self) -> u32 {
        1
    }

    #[inline(never)]
    fn allocate_frame(&self, _: Context) -> Result<PhysAddr, NoMemory> {
        let index = TAKEN.iter().position(|taken| !taken.swap(true, Ordering::Acquire)).ok_or(NoMemory)?;
        let page = &POOL[index];
        page.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        fence(Ordering::SeqCst);
        Ok(PhysAddr::new((&raw const *page).addr() as u64))
    }

    #[inline(never)]
    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        let words = &POOL[index_of(frame)].0;
        // SAFETY: an entry is a transparent atomic word, so both types are 512 such words.
        unsafe { &*(&raw const *words).cast::<Frame>() }
    }

    #[inline(never)]
    unsafe fn free_frame(&self, frame: PhysAddr) {
        TAKEN[index_of(frame)].store(false, Ordering::Release);
    }

    // This one is inlined, unlike the others: it returns a table of functions, and the analysis must see which table
    // its callers use.
    fn copies(&self) -> Option<&dyn CopyMemory> {
        Some(&Copies)
    }

    /// This serves only walkers that snoop: entries just have to be in the cache.
    #[inline(never)]
    fn table_barrier(&self, _: &[Entry], _: bool) {
        fence(Ordering::SeqCst);
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    /// This host has no clock: every call advances the time by a microsecond.
    #[inline(never)]
    fn now_us(&self) -> u64 {
        NOW_US.fetch_add(1, Ordering::Relaxed)
    }

    #[inline(never)]
    fn pause(&self, _: Wait) {
        core::hint::spin_loop();
    }
}

/// Copies with the CPU, whose cache devices snoop.
struct Copies;

// SAFETY: memory is mapped at its physical addresses, so it copies exactly the requested bytes.
unsafe impl CopyMemory for Copies {
    #[inline(never)]
    unsafe fn copy(&self, from: PhysAddr, to: PhysAddr, len: u64) {
        let (from, to) = (from.as_u64() as *const u8, to.as_u64() as *mut u8);
        // SAFETY: the caller's promise, passed on.
        unsafe { to.copy_from_nonoverlapping(from, len as usize) }
    }

    #[inline(never)]
    unsafe fn clear(&self, at: PhysAddr, len: u64) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (at.as_u64() as *mut u8).write_bytes(0, len as usize) }
    }
}

/// A lock for one CPU that takes no interrupts: a caller that finds it held already holds it itself.
pub(crate) struct TryLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` admits one caller at a time, and that caller may be on any CPU.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T: Send> Lock<T> for TryLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        assert!(!self.held.swap(true, Ordering::Acquire), "a lock was taken twice");
        // SAFETY: `held` was not set, so there is no other reference until it is cleared below.
        let result = critical(unsafe { &mut *self.value.get() });
        self.held.store(false, Ordering::Release);
        result
    }
}
