//! What becomes of unmaps under deferred protection: the seam between an assembled mapper and the queue, or whatever
//! else a design has in its place.

use super::{Revocation, Room};
use crate::error::{CommitError, MapError, NewDomainError};
use crate::iommu::Iommu;
use crate::iova::IovaAllocator;
use crate::platform::Platform;
use crate::proof::{Committed, Proof};
use crate::space::AddressSpace;
use crate::table::FreedTables;

/// What becomes of the unmaps of a domain under deferred protection, after their translations were cleared. The core
/// has [flush queues](super::FlushQueues).
///
/// # Safety
/// Addresses are handed out again, and table pages freed, on the word of this trait. Implementations give the addresses
/// of an unmap back to the allocator once, and free its table pages, only after an invalidation that began after
/// [`commit`](DeferredPolicy::commit) was called for it, with the proof of that invalidation. If an address comes back
/// earlier because [its translation stays](DeferredPolicy::LEAVES_TRANSLATIONS), the design declares that.
/// [`Committed::Proven`] means that all unmaps of the batch were invalidated.
pub unsafe trait DeferredPolicy<P: Platform, I: Iommu>: Send + Sync + Sized {
    /// What a design chooses of it.
    type Setting: Copy;

    /// Whether unmaps leave their translations in the table and in the hardware until a map uses the address again.
    /// That map overwrites them, and invalidates before it returns. In a poisoned domain, where nothing is mapped any
    /// more, the mapper clears and invalidates what an unmap finds, and does not ask this policy.
    const LEAVES_TRANSLATIONS: bool = false;

    /// Whether addresses may be handed out again while the hardware still caches pointers to their table pages.
    fn leaves_pointers(setting: Self::Setting) -> bool;

    /// Makes what a new domain needs.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`]; [`NewDomainError::Protection`] if there is no deferred protection.
    fn new(platform: &P, setting: Self::Setting) -> Result<Self, NewDomainError>;

    /// Takes a batch of unmaps, at least one, that are all due for invalidation. `revocation` has no runs afterwards,
    /// whatever the result.
    ///
    /// In a poisoned domain nothing is deferred any more: everything is invalidated before the buffers go back.
    ///
    /// # Errors
    /// [`CommitError`]: no buffer of the batch may be used again (S11).
    fn commit<R: Room + ?Sized>(
        &self,
        space: &AddressSpace<P, I>,
        allocator: &impl IovaAllocator<P>,
        revocation: &mut Revocation<R>,
    ) -> Result<Committed, CommitError>;

    /// For a map that found no free address: waits for addresses that come back without a flush. Returns whether
    /// there may be any.
    ///
    /// # Errors
    /// [`MapError::Queue`].
    fn drain(&self, _space: &AddressSpace<P, I>, _allocator: &impl IovaAllocator<P>) -> Result<bool, MapError> {
        Ok(false)
    }

    /// For a map that did not get the one address that it must have: invalidates everything that waits, and gives its
    /// addresses back. Returns whether anything may have waited.
    ///
    /// # Errors
    /// [`MapError::Queue`].
    fn flush(&self, space: &AddressSpace<P, I>, allocator: &impl IovaAllocator<P>) -> Result<bool, MapError>;

    /// Gives back, or invalidates, what has waited long enough.
    ///
    /// # Errors
    /// [`CommitError`] if the hardware has failed.
    fn tick(&self, _space: &AddressSpace<P, I>, _allocator: &impl IovaAllocator<P>) -> Result<(), CommitError> {
        Ok(())
    }

    /// When the next tick has work to do, on the platform's clock.
    fn due_us(&self) -> Option<u64> {
        None
    }

    /// The unmaps that wait now, and the most that can wait.
    fn queued(&self) -> (usize, usize) {
        (0, 0)
    }

    /// The longest time until the hardware is told of an unmap, in microseconds, if ticks come when due; `None` if
    /// there is no bound.
    fn window_us_max(&self) -> Option<u64>;

    /// Gives everything that waits back to the allocator, after the IOMMU has forgotten the domain. Returns the table
    /// pages that wait.
    fn close(&self, _platform: &P, _allocator: &impl IovaAllocator<P>, _proof: &Proof) -> FreedTables {
        FreedTables::new()
    }
}
