//! The raw interface of a domain without devices: the IOMMUs of this crate attach none, so no device reaches a
//! mapping.

pub(crate) mod parts;

use portcullis::design::Design;
use portcullis::{Access, Domain, DomainConfig, Iommu, Iova, NewDomainError, PhysAddr, Platform, RawMapError, Segment};

/// Makes a domain with `config`.
///
/// # Errors
/// Fails like [`Domain::unprotected`].
pub(crate) fn domain<D: Design<P, I>, P: Platform, I: Iommu>(
    iommu: I,
    platform: P,
    config: &DomainConfig<'_>,
) -> Result<Domain<D, P, I>, NewDomainError> {
    // SAFETY: no device can be attached.
    unsafe { Domain::unprotected(iommu, platform, config) }
}

/// Calls [`Domain::map_raw`].
///
/// # Errors
/// Fails like [`Domain::map_raw`].
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

/// Calls [`Domain::map_raw_batch`].
///
/// # Errors
/// Fails like [`Domain::map_raw_batch`].
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
