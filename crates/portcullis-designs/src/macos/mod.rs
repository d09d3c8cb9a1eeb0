//! XNU's driver of VT-d, as ATC'15 describes it (§3.4 and Table 1).
//!
//! ```text
//! free: a block of 2^n pages --split--> in use --write--> mapped
//! mapped --claim, clear--> cleared --submit, do not wait--> waiting --the queue has passed its ticket--> free, merged
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `macos/whole_lock.rs`, `macos/buddy.rs`, `macos/blocks.rs`,
//! `space.rs`, `table/second_level.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `macos/whole_lock.rs`, `macos/buddy.rs`, `space.rs`,
//! `table/second_level.rs`, `invalidation/policy.rs`, `macos/asynchronous.rs`.

mod asynchronous;
mod blocks;
mod buddy;
mod whole_lock;

pub use asynchronous::{ASYNCHRONOUS_CAPACITY, AsynchronousQueue};
pub use buddy::{BUDDY_PAGES_MAX, BuddyAllocator};
pub use whole_lock::WholeLock;

use core::mem::MaybeUninit;
use portcullis::error::NewDomainError;
use portcullis::invalidation::{Commands, Submissions};
use portcullis::iommu::Iommu;
use portcullis::mapper::{AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info, Parts};
use portcullis::platform::Platform;
use portcullis::table::TableRule;
use portcullis::{Breach, Protection, Rule};

/// A buddy allocator whose lock is held while the table is written, and invalidations that no CPU waits for.
#[derive(Debug)]
pub struct MacOs;

impl DesignInfo for MacOs {
    const INFO: Info = Info {
        id: "macos",
        source: "XNU (ATC'15 §3.4)",
        allocator: "buddies of up to 512 MiB below 4 GiB, the tree of `stock` for larger ranges above; one lock around allocator and table, but for those",
        invalidation: "one page-selective per unmap, submitted and not waited for; the address stays out of use until it is done",
        tables: "kept",
        protections: &[Protection::Deferred],
        breaches: &[Breach {
            protection: Protection::Deferred,
            rule: Rule::Strict,
            bound: "until the hardware has worked off its queue: the driver does not wait",
        }],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for MacOs {
    type Mapper = AssembledMapper<BuddyAllocator<P>, P, I, WholeLock<P>, AsynchronousQueue<P, I>>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let parts = Parts {
            commands: Commands::PerUnmap,
            submissions: Submissions::Alone,
            deferral: (),
            rule: TableRule::Kept,
            locking: WholeLock::new(&setup.platform, BUDDY_PAGES_MAX),
        };
        AssembledMapper::build_in(
            to,
            |to, setup| Ok(to.write(BuddyAllocator::new(&setup.platform, setup.width, setup.reserved)?)),
            parts,
            setup,
        )
    }
}
