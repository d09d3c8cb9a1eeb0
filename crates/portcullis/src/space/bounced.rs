//! Bounce pages in the address space of a domain that bounces partial pages.

use super::AddressSpace;
use crate::address::Segment;
use crate::error::MapError;
use crate::iommu::{Iommu, QueueError};
use crate::platform::Platform;
use crate::request::Request;
use crate::sub_page::{Bounce, Chain, SeenSegments, Sync};

/// Without a bounce pool there are no pages to give back. As elsewhere, a panic poisons the domain. Pages that a panic
/// leaves without an owner are lost.
impl<P: Platform, I: Iommu> Bounce for AddressSpace<P, I> {
    unsafe fn enter(&self, request: &Request<'_>, seen: &mut SeenSegments) -> Result<Chain, MapError> {
        let Some(bounce) = &self.bounce else { return Err(MapError::PartialPage(request.phys())) };
        // SAFETY: the caller's promise, passed on.
        let entered = self.unless_panicked(|| unsafe { bounce.enter(&self.platform, request, seen) });
        entered.unwrap_or(Err(MapError::Poisoned))
    }

    fn note(&self, first_pfn: u64, pages: Chain) {
        if let Some(bounce) = &self.bounce {
            let _ = self.unless_panicked(|| bounce.note(&self.platform, first_pfn, pages));
        }
    }

    #[inline(never)]
    fn take(&self, first_pfn: u64, to: &mut Chain) -> Option<Segment> {
        let bounce = self.bounce.as_ref()?;
        self.unless_panicked(|| bounce.take(&self.platform, first_pfn, to)).flatten()
    }

    fn abandon(&self, pages: Chain) {
        if let Some(bounce) = &self.bounce {
            let _ = self.unless_panicked(|| bounce.abandon(pages));
        }
    }

    unsafe fn settle(&self, pages: Chain) -> Result<(), QueueError> {
        let Some(bounce) = &self.bounce else { return Ok(()) };
        // SAFETY: the caller's promise, passed on.
        self.unless_panicked(|| unsafe { bounce.settle(&self.platform, pages) }).ok_or(QueueError::Panicked)
    }

    unsafe fn sync(&self, first_pfn: u64, whom: Sync) {
        if let Some(bounce) = &self.bounce {
            // SAFETY: the caller's promise, passed on.
            let _ = self.unless_panicked(|| unsafe { bounce.sync(&self.platform, first_pfn, whom) });
        }
    }

    fn in_use(&self) -> usize {
        self.bounce.as_ref().map_or(0, |bounce| bounce.in_use())
    }
}
