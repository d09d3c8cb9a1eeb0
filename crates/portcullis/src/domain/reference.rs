//! What leads to a domain, so that what is built on it may borrow the domain or own a share of it.

use super::Domain;
use crate::design::Design;
use crate::iommu::Iommu;
use crate::platform::Platform;
use core::ops::Deref;

/// What leads to a [`Domain`]: a reference, an `Arc`, a `Box`, a handle of a kernel's own.
///
/// Every [`Deref`] to a domain is one. It should lead to the same domain each time: batches and rings refuse what another has mapped, and
/// a commit to another panics.
pub trait DomainRef: Deref<Target = Domain<Self::Design, Self::Platform, Self::Iommu>> {
    /// The design of the domain.
    type Design: Design<Self::Platform, Self::Iommu>;
    /// Its host.
    type Platform: Platform;
    /// Its hardware.
    type Iommu: Iommu;
}

impl<H, D, P, I> DomainRef for H
where
    H: Deref<Target = Domain<D, P, I>>,
    D: Design<P, I>,
    P: Platform,
    I: Iommu,
{
    type Design = D;
    type Platform = P;
    type Iommu = I;
}
