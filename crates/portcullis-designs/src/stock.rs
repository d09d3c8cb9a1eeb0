//! Linux before 4.7 (EiovaR, FAST'15, §3 and §4).
//!
//! ```text
//! free: a gap in the tree --allocate--> a node in the tree --write--> mapped
//! mapped --claim--> claimed --clear--> cleared --the hardware has lost it--> free
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `iova/linux/tree.rs`, `iova/linux/range_tree.rs`, `space.rs`,
//! `table/second_level.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `iova/linux/tree.rs`, `iova/linux/range_tree.rs`, `space.rs`,
//! `table/second_level.rs`, `invalidation/policy.rs`, `invalidation/strict.rs`.
//!
//! An unmap calls the allocator twice: first for the claim, and at the end to give the address back.

use core::mem::MaybeUninit;
use portcullis::Protection;
use portcullis::designs::{GLOBAL_WINDOW, queue_kind, queue_option};
use portcullis::error::NewDomainError;
use portcullis::invalidation::Deferral;
use portcullis::iommu::Iommu;
use portcullis::iova::TreeAllocator;
use portcullis::mapper::{AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::platform::Platform;

/// The red-black tree with the cached node under one lock; strict, or deferred through one global flush queue.
#[derive(Debug)]
pub struct Stock;

impl DesignInfo for Stock {
    const INFO: Info = Info {
        id: "stock",
        source: "Linux before 4.7 (FAST'15 §4)",
        allocator: "red-black tree with a cached node, below 4 GiB first, top down, size-aligned, one lock",
        invalidation: "strict: one page-selective and a wait per unmap; deferred: one global queue, 250 unmaps or 10 ms, global flush",
        tables: "kept unless one unmap covers them",
        protections: &[Protection::Strict, Protection::Deferred],
        breaches: &[GLOBAL_WINDOW],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[queue_option("global")],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Stock {
    type Mapper = AssembledMapper<TreeAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let deferral = queue_kind(setup.options, Deferral::Global);
        AssembledMapper::of_linux_in(
            to,
            |to, setup| Ok(to.write(TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?)),
            deferral,
            setup,
        )
    }
}
