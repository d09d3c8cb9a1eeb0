//! An IOMMU with hooks, of which any may panic.

use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::iommu::{AttachError, SourceId};
use portcullis::platform::fake::hooks::hooked;
use portcullis::{Capabilities, DomainId, Invalidation, Iommu, QueueError, Translation};

/// The fake IOMMU, with hooks.
pub(super) struct HookedIommu<'h>(pub(super) &'h FakeIommu<'h>);

// SAFETY: forwards to the fake, which keeps the promises.
unsafe impl Iommu for HookedIommu<'_> {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        hooked(|| self.0.capabilities())
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.open_domain(translation) })
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller's promise, passed on.
        hooked(|| unsafe { self.0.close_domain(domain) })
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        hooked(|| self.0.attach(domain, device))
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        hooked(|| self.0.detach(domain, device))
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        hooked(|| self.0.submit(commands))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        hooked(|| self.0.is_done(ticket))
    }
}
