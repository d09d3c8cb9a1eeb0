//! Per-CPU words, changed by restartable sequences (Linux, rseq(2)).
//!
//! The kernel keeps the number of the CPU in the thread's memory. If a thread is preempted, signalled or migrated in
//! the middle of a sequence, the kernel sends it to the sequence's abort handler. A sequence that ends in one store is
//! therefore atomic on its CPU, without a locked instruction: code that interrupts it sees it either not begun or
//! complete. The C library (glibc since 2.35) registers the area for every thread and publishes its location. The
//! offset from the thread pointer is the same for all threads.
//!
//! A line is changed either by sequences on its CPU or by locked instructions, never by both. The last line is for
//! threads that run on none of the CPUs known at the start, or that have no registration. These threads use locked
//! instructions. If the process has no registration at all, all threads use locked instructions on the line of their
//! CPU.

use super::time;
use portcullis::platform::{CPU_WORDS, CpuWords, Padded, WordLines};
use std::arch::asm;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

/// log2 of the bytes from one line to the next.
const LINE_SHIFT: u32 = size_of::<Padded<[AtomicU64; CPU_WORDS]>>().ilog2();
const _: () = assert!(size_of::<Padded<[AtomicU64; CPU_WORDS]>>().is_power_of_two());

/// The offset of the area from the thread pointer. 0 means that there is none, because the thread control block is
/// there. Written once, before any platform is made.
static AREA: AtomicIsize = AtomicIsize::new(0);

/// Finds the area.
pub(super) fn prepare() {
    let find = |name: &std::ffi::CStr| {
        // SAFETY: a lookup by a name that ends in a zero byte.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (offset, size) = (find(c"__rseq_offset").cast::<isize>(), find(c"__rseq_size").cast::<u32>());
    if offset.is_null() || size.is_null() {
        return;
    }
    // SAFETY: these are symbols of the C library with these types, and constant once the program runs. The size is
    // zero if the kernel refused the registration or the user disabled it.
    let (offset, size) = unsafe { (*offset, *size) };
    if size > 0 {
        AREA.store(offset, Ordering::Relaxed);
    }
}

/// The current CPU. `None` if the thread has no registration.
#[inline(always)]
pub(super) fn cpu() -> Option<u32> {
    let area = AREA.load(Ordering::Relaxed);
    if area == 0 {
        return None;
    }
    let cpu: u32;
    // SAFETY: it reads `cpu_id` of this thread's area. The kernel changes it without the compiler's knowledge, so the
    // code is not `pure`.
    unsafe {
        asm!("mov {0:e}, dword ptr fs:[{1} + 4]", out(reg) cpu, in(reg) area, options(nostack, readonly, preserves_flags))
    };
    (cpu.cast_signed() >= 0).then_some(cpu)
}

/// Adds to a word of this CPU's line, or of the shared line if there is none. Returns the line, and the old value of
/// the word.
#[inline(always)]
pub(super) fn add_here(words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
    let (at, old) = add_in_sequence(words, word, amount).unwrap_or_else(|| add_locked(words, word, amount));
    // Computed only here, because few callers use it.
    (at >> LINE_SHIFT, old)
}

/// Adds to a word of this CPU's line. `None` if the thread has none. Returns the byte offset at which the line begins.
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
    // SAFETY: below `last` the line is one of `lines`, of `1 << LINE_SHIFT` bytes each, and `word` is one of its
    // words. The kernel lets the sequence from 55 to 66 complete only on the CPU whose number it has read, without
    // interruption, and no other code changes these lines. An aligned store of a word is atomic for readers, and an
    // addition to memory is atomic with respect to interrupts. If the sequence is left anywhere before its end, it has
    // stored nothing, and everything that it needs to restart is still in its registers. The thread's area keeps a
    // pointer to the descriptor at 22, a static, until the kernel next sees the thread outside the sequence.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "22:",
            ".long 0, 0",
            ".quad 55f, 66f - 55f, 33f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            // An instruction that is never executed. It carries the signature that the kernel expects before the
            // handler.
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
            // A missing number is negative, so it also takes this branch.
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

/// Adds to a word of the shared line or, if the process has no registration, of this CPU's line.
#[cold]
fn add_locked(words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
    let line = match AREA.load(Ordering::Relaxed) {
        0 => words.line_of(time::slow_cpu()),
        _ => words.as_slice().len() - 1,
    };
    (line << LINE_SHIFT, words.word(line, word).fetch_add(amount, Ordering::Acquire))
}

/// Changes a word of `line` from `old` to `new` if it holds `old` and the line belongs to this CPU. Returns whether it
/// did.
#[inline(always)]
pub(super) fn exchange_at(words: &WordLines, line: usize, word: usize, old: u64, new: u64) -> bool {
    let area = AREA.load(Ordering::Relaxed);
    let target = words.word(line, word);
    if area == 0 || line == words.as_slice().len() - 1 {
        return target.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    }
    let done: u32;
    // SAFETY: as in `add_in_sequence`; the line is below the last. This processor does not reorder stores, so this
    // store releases.
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
