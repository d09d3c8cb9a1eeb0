//! No IOMMU: devices pass through.
//!
//! ```text
//! physical address = I/O address, from the first to the last: nothing is mapped, nothing is taken away
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/physical.rs`, `pass_through.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/physical.rs`.

use crate::error::NewDomainError;
use crate::iommu::Iommu;
use crate::mapper::{Addressing, Design, DesignInfo, DomainSetup, Info, Untranslated};
use crate::platform::Platform;
use crate::safety::{Breach, Protection, Rule};
use core::mem::MaybeUninit;

/// No protection and no translation: the baseline for every other design.
#[derive(Debug)]
pub struct Unprotected;

impl DesignInfo for Unprotected {
    const INFO: Info = Info {
        id: "none",
        source: "no IOMMU",
        allocator: "physical address",
        invalidation: "none",
        tables: "none",
        protections: &[Protection::None],
        breaches: &[Breach {
            protection: Protection::None,
            rule: Rule::Reach,
            bound: "devices reach all memory, always",
        }],
        addressing: Addressing::Physical,
        address_overhead: Option::None,
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: it offers no protection, and its mapper maps nothing.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Unprotected {
    type Mapper = Untranslated<I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        Ok(to.write(unsafe { Untranslated::new(setup) }?))
    }
}
