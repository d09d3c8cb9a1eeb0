//! Pass-through with a persistent identity map: translation without protection.
//!
//! ```text
//! mapped once, when the domain is opened; a map returns the physical address, an unmap does nothing
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/physical.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/physical.rs`.

use crate::error::NewDomainError;
use crate::iommu::Iommu;
use crate::mapper::{Addressing, Design, DesignInfo, DomainSetup, IdentityMapped, Info};
use crate::platform::Platform;
use crate::safety::{Breach, Protection, Rule};
use core::mem::MaybeUninit;

/// All memory mapped once at its own addresses: it shows what translation alone costs.
#[derive(Debug)]
pub struct Static;

impl DesignInfo for Static {
    const INFO: Info = Info {
        id: "static",
        source: "pass-through with a persistent identity map",
        allocator: "physical address",
        invalidation: "none",
        tables: "once",
        protections: &[Protection::None],
        breaches: &[Breach {
            protection: Protection::None,
            rule: Rule::Reach,
            bound: "devices reach all memory, always",
        }],
        addressing: Addressing::Physical,
        address_overhead: None,
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: it offers no protection, and its mapper maps nothing beyond the identity map made at the start.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Static {
    type Mapper = IdentityMapped<P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        Ok(to.write(unsafe { IdentityMapped::new(setup) }?))
    }
}
