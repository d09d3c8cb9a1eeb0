//! The locks of designs that have more locks than their allocator's, as ATC'15, Table 1, found them in other systems.
//!
//! The table is lock-free, so safety here needs none of them, except where table pages are counted.

use crate::address::IovaRange;

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
