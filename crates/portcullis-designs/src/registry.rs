//! The list of all designs: every comparison, test and table takes them from here.

use crate::{eiovar, fast_and_safe, freebsd, identity, kmalloc, macos, page_pool, riommu, solaris, stock};
use portcullis::designs as own;
use portcullis::iommu::Iommu;
use portcullis::mapper::{AnyDesign, DesignInfo, Info, Visitor};
use portcullis::platform::Platform;

macro_rules! designs {
    ($($module:ident :: $name:ident,)*) => {
        $(pub use $module::$name;)*

        /// A design by name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum DesignId {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name,)*
        }

        /// Calls the macro `$with` with the types of all designs, separated by commas. It is for code that needs each
        /// design by name at compile time, such as tables of functions.
        #[macro_export]
        macro_rules! for_each_design {
            ($with:ident) => {
                $with! { $($name),* }
            };
        }

        impl DesignId {
            /// Every design, in the order of the table of designs.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The description of the design.
            pub const fn info(self) -> &'static Info {
                match self {
                    $(Self::$name => &$name::INFO,)*
                }
            }

            /// Calls `visitor` with the design's type.
            pub fn visit<P: Platform, I: Iommu, V: Visitor<P, I>>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$name => visitor.visit::<$name>(),)*
                }
            }
        }

        impl AnyDesign for DesignId {
            fn info(self) -> &'static Info {
                Self::info(self)
            }

            fn visit<P: Platform, I: Iommu, V: Visitor<P, I>>(self, visitor: V) -> V::Output {
                Self::visit(self, visitor)
            }
        }
    };
}

designs! {
    own::Unprotected,
    own::Static,
    stock::Stock,
    eiovar::Eiovar,
    freebsd::FreeBsd,
    solaris::Solaris,
    macos::MacOs,
    identity::Identity,
    kmalloc::Kmalloc,
    own::Magazine,
    page_pool::PagePool,
    fast_and_safe::FastAndSafe,
    riommu::RIommu,
    own::Portcullis,
}

impl DesignId {
    /// The design called `id`.
    pub fn by_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|design| design.info().id == id)
    }
}
