//! Words that each CPU has of its own, as the platform makes them.

use super::per_cpu::index_of;
use super::{Context, CpuHint, NoMemory, Padded, Platform};
use crate::platform::memory::try_slice;
use crate::sync::AtomicU64;
use alloc::boxed::Box;

/// Words of each CPU.
pub const CPU_WORDS: usize = 8;

/// Words that each CPU has of its own: a line of them for each.
///
/// A word is changed either by [`Platform::add_here`] and [`Platform::exchange_at`] alone, so that a platform may do without a
/// locked bus, or by locked instructions alone, as those of rings are, which have no CPU.
///
/// # Safety
/// Addresses are handed out by them. Implementations promise that [`word`](CpuWords::word) gives the same word for the same numbers at any
/// time, and another for others.
pub unsafe trait CpuWords: Send + Sync {
    /// How many lines there are: one at least.
    fn lines(&self) -> usize;

    /// Word `word` of line `line`.
    ///
    /// # Panics
    /// If there is none.
    fn word(&self, line: usize, word: usize) -> &AtomicU64;

    /// The line of `cpu`. CPUs beyond those that the platform spoke of share others' lines.
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

    /// So many lines of words, all of them `value`.
    pub(crate) fn with_lines<P: Platform>(platform: &P, lines: usize, value: u64) -> Result<Self, NoMemory> {
        let line = || Ok(Padded(core::array::from_fn(|_| AtomicU64::new(value))));
        try_slice(platform, Context::MaySleep, lines, line).map(Self)
    }

    /// The words, a line for each CPU by its number.
    #[inline]
    pub const fn as_slice(&self) -> &[Padded<[AtomicU64; CPU_WORDS]>] {
        &self.0
    }
}

// SAFETY: they are elements of arrays.
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
