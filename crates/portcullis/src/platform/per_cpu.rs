//! One value per CPU, each on its own cache lines, and a counter made of such values.

use super::{Context, CpuHint, NoMemory, Platform};
use crate::platform::memory::{push_within, try_reserve};
use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;

/// A value that has two cache lines to itself: processors prefetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// The index, below `len`, for `cpu`. A host may have more CPUs than it reported at first; those share.
#[inline(always)]
pub(crate) const fn index_of(cpu: CpuHint, len: usize) -> usize {
    let cpu = cpu.0 as usize;
    if cpu < len { cpu } else { cpu % len }
}

/// One `T` per CPU.
pub struct PerCpu<T>(Box<[Padded<T>]>);

impl<T> PerCpu<T> {
    /// Makes one for each CPU of `platform`.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(always)]
    pub fn new<P: Platform>(platform: &P, mut make: impl FnMut() -> Result<T, NoMemory>) -> Result<Self, NoMemory> {
        let cpus = platform.cpus().max(1) as usize;
        let mut all = try_reserve(platform, Context::MaySleep, cpus)?;
        for _ in 0..cpus {
            // Padded last: a `Result` of a padded value would be moved together with its padding.
            push_within(&mut all, Padded(make()?));
        }
        Ok(Self(all.into_boxed_slice()))
    }

    /// The value of the current CPU, or of another one if the hint is out of date.
    #[inline]
    pub fn here<P: Platform>(&self, platform: &P) -> &T {
        &self.0[index_of(platform.cpu(), self.0.len())].0
    }

    /// The values of all CPUs.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }

    /// The number of CPUs.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A counter to which each CPU adds on its own cache line. One CPU may add and another subtract; only the sum is
/// meaningful.
///
/// All accesses are Relaxed: it is a statistic, exact while it does not change.
pub struct PerCpuCount(PerCpu<AtomicUsize>);

impl PerCpuCount {
    /// Zero.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        PerCpu::new(platform, || Ok(AtomicUsize::new(0))).map(Self)
    }

    /// Adds one. A read-modify-write, because the CPU hint may be out of date and an interrupt may come in between.
    #[inline]
    pub fn add<P: Platform>(&self, platform: &P) {
        self.0.here(platform).fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts one.
    #[inline]
    pub fn subtract<P: Platform>(&self, platform: &P) {
        self.0.here(platform).fetch_sub(1, Ordering::Relaxed);
    }

    /// The sum over all CPUs.
    pub fn sum(&self) -> usize {
        // The parts may wrap, so the sum wraps as well.
        self.0.iter().fold(0, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed)))
    }
}
