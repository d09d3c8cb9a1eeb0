//! The common part of the wrappers of the fake IOMMU: the fake handles domains and devices, and only invalidations
//! differ.

/// Forwards the methods of an `Iommu` about domains and devices to the field `$fake`.
macro_rules! forward_domains {
    ($fake:ident) => {
        fn capabilities(&self) -> portcullis::Capabilities {
            self.$fake.capabilities()
        }

        unsafe fn open_domain(
            &self,
            translation: portcullis::iommu::Translation,
        ) -> Result<portcullis::DomainId, portcullis::iommu::AttachError> {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.$fake.open_domain(translation) }
        }

        unsafe fn close_domain(&self, domain: portcullis::DomainId) -> Result<(), portcullis::iommu::AttachError> {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.$fake.close_domain(domain) }
        }

        fn attach(
            &self,
            domain: portcullis::DomainId,
            device: portcullis::SourceId,
        ) -> Result<(), portcullis::iommu::AttachError> {
            self.$fake.attach(domain, device)
        }

        fn detach(
            &self,
            domain: portcullis::DomainId,
            device: portcullis::SourceId,
        ) -> Result<(), portcullis::iommu::AttachError> {
            self.$fake.detach(domain, device)
        }
    };
}

pub(crate) use forward_domains;
