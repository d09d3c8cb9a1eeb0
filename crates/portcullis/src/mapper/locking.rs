//! The locks of designs that have more locks than their allocator's, as ATC'15, Table 1, found them in other systems.
//!
//! The table is lock-free, so safety here needs none of them, except [`TableLock`] where table pages are counted.
//! They reproduce what those systems lock, and so what their cores wait for.

use crate::address::{IovaRange, PAGE_SHIFT};
use crate::error::NoMemory;
use crate::platform::memory::try_fill;
use crate::platform::{Context, Lock, LockClass, Platform};
use crate::table::LEVEL_BITS;
use alloc::boxed::Box;

/// The most levels that a table has.
const LEVELS_MAX: usize = 4;
/// The number of locks of [`LockPerTable`]: enough for the directories of 16 GiB. The model checker has one for each
/// level, so that it has fewer to explore.
const DIRECTORY_LOCKS: usize = if cfg!(loom) { LEVELS_MAX } else { 16 * LEVELS_MAX };

/// The locks around the parts of a map or unmap.
///
/// # Safety
/// Table pages are freed on the word of this trait. An implementation that sets
/// [`TABLE_EXCLUSIVE`](Locking::TABLE_EXCLUSIVE) promises that [`table`](Locking::table) never runs two closures at
/// the same time.
pub unsafe trait Locking: Send + Sync {
    /// Whether only one CPU at a time works on the table.
    const TABLE_EXCLUSIVE: bool = false;

    /// Whether maps choose addresses or write tables while they hold a lock. The host is not asked for memory while
    /// the lock is held, but beforehand; see [`IovaAllocator::prepare`](crate::iova::IovaAllocator::prepare).
    const IS_HELD: bool = false;

    /// Runs a whole map or unmap of `pages` pages.
    fn whole<R>(&self, _pages: u64, run: impl FnOnce() -> R) -> R {
        run()
    }

    /// Runs the part of a map or unmap that works on the table.
    fn table<R>(&self, _range: IovaRange, run: impl FnOnce() -> R) -> R {
        run()
    }
}

/// No lock: the table needs none, and the allocator has its own.
#[derive(Debug)]
pub struct LockFree;

// SAFETY: it promises nothing.
unsafe impl Locking for LockFree {}

/// One lock around all work on the table (FreeBSD).
pub struct TableLock<P: Platform>(P::Lock<()>);

impl<P: Platform> TableLock<P> {
    /// Makes the lock.
    pub fn new(platform: &P) -> Self {
        Self(platform.lock(LockClass::Table, ()))
    }
}

// SAFETY: every closure runs with the one lock held.
unsafe impl<P: Platform> Locking for TableLock<P> {
    const TABLE_EXCLUSIVE: bool = true;
    const IS_HELD: bool = true;

    fn table<R>(&self, _range: IovaRange, run: impl FnOnce() -> R) -> R {
        self.0.with(|()| run())
    }
}

/// One lock around all of a short map or unmap, allocator and table together (XNU).
pub struct WholeLock<P: Platform> {
    lock: P::Lock<()>,
    pages_max: u64,
}

impl<P: Platform> WholeLock<P> {
    /// Makes the lock, for mappings of at most `pages_max` pages.
    pub fn new(platform: &P, pages_max: u64) -> Self {
        Self { lock: platform.lock(LockClass::Domain, ()), pages_max }
    }
}

// SAFETY: it promises nothing.
unsafe impl<P: Platform> Locking for WholeLock<P> {
    const IS_HELD: bool = true;

    fn whole<R>(&self, pages: u64, run: impl FnOnce() -> R) -> R {
        if pages <= self.pages_max { self.lock.with(|()| run()) } else { run() }
    }
}

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
    use crate::platform::fake::FakeHost;

    /// Cores that work on neighbouring directories do not contend: each level has sixteen locks.
    #[test]
    fn there_are_locks_for_sixteen_directories_of_each_level() {
        let host = FakeHost::default();
        assert_eq!(LockPerTable::new(&host, 48).expect("memory").directories.len(), 16 * 4);
    }
}
