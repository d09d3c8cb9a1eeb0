//! An address space under a design that is chosen at run time.

use crate::host::Host;
use crate::registers::Registers;
use alloc::boxed::Box;
use alloc::sync::Arc;
use portcullis::design::Design;
use portcullis::designs::Visitor;
use portcullis::iommu::AttachError;
use portcullis::{
    Access, CommitError, Domain, DomainConfig, Iova, PhysAddr, Protection, RawMapError, RawUnmapError, Segment,
    SourceId,
};
use portcullis_vtd::Unit;

/// The unit, kept alive by the domain that goes through it.
pub(crate) type SharedUnit = Arc<Unit<Registers, Host>>;

/// A domain, whatever its design.
pub(crate) trait Space {
    fn attach(&self, device: SourceId) -> Result<(), AttachError>;
    /// # Safety
    /// That of [`Domain::map_raw`].
    unsafe fn map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, RawMapError>;
    fn unmap(&self, iova: Iova, len: u64) -> Result<(), RawUnmapError>;
    fn tick(&self) -> Result<(), CommitError>;
}

impl<D: Design<Host, SharedUnit>> Space for Domain<D, Host, SharedUnit> {
    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        Domain::attach(self, device)
    }

    unsafe fn map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.map_raw(phys, len, access) }
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
        self.unmap_raw(iova, len)
    }

    fn tick(&self) -> Result<(), CommitError> {
        Domain::tick(self)
    }
}

/// Opens a domain of the design visited; `None` if it is refused.
pub(crate) struct Open<'m> {
    pub(crate) unit: SharedUnit,
    pub(crate) host: Host,
    pub(crate) protection: Protection,
    pub(crate) memory: &'m [Segment],
}

impl Visitor<Host, SharedUnit> for Open<'_> {
    type Output = Option<Box<dyn Space>>;

    fn visit<D: Design<Host, SharedUnit>>(self) -> Self::Output {
        let config = DomainConfig { memory: self.memory, ..DomainConfig::new(self.protection) };
        // SAFETY: without protection, the caller of `portcullis_open` has promised it.
        let domain = unsafe { Domain::<D, _, _>::unprotected(self.unit, self.host, &config) }.ok()?;
        Some(Box::new(domain))
    }
}
