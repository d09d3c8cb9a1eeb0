//! Pointers to a domain: a batch or a ring can borrow its domain or own a share of it.

use super::Domain;
use crate::design::Design;
use crate::iommu::Iommu;
use crate::platform::Platform;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;

/// A pointer to a [`Domain`]: a reference, an `Arc`, a `Box`, or a kernel's own handle that keeps the same promises.
///
/// # Safety
/// The pointer dereferences to the same domain for as long as it exists, also after it has been moved, and the domain
/// outlives it. A batch dereferences it again for each unmap and for the commit, and gives buffers of one domain back
/// on the proof of that same domain.
pub unsafe trait DomainRef: Deref<Target = Domain<Self::Design, Self::Platform, Self::Iommu>> {
    /// The design of the domain.
    type Design: Design<Self::Platform, Self::Iommu>;
    /// Its host.
    type Platform: Platform;
    /// Its hardware.
    type Iommu: Iommu;
}

// SAFETY: a borrowed domain does not move.
unsafe impl<D: Design<P, I>, P: Platform, I: Iommu> DomainRef for &Domain<D, P, I> {
    type Design = D;
    type Platform = P;
    type Iommu = I;
}

// SAFETY: an `Arc` keeps its domain in place until the last clone is dropped.
unsafe impl<D: Design<P, I>, P: Platform, I: Iommu> DomainRef for Arc<Domain<D, P, I>> {
    type Design = D;
    type Platform = P;
    type Iommu = I;
}

// SAFETY: owners of a `DomainRef` never lend it mutably, so no other domain can be put into the box.
unsafe impl<D: Design<P, I>, P: Platform, I: Iommu> DomainRef for Box<Domain<D, P, I>> {
    type Design = D;
    type Platform = P;
    type Iommu = I;
}
