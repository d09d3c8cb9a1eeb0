//! Dynamic identity mapping (ATC'15, §4.1).
//!
//! ```text
//! absent --first map of the page--> mapped, 1 user --map--> 2 users --unmap--> 1 user: nothing to invalidate
//! 1 user --the last unmap--> absent --the hardware has lost it--> the next map of the page may write it again
//! ```
//!
//! A map: `domain/calls.rs`, `identity/mapper.rs`, `space/sharing.rs`, `table/shared.rs`.
//!
//! An unmap: `domain/calls.rs`, `identity/mapper.rs`, `space/sharing.rs`, `table/shared.rs`, `mapper/assembled.rs`,
//! `invalidation/policy.rs`, `invalidation/strict.rs`.
//!
//! For the three regions of rights, `mapper/assembled.rs` only commits. The fourth region maps and unmaps like
//! `magazine`.

mod mapper;

pub use mapper::{DynamicIdentity, IDENTITY_TAG_BITS};

use core::mem::MaybeUninit;
use mapper::dynamic_identity_in;
use portcullis::designs::{PER_CPU_WINDOW, queue_kind, queue_option};
use portcullis::error::NewDomainError;
use portcullis::invalidation::Deferral;
use portcullis::iommu::Iommu;
use portcullis::mapper::{AddressOverhead, Addressing, Design, DesignInfo, DomainSetup, Info, OptionInfo, OptionKind};
use portcullis::platform::Platform;
use portcullis::{Breach, Protection, Rule};

/// Physical addresses with the rights in the top bits, mapped and unmapped on demand.
#[derive(Debug)]
pub struct Identity;

/// A count in the entry does not say whose mappings it counts. A wrong unmap may take one mapping too early, which
/// shuts a device out. It never leaves a mapping too many.
const fn wrong_unmaps(protection: Protection) -> Breach {
    let bound = "a wrong unmap of shared pages goes unnoticed: a device may lose a page too early, and never keeps one";
    Breach { protection, rule: Rule::Errors, bound }
}

/// By the text of the paper, the last unmap of a page requests an invalidation. The unmap of the Linux that it changed
/// requests one whatever was cleared (`intel_unmap` of 3.17, from memory).
const FLUSH: OptionInfo = OptionInfo {
    key: "flush",
    kind: OptionKind::Word(&["last", "each"]),
    default: "last",
    description: "whether only the last unmap of a page invalidates it, or each",
};

impl DesignInfo for Identity {
    const INFO: Info = Info {
        id: "identity",
        source: "dynamic identity mapping (ATC'15 §4.1)",
        allocator: "physical address behind two bits of rights, counted in the entry; a fourth region with magazines for the rest",
        invalidation: "as `magazine`, where an unmap is the last of its pages; else none, and its address translates until then",
        tables: "kept",
        protections: &[Protection::Strict, Protection::Deferred],
        breaches: &[wrong_unmaps(Protection::Strict), PER_CPU_WINDOW, wrong_unmaps(Protection::Deferred)],
        addressing: Addressing::Shared,
        address_overhead: Some(AddressOverhead { tag_bits: IDENTITY_TAG_BITS, ..AddressOverhead::NONE }),
        batch_default: 1,
        options: &[queue_option("per-core"), FLUSH],
    };
}

// SAFETY: the mapper of dynamic identity mapping is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Identity {
    type Mapper = DynamicIdentity<P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let invalidates_each = setup.options.word("flush") == Some("each");
        dynamic_identity_in(to, invalidates_each, queue_kind(setup.options, Deferral::PER_CPU), setup)
    }
}
