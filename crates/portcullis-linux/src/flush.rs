//! Writes cache lines back to memory, where a walker that does not snoop finds them.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use portcullis::table::Entry;

// The numbers that the C half passes; 0 is CLFLUSH. CLWB leaves a line in the cache, where the next map finds it; the
// other two evict the line.
const CLFLUSHOPT: u8 = 1;
const CLWB: u8 = 2;

/// The line size of every processor with a VT-d unit.
const LINE_BYTES: usize = 64;

// Relaxed: written once, before a unit is brought up.
static HAS_CLWB: AtomicBool = AtomicBool::new(false);
static HAS_CLFLUSHOPT: AtomicBool = AtomicBool::new(false);

/// Sets the instruction to use.
///
/// # Safety
/// The processor must have the instruction.
pub(crate) unsafe fn use_instruction(number: u8) {
    HAS_CLWB.store(number == CLWB, Ordering::Relaxed);
    HAS_CLFLUSHOPT.store(number == CLFLUSHOPT, Ordering::Relaxed);
}

/// Writes the lines of `entries` back, before any register is written.
#[inline(always)]
pub(crate) fn write_back(entries: &[Entry]) {
    // One entry lies in one line, and any byte of the line will do.
    if let [entry] = entries {
        write_line_back(ptr::from_ref(entry).addr());
    } else {
        let range = entries.as_ptr_range();
        let (mut line, end) = (range.start.addr() & !(LINE_BYTES - 1), range.end.addr());
        while line < end {
            write_line_back(line);
            line += LINE_BYTES;
        }
    }
    // SAFETY: a fence has no preconditions. It orders all write-backs before later stores, including those to
    // registers.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Writes back the line that contains the byte at `at`.
#[inline(always)]
fn write_line_back(at: usize) {
    if HAS_CLWB.load(Ordering::Relaxed) {
        // SAFETY: changes no memory, only where it is cached. The caller of `use_instruction` promised that the
        // processor has the instruction.
        unsafe { asm!("clwb byte ptr [{}]", in(reg) at, options(nostack, preserves_flags)) }
    } else if HAS_CLFLUSHOPT.load(Ordering::Relaxed) {
        // SAFETY: as above.
        unsafe { asm!("clflushopt byte ptr [{}]", in(reg) at, options(nostack, preserves_flags)) }
    } else {
        // SAFETY: as above; every processor of this architecture has the instruction.
        unsafe { asm!("clflush byte ptr [{}]", in(reg) at, options(nostack, preserves_flags)) }
    }
}
