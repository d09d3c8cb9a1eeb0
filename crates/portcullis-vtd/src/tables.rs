//! The root table and the context tables of one unit, in memory.

use crate::page::{Page, Stopped};
use crate::spec::tables::{ContextEntry, RootEntry, context_index, root_index};
use alloc::collections::BTreeMap;
use portcullis::iommu::SourceId;
use portcullis::{NoMemory, PhysAddr, Platform};

/// One root table; a context table for each bus that ever had a device attached.
pub(crate) struct DeviceTables {
    root: Page,
    contexts: BTreeMap<usize, Page>,
}

impl DeviceTables {
    pub(crate) fn new(root: Page) -> Self {
        Self { root, contexts: BTreeMap::new() }
    }

    /// Where the root table is.
    pub(crate) fn root(&self) -> PhysAddr {
        self.root.phys()
    }

    /// Writes the entry of a device that has none, and makes it visible.
    pub(crate) fn insert<P: Platform>(
        &mut self,
        platform: &P,
        device: SourceId,
        entry: ContextEntry,
    ) -> Result<(), NoMemory> {
        let bus = root_index(device);
        if !self.contexts.contains_key(&bus) {
            let table = Page::allocate(platform)?;
            write(platform, &self.root, bus, RootEntry { context_table: table.phys() }.encode());
            self.contexts.insert(bus, table);
        }
        write(platform, &self.contexts[&bus], context_index(device), entry.encode());
        Ok(())
    }

    /// Clears the entry of a device, and makes that visible. What the unit has cached of it stays.
    pub(crate) fn remove<P: Platform>(&self, platform: &P, device: SourceId) {
        if let Some(table) = self.contexts.get(&root_index(device)) {
            write(platform, table, context_index(device), [0, 0]);
        }
    }

    /// Gives the pages back.
    pub(crate) fn release<P: Platform>(&mut self, platform: &P, stopped: &Stopped) {
        self.root.release(platform, stopped);
        self.contexts.values_mut().for_each(|table| table.release(platform, stopped));
        self.contexts.clear();
    }
}

/// Writes an entry of two quadwords so that hardware, which reads both at once, sees the old one or the new one: while it is
/// present, only its low quadword changes, and the high one is written while it is not.
fn write<P: Platform>(platform: &P, table: &Page, index: usize, [low, high]: [u64; 2]) {
    let entry = &table.entries(platform)[index * 2..index * 2 + 2];
    if low != 0 {
        entry[1].store_bits(high);
    }
    entry[0].store_bits(low);
    platform.table_barrier(entry);
}
