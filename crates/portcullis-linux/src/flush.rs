//! Writes cache lines back to memory, where a walker that does not snoop finds them.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};
use portcullis::table::Entry;

// Numbered as in the C half. CLWB leaves a line in the cache, where the next map finds it. The others evict it.
const CLFLUSH: u8 = 0;
const CLFLUSHOPT: u8 = 1;
const CLWB: u8 = 2;

/// The line size of every processor with a VT-d unit.
const LINE_BYTES: usize = 64;

/// Relaxed: it is written once, before a unit is brought up.
static INSTRUCTION: AtomicU8 = AtomicU8::new(CLFLUSH);

/// Sets the instruction to use.
///
/// # Safety
/// The processor must have the instruction.
pub(crate) unsafe fn use_instruction(number: u8) {
    INSTRUCTION.store(number, Ordering::Relaxed);
}

/// Writes the lines of `entries` back, before any register is written.
#[inline(always)]
pub(crate) fn write_back(entries: &[Entry]) {
    let range = entries.as_ptr_range();
    let (mut line, end) = (range.start.addr() & !(LINE_BYTES - 1), range.end.addr());
    while line < end {
        match INSTRUCTION.load(Ordering::Relaxed) {
            // SAFETY: it changes no memory, only which caches hold it. The caller of `use_instruction` ensured that
            // the instruction exists.
            CLWB => unsafe { asm!("clwb byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: as above.
            CLFLUSHOPT => unsafe { asm!("clflushopt byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: as above; every processor of this architecture has it.
            _ => unsafe { asm!("clflush byte ptr [{}]", in(reg) line, options(nostack, preserves_flags)) },
        }
        line += LINE_BYTES;
    }
    // SAFETY: a fence has no preconditions. It orders all write-backs before later stores, including those to
    // registers.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}
