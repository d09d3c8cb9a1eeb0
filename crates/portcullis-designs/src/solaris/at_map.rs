//! Deferred protection as illumos has it: nothing happens until a map uses the address again (ATC'15, §3.4). That map
//! writes its translations over the old ones and invalidates them before it returns.

use portcullis::AddressSpace;
use portcullis::Breach;
use portcullis::error::{CommitError, MapError, NewDomainError};
use portcullis::invalidation::{DeferredPolicy, Revocation, Room};
use portcullis::iommu::Iommu;
use portcullis::iova::IovaAllocator;
use portcullis::platform::{Phase, Platform, Step};
use portcullis::proof::{Committed, Proof};

/// An unmap only gives its address back. This breaks S2, as the design declares with this breach.
pub struct InvalidatedAtMap(&'static Breach);

// SAFETY: translations stay, as the design declares.
unsafe impl<P: Platform, I: Iommu> DeferredPolicy<P, I> for InvalidatedAtMap {
    type Setting = &'static Breach;

    const LEAVES_TRANSLATIONS: bool = true;

    fn leaves_pointers(_: &'static Breach) -> bool {
        false
    }

    fn new(_: &P, breach: &'static Breach) -> Result<Self, NewDomainError> {
        Ok(Self(breach))
    }

    /// Gives addresses back whose translations stay as they are, until a map overwrites and invalidates them.
    #[inline(never)]
    fn commit<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError> {
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::IovaFree));
        // SAFETY: these are addresses, and the mapper invalidates at maps under such a policy.
        let proof = unsafe { Proof::by_next_map(self.0) };
        revocation.revoked().for_each(|revoked| allocator.free(platform, revoked.range, &proof));
        revocation.clear_runs();
        Ok(Committed::Deferred)
    }

    fn flush(&self, _: &AddressSpace<P, I>, _: &impl IovaAllocator<P>) -> Result<bool, MapError> {
        Ok(false)
    }

    fn window_us_max(&self) -> Option<u64> {
        None
    }
}
