//! Per-CPU words, which the platform supplies.

use super::per_cpu::index_of;
use super::{Context, CpuHint, NoMemory, Padded, Platform};
use crate::platform::memory::try_slice;
use crate::sync::AtomicU64;
use alloc::boxed::Box;

/// The number of words per CPU.
pub const CPU_WORDS: usize = 8;

/// Per-CPU words: a line of words for each CPU.
///
/// A word is changed either only by [`Platform::add_here`] and [`Platform::exchange_at`], so that a platform can do
/// without locked instructions, or only by locked instructions. The words of rings are of the second kind, because
/// they belong to no CPU.
///
/// # Safety
/// Address allocation depends on these words. An implementation promises that [`word`](CpuWords::word) always returns
/// the same word for the same numbers, and different words for different numbers.
pub unsafe trait CpuWords: Send + Sync {
    /// The number of lines, at least one.
    fn lines(&self) -> usize;

    /// Word `word` of line `line`.
    ///
    /// # Panics
    /// If there is no such word.
    fn word(&self, line: usize, word: usize) -> &AtomicU64;

    /// The line of `cpu`. CPUs beyond the number that the platform reported share the lines of others.
    #[inline]
    fn line_of(&self, cpu: CpuHint) -> usize {
        index_of(cpu, self.lines())
    }
}

/// Words on the heap, each line on cache lines of its own.
#[derive(Debug)]
pub struct WordLines(Box<[Padded<[AtomicU64; CPU_WORDS]>]>);

impl WordLines {
    /// A line for each CPU of `platform`, all words `value`.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new<P: Platform>(platform: &P, value: u64) -> Result<Self, NoMemory> {
        Self::with_lines(platform, platform.cpus().max(1) as usize, value)
    }

    /// `lines` lines of words, all set to `value`.
    pub(crate) fn with_lines<P: Platform>(platform: &P, lines: usize, value: u64) -> Result<Self, NoMemory> {
        let line = || Ok(Padded(core::array::from_fn(|_| AtomicU64::new(value))));
        try_slice(platform, Context::MaySleep, lines, line).map(Self)
    }

    /// The words, one line per CPU, indexed by CPU number.
    #[inline]
    pub const fn as_slice(&self) -> &[Padded<[AtomicU64; CPU_WORDS]>] {
        &self.0
    }
}

// SAFETY: the words are distinct elements of arrays.
unsafe impl CpuWords for WordLines {
    #[inline]
    fn lines(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.0[line].0[word]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;

    #[test]
    fn cpus_that_the_platform_did_not_speak_of_share_lines() {
        let words = WordLines::with_lines(&FakeHost::default(), 3, 0).expect("memory");
        let lines = [0, 1, 2, 3, 4, 7, u32::MAX].map(|cpu| words.line_of(CpuHint(cpu)));
        assert_eq!(lines, [0, 1, 2, 0, 1, 1, 0]);
    }
}
