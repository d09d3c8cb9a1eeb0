//! Domains of whatever design: so a run is built once, and a design only adds itself.

use super::world::LabUnit;
use crate::platform::LabPlatform;
use portcullis::design::{Design, Info};
use portcullis::designs::{DesignId, Visitor};
use portcullis::domain::RawBatch;
use portcullis::invalidation::Due;
use portcullis::{Domain, DomainConfig, DynDomain, IovaRange, NewDomainError, RawMapError, Request, UnmapError};

/// Unmaps that are committed together.
pub(super) type AnyBatch<'d> = RawBatch<&'d DynDomain>;

/// Maps memory of the model.
pub(super) fn map(domain: &DynDomain, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
    // SAFETY: the memory is the model's, in which nothing of Rust lies.
    unsafe { domain.map_request(request) }
}

/// Returns whether translations were cleared: not where all of the pages stay mapped for others.
pub(super) fn unmap(batch: &mut AnyBatch<'_>, range: IovaRange) -> Result<bool, UnmapError> {
    batch.unmap(range)?;
    Ok(batch.revoked().last().is_some_and(|revoked| revoked.due != Due::Nothing))
}

type Opened = Result<DynDomain, NewDomainError>;

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
                let domain = unsafe { Domain::<D, LabPlatform, LabUnit>::unprotected(unit, platform, config) }?;
                Ok(domain.erase()?)
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
