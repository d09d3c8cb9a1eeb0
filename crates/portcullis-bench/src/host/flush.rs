//! Writing cache lines back to memory, where a walker that does not snoop finds them.
//!
//! CLWB leaves a line in the cache, and the next map finds it there. CLFLUSHOPT, where there is no CLWB, takes it out.

use portcullis::table::Entry;
use std::sync::atomic::{AtomicU8, Ordering};

/// No instruction writes a line back without waiting for the one before it.
const NONE: u8 = 0;
const CLFLUSHOPT: u8 = 1;
const CLWB: u8 = 2;

/// The instruction that is used. Relaxed: written once, before any platform is made.
static INSTRUCTION: AtomicU8 = AtomicU8::new(NONE);

/// Finds the instruction.
#[cfg(target_arch = "x86_64")]
pub(super) fn prepare() {
    if core::arch::x86_64::__cpuid(0).eax < 7 {
        return;
    }
    // CPUID leaf 7, EBX: bit 24 says CLWB, bit 23 CLFLUSHOPT.
    let features = core::arch::x86_64::__cpuid_count(7, 0).ebx;
    let instruction = match (features >> 24 & 1, features >> 23 & 1) {
        (1, _) => CLWB,
        (_, 1) => CLFLUSHOPT,
        _ => NONE,
    };
    INSTRUCTION.store(instruction, Ordering::Relaxed);
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn prepare() {}

/// Whether there is one.
pub(super) fn can_flush() -> bool {
    INSTRUCTION.load(Ordering::Relaxed) != NONE
}

/// Writes the lines of `entries` back. [`can_flush`] has said that this can be done.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn flush(entries: &[Entry]) {
    const LINE_BYTES: usize = 64;
    let has_clwb = INSTRUCTION.load(Ordering::Relaxed) == CLWB;
    let range = entries.as_ptr_range();
    let mut line = range.start as usize & !(LINE_BYTES - 1);
    while line < range.end as usize {
        if has_clwb {
            // SAFETY: writes back a line that holds a part of `entries`; `prepare` has seen that there is the instruction.
            unsafe { std::arch::asm!("clwb byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) };
        } else {
            // SAFETY: as above, and takes it out of the caches.
            unsafe { std::arch::asm!("clflushopt byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }
        line += LINE_BYTES;
    }
    // SAFETY: a fence.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn flush(_entries: &[Entry]) {
    unreachable!("a platform that is not coherent was not made")
}
