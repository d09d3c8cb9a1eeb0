//! The locks of designs that have more than their allocator's: what ATC'15, Table 1, found in other systems.
//!
//! None of them is needed for safety here, but for [`TableLock`] where table pages are counted: the table is lock-free. They are
//! what those systems do, and what their cores wait for.

use crate::address::{IovaRange, PAGE_SHIFT};
use crate::error::NoMemory;
use crate::platform::memory::try_fill;
use crate::platform::{Context, Lock, LockClass, Platform};
use crate::table::LEVEL_BITS;
use alloc::boxed::Box;

/// Levels that a table has at most.
const LEVELS_MAX: usize = 4;
/// Locks of [`LockPerTable`], for the directories of 16 GiB. The model checker has one of each level to look after.
const DIRECTORY_LOCKS: usize = if cfg!(loom) { LEVELS_MAX } else { 16 * LEVELS_MAX };

/// The locks around the parts of a map or unmap.
///
/// # Safety
/// Table pages are freed on its word. Implementations promise that, where [`TABLE_EXCLUSIVE`](Locking::TABLE_EXCLUSIVE) says so,
/// [`table`](Locking::table) never runs two closures at the same time.
pub unsafe trait Locking: Send + Sync {
    /// Whether one CPU at a time works on the table.
    const TABLE_EXCLUSIVE: bool = false;

    /// Whether maps choose addresses or write tables with a lock held. The host is asked for no memory then: it comes before, see
    /// [`IovaAllocator::prepare`](crate::iova::IovaAllocator::prepare).
    const IS_HELD: bool = false;

    /// Runs all that a map or unmap of `pages` pages does.
    fn whole<R>(&self, _pages: u64, run: impl FnOnce() -> R) -> R {
        run()
    }

    /// Runs what it does to the table.
    fn table<R>(&self, _range: IovaRange, run: impl FnOnce() -> R) -> R {
        run()
    }
}

/// None: the table needs none, and the allocator has its own.
#[derive(Debug)]
pub struct LockFree;

// SAFETY: promises nothing.
unsafe impl Locking for LockFree {}

/// One lock around all that is done to the table (FreeBSD).
pub struct TableLock<P: Platform>(P::Lock<()>);

impl<P: Platform> TableLock<P> {
    /// Makes it.
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

/// One lock around the whole of short maps and unmaps, allocator and table together (XNU).
pub struct WholeLock<P: Platform> {
    lock: P::Lock<()>,
    pages_max: u64,
}

impl<P: Platform> WholeLock<P> {
    /// Makes it, for mappings of at most `pages_max` pages.
    pub fn new(platform: &P, pages_max: u64) -> Self {
        Self { lock: platform.lock(LockClass::Domain, ()), pages_max }
    }
}

// SAFETY: promises nothing.
unsafe impl<P: Platform> Locking for WholeLock<P> {
    const IS_HELD: bool = true;

    fn whole<R>(&self, pages: u64, run: impl FnOnce() -> R) -> R {
        if pages <= self.pages_max { self.lock.with(|()| run()) } else { run() }
    }
}

/// A lock for each directory of the table, taken for its step of a walk and let go before the next (illumos). Every walk begins
/// with that of the root, which is what all cores come by. Leaves are written with none: no two mappings have the same.
///
/// The original has readers and writers. Taking a lock to read writes its cache line just so, and that is what it costs.
pub struct LockPerTable<P: Platform> {
    levels: u8,
    /// A directory has the one that its place in the table hashes to.
    directories: Box<[P::Lock<()>]>,
}

impl<P: Platform> LockPerTable<P> {
    /// Makes them, for a table of addresses below `2^width`.
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

// SAFETY: promises nothing.
unsafe impl<P: Platform> Locking for LockPerTable<P> {
    fn table<R>(&self, range: IovaRange, run: impl FnOnce() -> R) -> R {
        for level in (2..=self.levels).rev() {
            // A range below two directories, which is rare, comes by the first.
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

    /// Cores that work on neighbouring directories do not meet: sixteen of each level have a lock each.
    #[test]
    fn there_are_locks_for_sixteen_directories_of_each_level() {
        let host = FakeHost::default();
        assert_eq!(LockPerTable::new(&host, 48).expect("memory").directories.len(), 16 * 4);
    }
}
