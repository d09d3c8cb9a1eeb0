//! EiovaR: `stock` with lists of freed ranges over its tree (FAST'15, §5).
//!
//! ```text
//! free: on the list of its size, still in the tree --unpark--> in use --write--> mapped
//! mapped --claim--> claimed --clear--> cleared --the hardware has lost it--> on the list of its size
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `eiovar/free_list.rs`, `iova/linux/range_tree.rs`, `space.rs`,
//! `table/second_level.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `eiovar/free_list.rs`, `iova/linux/range_tree.rs`, `space.rs`,
//! `table/second_level.rs`, `invalidation/policy.rs`, `invalidation/strict.rs`.
//!
//! An unmap calls the allocator twice: first for the claim, and at the end to give the address back.

mod free_list;

pub use free_list::FreeListAllocator;

use core::mem::MaybeUninit;
use portcullis::Protection;
use portcullis::designs::{GLOBAL_WINDOW, queue_kind, queue_option};
use portcullis::error::NewDomainError;
use portcullis::invalidation::Deferral;
use portcullis::iommu::Iommu;
use portcullis::mapper::{
    AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info, OptionInfo, OptionKind,
};
use portcullis::platform::Platform;

/// Free lists by power of two over the red-black tree, under its one lock.
#[derive(Debug)]
pub struct Eiovar;

impl DesignInfo for Eiovar {
    const INFO: Info = Info {
        id: "eiovar",
        source: "EiovaR (FAST'15 §5)",
        allocator: "free lists by power of two, at most k freed ranges in all, over the tree of `stock`, one lock",
        invalidation: "as `stock`",
        tables: "kept unless one unmap covers them",
        protections: &[Protection::Strict, Protection::Deferred],
        breaches: &[GLOBAL_WINDOW],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[
            OptionInfo {
                key: "k",
                kind: OptionKind::Count(0..=1 << 32),
                default: "unbounded",
                description: "freed ranges that are kept at most",
            },
            queue_option("global"),
        ],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Eiovar {
    type Mapper = AssembledMapper<FreeListAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let kept_max = setup.options.count("k").map(|k| usize::try_from(k).unwrap_or(usize::MAX));
        let deferral = queue_kind(setup.options, Deferral::Global);
        AssembledMapper::of_linux_in(
            to,
            |to, setup| Ok(to.write(FreeListAllocator::new(&setup.platform, setup.width, setup.reserved, kept_max)?)),
            deferral,
            setup,
        )
    }
}
