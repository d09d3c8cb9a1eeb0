//! How a design works on its table: the locks around that, as ATC'15, Table 1, found them in other systems, and the way
//! in which it writes and clears entries.
//!
//! The table is lock-free, so safety here needs no lock, except where the design takes table pages out by itself.

use crate::address::{IovaRange, Segment};
use crate::error::MapError;
use crate::iommu::Iommu;
use crate::platform::Platform;
use crate::request::Access;
use crate::space::AddressSpace;
use crate::table::FreedTables;

/// The locks around the parts of a map or unmap, and how entries are written and cleared.
///
/// # Safety
/// Table pages are freed on the word of this trait. An implementation that [writes](Locking::write) and
/// [erases](Locking::erase) by itself does what these promise. It may [take pages out](Locking::TAKES_PAGES_OUT) if it
/// has both functions of its own, and lets only one closure at a time run in [`table`](Locking::table). An `erase` of
/// its own [reports](crate::table::SecondLevelTable::note_detached) each page that it takes out before `table` ends,
/// because the next map invalidates for it.
pub unsafe trait Locking: Send + Sync {
    /// Whether it writes and clears entries by itself and takes table pages out:
    /// [`TableRule::FreedByDesign`](crate::table::TableRule::FreedByDesign).
    const TAKES_PAGES_OUT: bool = false;

    /// Whether maps choose addresses or write tables while they hold a lock. The host is not asked for memory while
    /// the lock is held, but beforehand; see [`IovaAllocator::prepare`](crate::iova::IovaAllocator::prepare).
    const IS_HELD: bool = false;

    /// Runs a whole map or unmap of `pages` pages.
    #[inline(always)]
    fn whole<R>(&self, _pages: u64, run: impl FnOnce() -> R) -> R {
        run()
    }

    /// Runs the part of a map or unmap that works on the table.
    #[inline(always)]
    fn table<R>(&self, _range: IovaRange, run: impl FnOnce() -> R) -> R {
        run()
    }

    /// Writes the translations of a mapping, as [`AddressSpace::map`] does. Runs within [`table`](Locking::table).
    ///
    /// # Errors
    /// Those of [`AddressSpace::map`].
    ///
    /// # Safety
    /// That of [`AddressSpace::map`], but for the rule.
    #[inline(always)]
    unsafe fn write<P: Platform, I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        range: IovaRange,
        (segments, access): (&[Segment], Access),
        marked: bool,
    ) -> Result<(), MapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { space.map(range, segments, access, marked) }
    }

    /// Clears the translations of a mapping that was claimed, as [`AddressSpace::unmap`] does. Runs within
    /// [`table`](Locking::table). Returns whether table pages were added to `freed`.
    ///
    /// # Safety
    /// That of [`AddressSpace::unmap`], but for the rule.
    #[inline(always)]
    unsafe fn erase<P: Platform, I: Iommu>(
        &self,
        space: &AddressSpace<P, I>,
        range: IovaRange,
        freed: &mut FreedTables,
    ) -> bool {
        // SAFETY: the caller's promise, passed on.
        unsafe { space.unmap(range, freed) }
    }
}

/// No lock: the table needs none, and the allocator has its own.
#[derive(Debug)]
pub struct LockFree;

// SAFETY: it promises nothing.
unsafe impl Locking for LockFree {}
