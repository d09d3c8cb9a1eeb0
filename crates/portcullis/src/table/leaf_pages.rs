//! Single leaf tables: added to the table of a domain for a mapper that writes their entries itself, and taken out
//! again.

use super::second_level::SecondLevelTable;
use super::walker::Walker;
use crate::address::PhysAddr;
use crate::entry::{EntryValue, Frame};
use crate::error::NoMemory;
use crate::platform::{Platform, Step};
use crate::sync::Ordering;

impl SecondLevelTable {
    /// The leaf table that translates page `pfn`, added now if it is missing.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Safety
    /// `walker` is the one that the table was made with. Nothing larger than 4 KiB is mapped around `pfn`, and the
    /// table translates `pfn`.
    pub(crate) unsafe fn add_leaf_table<'p, P: Platform>(
        &self,
        walker: Walker<'p, P>,
        pfn: u64,
    ) -> Result<&'p Frame, NoMemory> {
        // Nothing large is in the way, so only memory can be missing.
        self.make_leaf_table(walker, pfn).map(|at| at.table).map_err(|_| NoMemory)
    }

    /// Takes out the leaf table that translates page `pfn`, and returns it unchanged. Nothing may be mapped in it.
    ///
    /// # Safety
    /// As for [`add_leaf_table`](Self::add_leaf_table), which must have added it. No other CPU takes it out at the
    /// same time. The page is freed only after an all-levels invalidation, and after the software walks that may be
    /// reading it.
    pub(crate) unsafe fn remove_leaf_table<P: Platform>(&self, walker: Walker<'_, P>, pfn: u64) -> PhysAddr {
        // SAFETY: the caller's promise, passed on.
        let mut at = unsafe { self.cursor(walker, pfn) };
        while at.level > 2 {
            // SAFETY: just read. Only the caller takes out what is below.
            at = unsafe { at.below(walker, at.entry().load()) };
        }
        let entry = at.entry();
        let page: PhysAddr = entry.load().phys();
        walker.platform().probe(Step::TableWrite { entries: 1 });
        entry.store(EntryValue::ABSENT);
        walker.show(core::slice::from_ref(entry));
        self.pages.fetch_sub(1, Ordering::Relaxed);
        // The page goes on no list that is linked through it, because a late unmap of a page that was mapped there
        // may still write to it.
        page
    }
}
