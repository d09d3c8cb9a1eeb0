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
    // SAFETY: `prepare` has seen that there is the instruction.
    unsafe { write_back(entries, INSTRUCTION.load(Ordering::Relaxed) == CLWB) }
}

/// The same, by CLWB or by CLFLUSHOPT.
///
/// # Safety
/// The processor has it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn write_back(entries: &[Entry], by_clwb: bool) {
    for line in lines(entries) {
        if by_clwb {
            // SAFETY: writes back a line that holds a part of `entries`; the caller says that there is the instruction.
            unsafe { std::arch::asm!("clwb byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) };
        } else {
            // SAFETY: as above, and takes it out of the caches.
            unsafe { std::arch::asm!("clflushopt byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }
    }
    // SAFETY: a fence.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

/// The addresses of the lines in which `entries` lie.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn lines(entries: &[Entry]) -> impl Iterator<Item = usize> {
    const LINE_BYTES: usize = 64;
    let range = entries.as_ptr_range();
    (range.start as usize & !(LINE_BYTES - 1)..range.end as usize).step_by(LINE_BYTES)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn flush(_entries: &[Entry]) {
    unreachable!("a platform that is not coherent was not made")
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Two lines of entries.
    #[repr(align(64))]
    struct Lines([Entry; 16]);

    fn numbered() -> Lines {
        Lines(std::array::from_fn(|number| Entry::new(number as u64)))
    }

    #[test]
    fn every_line_once() {
        let entries = numbered();
        let first = entries.0.as_ptr() as usize;
        for (range, expected) in [(0..0, 0..0), (0..1, 0..1), (7..8, 0..1), (0..8, 0..1), (7..9, 0..2), (8..16, 1..2)] {
            let expected: Vec<usize> = expected.map(|line| first + 64 * line).collect();
            assert_eq!(lines(&entries.0[range.clone()]).collect::<Vec<_>>(), expected, "{range:?}");
        }
    }

    /// Both instructions, where there are such: what was written is there still.
    #[test]
    fn what_is_written_back_is_not_lost() {
        prepare();
        let instruction = INSTRUCTION.load(Ordering::Relaxed);
        // Whatever has CLWB has CLFLUSHOPT.
        for (by_clwb, needs) in [(true, CLWB), (false, CLFLUSHOPT)] {
            let entries = numbered();
            if instruction >= needs {
                // SAFETY: it is there.
                unsafe { write_back(&entries.0, by_clwb) };
            }
            assert!((0..).zip(&entries.0).all(|(number, entry)| entry.load_bits() == number));
        }
    }
}
