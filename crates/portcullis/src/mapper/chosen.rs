//! Designs that are chosen at run time.

use super::{Design, Info};
use crate::iommu::Iommu;
use crate::platform::Platform;

/// A value that stands for a design: one of a list. [`DynDomain`](crate::DynDomain) opens a domain of it.
pub trait AnyDesign: Copy {
    /// The description of the design.
    fn info(self) -> &'static Info;

    /// Calls `visitor` with the design's type.
    fn visit<P: Platform, I: Iommu, V: Visitor<P, I>>(self, visitor: V) -> V::Output;
}

/// A generic action on a design whose type is chosen at run time.
pub trait Visitor<P: Platform, I: Iommu> {
    /// The result of the action.
    type Output;

    /// Runs the action for the design `D`.
    fn visit<D: Design<P, I>>(self) -> Self::Output;
}
