//! Planted for tests: a flaw, which one of them has to find, and hardware that does not answer, which the module has to
//! stand.

use portcullis::SourceId;
use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, Translation};

/// A unit that invalidates nothing for an unmap. It reports that all is done, which is the flaw, or that the hardware
/// has not answered. It confirms what attaches and detaches devices.
pub(crate) struct Deaf<U>(pub(crate) U);

// SAFETY: it breaks S2, which is its purpose.
unsafe impl<U: Iommu> Iommu for Deaf<U> {
    type Ticket = ();

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: as above.
        unsafe { self.0.close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.0.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.0.detach(domain, device)
    }

    fn submit(&self, _: &[Invalidation]) -> Result<(), QueueError> {
        Ok(())
    }

    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        if cfg!(feature = "planted-no-answer") { Err(QueueError::Timeout(0)) } else { Ok(true) }
    }
}
