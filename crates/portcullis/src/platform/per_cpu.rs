//! One of something for each CPU, on cache lines of their own; and a count made of such.

use super::{CpuHint, NoMemory, Platform};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Alone on two cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// One `T` per CPU.
pub(crate) struct PerCpu<T>(Box<[Padded<T>]>);

impl<T> PerCpu<T> {
    /// Makes one for each CPU of `platform`.
    pub(crate) fn new<P: Platform>(
        platform: &P,
        mut make: impl FnMut() -> Result<T, NoMemory>,
    ) -> Result<Self, NoMemory> {
        let cpus = platform.cpus().max(1) as usize;
        let mut all = Vec::new();
        all.try_reserve_exact(cpus).map_err(|_| NoMemory)?;
        for _ in 0..cpus {
            all.push(Padded(make()?));
        }
        Ok(Self(all.into_boxed_slice()))
    }

    /// That of the CPU that runs; another's, should the hint be out of date.
    #[inline]
    pub(crate) fn here<P: Platform>(&self, platform: &P) -> &T {
        let cpu = platform.cpu().0 as usize;
        // A host may have more CPUs than it said at first; they share.
        let index = if cpu < self.0.len() { cpu } else { cpu % self.0.len() };
        &self.0[index].0
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A count to which each CPU adds on a line of its own. One CPU may add and another subtract: only the sum means anything.
///
/// All accesses are Relaxed: a statistic, exact while nobody changes it.
pub(crate) struct PerCpuCount(PerCpu<AtomicUsize>);

impl PerCpuCount {
    /// Zero.
    pub(crate) fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        PerCpu::new(platform, || Ok(AtomicUsize::new(0))).map(Self)
    }

    /// One more. A read-modify-write, for the hint of the CPU may be out of date, and an interrupt may come in between.
    #[inline]
    pub(crate) fn add<P: Platform>(&self, platform: &P) {
        self.0.here(platform).fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    #[inline]
    pub(crate) fn subtract<P: Platform>(&self, platform: &P) {
        self.0.here(platform).fetch_sub(1, Ordering::Relaxed);
    }

    /// What all CPUs have added and not subtracted.
    pub(crate) fn sum(&self) -> usize {
        // The parts wrap, and so must the sum.
        self.0.iter().fold(0, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed)))
    }
}

/// Words that each CPU has of its own.
///
/// A word is changed either by [`Platform::add_here`] and [`Platform::exchange_at`] alone, so that a platform may do without a
/// locked bus, or by locked instructions alone, as those of rings are, which have no CPU.
#[derive(Debug)]
pub struct CpuWords(Box<[Padded<[AtomicU64; Self::PER_CPU]>]>);

impl CpuWords {
    /// Words of each CPU.
    pub const PER_CPU: usize = 8;

    /// Words for each CPU of `platform`, all of them `value`.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new<P: Platform>(platform: &P, value: u64) -> Result<Self, NoMemory> {
        Self::with_lines(platform.cpus().max(1) as usize, value)
    }

    /// So many lines of words, all of them `value`.
    pub(crate) fn with_lines(lines: usize, value: u64) -> Result<Self, NoMemory> {
        let mut all = Vec::new();
        all.try_reserve_exact(lines).map_err(|_| NoMemory)?;
        all.extend((0..lines).map(|_| Padded(core::array::from_fn(|_| AtomicU64::new(value)))));
        Ok(Self(all.into_boxed_slice()))
    }

    /// The words, a line for each CPU by its number.
    #[inline]
    pub const fn lines(&self) -> &[Padded<[AtomicU64; Self::PER_CPU]>] {
        &self.0
    }

    /// The line of `cpu`. CPUs beyond those that the platform spoke of share others' lines.
    #[inline]
    pub fn line_of(&self, cpu: CpuHint) -> usize {
        let cpu = cpu.0 as usize;
        if cpu < self.0.len() { cpu } else { cpu % self.0.len() }
    }

    /// Word `word` of line `line`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.0[line].0[word]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_the_platform_did_not_speak_of_share_lines() {
        let words = CpuWords::with_lines(3, 0).expect("memory");
        let lines = [0, 1, 2, 3, 4, 7, u32::MAX].map(|cpu| words.line_of(CpuHint(cpu)));
        assert_eq!(lines, [0, 1, 2, 0, 1, 1, 0]);
    }
}
