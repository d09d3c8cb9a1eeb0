//! A domain of whatever design: what drivers of a run do to it. So a run is built once, and a design only adds itself.

use super::world::LabUnit;
use crate::platform::LabPlatform;
use portcullis::RawUnmapError;
use portcullis::design::{Design, Info, Usage};
use portcullis::designs::{DesignId, Visitor};
use portcullis::domain::RawBatch;
use portcullis::iommu::AttachError;
use portcullis::{
    CommitError, Domain, DomainConfig, DomainId, IovaRange, NewDomainError, PAGE_SHIFT, RawMapError, Request, SourceId,
    UnmapError,
};

/// The raw face of a domain, and what goes with it.
pub(super) trait AnyDomain {
    fn id(&self) -> DomainId;
    fn attach(&self, device: SourceId) -> Result<(), AttachError>;
    fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError>;
    /// A single unmap of whole pages: what a driver calls that has no batch.
    fn unmap(&self, range: IovaRange) -> Result<(), RawUnmapError>;
    fn batch(&self) -> Box<dyn AnyBatch + '_>;
    fn tick(&self) -> Result<(), CommitError>;
    fn due_us(&self) -> Option<u64>;
    fn usage(&self) -> Usage;
    fn table_pages(&self) -> usize;
}

/// Unmaps that are committed together.
pub(super) trait AnyBatch {
    /// Returns whether translations were cleared: not where all of the pages stay mapped for others.
    fn unmap(&mut self, range: IovaRange) -> Result<bool, UnmapError>;
    fn commit(&mut self) -> Result<(), CommitError>;
}

impl<D: Design<LabPlatform, LabUnit>> AnyDomain for Domain<D, LabPlatform, LabUnit> {
    fn id(&self) -> DomainId {
        self.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.attach(device)
    }

    fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        // SAFETY: the memory is the model's, in which nothing of Rust lies.
        unsafe { self.map_request(request) }
    }

    fn unmap(&self, range: IovaRange) -> Result<(), RawUnmapError> {
        self.unmap_raw(range.start(), range.pages() << PAGE_SHIFT)
    }

    fn batch(&self) -> Box<dyn AnyBatch + '_> {
        Box::new(self.raw_batch())
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.due_us()
    }

    fn usage(&self) -> Usage {
        self.usage()
    }

    fn table_pages(&self) -> usize {
        self.table_pages()
    }
}

impl<D: Design<LabPlatform, LabUnit>> AnyBatch for RawBatch<'_, D, LabPlatform, LabUnit> {
    fn unmap(&mut self, range: IovaRange) -> Result<bool, UnmapError> {
        self.unmap(range)?;
        Ok(self.revoked().last().is_some_and(|revoked| revoked.to_invalidate))
    }

    fn commit(&mut self) -> Result<(), CommitError> {
        self.commit_so_far()
    }
}

type Opened = Result<Box<dyn AnyDomain>, NewDomainError>;

/// A design, as a run takes it.
#[derive(Clone, Copy)]
pub(super) struct AnyDesign {
    pub(super) info: &'static Info,
    open: fn(LabUnit, LabPlatform, &DomainConfig<'_>) -> Opened,
}

impl AnyDesign {
    pub(super) const fn of<D: Design<LabPlatform, LabUnit>>() -> Self {
        Self {
            info: &D::INFO,
            open: |unit, platform, config| {
                // SAFETY: as for `map`.
                Ok(Box::new(unsafe { Domain::<D, LabPlatform, LabUnit>::unprotected(unit, platform, config) }?))
            },
        }
    }

    /// One of the list.
    pub(super) fn listed(design: DesignId) -> Self {
        struct Of;

        impl Visitor<LabPlatform, LabUnit> for Of {
            type Output = AnyDesign;

            fn visit<D: Design<LabPlatform, LabUnit>>(self) -> AnyDesign {
                AnyDesign::of::<D>()
            }
        }

        design.visit(Of)
    }

    pub(super) fn open(self, unit: &LabUnit, platform: &LabPlatform, config: &DomainConfig<'_>) -> Opened {
        (self.open)(unit.clone(), platform.clone(), config)
    }
}
