//! One of something for each CPU, on cache lines of their own; and a count made of such.

use super::{Context, CpuHint, NoMemory, Platform};
use crate::platform::memory::{push_within, try_reserve};
use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;

/// Alone on two cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// Which of `len` belongs to `cpu`. A host may have more CPUs than it said at first; they share.
#[inline(always)]
pub(super) const fn index_of(cpu: CpuHint, len: usize) -> usize {
    let cpu = cpu.0 as usize;
    if cpu < len { cpu } else { cpu % len }
}

/// One `T` per CPU.
pub(crate) struct PerCpu<T>(Box<[Padded<T>]>);

impl<T> PerCpu<T> {
    /// Makes one for each CPU of `platform`.
    #[inline(always)]
    pub(crate) fn new<P: Platform>(
        platform: &P,
        mut make: impl FnMut() -> Result<T, NoMemory>,
    ) -> Result<Self, NoMemory> {
        let cpus = platform.cpus().max(1) as usize;
        let mut all = try_reserve(platform, Context::MaySleep, cpus)?;
        for _ in 0..cpus {
            // Padded last: a result of something padded would be moved about with its padding.
            push_within(&mut all, Padded(make()?));
        }
        Ok(Self(all.into_boxed_slice()))
    }

    /// That of the CPU that runs; another's, should the hint be out of date.
    #[inline]
    pub(crate) fn here<P: Platform>(&self, platform: &P) -> &T {
        &self.0[index_of(platform.cpu(), self.0.len())].0
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
