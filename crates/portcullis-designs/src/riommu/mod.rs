//! rIOMMU (ASPLOS'15): rings, for hardware that has them. No real IOMMU has them.
//!
//! ```text
//! free --map: the tail advances--> valid --unmap--> held --the burst ends: its ring is invalidated once--> free
//! ```
//!
//! A map: `domain/calls.rs`, `riommu/mapper.rs`, `riommu/rings.rs`, `riommu/ring.rs`, `riommu/entry_state.rs`,
//! `iommu/rings.rs`.
//!
//! An unmap: `domain/calls.rs`, `riommu/mapper.rs`, `riommu/rings.rs`, `riommu/ring.rs`, `riommu/entry_state.rs`,
//! `iommu/rings.rs`, `submission.rs`.

mod entry_state;
mod mapper;
mod ring;
mod rings;

pub use mapper::RingMapper;
pub use rings::RINGS_MAX;

use core::mem::MaybeUninit;
use mapper::ADDRESSING;
use portcullis::Protection;
use portcullis::error::NewDomainError;
use portcullis::invalidation::BATCH_MAX;
use portcullis::iommu::Iommu;
use portcullis::iommu::rings::RING_ENTRIES_MAX;
use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info, OptionInfo, OptionKind};
use portcullis::platform::Platform;

/// Entries of a ring, unless the user sets another number.
const RING_DEFAULT: u64 = 4096;

/// A ring for each stream of requests and direction, in a flat table that the hardware follows in order.
#[derive(Debug)]
pub struct RIommu;

impl DesignInfo for RIommu {
    const INFO: Info = Info {
        id: "riommu",
        source: "rIOMMU (ASPLOS'15): no such hardware",
        allocator: "the entry at the tail of a ring: one for each stream of requests (a queue, else a CPU) and direction; one for each persistent mapping",
        invalidation: "one for each ring of a batch, when it ends",
        tables: "flat, one for each ring; kept",
        protections: &[Protection::Strict],
        breaches: &[],
        addressing: ADDRESSING,
        address_overhead: None,
        batch_default: BATCH_MAX,
        options: &[OptionInfo {
            key: "ring",
            kind: OptionKind::Count(1..=RING_ENTRIES_MAX as u64),
            default: "4096",
            description: "entries of a ring for mappings that come and go",
        }],
    };
}

// SAFETY: the mapper of `riommu` is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for RIommu {
    type Mapper = RingMapper<P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let size = setup.options.count("ring").unwrap_or(RING_DEFAULT);
        Ok(to.write(RingMapper::new(setup, u32::try_from(size).expect("the option has a range"))?))
    }
}
