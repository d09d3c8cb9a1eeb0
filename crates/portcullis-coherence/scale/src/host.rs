//! The host: virtual CPUs, memory of this program, and locks as those of Linux.

use portcullis::platform::{Context, CpuHint, CpuWords, Lock, LockClass, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr, Platform};
use portcullis_coherence::atomic::{AtomicBool, AtomicU32, Ordering};
use portcullis_coherence::{CPUS_MAX, cpu, now, pause, plain, work};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::array;
use std::cell::UnsafeCell;
use std::ptr;

/// Cycles per microsecond.
const CYCLES_PER_US: u64 = 2400;
/// What a read of the clock costs in cycles: that of the time stamp counter.
const CLOCK_CYCLES: u64 = 25;
/// What the brackets of a walk cost in cycles, as `rcu_read_lock` and `rcu_read_unlock` do.
const WALK_CYCLES: u64 = 4;
/// The most bytes of a locked value that each holder is taken to read and write. What is behind them, if anything, is
/// used now and then.
const VALUE_BYTES: usize = 256;

/// A machine with `cpus` CPUs.
pub(crate) struct Host {
    cpus: u32,
    /// Where each CPU waits for a lock. It waits for one at a time.
    places: [Place; CPUS_MAX],
}

/// The place of a CPU in the queue of a lock.
#[derive(Default)]
#[repr(align(64))]
struct Place {
    /// The CPU behind, plus one.
    behind: AtomicU32,
    is_first: AtomicBool,
}

impl Host {
    /// The machine lasts as long as the program, so that its locks can refer to it.
    pub(crate) fn leaked(cpus: usize) -> &'static Self {
        Box::leak(Box::new(Self { cpus: cpus as u32, places: array::from_fn(|_| Place::default()) }))
    }
}

/// A spin lock whose waiters queue, each on a line of its own, as those of Linux do.
// In this order, so that the words of the lock are on one line, with the first fields of the value.
#[repr(C)]
pub(crate) struct QueueLock<T> {
    is_held: AtomicBool,
    /// The last CPU that waits, plus one; 0 if none waits.
    last: AtomicU32,
    value: UnsafeCell<T>,
    places: &'static [Place; CPUS_MAX],
}

// SAFETY: `with` gives one virtual CPU at a time access to the value. All run on one thread.
unsafe impl<T: Send> Sync for QueueLock<T> {}

impl<T> QueueLock<T> {
    fn is_taken_at_once(&self) -> bool {
        self.last.load(Ordering::Relaxed) == 0
            && self.is_held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn take(&self) {
        if self.is_taken_at_once() {
            return;
        }
        let (me, place) = (cpu() as u32 + 1, &self.places[cpu()]);
        place.behind.store(0, Ordering::Relaxed);
        place.is_first.store(false, Ordering::Relaxed);
        if let Some(before) = self.last.swap(me, Ordering::AcqRel).checked_sub(1) {
            self.places[before as usize].behind.store(me, Ordering::Release);
            while !place.is_first.load(Ordering::Acquire) {
                pause();
            }
        }
        // The first in the queue. A CPU that came while the queue was empty may still take the lock.
        while self.is_held.load(Ordering::Relaxed) || self.is_held.swap(true, Ordering::Acquire) {
            pause();
        }
        if self.last.compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
        let behind = loop {
            match place.behind.load(Ordering::Acquire) {
                0 => pause(),
                behind => break behind,
            }
        };
        self.places[behind as usize - 1].is_first.store(true, Ordering::Release);
    }
}

impl<T: Send> Lock<T> for QueueLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        self.take();
        self.hold(critical)
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        (!self.is_held.load(Ordering::Relaxed) && self.is_taken_at_once()).then(|| self.hold(critical))
    }
}

impl<T: Send> QueueLock<T> {
    /// Runs `critical`. The lock was taken.
    fn hold<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        let bytes = size_of::<T>().min(VALUE_BYTES);
        // SAFETY: only the address and the size matter. The bytes are those of the value.
        let value = unsafe { &*ptr::slice_from_raw_parts(self.value.get().cast::<UnsafeCell<u8>>(), bytes) };
        plain(value, false);
        plain(value, true);
        // SAFETY: the lock is held, so this is the only reference.
        let result = critical(unsafe { &mut *self.value.get() });
        self.is_held.store(false, Ordering::Release);
        result
    }
}

const PAGE: Layout = match Layout::from_size_align(PAGE_SIZE as usize, PAGE_SIZE as usize) {
    Ok(page) => page,
    Err(_) => panic!("a page is a power of two"),
};

// SAFETY: pages come from the global allocator, zeroed, and stay where they are. A CPU changes only its own words, and
// is not interrupted between a load and a store: only CPUs whose clocks are behind run between them. The lock admits
// one at a time; the program aborts after a panic. Walks have no tokens.
unsafe impl Platform for Host {
    type Lock<T: Send> = QueueLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _: LockClass, value: T) -> QueueLock<T> {
        // SAFETY: hosts are leaked, so they live for ever.
        let places = unsafe { &*ptr::from_ref(&self.places) };
        QueueLock { is_held: AtomicBool::new(false), last: AtomicU32::new(0), value: UnsafeCell::new(value), places }
    }

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        work(WALK_CYCLES);
        walk()
    }

    fn cpu(&self) -> CpuHint {
        CpuHint(cpu() as u32)
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    /// As one instruction without a lock prefix, which x86 kernels use on memory of their CPU.
    fn add_here(&self, words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
        let line = words.line_of(self.cpu());
        let word = words.word(line, word);
        let before = word.load(Ordering::Acquire);
        word.store(before.wrapping_add(amount), Ordering::Relaxed);
        (line, before)
    }

    fn exchange_at(&self, words: &WordLines, line: usize, word: usize, old: u64, new: u64) -> bool {
        let word = words.word(line, word);
        let is_changed = line == words.line_of(self.cpu()) && word.load(Ordering::Acquire) == old;
        if is_changed {
            word.store(new, Ordering::Release);
        }
        is_changed
    }

    fn allocate_frame(&self, _: Context) -> Result<PhysAddr, NoMemory> {
        // SAFETY: a page is not empty.
        let page = unsafe { alloc_zeroed(PAGE) };
        if page.is_null() { Err(NoMemory) } else { Ok(PhysAddr::new(page.expose_provenance() as u64)) }
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller's promise: a page of `allocate_frame`, which is allocated.
        unsafe { &*ptr::with_exposed_provenance(frame.as_u64() as usize) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, as for `frame`.
        unsafe { dealloc(ptr::with_exposed_provenance_mut(frame.as_u64() as usize), PAGE) };
    }

    /// Stores of x86 processors become visible in order.
    fn table_barrier(&self, _: &[Entry], coherent: bool) {
        assert!(coherent, "the unit snoops the caches");
    }

    fn now_us(&self) -> u64 {
        work(CLOCK_CYCLES);
        now() / CYCLES_PER_US
    }

    fn pause(&self, _: Wait) {
        pause();
    }
}
