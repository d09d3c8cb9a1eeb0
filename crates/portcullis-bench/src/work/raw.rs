//! The raw face of a domain without devices: the IOMMUs of this crate attach none, so what is mapped is reached by none.

pub(crate) mod parts;

use portcullis::design::Design;
use portcullis::{Access, Domain, DomainConfig, Iommu, Iova, NewDomainError, PhysAddr, Platform, RawMapError, Segment};

/// A domain as `config` says.
///
/// # Errors
/// Those of [`Domain::unprotected`].
pub(crate) fn domain<D: Design<P, I>, P: Platform, I: Iommu>(
    iommu: I,
    platform: P,
    config: &DomainConfig<'_>,
) -> Result<Domain<D, P, I>, NewDomainError> {
    // SAFETY: no device can be attached.
    unsafe { Domain::unprotected(iommu, platform, config) }
}

/// [`Domain::map_raw`].
///
/// # Errors
/// The same.
#[inline(always)]
pub(crate) fn map<D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &Domain<D, P, I>,
    phys: PhysAddr,
    len: u64,
    access: Access,
) -> Result<Iova, RawMapError> {
    // SAFETY: no device can be attached.
    unsafe { domain.map_raw(phys, len, access) }
}

/// [`Domain::map_raw_batch`].
///
/// # Errors
/// The same.
#[inline(always)]
pub(crate) fn map_batch<D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &Domain<D, P, I>,
    buffers: &[Segment],
    access: Access,
    mapped: impl FnMut(Iova),
) -> Result<(), RawMapError> {
    // SAFETY: no device can be attached.
    unsafe { domain.map_raw_batch(buffers, access, mapped) }
}
