//! The locks of illumos's table (ATC'15, Table 1). Safety needs none: they are here because CPUs wait for them.

use alloc::boxed::Box;
use portcullis::error::NoMemory;
use portcullis::mapper::Locking;
use portcullis::platform::memory::try_fill;
use portcullis::platform::{Context, Lock, LockClass, Platform};
use portcullis::table::LEVEL_BITS;
use portcullis::{IovaRange, PAGE_SHIFT};

/// The most levels that a table has.
const LEVELS_MAX: usize = 4;
/// The number of locks of [`LockPerTable`]: enough for the directories of 16 GiB. The model checker has one for each
/// level, so that it has fewer to explore.
const DIRECTORY_LOCKS: usize = if cfg!(loom) { LEVELS_MAX } else { 16 * LEVELS_MAX };

/// One lock for each directory of the table, held for one step of a walk and released before the next (illumos).
/// Every walk begins with the lock of the root, where all cores meet. Leaf entries are written without a lock: no two
/// mappings share one.
///
/// The original has reader-writer locks. Taking such a lock to read also writes its cache line, and that is its cost.
pub struct LockPerTable<P: Platform> {
    levels: u8,
    /// A directory uses the lock that its place in the table hashes to.
    directories: Box<[P::Lock<()>]>,
}

impl<P: Platform> LockPerTable<P> {
    /// Makes the locks for a table of addresses below `2^width`.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P, width: u8) -> Result<Self, NoMemory> {
        let lock = || platform.lock(LockClass::Table, ());
        let directories = try_fill(platform, Context::MaySleep, DIRECTORY_LOCKS, lock)?;
        let levels = (u32::from(width) - PAGE_SHIFT).div_ceil(LEVEL_BITS).max(3) as u8;
        Ok(Self { levels, directories: directories.into_boxed_slice() })
    }
}

// SAFETY: it promises nothing.
unsafe impl<P: Platform> Locking for LockPerTable<P> {
    fn table<R>(&self, range: IovaRange, run: impl FnOnce() -> R) -> R {
        for level in (2..=self.levels).rev() {
            // A range may span two directories, which is rare. It then takes only the lock of the first.
            let directory = (range.first_pfn() >> (LEVEL_BITS * u32::from(level))) as usize;
            let lock = directory * LEVELS_MAX + usize::from(level);
            self.directories[lock % DIRECTORY_LOCKS].with(|()| ());
        }
        run()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use portcullis::platform::fake::FakeHost;

    /// Cores that work on neighbouring directories do not contend: each level has sixteen locks.
    #[test]
    fn there_are_locks_for_sixteen_directories_of_each_level() {
        let host = FakeHost::default();
        assert_eq!(LockPerTable::new(&host, 48).expect("memory").directories.len(), 16 * 4);
    }
}
