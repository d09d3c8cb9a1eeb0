//! Table pages that a domain keeps: for maps in atomic context that find none at the host, and for those that hold a lock.

use super::AddressSpace;
use crate::error::NoMemory;
use crate::iommu::Iommu;
use crate::platform::{Context, Platform};

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// For a mapper that writes tables with a lock held: no map asks the host for a page, for hosts may take their time.
    /// [`make_room`](Self::make_room) has to come before.
    pub(crate) fn take_reserve_first(&mut self) {
        self.reserve.come_first();
    }

    /// Table pages that a map of `pages` pages adds at most, wherever its addresses lie.
    pub(crate) fn tables_max(&self, pages: u64) -> usize {
        self.table.tables_max(pages)
    }

    /// Keeps `tables` table pages for maps that find none at the host, until another call says otherwise.
    ///
    /// # Errors
    /// [`NoMemory`]; those that the host had are kept.
    pub(crate) fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.reserve.want(tables);
        self.reserve.trim(&self.platform, 0);
        self.reserve.fill(self.walker(), Context::MaySleep, usize::MAX)
    }

    /// Sees to it that a map finds so many tables in the reserve, until
    /// [`give_room_back`](Self::give_room_back), which has to follow. Not to be called with a lock held.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn make_room(&self, tables: usize) -> Result<(), NoMemory> {
        self.reserve.claim(self.walker(), tables)
    }

    /// Gives back what [`make_room`](Self::make_room) has taken and no map has used, but for what the next one needs that has a page.
    pub(crate) fn give_room_back(&self, tables: usize) {
        self.reserve.end_claim(tables);
        self.reserve.trim(&self.platform, self.tables_max(1));
    }
}
