//! Addresses of real allocations as page numbers, and a flush queue per CPU (ATC'15, §4.2 and §5).
//!
//! ```text
//! free: memory of the host --allocate_bytes--> an object, whose address is the page number --write--> mapped
//! mapped --claim by its marks, clear--> cleared --the hardware has lost it--> free_bytes: memory of the host
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `kmalloc/allocator.rs`, `space.rs`, `table/second_level.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `kmalloc/allocator.rs`, `space.rs`, `table/marks.rs`,
//! `table/second_level.rs`, `invalidation/policy.rs`, `invalidation/strict.rs`.
//!
//! An unmap calls `kmalloc/allocator.rs` twice: first, to learn that the claim is left to the table, and at the end, to
//! free the object.

mod allocator;

pub use allocator::KmallocAllocator;

use core::mem::MaybeUninit;
use portcullis::Protection;
use portcullis::designs::{PER_CPU_WINDOW, queue_kind, queue_option};
use portcullis::error::NewDomainError;
use portcullis::invalidation::Deferral;
use portcullis::iommu::Iommu;
use portcullis::mapper::{Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::platform::Platform;

/// A design without an address allocator. The addresses that the host's memory allocator hands out decide how the
/// table grows.
#[derive(Debug)]
pub struct Kmalloc;

impl DesignInfo for Kmalloc {
    const INFO: Info = Info {
        id: "kmalloc",
        source: "IOVA-kmalloc (ATC'15 §4.2)",
        allocator: "the address of an allocation of one byte per page, as a page number",
        invalidation: "strict: one page-selective and a wait per unmap; deferred: a queue per CPU, 256 unmaps or 10 ms, domain flush",
        tables: "kept, and growing",
        protections: &[Protection::Strict, Protection::Deferred],
        breaches: &[PER_CPU_WINDOW],
        addressing: Addressing::Own,
        address_overhead: None,
        batch_default: 1,
        options: &[queue_option("per-core")],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Kmalloc {
    type Mapper = AssembledMapper<KmallocAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let deferral = queue_kind(setup.options, Deferral::PER_CPU);
        AssembledMapper::of_linux_in(
            to,
            |to, setup| Ok(to.write(KmallocAllocator::new(&setup.platform, setup.width, setup.reserved)?)),
            deferral,
            setup,
        )
    }
}
