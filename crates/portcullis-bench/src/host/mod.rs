//! This machine as a platform: user space's equivalents of what a kernel has.
//!
//! Table pages are anonymous memory. Their virtual address is taken to be their physical address, as in a kernel's
//! direct map without the offset. No signal handler maps, so locks mask nothing. Per-CPU words are changed by
//! restartable sequences if the C library has registered them, and otherwise by locked instructions.

mod bytes;
pub(super) mod counters;
#[cfg(target_arch = "x86_64")]
mod cpuid;
pub(super) mod cpus;
mod flush;
mod frames;
mod lock;
#[cfg(target_arch = "x86_64")]
mod rseq;
mod time;
mod walks;

pub(super) use frames::look;
pub(super) use lock::SpinLock;
pub(super) use time::{chain_of_additions, moment, ticks};

use portcullis::platform::{Context, CpuHint, LockClass, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

/// This machine. `COHERENT` says whether walkers are taken to snoop the caches. If not, entries are flushed line by
/// line.
///
/// All values are the same machine: table pages, walks and time belong to the process.
#[derive(Clone, Copy, Debug)]
pub struct Native<const COHERENT: bool>(());

impl Native<true> {
    /// A machine whose IOMMU snoops the caches.
    pub fn coherent() -> Self {
        prepare();
        Self(())
    }
}

impl Native<false> {
    /// A machine whose IOMMU does not snoop the caches. `None` if single cache lines cannot be written back.
    pub fn not_coherent() -> Option<Self> {
        prepare();
        flush::can_flush().then_some(Self(()))
    }
}

/// Prepares what all platforms of this process share, once, so that fast paths need not check it.
fn prepare() {
    static PREPARED: OnceLock<()> = OnceLock::new();
    PREPARED.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        rseq::prepare();
        time::prepare();
        walks::prepare();
        flush::prepare();
    });
}

/// The number of CPUs that may exist, plus one number for threads that are on none of these.
fn cpus() -> u32 {
    // SAFETY: the call takes no pointers.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(configured).unwrap_or(1).max(1) + 1
}

// SAFETY: `frames` returns zeroed pages that never move, each to one user until it is freed. `bytes` returns addresses
// that do not overlap. `rseq` and the defaults change words atomically. `walks` explains why no walk is missed.
unsafe impl<const COHERENT: bool> Platform for Native<COHERENT> {
    type Lock<T: Send> = SpinLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _class: LockClass, value: T) -> SpinLock<T> {
        SpinLock::new(value)
    }

    #[inline]
    fn cpu(&self) -> CpuHint {
        #[cfg(target_arch = "x86_64")]
        if let Some(cpu) = rseq::cpu() {
            return CpuHint(cpu);
        }
        time::slow_cpu()
    }

    fn cpus(&self) -> u32 {
        cpus()
    }

    fn allocate_frame(&self, _context: Context) -> Result<PhysAddr, NoMemory> {
        frames::allocate()
    }

    fn allocate_frames(&self, _context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        frames::allocate_run(count)
    }

    #[inline(always)]
    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller keeps the contract.
        unsafe { frames::contents(frame) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller keeps the contract.
        unsafe { frames::free(frame) }
    }

    fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        bytes::allocate(bytes, below)
    }

    unsafe fn free_bytes(&self, at: PhysAddr, bytes: u64) {
        bytes::free(at, bytes);
    }

    /// The kind of walker is known at compile time, so a benchmark of one kind has no branch for the other.
    ///
    /// A coherent walker sees stores in program order. The write that rings its doorbell is uncached, and so ordered
    /// behind them. On x86 this takes no instruction; it only orders the compiler.
    #[inline(always)]
    fn table_barrier(&self, entries: &[Entry], _coherent: bool) {
        if COHERENT { fence(Ordering::Release) } else { flush::flush(entries) }
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn add_here(&self, words: &Self::CpuWords, word: usize, amount: u64) -> (usize, u64) {
        rseq::add_here(words, word, amount)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn exchange_at(&self, words: &Self::CpuWords, line: usize, word: usize, old: u64, new: u64) -> bool {
        rseq::exchange_at(words, line, word, old, new)
    }

    #[inline(always)]
    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        walks::walk(walk)
    }

    fn walks_now(&self) -> Option<u64> {
        walks::now()
    }

    fn walks_are_over(&self, then: u64) -> bool {
        walks::are_over(then)
    }

    #[inline]
    fn now_us(&self) -> u64 {
        time::now_us()
    }

    #[inline]
    fn pause(&self, _wait: Wait) {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests;
