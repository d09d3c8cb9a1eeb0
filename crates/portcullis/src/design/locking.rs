//! The locks of designs that have more than their allocator's: what ATC'15, Table 1, found in other systems.
//!
//! None of them is needed for safety here, but for [`TableLock`] where table pages are counted: the table is lock-free. They are
//! what those systems do, and what their cores wait for.

use crate::address::{IovaRange, PAGE_SHIFT};
use crate::error::NoMemory;
use crate::platform::{Lock, LockClass, Platform};
use crate::table::ENTRIES;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Locks of [`LockPerTable`]: leaf tables whose numbers are equal modulo this share one.
const TABLE_LOCKS: usize = 64;

/// The locks around the parts of a map or unmap.
///
/// # Safety
/// Table pages are freed on its word. Implementations promise that, where [`TABLE_EXCLUSIVE`](Locking::TABLE_EXCLUSIVE) says so,
/// [`table`](Locking::table) never runs two closures at the same time.
pub unsafe trait Locking: Sync {
    /// Whether one CPU at a time works on the table.
    const TABLE_EXCLUSIVE: bool = false;

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
    fn whole<R>(&self, pages: u64, run: impl FnOnce() -> R) -> R {
        if pages <= self.pages_max { self.lock.with(|()| run()) } else { run() }
    }
}

/// A lock for each table page. Every walk begins with that of the root, which is what all cores come by (illumos).
///
/// The original has readers and writers. Taking the root's lock to read writes its cache line just so, and that is what it
/// costs.
pub struct LockPerTable<P: Platform> {
    root: P::Lock<()>,
    leaf_tables: Box<[P::Lock<()>]>,
}

impl<P: Platform> LockPerTable<P> {
    /// Makes them.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P) -> Result<Self, NoMemory> {
        let mut leaf_tables = Vec::new();
        leaf_tables.try_reserve_exact(TABLE_LOCKS).map_err(|_| NoMemory)?;
        leaf_tables.extend((0..TABLE_LOCKS).map(|_| platform.lock(LockClass::Table, ())));
        Ok(Self { root: platform.lock(LockClass::Table, ()), leaf_tables: leaf_tables.into_boxed_slice() })
    }
}

// SAFETY: promises nothing.
unsafe impl<P: Platform> Locking for LockPerTable<P> {
    fn table<R>(&self, range: IovaRange, run: impl FnOnce() -> R) -> R {
        self.root.with(|()| ());
        // A range over several leaf tables, which is rare, holds the lock of its first.
        let leaf_table = (range.start().as_u64() >> PAGE_SHIFT) as usize / ENTRIES;
        self.leaf_tables[leaf_table % TABLE_LOCKS].with(|()| run())
    }
}
