//! Network drivers of Linux that recycle receive pages (`page_pool` with `PP_FLAG_DMA_MAP`).
//!
//! ```text
//! free --magazine, write--> mapped --claim--> in the pool, in use --unmap: nothing--> in the pool, still mapped
//! in the pool, still mapped --map of the same page--> in use, at the same address
//! in the pool, still mapped --no room, or no address left--> cleared --the hardware has lost it--> in a magazine
//! ```
//!
//! A map: `domain/calls.rs`, `page_pool/mapper.rs`, `page_pool/pool.rs`, `mapper/assembled.rs`,
//! `iova/linux/magazine.rs`, `space.rs`, `table/second_level.rs`, `space/sharing.rs`, `table/marks.rs`.
//!
//! An unmap: `domain/calls.rs`, `page_pool/mapper.rs`, `space/sharing.rs`, `table/marks.rs`, `page_pool/pool.rs`,
//! `mapper/assembled.rs`, `iova/linux/magazine.rs`, `space.rs`, `table/second_level.rs`, `invalidation/policy.rs`,
//! `invalidation/strict.rs`.
//!
//! If the pool has the page, both end in `page_pool/pool.rs`, and a map looks nowhere else.

mod mapper;
mod pool;

pub use mapper::PagePoolMapper;

use core::mem::MaybeUninit;
use mapper::page_pool_in;
use pool::PART_PAGES_MAX;
use portcullis::error::NewDomainError;
use portcullis::iommu::Iommu;
use portcullis::mapper::{AddressOverhead, Addressing, Design, DesignInfo, DomainSetup, Info, OptionInfo, OptionKind};
use portcullis::platform::Platform;
use portcullis::{Breach, Protection, Rule};

/// Receive pages that stay mapped while they are recycled, although the stack and applications own them. Everything
/// else is strict, as under `magazine`.
#[derive(Debug)]
pub struct PagePool;

/// The breach: a page that the pool keeps is not taken from the device when it is handed back.
const WHILE_POOLED: Breach = Breach {
    protection: Protection::Deferred,
    rule: Rule::Strict,
    bound: "none: for as long as a receive page stays in the pool",
};

impl DesignInfo for PagePool {
    const INFO: Info = Info {
        id: "page-pool",
        source: "drivers on Linux's page_pool with PP_FLAG_DMA_MAP",
        allocator: "the address that a receive page in the pool has, found by its memory in one of 64 hash tables; `magazine` for all else",
        invalidation: "none where a receive page stays in the pool; else one page-selective and a wait per unmap, or for 8 pages that leave the pool",
        tables: "kept",
        protections: &[Protection::Deferred],
        breaches: &[WHILE_POOLED],
        addressing: Addressing::Shared,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[OptionInfo {
            key: "part",
            kind: OptionKind::Count(1..=PART_PAGES_MAX as u64),
            default: "256",
            description: "pages that each of the 64 parts of the pool keeps at most",
        }],
    };
}

// SAFETY: the mapper with a pool is sound, and its breach is declared.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for PagePool {
    type Mapper = PagePoolMapper<P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let pages = setup.options.count("part").and_then(|pages| usize::try_from(pages).ok());
        page_pool_in(to, pages.unwrap_or(PART_PAGES_MAX), setup)
    }
}
