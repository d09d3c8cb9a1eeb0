//! illumos, and Solaris before it (ATC'15, §3.4 and Table 1).
//!
//! ```text
//! free: in a quantum cache or a segment --allocate--> in use --write over what was there, invalidate, wait--> mapped
//! mapped --claim--> free: the translation stays until the next map writes over it (its declared breach of S2)
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `solaris/vmem.rs`, `solaris/segments.rs`,
//! `solaris/directory_locks.rs`, `space.rs`, `table/second_level.rs`, `invalidation/policy.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `solaris/vmem.rs`, `solaris/segments.rs`,
//! `invalidation/policy.rs`, `solaris/at_map.rs`.

mod at_map;
mod directory_locks;
mod segments;
mod tags;
mod vmem;

pub use at_map::InvalidatedAtMap;
pub use directory_locks::LockPerTable;
pub use vmem::{QUANTUM_CACHE_PAGES_MAX, SLAB_PAGES, VmemAllocator};

use core::mem::MaybeUninit;
use portcullis::error::NewDomainError;
use portcullis::invalidation::{Commands, Submissions};
use portcullis::iommu::Iommu;
use portcullis::mapper::{AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info, Parts};
use portcullis::platform::Platform;
use portcullis::table::TableRule;
use portcullis::{Breach, Protection, Rule};

/// Addresses in constant time. An unmap only gives the address back, so the device keeps the buffer until a map is
/// given the same address.
#[derive(Debug)]
pub struct Solaris;

/// The breach: an address is invalidated only by the map that uses it again.
const AT_MAP: Breach =
    Breach { protection: Protection::Deferred, rule: Rule::Strict, bound: "none: until a map uses the address again" };

impl DesignInfo for Solaris {
    const INFO: Info = Info {
        id: "solaris",
        source: "illumos (ATC'15 §3.4)",
        allocator: "vmem: quantum caches for 1 to 16 pages over power-of-two free lists with boundary tags, one lock",
        invalidation: "none at an unmap; a map invalidates the range that it was given, and waits",
        tables: "kept, and what unmaps leave in them is written over; a lock for each directory",
        protections: &[Protection::Deferred],
        breaches: &[AT_MAP],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead { grain_pages: SLAB_PAGES, ..AddressOverhead::NONE }),
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Solaris {
    type Mapper = AssembledMapper<VmemAllocator<P>, P, I, LockPerTable<P>, InvalidatedAtMap>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let locking = LockPerTable::new(&setup.platform, setup.width)?;
        let parts = Parts {
            commands: Commands::PerUnmap,
            submissions: Submissions::Alone,
            deferral: &AT_MAP,
            rule: TableRule::Overwritten,
            locking,
        };
        AssembledMapper::build_in(
            to,
            |to, setup| Ok(to.write(VmemAllocator::new(&setup.platform, setup.width, setup.reserved)?)),
            parts,
            setup,
        )
    }
}
