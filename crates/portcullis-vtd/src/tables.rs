//! The root table and the context tables of one unit, in memory.

use crate::page::{Page, Stopped};
use crate::sorted::{Room, Short, SortedMap};
use crate::spec::tables::{ContextEntry, RootEntry, context_index, root_index};
use portcullis::iommu::SourceId;
use portcullis::table::Walker;
use portcullis::{NoMemory, PhysAddr, Platform};

/// One root table, and a context table for each bus that ever had a device attached.
pub(crate) struct DeviceTables {
    root: Page,
    contexts: SortedMap<usize, Page>,
}

/// A context table that may be needed, allocated with no lock held.
#[derive(Default)]
pub(crate) struct SpareTable {
    page: Option<Page>,
    room: Room<usize, Page>,
    is_wanted: bool,
}

impl SpareTable {
    /// Allocates what the last attempt lacked. No lock may be held.
    pub(crate) fn obtain<P: Platform>(&mut self, walker: Walker<'_, P>) -> Result<(), NoMemory> {
        if self.is_wanted && self.page.is_none() {
            self.page = Some(Page::allocate(walker)?);
        }
        self.room.obtain(walker.platform())
    }

    /// Gives back what was not needed. No lock may be held.
    pub(crate) fn release<P: Platform>(self, platform: &P) {
        if let Some(mut page) = self.page {
            page.release(platform, &Stopped::never_told());
        }
    }
}

impl DeviceTables {
    pub(crate) const fn new(root: Page) -> Self {
        Self { root, contexts: SortedMap::new() }
    }

    /// Takes the tables out, so that they can be released with no lock held.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new(Page::none()))
    }

    /// The physical address of the root table.
    pub(crate) fn root(&self) -> PhysAddr {
        self.root.phys()
    }

    /// Writes the entry of a device that has none, and makes it visible.
    ///
    /// # Errors
    /// [`Short`] if the first device of a bus needs a context table. Nothing has changed then.
    pub(crate) fn insert<P: Platform>(
        &mut self,
        walker: Walker<'_, P>,
        device: SourceId,
        entry: ContextEntry,
        spare: &mut SpareTable,
    ) -> Result<(), Short> {
        let bus = root_index(device);
        if let Some(table) = self.contexts.get(bus) {
            write(walker, table, context_index(device), entry.encode());
            return Ok(());
        }
        spare.is_wanted = true;
        let slot = self.contexts.slot(&mut spare.room)?;
        let table = spare.page.take().ok_or(Short)?;
        write(walker, &table, context_index(device), entry.encode());
        write(walker, &self.root, bus, RootEntry { context_table: table.phys() }.encode());
        slot.fill(bus, table);
        Ok(())
    }

    /// Clears the entry of a device, and makes that visible. What the unit has cached of the entry stays cached.
    pub(crate) fn remove<P: Platform>(&self, walker: Walker<'_, P>, device: SourceId) {
        if let Some(table) = self.contexts.get(root_index(device)) {
            write(walker, table, context_index(device), [0, 0]);
        }
    }

    /// Gives the pages back.
    pub(crate) fn release<P: Platform>(&mut self, platform: &P, stopped: &Stopped) {
        self.root.release(platform, stopped);
        self.contexts.values_mut().for_each(|table| table.release(platform, stopped));
    }
}

/// Writes an entry of two quadwords. Hardware, which reads both at once, sees either the old entry or the new one:
/// while the entry is present only its low quadword changes, and the high quadword is written only while the entry is
/// absent.
fn write<P: Platform>(walker: Walker<'_, P>, table: &Page, index: usize, [low, high]: [u64; 2]) {
    let entry = &table.entries(walker.platform())[index * 2..index * 2 + 2];
    if low != 0 {
        entry[1].store_bits(high);
    }
    entry[0].store_bits(low);
    walker.show(entry);
}
