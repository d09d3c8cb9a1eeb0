//! The raw interface of a domain without devices: the IOMMUs of this crate attach none, so no device reaches a
//! mapping.

pub(crate) mod parts;

use portcullis::mapper::{Design, Mapper};
use portcullis::{
    Access, Domain, DomainConfig, DomainOf, Iommu, Iova, NewDomainError, Open, PhysAddr, Platform, RawMapError, Segment,
};

/// Makes a domain with `config`.
///
/// # Errors
/// Fails like [`Open::open_unprotected`].
pub(crate) fn domain<D: Design<P, I>, P: Platform, I: Iommu>(
    iommu: I,
    platform: P,
    config: &DomainConfig<'_>,
) -> Result<DomainOf<D, P, I>, NewDomainError> {
    // SAFETY: no device can be attached.
    unsafe { D::open_unprotected(iommu, platform, config) }
}

/// Calls [`Domain::map_raw`].
///
/// # Errors
/// Fails like [`Domain::map_raw`].
#[inline(always)]
pub(crate) fn map<M: Mapper>(
    domain: &Domain<M>,
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
pub(crate) fn map_batch<M: Mapper>(
    domain: &Domain<M>,
    buffers: &[Segment],
    access: Access,
    mapped: impl FnMut(Iova),
) -> Result<(), RawMapError> {
    // SAFETY: no device can be attached.
    unsafe { domain.map_raw_batch(buffers, access, mapped) }
}
