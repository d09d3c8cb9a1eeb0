//! Magazines per CPU over the tree, and a flush queue per CPU: Linux since 4.7 (ATC'15, §4.3 and §5).
//!
//! ```text
//! free: in a magazine of the CPU, else the depot, else the tree --allocate--> taken --write, mark--> mapped
//! mapped --the first mark is cleared: claimed--> cleared --the hardware has lost it--> free: in a magazine of the CPU
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `iova/linux/magazine.rs`, `iova/linux/tree.rs`,
//! `iova/linux/range_tree.rs`, `space.rs`, `table/second_level.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `iova/linux/magazine.rs`, `space.rs`, `table/marks.rs`,
//! `table/second_level.rs`, `invalidation/policy.rs`, `invalidation/strict.rs`.
//!
//! A map reaches the two files of the tree only if neither magazine nor depot has an address. An unmap calls the
//! magazine first, which leaves the claim to the table. `strict.rs` then calls `space.rs`, which submits and waits,
//! and gives the address back to the magazine.

use super::{PER_CPU_WINDOW, queue_kind, queue_option};
use crate::error::NewDomainError;
use crate::invalidation::Deferral;
use crate::iommu::Iommu;
use crate::iova::MagazineAllocator;
use crate::mapper::{AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use crate::platform::Platform;
use crate::safety::Protection;
use core::mem::MaybeUninit;

/// The mechanism of Linux since 4.7. No single kernel has all of these numbers, see `docs/decisions.md`.
///
/// Linux frees table pages that one unmap covers. This design keeps them, because claims walk the table without a
/// lock.
#[derive(Debug)]
pub struct Magazine;

impl DesignInfo for Magazine {
    const INFO: Info = Info {
        id: "magazine",
        source: "Linux since 4.7 (ATC'15 §4.3)",
        allocator: "per-CPU magazines of 127 for 1 to 32 pages, a depot for each size, over the tree of `stock`",
        invalidation: "strict: one page-selective and a wait per unmap; deferred: a queue per CPU, 256 unmaps or 10 ms, domain flush",
        tables: "kept",
        protections: &[Protection::Strict, Protection::Deferred],
        breaches: &[PER_CPU_WINDOW],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[queue_option("per-core")],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Magazine {
    type Mapper = AssembledMapper<MagazineAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let deferral = queue_kind(setup.options, Deferral::PER_CPU);
        AssembledMapper::of_linux_in(
            to,
            |to, setup| Ok(to.write(MagazineAllocator::new(&setup.platform, setup.width, setup.reserved)?)),
            deferral,
            setup,
        )
    }
}
