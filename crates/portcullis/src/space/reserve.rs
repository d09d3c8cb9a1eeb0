//! The reserve of table pages of a domain: for maps in atomic context that get no memory from the host, and for maps
//! that hold a lock.

use super::AddressSpace;
use crate::error::NoMemory;
use crate::iommu::Iommu;
use crate::platform::Platform;

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// For a mapper that writes tables with a lock held: no map asks the host for a page then, because the host may be
    /// slow. [`make_room`](Self::make_room) must be called before each map.
    pub(crate) fn take_reserve_first(&mut self) {
        self.reserve.come_first();
    }

    /// Ensures that a map finds `tables` table pages in the reserve. [`give_room_back`](Self::give_room_back) must
    /// follow. Must not be called with a lock held.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn make_room(&self, tables: usize) -> Result<(), NoMemory> {
        self.reserve.claim(self.walker(), tables)
    }

    /// Releases what [`make_room`](Self::make_room) has reserved and no map has used, except the pages that the next
    /// map of one page would need.
    pub(crate) fn give_room_back(&self, tables: usize) {
        self.reserve.end_claim(tables);
        self.reserve.trim(&self.platform, self.table.tables_max(1));
    }
}
