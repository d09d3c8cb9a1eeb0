//! The design that this project proposes: contiguous addresses from chunks, found in the table itself, in constant
//! time.
//!
//! The module page of its folder, `chunk/mod.rs`, draws the life of a page.
//!
//! A map: `domain/calls.rs`, `chunk/mapper.rs`, `space.rs`, `chunk/chunks.rs`, `chunk/tables.rs`,
//! `chunk/page_states.rs`.
//!
//! An unmap: `domain/calls.rs`, `chunk/mapper.rs`, `chunk/chunks.rs`, `chunk/tables.rs`, `chunk/page_states.rs`,
//! `space.rs`.
//!
//! `chunk/mapper.rs` calls the others one after the other, except `tables.rs`, which `chunks.rs` calls. A strict
//! unmap ends in `page_states.rs`, where it cleared its pages and now spends them. A deferred unmap ends in the queue
//! of its CPU: `invalidation/policy.rs`, `invalidation/per_cpu_queues.rs`.

use crate::chunk::Chunked;
use crate::error::NewDomainError;
use crate::invalidation::BATCH_MAX;
use crate::iommu::Iommu;
use crate::mapper::{AddressOverhead, Addressing, Design, DesignInfo, DomainSetup, Info};
use crate::platform::Platform;
use crate::safety::{Breach, Protection, Rule};
use core::mem::MaybeUninit;

/// Chunks of 64 pages, one for each stream of requests, in tables that are filled like a log and given back.
#[derive(Debug)]
pub struct Portcullis;

impl DesignInfo for Portcullis {
    const INFO: Info = Info {
        id: "portcullis",
        source: "this project (docs/portcullis.md)",
        allocator: "chunks of 64 pages, one for each stream of requests (a ring, else a CPU and a direction), handed out in order; what is free is in the table; `magazine` for large, narrow and lasting ones",
        invalidation: "strict: one page-selective for all neighbours in a chunk that a batch unmaps, leaf only, in a submission that commits share; deferred: a queue per CPU, flushed by one leaf-only command around all that waits",
        tables: "given back: those not needed for 0.1 s, beyond a reserve of 16",
        protections: &[Protection::Strict, Protection::Deferred],
        breaches: &[Breach {
            protection: Protection::Deferred,
            rule: Rule::Strict,
            bound: "128 unmaps of a CPU or 0.5 ms, whichever comes first",
        }],
        addressing: Addressing::Own,
        // The upper half of the addresses belongs to the chunks. Requests that find no place there use the lower
        // half.
        address_overhead: Some(AddressOverhead { tag_bits: 1, ..AddressOverhead::NONE }),
        batch_default: BATCH_MAX,
        options: &[],
    };
}

// SAFETY: the mapper of `chunk` is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Portcullis {
    type Mapper = Chunked<P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        Chunked::new_in(to, setup)
    }
}
