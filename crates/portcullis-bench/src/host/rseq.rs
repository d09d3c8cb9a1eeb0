//! Words of a CPU's own, by restartable sequences (Linux, rseq(2)).
//!
//! The kernel keeps the number of the CPU in the thread's memory and sends a thread that is interrupted, signalled or moved in
//! the middle of a sequence to its abort handler. A sequence that ends in one store is then a step by itself on its CPU, without
//! a locked bus: whoever interrupts it has either not begun it or sees it done. The C library (glibc since 2.35) registers the
//! area for every thread and says where it is; its offset from the thread pointer is the same for all.
//!
//! A line is changed either by sequences on its CPU or by locked instructions, never by both. The last line of all is for
//! threads that are on none of the CPUs known at first, or that have no registration; they lock. Where the process has no
//! registration at all, everybody locks, on the line of the CPU.

use super::time;
use portcullis::platform::{CPU_WORDS, CpuWords, Padded, WordLines};
use std::arch::asm;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

/// log2 of the bytes from line to line.
const LINE_SHIFT: u32 = size_of::<Padded<[AtomicU64; CPU_WORDS]>>().ilog2();
const _: () = assert!(size_of::<Padded<[AtomicU64; CPU_WORDS]>>().is_power_of_two());

/// Offset of the area from the thread pointer; 0, where the thread control block is, for none. Written once, before any
/// platform is made.
static AREA: AtomicIsize = AtomicIsize::new(0);

/// Finds the area.
pub(super) fn prepare() {
    let find = |name: &std::ffi::CStr| {
        // SAFETY: a lookup by a name that ends.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (offset, size) = (find(c"__rseq_offset").cast::<isize>(), find(c"__rseq_size").cast::<u32>());
    if offset.is_null() || size.is_null() {
        return;
    }
    // SAFETY: symbols of the C library with these types, constant once the program runs. The size is zero where the kernel has
    // refused the registration or the user does not want it.
    let (offset, size) = unsafe { (*offset, *size) };
    if size > 0 {
        AREA.store(offset, Ordering::Relaxed);
    }
}

/// The CPU that runs; `None` where the thread has no registration.
#[inline(always)]
pub(super) fn cpu() -> Option<u32> {
    let area = AREA.load(Ordering::Relaxed);
    if area == 0 {
        return None;
    }
    let cpu: u32;
    // SAFETY: reads the `cpu_id` of this thread's area, which the kernel changes behind the compiler's back: so not `pure`.
    unsafe {
        asm!("mov {0:e}, dword ptr fs:[{1} + 4]", out(reg) cpu, in(reg) area, options(nostack, readonly, preserves_flags))
    };
    (cpu.cast_signed() >= 0).then_some(cpu)
}

/// Adds to a word of this CPU's line, or of that of all who have none. Returns the line and what the word held.
#[inline(always)]
pub(super) fn add_here(words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
    let (at, old) = add_in_sequence(words, word, amount).unwrap_or_else(|| add_locked(words, word, amount));
    // Only here: few want to know.
    (at >> LINE_SHIFT, old)
}

/// Adds to a word of this CPU's line; `None` where the thread has none. Returns where the line begins, in bytes.
#[inline(always)]
fn add_in_sequence(words: &WordLines, word: usize, amount: u64) -> Option<(usize, u64)> {
    let area = AREA.load(Ordering::Relaxed);
    if area == 0 {
        return None;
    }
    assert!(word < CPU_WORDS);
    let lines = words.as_slice();
    let last = lines.len() - 1;
    let (at, old): (isize, u64);
    // SAFETY: below `last` the line is one of `lines`, `1 << LINE_SHIFT` bytes each, and `word` one of its words. The kernel lets
    // the sequence from 55 to 66 end only on the CPU whose number it has read, with nothing in between; nobody changes these
    // lines otherwise. An aligned store of a word is one step for those who read, and an addition to memory one for those who
    // interrupt. Left at any other place than its end, the sequence has stored nothing, and all that it needs to begin again is
    // still in its registers. The thread's area keeps a pointer to the descriptor at 22, a static, until the kernel sees the
    // thread elsewhere.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "22:",
            ".long 0, 0",
            ".quad 55f, 66f - 55f, 33f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            // An instruction that nothing executes, with the signature that the kernel wants to see before the handler.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "33:",
            "jmp 44f",
            // Without a line.
            "77:",
            "mov {at}, -1",
            "jmp 66f",
            ".popsection",
            "44:",
            "lea {at}, [rip + 22b]",
            "mov qword ptr fs:[{area} + 8], {at}",
            "55:",
            "mov {at:e}, dword ptr fs:[{area} + 4]",
            "cmp {at}, {last}",
            // Also where there is no number: it is negative then.
            "jae 77b",
            "shl {at}, {shift}",
            "mov {old}, qword ptr [{base} + {at}]",
            "add qword ptr [{base} + {at}], {amount}",
            "66:",
            shift = const LINE_SHIFT,
            area = in(reg) area,
            last = in(reg) last,
            base = in(reg) lines.as_ptr().cast::<u64>().add(word),
            amount = in(reg) amount,
            old = out(reg) old,
            at = out(reg) at,
            options(nostack),
        );
    }
    (at >= 0).then_some((at as usize, old))
}

/// Adds to the word that those share who have no line, or, without a registration of the process, to one of this CPU.
#[cold]
fn add_locked(words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
    let line = match AREA.load(Ordering::Relaxed) {
        0 => words.line_of(time::slow_cpu()),
        _ => words.as_slice().len() - 1,
    };
    (line << LINE_SHIFT, words.word(line, word).fetch_add(amount, Ordering::Acquire))
}

/// Changes a word of `line` from `old` to `new`, if it holds `old` and the line is this CPU's. Returns whether it did.
#[inline(always)]
pub(super) fn exchange_at(words: &WordLines, line: usize, word: usize, old: u64, new: u64) -> bool {
    let area = AREA.load(Ordering::Relaxed);
    let target = words.word(line, word);
    if area == 0 || line == words.as_slice().len() - 1 {
        return target.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    }
    let done: u32;
    // SAFETY: as in `add_in_sequence`; the line is below the last. Stores on this processor are seen in order, so this one releases.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "22:",
            ".long 0, 0",
            ".quad 55f, 66f - 55f, 33f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "33:",
            "jmp 44f",
            ".popsection",
            "44:",
            "lea {descriptor}, [rip + 22b]",
            "mov qword ptr fs:[{area} + 8], {descriptor}",
            "55:",
            "xor {done:e}, {done:e}",
            "cmp dword ptr fs:[{area} + 4], {line:e}",
            "jne 66f",
            "cmp qword ptr [{target}], {old}",
            "jne 66f",
            "mov {done:e}, 1",
            "mov qword ptr [{target}], {new}",
            "66:",
            area = in(reg) area,
            line = in(reg) line,
            target = in(reg) target.as_ptr(),
            old = in(reg) old,
            new = in(reg) new,
            done = out(reg) done,
            descriptor = out(reg) _,
            options(nostack),
        );
    }
    done != 0
}
