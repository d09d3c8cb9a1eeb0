//! One of something for each CPU, on cache lines of their own.

use crate::error::NoMemory;
use crate::platform::Platform;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Two lines: processors fetch them in pairs.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

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
