//! Pointers to a domain: a batch or a ring can borrow its domain or own a share of it.

use super::Domain;
use crate::mapper::Mapper;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;

/// A pointer to a [`Domain`]: a reference, an `Arc`, a `Box`, or a kernel's own handle that keeps the same promises.
///
/// # Safety
/// The pointer dereferences to the same domain for as long as it exists, also after it has been moved, and the domain
/// outlives it. A batch dereferences it again for each unmap and for the commit, and gives buffers of one domain back
/// on the proof of that same domain.
pub unsafe trait DomainRef: Deref<Target = Domain<Self::Mapper>> {
    /// The mapper of the domain.
    type Mapper: Mapper + ?Sized;
}

// SAFETY: a borrowed domain does not move.
unsafe impl<M: Mapper + ?Sized> DomainRef for &Domain<M> {
    type Mapper = M;
}

// SAFETY: an `Arc` keeps its domain in place until the last clone is dropped.
unsafe impl<M: Mapper + ?Sized> DomainRef for Arc<Domain<M>> {
    type Mapper = M;
}

// SAFETY: owners of a `DomainRef` never lend it mutably, so no other domain can be put into the box.
unsafe impl<M: Mapper + ?Sized> DomainRef for Box<Domain<M>> {
    type Mapper = M;
}
