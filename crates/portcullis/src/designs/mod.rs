//! The designs. To add one, write its file and name it in the list below: every comparison, test and table picks it up.

use crate::design::{Described, Design, Info};
use crate::iommu::Iommu;
use crate::platform::Platform;

macro_rules! designs {
    ($($module:ident :: $name:ident,)*) => {
        $(mod $module; pub use $module::$name;)*

        /// A design by name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum DesignId {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name,)*
        }

        impl DesignId {
            /// Every design, in the order of the table of designs.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What there is to say about it.
            pub const fn info(self) -> &'static Info {
                match self { $(Self::$name => &$name::INFO,)* }
            }

            /// Calls `visitor` with the design's type.
            pub fn visit<P: Platform, I: Iommu, V: Visitor<P, I>>(self, visitor: V) -> V::Output {
                match self { $(Self::$name => visitor.visit::<$name>(),)* }
            }
        }
    };
}

designs! {
    none::None,
    identity_map::Static,
    stock::Stock,
}

impl DesignId {
    /// The design called `id`.
    pub fn by_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|design| design.info().id == id)
    }
}

/// Something to be done with a design whose type is chosen at run time.
pub trait Visitor<P: Platform, I: Iommu> {
    /// What comes of it.
    type Output;

    /// Does it.
    fn visit<D: Design<P, I>>(self) -> Self::Output;
}
