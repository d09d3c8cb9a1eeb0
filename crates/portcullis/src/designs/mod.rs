//! The designs. To add one, write its file and name it in the list below: every comparison, test and table picks it up.
//!
//! One file for each, and so more of them than in other folders. Its page lists the files of a map and of an unmap under strict
//! protection in reading order, of the raw face; the typed one has `domain/mapping.rs` at both ends. Not in the lists is what
//! every design stands on: the ground floor (`address.rs`, `entry.rs`, `error.rs`, `proof.rs`, `request.rs`), the doors of
//! folders, which have the types (`design/mod.rs`, `iova/mod.rs`, `invalidation/mod.rs`), and what `iommu/` and `platform/` ask
//! of hardware and host. Nor are the parts that an `AssembledMapper` asks and that have nothing to do in most designs:
//! `design/locking.rs` without a lock runs what it is given, `invalidation/policy.rs` is asked at the end of a map, and
//! `table/freed.rs` at the end of an unmap.

mod choice;

pub use choice::{Choice, ChoiceError};

use crate::design::{Design, DesignInfo, Info, OptionInfo, OptionKind, Options};
use crate::invalidation::Deferral;
use crate::iommu::Iommu;
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

        /// Calls the macro that is named with the types of all designs, separated by commas: for what needs each of them by name at compile
        /// time, as tables of functions do.
        #[macro_export]
        macro_rules! for_each_design {
            ($with:ident) => {
                $with! { $($name),* }
            };
        }

        impl DesignId {
            /// Every design, in the order of the table of designs.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What there is to say about it.
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

/// Something to be done with a design whose type is chosen at run time.
pub trait Visitor<P: Platform, I: Iommu> {
    /// What comes of it.
    type Output;

    /// Does it.
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

/// The flush queue that was asked for, or `default`.
fn queue_kind(options: &Options, default: Deferral) -> Deferral {
    match options.word("queue") {
        Some("global") => Deferral::Global,
        Some("per-core") => Deferral::PER_CPU,
        _ => default,
    }
}

/// What deferred protection gives up with the global queue.
const GLOBAL_WINDOW: Breach = Breach {
    protection: Protection::Deferred,
    rule: Rule::Strict,
    bound: "250 unmaps or 10 ms, whichever comes first",
};
/// What it gives up with a queue per core.
const PER_CPU_WINDOW: Breach = Breach {
    protection: Protection::Deferred,
    rule: Rule::Strict,
    bound: "256 unmaps of a CPU or 10 ms, whichever comes first",
};
