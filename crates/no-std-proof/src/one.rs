//! A list of one design.

use portcullis::designs::Portcullis;
use portcullis::mapper::{AnyDesign, DesignInfo, Info, Visitor};
use portcullis::{Iommu, Platform};

/// The design `portcullis`.
#[derive(Clone, Copy)]
pub(crate) struct One;

impl One {
    pub(crate) const ALL: &[Self] = &[Self];
}

impl AnyDesign for One {
    fn info(self) -> &'static Info {
        &Portcullis::INFO
    }

    fn visit<P: Platform, I: Iommu, V: Visitor<P, I>>(self, visitor: V) -> V::Output {
        visitor.visit::<Portcullis>()
    }
}
