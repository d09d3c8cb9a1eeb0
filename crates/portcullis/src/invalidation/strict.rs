//! Strict protection: invalidate and wait before anything goes back.

use super::{BATCH_MAX, Invalidated, Revocation, page_selective};
use crate::error::CommitError;
use crate::iommu::{Invalidation, Iommu};
use crate::iova::IovaAllocator;
use crate::platform::{Phase, Platform, Step};
use crate::space::AddressSpace;
use arrayvec::ArrayVec;

/// Submits one page-selective command per unmap with one wait behind them all, waits, and frees the addresses and tables.
pub(super) fn commit<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    allocator: &impl IovaAllocator<P>,
    revocation: &mut Revocation,
) -> Result<(), CommitError> {
    let platform = space.platform();
    if revocation.is_empty() {
        return Ok(());
    }
    platform.probe(Step::Enter(Phase::Invalidate));
    // Filled in place: collecting would move a kilobyte.
    let mut commands = ArrayVec::<Invalidation, BATCH_MAX>::new_const();
    for revoked in &revocation.revoked {
        commands.push(page_selective(space.id(), revoked.range, revoked.leaf_only, space.capabilities()));
    }
    let tables = core::mem::take(&mut revocation.tables);
    if let Err(error) = space.invalidate(&commands) {
        // The ranges and tables leak: quarantined for good (S11).
        revocation.revoked.clear();
        return Err(error.into());
    }
    platform.probe(Step::Enter(Phase::IovaFree));
    for revoked in revocation.revoked.drain(..) {
        allocator.free(platform, Invalidated::new(revoked.range));
    }
    space.release(Invalidated::new(tables));
    Ok(())
}
