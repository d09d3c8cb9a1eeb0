//! What a domain knows of the space that its mapper maps in.

use super::AddressSpace;
use crate::error::NoMemory;
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::platform::{Context, Platform};
use crate::sub_page::BouncePages;

/// What a mapper maps in: a domain of the IOMMU, and the memory behind its tables.
pub trait Space {
    /// The domain's id.
    fn id(&self) -> DomainId;

    /// Attaches a device.
    ///
    /// # Errors
    /// Those of [`Iommu::attach`].
    fn attach(&self, device: SourceId) -> Result<(), AttachError>;

    /// Detaches a device.
    ///
    /// # Errors
    /// Those of [`Iommu::detach`].
    fn detach(&self, device: SourceId) -> Result<(), AttachError>;

    /// Table pages in use. Takes no lock.
    fn table_pages(&self) -> usize {
        0
    }

    /// The largest number of table pages that a map of `pages` pages adds, wherever its addresses are.
    fn tables_max(&self, _pages: u64) -> usize {
        0
    }

    /// Keeps `tables` table pages, and memory for their records, in reserve for maps that get none from the host,
    /// until the next call. Each map takes at most [`tables_max`](Space::tables_max) of these pages, and another call
    /// refills the reserve. The host may sleep.
    ///
    /// # Errors
    /// [`NoMemory`]; the pages that the host had are kept.
    fn reserve_tables(&self, _tables: usize) -> Result<(), NoMemory> {
        Ok(())
    }

    /// Runs `allocate`, which asks the global allocator for memory that a domain needs besides its mapper. A space
    /// that has a host runs it through [`Platform::allocate`].
    fn allocate(&self, _context: Context, allocate: &mut dyn FnMut()) {
        allocate();
    }

    /// The pages through which the domain bounces parts of pages, if it does.
    fn bounce_pages(&self) -> Option<BouncePages<'_>> {
        None
    }
}

impl<P: Platform, I: Iommu> Space for AddressSpace<P, I> {
    #[inline]
    fn id(&self) -> DomainId {
        self.id
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.iommu.attach(self.id, device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.iommu.detach(self.id, device)
    }

    fn table_pages(&self) -> usize {
        self.table.pages()
    }

    fn tables_max(&self, pages: u64) -> usize {
        self.table.tables_max(pages)
    }

    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.reserve.want(tables);
        self.reserve.trim(&self.platform, 0);
        self.reserve.fill(self.walker(), Context::MaySleep, usize::MAX)
    }

    fn allocate(&self, context: Context, allocate: &mut dyn FnMut()) {
        self.platform.allocate(context, allocate);
    }

    fn bounce_pages(&self) -> Option<BouncePages<'_>> {
        self.bounce.is_some().then_some(BouncePages(self))
    }
}
