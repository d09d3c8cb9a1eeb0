//! Per-CPU words, in the kernel's per-CPU memory.

use crate::kernel::{pcs_cpus, pcs_words_alloc, pcs_words_free, pcs_words_of};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use portcullis::NoMemory;
use portcullis::platform::{CPU_WORDS, CpuWords};

/// A cache line for each CPU that may exist.
pub(crate) struct PerCpuWords(NonNull<u64>);

// SAFETY: the memory of every CPU is accessible from all CPUs.
unsafe impl Send for PerCpuWords {}
// SAFETY: as above, and the words are atomic.
unsafe impl Sync for PerCpuWords {}

impl PerCpuWords {
    pub(crate) fn new(value: u64) -> Result<Self, NoMemory> {
        // SAFETY: the context may sleep, like everything that opens domains.
        let words = Self(NonNull::new(unsafe { pcs_words_alloc() }).ok_or(NoMemory)?);
        for line in 0..words.lines() {
            for word in 0..CPU_WORDS {
                // Relaxed: the words are not shared yet.
                words.word(line, word).store(value, core::sync::atomic::Ordering::Relaxed);
            }
        }
        Ok(words)
    }

    /// The kernel's pointer to them.
    pub(crate) const fn as_ptr(&self) -> *mut u64 {
        self.0.as_ptr()
    }
}

impl Drop for PerCpuWords {
    fn drop(&mut self) {
        // SAFETY: the words come from `new`, and no reference to them is left.
        unsafe { pcs_words_free(self.as_ptr()) }
    }
}

// SAFETY: the kernel has a line for each of its CPUs, and never moves it.
unsafe impl CpuWords for PerCpuWords {
    fn lines(&self) -> usize {
        // SAFETY: the number is constant in the running kernel.
        unsafe { pcs_cpus() as usize }
    }

    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        assert!(line < self.lines() && word < CPU_WORDS, "no such word");
        // SAFETY: this is the line of that CPU, which has `CPU_WORDS` words and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(pcs_words_of(self.as_ptr(), line as u32).add(word)) }
    }
}
