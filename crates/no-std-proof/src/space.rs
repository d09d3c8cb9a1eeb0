//! An address space under a design that is chosen at run time.

use crate::host::Host;
use crate::registers::Registers;
use alloc::boxed::Box;
use alloc::sync::Arc;
use portcullis::design::Design;
use portcullis::designs::Visitor;
use portcullis::iommu::AttachError;
use portcullis::{
    Access, CommitError, Domain, DomainConfig, Iommu, Iova, MapError, PhysAddr, Protection, RawUnmapError, Segment,
    SourceId,
};
use portcullis_vtd::Unit;

/// The unit, kept alive by the domain that goes through it.
pub(crate) type SharedUnit = Arc<Unit<Registers, Host>>;

/// A domain, whatever its design.
pub(crate) trait Space {
    fn attach(&self, device: SourceId) -> Result<(), AttachError>;
    fn map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, MapError>;
    fn unmap(&self, iova: Iova, len: u64) -> Result<(), RawUnmapError>;
    fn tick(&self) -> Result<(), CommitError>;
}

impl<D: Design<Host, SharedUnit>> Space for Domain<D, Host, SharedUnit> {
    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        Domain::attach(self, device)
    }

    fn map(&self, phys: PhysAddr, len: u64, access: Access) -> Result<Iova, MapError> {
        self.map_raw(phys, len, access)
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), RawUnmapError> {
        self.unmap_raw(iova, len)
    }

    fn tick(&self) -> Result<(), CommitError> {
        Domain::tick(self)
    }
}

/// Brings the unit up and opens a domain of the design visited; `None` if either is refused.
pub(crate) struct Open<'m> {
    pub(crate) registers: Registers,
    pub(crate) host: Host,
    pub(crate) protection: Protection,
    pub(crate) memory: &'m [Segment],
}

impl Visitor<Host, SharedUnit> for Open<'_> {
    type Output = Option<Box<dyn Space>>;

    fn visit<D: Design<Host, SharedUnit>>(self) -> Self::Output {
        let unit = Unit::bring_up(self.registers, self.host, portcullis_vtd::UnitConfig::default()).ok()?;
        if !unit.capabilities().coherent {
            // This host has no cache-line flush.
            return None;
        }
        let config = DomainConfig { memory: self.memory, ..DomainConfig::new(self.protection) };
        let domain = Domain::<D, _, _>::with_config(Arc::new(unit), self.host, &config).ok()?;
        Some(Box::new(domain))
    }
}
