//! The designs. To add one, write its file and add its name to the list below. Every comparison, test and table then
//! includes it.
//!
//! Each design has one file, so this folder has more files than others. The module page of a design lists, in reading
//! order, the files of a raw map and of a raw unmap under strict protection. A typed call begins and ends in
//! `domain/mapping.rs`. The lists leave out the files that every design uses: `address.rs`, `entry.rs`, `error.rs`,
//! `proof.rs` and `request.rs`; the module files with the types (`mapper/mod.rs`, `iova/mod.rs`,
//! `invalidation/mod.rs`); and the calls of `iommu/` and `platform/` to hardware and host. They also leave out the
//! parts of an `AssembledMapper` that do nothing in most designs: without a lock, `mapper/locking.rs` only runs its
//! closure, `invalidation/policy.rs` is called at the end of a map, and `table/freed.rs` at the end of an unmap.

mod choice;

pub use choice::{Choice, ChoiceError, Named};

use crate::invalidation::Deferral;
use crate::iommu::Iommu;
use crate::mapper::{Design, DesignInfo, Info, OptionInfo, OptionKind, Options};
use crate::platform::Platform;
use crate::safety::{Breach, Protection, Rule};

macro_rules! designs {
    ($($module:ident :: $name:ident,)*) => {
        $(
            mod $module;
            pub use $module::$name;
        )*

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
    };
}

designs! {
    none::Unprotected,
    identity_map::Static,
    stock::Stock,
    eiovar::Eiovar,
    freebsd::FreeBsd,
    solaris::Solaris,
    macos::MacOs,
    identity::Identity,
    kmalloc::Kmalloc,
    magazine::Magazine,
    page_pool::PagePool,
    fast_and_safe::FastAndSafe,
    riommu::RIommu,
    portcullis::Portcullis,
}

impl DesignId {
    /// The design called `id`.
    pub fn by_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|design| design.info().id == id)
    }
}

/// A generic action on a design whose type is chosen at run time.
pub trait Visitor<P: Platform, I: Iommu> {
    /// The result of the action.
    type Output;

    /// Runs the action for the design `D`.
    fn visit<D: Design<P, I>>(self) -> Self::Output;
}

/// The parameter that chooses the flush queue.
const fn queue_option(default: &'static str) -> OptionInfo {
    OptionInfo {
        key: "queue",
        kind: OptionKind::Word(&["global", "per-core"]),
        default,
        description: "the flush queue under deferred protection",
    }
}

/// The flush queue that the options choose, or `default`.
fn queue_kind(options: &Options, default: Deferral) -> Deferral {
    match options.word("queue") {
        Some("global") => Deferral::Global,
        Some("per-core") => Deferral::PER_CPU,
        _ => default,
    }
}

/// The breach of deferred protection with the global queue.
const GLOBAL_WINDOW: Breach = Breach {
    protection: Protection::Deferred,
    rule: Rule::Strict,
    bound: "250 unmaps or 10 ms, whichever comes first",
};
/// The breach of deferred protection with a queue per CPU.
const PER_CPU_WINDOW: Breach = Breach {
    protection: Protection::Deferred,
    rule: Rule::Strict,
    bound: "256 unmaps of a CPU or 10 ms, whichever comes first",
};
