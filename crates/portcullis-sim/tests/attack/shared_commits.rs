//! The stock design with shared submissions for its strict commits.

use portcullis::invalidation::{Commands, Deferral, Submissions};
use portcullis::iova::TreeAllocator;
use portcullis::mapper::{AssembledMapper, Design, DesignInfo, DomainSetup, Info, LockFree, Parts};
use portcullis::table::TableRule;
use portcullis::{Iommu, NewDomainError, Platform};
use portcullis_designs::Stock;
use std::mem::MaybeUninit;

pub(crate) struct Riding;

impl DesignInfo for Riding {
    const INFO: Info = Stock::INFO;
}

// SAFETY: a mapper assembled from sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Riding {
    type Mapper = AssembledMapper<TreeAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let allocator = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        let parts = Parts {
            commands: Commands::PerUnmap,
            submissions: Submissions::Shared,
            deferral: Deferral::Global,
            rule: TableRule::FreedWhenCovered,
            locking: LockFree,
        };
        Ok(to.write(AssembledMapper::with_parts(allocator, parts, setup)?))
    }
}
