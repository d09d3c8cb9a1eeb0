//! Designs as runs take them, from the list or from another crate, and their domains on the unit of the lab. The code
//! of a run is compiled once, and not for every design.

use crate::platform::LabPlatform;
use portcullis::domain::{RawBatch, Submitted};
use portcullis::invalidation::Due;
use portcullis::mapper::{Design, Info, Visitor};
use portcullis::{DomainConfig, DynDomain, IovaRange, NewDomainError, Open, RawMapError, Request};
use portcullis_designs::{ChoiceError, DesignId, Named};
use portcullis_model::ModelMmio;
use portcullis_vtd::Unit;
use std::fmt;
use std::sync::Arc;

/// The IOMMU of the lab: the VT-d driver on the modelled registers.
pub type LabUnit = Arc<Unit<ModelMmio<LabPlatform>, LabPlatform>>;

/// Unmaps that are committed together.
pub(super) type AnyBatch = RawBatch<Arc<DynDomain>>;

/// Such a batch between the halves of its commit.
pub(super) type InFlightBatch = Submitted<AnyBatch>;

/// Maps memory of the model.
pub(super) fn map(domain: &DynDomain, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
    // SAFETY: the memory belongs to the model, and no Rust object lies in it.
    unsafe { domain.map_request(request) }
}

/// Whether the last unmap of a batch has left its pages within reach. It has not if other mappings still use all of the
/// pages. `None` if the unmap does not say: the design has kept the page mapped, perhaps for other mappings.
pub(super) fn leaves_within_reach(batch: &AnyBatch) -> Option<bool> {
    batch.revoked().last().map_or(Some(false), |revoked| match revoked.due {
        Due::Nothing => Some(false),
        Due::StaysMapped => None,
        _ => Some(true),
    })
}

type Opened = Result<Arc<DynDomain>, NewDomainError>;

/// A design, as a run takes it: from the list ([`From<DesignId>`](DesignId)), or from another crate ([`of`](Self::of)).
#[derive(Clone, Copy)]
pub struct LabDesign {
    info: &'static Info,
    open: fn(LabUnit, LabPlatform, &DomainConfig<'_>) -> Opened,
    is_listed: bool,
}

/// Two are the same if they have the same id.
impl PartialEq for LabDesign {
    fn eq(&self, other: &Self) -> bool {
        self.info.id == other.info.id
    }
}

impl Eq for LabDesign {}

impl fmt::Debug for LabDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.id)
    }
}

impl Named for LabDesign {
    fn info(self) -> &'static Info {
        self.info
    }
}

/// A design of the laboratory with its parameters.
pub type Choice = portcullis_designs::Choice<LabDesign>;

impl LabDesign {
    /// The design `D` of another crate.
    pub const fn of<D: Design<LabPlatform, LabUnit>>() -> Self {
        Self {
            is_listed: false,
            info: &D::INFO,
            open: |unit, platform, config| {
                // SAFETY: as for `map`.
                let domain = unsafe { D::open_unprotected(unit, platform, config) }?;
                Ok(Arc::new(domain))
            },
        }
    }

    /// The designs of the list, in its order.
    pub fn listed() -> Vec<Self> {
        DesignId::ALL.iter().map(|design| Self::from(*design)).collect()
    }

    /// The description of the design.
    pub const fn info(self) -> &'static Info {
        self.info
    }

    /// Reads a design of the list, with its parameters.
    ///
    /// # Errors
    /// A [`ChoiceError`].
    pub fn choice(text: &str) -> Result<Choice, ChoiceError<'_>> {
        Choice::parse_among(&Self::listed(), text)
    }

    /// Whether it is a design of the list. The steps of these have prices.
    pub const fn is_listed(self) -> bool {
        self.is_listed
    }

    pub(super) fn open(self, unit: &LabUnit, platform: &LabPlatform, config: &DomainConfig<'_>) -> Opened {
        (self.open)(unit.clone(), platform.clone(), config)
    }
}

impl From<DesignId> for LabDesign {
    fn from(design: DesignId) -> Self {
        struct Of;

        impl Visitor<LabPlatform, LabUnit> for Of {
            type Output = LabDesign;

            fn visit<D: Design<LabPlatform, LabUnit>>(self) -> LabDesign {
                LabDesign { is_listed: true, ..LabDesign::of::<D>() }
            }
        }

        design.visit(Of)
    }
}
