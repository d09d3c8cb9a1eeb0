//! The stock design, its strict commits sharing submissions.

use portcullis::design::{Composed, Described, Design, Info, LockFree, Parts, Setup};
use portcullis::designs::Stock;
use portcullis::invalidation::{Commands, Deferral, Submissions};
use portcullis::iova::TreeAllocator;
use portcullis::table::TableRule;
use portcullis::{Iommu, NewDomainError, Platform};

pub(crate) struct Riding;

impl Described for Riding {
    const INFO: Info = Stock::INFO;
}

impl<P: Platform, I: Iommu> Design<P, I> for Riding {
    type Mapper = Composed<TreeAllocator<P>, P, I>;

    fn build(setup: Setup<'_, P, I>) -> Result<Self::Mapper, NewDomainError> {
        let allocator = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        let parts = Parts {
            commands: Commands::PerUnmap,
            submissions: Submissions::Shared,
            deferral: Deferral::Global,
            rule: TableRule::FreedWhenCovered,
            locking: LockFree,
        };
        Composed::with_parts(allocator, parts, setup)
    }
}
