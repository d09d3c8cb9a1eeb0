//! An example of a design: `stock` with a guard page behind every mapping, which is never mapped. A device that runs
//! over the end of its buffer faults there, and does not reach the next buffer.

#[cfg(feature = "planted-reuse")]
mod planted;

use core::mem::MaybeUninit;
use portcullis::invalidation::Deferral;
use portcullis::iova::{Claim, IovaAllocator, IovaRequest, TreeAllocator};
use portcullis::mapper::{AddressOverhead, AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::proof::Proof;
use portcullis::{Iommu, IovaRange, MapError, NewDomainError, Platform, UnmapError};
use portcullis_designs::Stock;

/// `stock` with guard pages.
#[derive(Debug)]
pub struct Guarded;

impl DesignInfo for Guarded {
    const INFO: Info = Info {
        id: "guarded",
        source: "examples/custom-design",
        allocator: "the tree of `stock`, with one more page for each request",
        address_overhead: Some(AddressOverhead { guard_pages: 1, ..AddressOverhead::NONE }),
        options: &[],
        ..Stock::INFO
    };
}

// SAFETY: a mapper assembled from sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Guarded {
    type Mapper = AssembledMapper<Allocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let tree = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        let allocator = GuardedTree(tree);
        #[cfg(feature = "planted-reuse")]
        let allocator = planted::ReusesEarly::new(allocator);
        Ok(to.write(AssembledMapper::new(allocator, Deferral::Global, setup)?))
    }
}

#[cfg(not(feature = "planted-reuse"))]
type Allocator<P> = GuardedTree<P>;
#[cfg(feature = "planted-reuse")]
type Allocator<P> = planted::ReusesEarly<GuardedTree<P>>;

/// The tree, with the guard pages hidden.
pub struct GuardedTree<P: Platform>(TreeAllocator<P>);

// SAFETY: the tree keeps the promises for its longer ranges, and each range here is the front of one of those.
unsafe impl<P: Platform> IovaAllocator<P> for GuardedTree<P> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        let guarded = self.0.allocate(platform, &IovaRequest { pages: request.pages + 1, ..*request })?;
        Ok(IovaRange::new(guarded.first_pfn(), request.pages).expect("the front of a range"))
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        let guarded = IovaRange::new(range.first_pfn(), range.pages() + 1).ok_or(UnmapError::BadRange)?;
        self.0.claim(platform, guarded).map_err(|refused| match refused {
            // A mapping ends before its guard page.
            UnmapError::Partial { mapped, .. } => match IovaRange::new(mapped.first_pfn(), mapped.pages() - 1) {
                Some(mapped) => UnmapError::Partial { asked: range, mapped },
                None => refused,
            },
            _ => refused,
        })
    }

    fn free(&self, platform: &P, range: IovaRange, proof: &Proof) {
        self.0.free(platform, range, proof);
    }

    fn live(&self) -> usize {
        self.0.live()
    }
}
