//! Leaf tables one by one: put into the table of a domain for somebody who writes their entries himself, and taken out again.

use super::second_level::{SecondLevelTable, frame, index};
use super::walker::Walker;
use crate::address::PhysAddr;
use crate::entry::{EntryValue, Frame};
use crate::error::NoMemory;
use crate::platform::{Platform, Step};
use crate::sync::Ordering;

impl SecondLevelTable {
    /// The leaf table that translates page `pfn`, added now if it is not there.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Safety
    /// `walker` is the one that the table was made with; nothing larger than 4 KiB is mapped around `pfn`, which is below what
    /// the table translates.
    pub(crate) unsafe fn add_leaf_table<'p, P: Platform>(
        &self,
        walker: Walker<'p, P>,
        pfn: u64,
    ) -> Result<&'p Frame, NoMemory> {
        walker.platform().probe(Step::TableWalk { levels: self.levels });
        let mut table = frame(walker, self.root);
        for level in (2..=self.levels).rev() {
            let entry = &table[index(pfn, level)];
            let mut value = entry.load();
            if !value.is_present() {
                value = self.add_table(walker, entry)?;
            }
            self.reach(walker, entry, value);
            table = frame(walker, value.phys());
        }
        Ok(table)
    }

    /// Takes out the leaf table that translates page `pfn`, and returns it as it is. Nothing is mapped in it.
    ///
    /// # Safety
    /// As for [`add_leaf_table`](Self::add_leaf_table), which has added it; nobody takes it out at the same time; the page is
    /// freed after an all-levels invalidation, and after the walks of software that may be at it.
    pub(crate) unsafe fn remove_leaf_table<P: Platform>(&self, walker: Walker<'_, P>, pfn: u64) -> PhysAddr {
        walker.platform().probe(Step::TableWalk { levels: self.levels });
        let mut table = frame(walker, self.root);
        for level in (3..=self.levels).rev() {
            table = frame(walker, table[index(pfn, level)].load().phys());
        }
        let entry = &table[index(pfn, 2)];
        let page: PhysAddr = entry.load().phys();
        walker.platform().probe(Step::TableWrite { entries: 1 });
        entry.store(EntryValue::ABSENT);
        walker.show(core::slice::from_ref(entry));
        self.pages.fetch_sub(1, Ordering::Relaxed);
        // Not on a list that is threaded through it: a late unmap of what was mapped there may still write to it.
        page
    }
}
