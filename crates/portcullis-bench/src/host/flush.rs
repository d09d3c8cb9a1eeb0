//! Writes cache lines back to memory, where a walker that does not snoop finds them.
//!
//! CLWB leaves a line in the cache, and the next map finds it there. Without CLWB, CLFLUSHOPT is used, which evicts
//! the line. Without either, CLFLUSH is used, which also evicts the line; each CLFLUSH waits for the one before it.

#[cfg(target_arch = "x86_64")]
use super::cpuid::cpuid;
use portcullis::table::Entry;
use std::sync::atomic::{AtomicU8, Ordering};

const CLFLUSH: u8 = 0;
const CLFLUSHOPT: u8 = 1;
const CLWB: u8 = 2;

/// The instruction in use. Relaxed: it is written once, before any platform is made.
static INSTRUCTION: AtomicU8 = AtomicU8::new(CLFLUSH);

/// Selects the instruction.
#[cfg(target_arch = "x86_64")]
pub(super) fn prepare() {
    if cpuid(0).eax < 7 {
        return;
    }
    // CPUID leaf 7, EBX: bit 24 means CLWB, and bit 23 means CLFLUSHOPT.
    let features = cpuid(7).ebx;
    let instruction = match (features >> 24 & 1, features >> 23 & 1) {
        (1, _) => CLWB,
        (_, 1) => CLFLUSHOPT,
        _ => CLFLUSH,
    };
    INSTRUCTION.store(instruction, Ordering::Relaxed);
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn prepare() {}

/// Whether single lines can be written back.
pub(super) const fn can_flush() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Writes the lines of `entries` back. Requires that [`can_flush`] holds.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn flush(entries: &[Entry]) {
    // SAFETY: `prepare` has checked that the instruction exists.
    unsafe { write_back(entries, INSTRUCTION.load(Ordering::Relaxed)) }
}

/// Writes the lines of `entries` back with the instruction `by`.
///
/// # Safety
/// The processor must have the instruction.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn write_back(entries: &[Entry], by: u8) {
    for line in lines(entries) {
        match by {
            // SAFETY: it writes back a line that holds a part of `entries`. The caller ensures that the instruction
            // exists.
            CLWB => unsafe { std::arch::asm!("clwb byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: as above; it also evicts the line.
            CLFLUSHOPT => unsafe {
                std::arch::asm!("clflushopt byte ptr [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // SAFETY: as above; every processor of this architecture has it.
            _ => unsafe { core::arch::x86_64::_mm_clflush(line as *const u8) },
        }
    }
    // SAFETY: a fence has no preconditions.
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

    /// With every available instruction, the written data is still there afterwards.
    #[test]
    fn what_is_written_back_is_not_lost() {
        prepare();
        let instruction = INSTRUCTION.load(Ordering::Relaxed);
        // Every CPU that has CLWB has CLFLUSHOPT.
        for by in CLFLUSH..=instruction {
            let entries = numbered();
            // SAFETY: the instruction exists.
            unsafe { write_back(&entries.0, by) };
            assert!((0..).zip(&entries.0).all(|(number, entry)| entry.load_bits() == number));
        }
    }
}
