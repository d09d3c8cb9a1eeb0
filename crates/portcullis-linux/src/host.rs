//! Linux as a host.

use crate::lock::SpinLock;
use crate::words::PerCpuWords;
use crate::{flush, kernel};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use portcullis::platform::{Context, CpuHint, LockClass, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform};

/// The address at which the kernel maps all of its memory: `page_offset_base`. Written once, before a unit is brought
/// up.
pub(crate) static DIRECT_MAP: AtomicU64 = AtomicU64::new(0);

/// How long an invalidation may take, in microseconds. A softirq may wait that long.
const WAIT_US_MAX: u64 = 100_000;

#[derive(Clone, Copy)]
pub(crate) struct Host;

// SAFETY: table pages come from the page allocator, whose pages are always in the direct map. Locks are the kernel's.
// The words of a CPU are changed by one instruction. Walks are read-side sections of RCU.
unsafe impl Platform for Host {
    type Lock<T: Send> = SpinLock<T>;
    type CpuWords = PerCpuWords;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> SpinLock<T> {
        SpinLock::new(class, value)
    }

    #[inline]
    fn cpu(&self) -> CpuHint {
        let cpu;
        // SAFETY: reads a per-CPU word of the kernel.
        unsafe {
            asm!("mov {0:e}, gs:[{1}]", out(reg) cpu, sym kernel::pcs_cpu, options(pure, readonly, nostack, preserves_flags));
        }
        CpuHint(cpu)
    }

    fn cpus(&self) -> u32 {
        // SAFETY: may be called anywhere.
        unsafe { kernel::pcs_cpus() }
    }

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        // SAFETY: it sleeps only if the caller may.
        match unsafe { kernel::pcs_page_alloc(context == Context::MaySleep) } {
            0 => Err(NoMemory),
            phys => Ok(PhysAddr::new(phys)),
        }
    }

    #[inline]
    fn allocate<R>(&self, context: Context, allocate: impl FnOnce() -> R) -> R {
        if context == Context::Atomic {
            return allocate();
        }
        // SAFETY: the library says that the caller may sleep.
        let slot = unsafe { kernel::pcs_may_sleep() };
        let result = allocate();
        // SAFETY: it matches the call above.
        unsafe { kernel::pcs_may_not_sleep(slot) };
        result
    }

    #[inline]
    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        let at = frame.as_u64().wrapping_add(DIRECT_MAP.load(Ordering::Relaxed));
        // SAFETY: the page was allocated from this host, and is in the direct map.
        unsafe { &*core::ptr::with_exposed_provenance(at as usize) }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller keeps the contract.
        unsafe { kernel::pcs_page_free(frame.as_u64()) }
    }

    #[inline]
    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        if coherent {
            // On x86, other observers see stores in program order. A register is uncached, so a write to it comes
            // after all of them.
            compiler_fence(Ordering::SeqCst);
        } else {
            flush::write_back(entries);
        }
    }

    fn cpu_words(&self, value: u64) -> Result<PerCpuWords, NoMemory> {
        PerCpuWords::new(value)
    }

    #[inline]
    fn add_here(&self, words: &PerCpuWords, word: usize, amount: u64) -> (usize, u64) {
        let mut before = amount;
        // SAFETY: one instruction, on words that are allocated.
        unsafe {
            asm!("xadd gs:[{} + 8 * {}], {}", in(reg) words.as_ptr(), in(reg) word, inout(reg) before, options(nostack));
        }
        (self.cpu().0 as usize, before)
    }

    #[inline]
    fn exchange_at(&self, words: &PerCpuWords, line: usize, word: usize, old: u64, new: u64) -> bool {
        // SAFETY: as above.
        unsafe { kernel::pcs_exchange_at(words.as_ptr(), line as u32, word, old, new) }
    }

    #[inline(always)]
    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        kernel::rcu_lock();
        let result = walk();
        // SAFETY: begun above.
        unsafe { kernel::rcu_unlock() };
        result
    }

    fn walks_now(&self) -> Option<u64> {
        // SAFETY: it may be called in any context.
        Some(unsafe { kernel::pcs_rcu_now() })
    }

    fn walks_are_over(&self, then: u64) -> bool {
        // SAFETY: as above.
        unsafe { kernel::pcs_rcu_is_over(then) }
    }

    fn now_us(&self) -> u64 {
        // SAFETY: as above.
        unsafe { kernel::pcs_now_ns() / 1000 }
    }

    fn wait_us_max(&self) -> u64 {
        WAIT_US_MAX
    }

    #[inline]
    fn pause(&self, _: Wait) {
        core::hint::spin_loop();
    }
}
