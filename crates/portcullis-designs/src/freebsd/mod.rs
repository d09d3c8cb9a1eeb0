//! FreeBSD (ATC'15, §3.4; EiovaR, FAST'15, §7).
//!
//! ```text
//! free: a gap of the balanced tree --allocate--> a node with its guard pages --write--> mapped; table entries counted
//! mapped --claim--> claimed --clear--> cleared, and an empty table page leaves --the hardware has lost it--> free
//! ```
//!
//! A map: `domain/calls.rs`, `mapper/assembled.rs`, `freebsd/gap_tree.rs`, `freebsd/avl.rs`, `freebsd/table_lock.rs`,
//! `space.rs`, `table/second_level.rs`, `freebsd/counted.rs`.
//!
//! An unmap: `domain/calls.rs`, `mapper/assembled.rs`, `freebsd/gap_tree.rs`, `freebsd/avl.rs`,
//! `freebsd/table_lock.rs`, `space.rs`, `table/second_level.rs`, `freebsd/counted.rs`, `invalidation/policy.rs`,
//! `invalidation/strict.rs`.

mod avl;
mod counted;
mod gap_tree;
mod table_lock;

pub use counted::{map_counted, unmap_counted};
pub use gap_tree::GapTreeAllocator;
pub use table_lock::TableLock;

use core::mem::MaybeUninit;
use portcullis::Protection;
use portcullis::error::NewDomainError;
use portcullis::invalidation::{Commands, Deferral, Submissions};
use portcullis::iommu::Iommu;
use portcullis::mapper::{
    AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info, OptionInfo, OptionKind, Parts,
};
use portcullis::platform::Platform;
use portcullis::table::TableRule;

/// A tree that knows its gaps, guard pages, and table pages that are counted and freed. The tree and the table have
/// one lock each.
#[derive(Debug)]
pub struct FreeBsd;

impl DesignInfo for FreeBsd {
    const INFO: Info = Info {
        id: "freebsd",
        source: "FreeBSD 10 (ATC'15 §3.4, FAST'15 §7)",
        allocator: "balanced tree with the largest gap of each subtree, lowest address first, a guard page on each side, one lock",
        invalidation: "one page-selective and a wait per unmap",
        tables: "freed when empty, one lock; a map flushes the whole table page, and so does an unmap unless `fixed`",
        protections: &[Protection::Strict],
        breaches: &[],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead { guard_pages: 2, ..AddressOverhead::NONE }),
        batch_default: 1,
        options: &[OptionInfo {
            key: "fixed",
            kind: OptionKind::Flag,
            default: "off",
            description: "an unmap flushes only the table entries that it clears",
        }],
    };
}

// SAFETY: an assembled mapper of sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for FreeBsd {
    type Mapper = AssembledMapper<GapTreeAllocator<P>, P, I, TableLock<P>>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let parts = Parts {
            commands: Commands::PerUnmap,
            submissions: Submissions::Alone,
            // Never used: the design offers no deferred protection.
            deferral: Deferral::Global,
            rule: TableRule::FreedByDesign,
            // FreeBSD 10 makes a table page visible when it drops its temporary mapping of the page
            // (`dmar_unmap_pgtbl` of intel_idpgtbl.c, from memory, unverified). The page is flushed as a whole, after
            // maps and unmaps alike. The fix of EiovaR is of the unmap alone.
            locking: TableLock::new(&setup.platform, true, !setup.options.flag("fixed")),
        };
        AssembledMapper::build_in(
            to,
            |to, setup| Ok(to.write(GapTreeAllocator::new(&setup.platform, setup.width, setup.reserved)?)),
            parts,
            setup,
        )
    }
}
