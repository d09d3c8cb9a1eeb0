//! A domain whose devices are not translated.

use crate::error::NewDomainError;
use crate::iommu::{AttachError, DomainId, Iommu, SourceId, Translation};
use crate::space::Space;

/// A domain of the IOMMU that passes its devices through untranslated.
pub(crate) struct PassThrough<I: Iommu> {
    iommu: I,
    id: DomainId,
}

impl<I: Iommu> PassThrough<I> {
    /// Opens the domain.
    ///
    /// # Errors
    /// Those of [`Iommu::open_domain`].
    ///
    /// # Safety
    /// All memory is intended for every device that is attached.
    pub(crate) unsafe fn new(iommu: I) -> Result<Self, NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        let id = unsafe { iommu.open_domain(Translation::PassThrough) }?;
        Ok(Self { iommu, id })
    }
}

impl<I: Iommu> Space for PassThrough<I> {
    fn id(&self) -> DomainId {
        self.id
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.iommu.attach(self.id, device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.iommu.detach(self.id, device)
    }
}

impl<I: Iommu> Drop for PassThrough<I> {
    fn drop(&mut self) {
        // If the IOMMU does not answer, the id stays in use. Nothing else is kept for it.
        // SAFETY: `new` has opened the domain, and this is the only place that closes it.
        let _ = unsafe { self.iommu.close_domain(self.id) };
    }
}
