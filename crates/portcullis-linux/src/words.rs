//! Words of each CPU, in the kernel's memory of each CPU.

use crate::kernel::{pcs_cpus, pcs_words_alloc, pcs_words_free, pcs_words_of};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use portcullis::NoMemory;
use portcullis::platform::{CPU_WORDS, CpuWords};

/// A cache line for each CPU that there may be.
pub(crate) struct PerCpuWords(NonNull<u64>);

// SAFETY: memory of every CPU may be reached from all of them.
unsafe impl Send for PerCpuWords {}
// SAFETY: as above, by atomic words.
unsafe impl Sync for PerCpuWords {}

impl PerCpuWords {
    pub(crate) fn new(value: u64) -> Result<Self, NoMemory> {
        // SAFETY: in a context that may sleep, as all that opens domains.
        let words = Self(NonNull::new(unsafe { pcs_words_alloc() }).ok_or(NoMemory)?);
        for line in 0..words.lines() {
            for word in 0..CPU_WORDS {
                // Relaxed: they are not shared yet.
                words.word(line, word).store(value, core::sync::atomic::Ordering::Relaxed);
            }
        }
        Ok(words)
    }

    /// As the kernel names them.
    pub(crate) const fn as_ptr(&self) -> *mut u64 {
        self.0.as_ptr()
    }
}

impl Drop for PerCpuWords {
    fn drop(&mut self) {
        // SAFETY: from `new`, and no reference to them is left.
        unsafe { pcs_words_free(self.as_ptr()) }
    }
}

// SAFETY: the kernel has a line for each of its CPUs, where it stays.
unsafe impl CpuWords for PerCpuWords {
    fn lines(&self) -> usize {
        // SAFETY: a constant of the running kernel.
        unsafe { pcs_cpus() as usize }
    }

    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        assert!(line < self.lines() && word < CPU_WORDS, "no such word");
        // SAFETY: the line of that CPU, which has so many words, for as long as `self` lives.
        unsafe { AtomicU64::from_ptr(pcs_words_of(self.as_ptr(), line as u32).add(word)) }
    }
}
