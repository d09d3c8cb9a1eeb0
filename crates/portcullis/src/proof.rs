//! What the hardware has confirmed, as a type.
//!
//! A buffer goes back to its owner, an address to its allocator and a table page to the host only against a [`Proof`]
//! (S2, S3, S4, S11). There are three kinds of proofs. The first is an answer of the hardware: `Proof::ask`,
//! `Proof::of_one` and `Proof::close` ask the hardware and make a proof from its answer, so no other safe code can do
//! so. The second is a named reason why no invalidation is needed. The third is the promise of a mapper outside this
//! crate, which is unsafe.
//!
//! A proof cannot be copied. The commit that it belongs to lends it to the code that gives something back. It names no
//! range, so the commit is responsible for what it is used on. Two things outlast a commit: a flush that serves unmaps
//! queued by other CPUs (`Served`), and table pages that the hardware has lost and that wait for software walks.

use crate::iommu::{AttachError, DomainId, Invalidation, Iommu, QueueError, TrySubmit};
use crate::safety::{Breach, Rule};
use crate::sync::{AtomicU64, Ordering};

/// Proof that the device can no longer reach something through the mapping that it belonged to.
#[derive(Debug)]
#[must_use = "something can be given back against this proof"]
pub struct Proof(());

impl Proof {
    /// Asks the hardware whether everything submitted under `ticket` has taken effect. `None` if it has not yet.
    ///
    /// # Errors
    /// Those of [`Iommu::is_done`].
    #[inline(always)]
    pub(crate) fn ask<I: Iommu>(iommu: &I, ticket: I::Ticket) -> Result<Option<Self>, QueueError> {
        Ok(if iommu.is_done(ticket)? { Some(Self(())) } else { None })
    }

    /// Submits a command, and asks at once whether it has taken effect.
    ///
    /// # Errors
    /// Those of [`Iommu::try_invalidate`]: the result of the submission, if the command has not taken effect yet.
    #[inline(always)]
    pub(crate) fn of_one<I: Iommu>(iommu: &I, command: Invalidation) -> Result<Self, TrySubmit<I::Ticket>> {
        iommu.try_invalidate(command).map(|()| Self(()))
    }

    /// Closes a domain: the IOMMU has detached its devices and forgotten what it had cached of it (S10).
    ///
    /// # Errors
    /// Those of [`Iommu::close_domain`].
    ///
    /// # Safety
    /// That of [`Iommu::close_domain`].
    #[allow(unsafe_code, reason = "the contract of the IOMMU")]
    pub unsafe fn close<I: Iommu>(iommu: &I, domain: DomainId) -> Result<Self, AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { iommu.close_domain(domain) }.map(|()| Self(()))
    }

    /// The promise of a caller, for a [`Mapper`](crate::mapper::Mapper) that is not assembled from the parts of this
    /// crate.
    ///
    /// # Safety
    /// The device can no longer reach anything that the proof is used for, through the mapping that it belonged to.
    /// That is everything covered by the [`Committed`] that the proof goes into. Either an invalidation has completed,
    /// or the caller knows it for another reason. For memory, but not for an address or a table page, it is enough
    /// that no code of the program relies on the contents.
    #[allow(unsafe_code, reason = "buffers are freed because of this promise")]
    pub unsafe fn trusted() -> Self {
        Self(())
    }

    /// For something that the hardware has never seen: no translation led to it.
    pub(crate) const fn never_visible() -> Self {
        Self(())
    }

    /// For a share: other mappings have the same memory at the same address, with the same rights. Memory and address
    /// stay in use, and the last of those mappings has them invalidated.
    pub(crate) const fn still_shared() -> Self {
        Self(())
    }

    /// For an address that the next map invalidates before it returns, as the design states in `declared`.
    ///
    /// # Panics
    /// If `declared` is another breach.
    ///
    /// # Safety
    /// That map does so: the proof is used for addresses under a policy that
    /// [leaves translations](crate::invalidation::DeferredPolicy::LEAVES_TRANSLATIONS).
    #[allow(unsafe_code, reason = "addresses come back because of this promise")]
    pub const unsafe fn by_next_map(declared: &Breach) -> Self {
        assert!(
            matches!(declared.rule, Rule::Strict),
            "a design that leaves invalidations to its maps must declare that it breaks S2"
        );
        Self(())
    }
}

/// The result of committing a batch of unmaps.
#[derive(Debug)]
#[must_use = "buffers go back only against a proof"]
pub enum Committed {
    /// The device has lost the buffers.
    Proven(Proof),
    /// The device may still reach them for as long as the design declares.
    Deferred,
}

/// One past the highest number of a flush that has succeeded. That flush proves the invalidation of everything that any
/// CPU had queued before it began.
#[derive(Debug)]
pub(crate) struct Served(AtomicU64);

impl Served {
    /// No flush yet.
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Records that flush `number` has succeeded.
    pub(crate) fn note(&self, number: u64, _proof: &Proof) {
        // Release: a CPU that finds its entries served knows that the flush has completed.
        self.0.fetch_max(number + 1, Ordering::Release);
    }

    /// The flushes that have succeeded by now.
    pub(crate) fn by_now(&self) -> ServedByNow {
        // Acquire: pairs with `note`.
        ServedByNow(self.0.load(Ordering::Acquire))
    }

    /// The proof for a flush that finds nothing waiting: other flushes have served everything that was queued before
    /// it began. The caller has looked into every queue in which something may wait, with the lock of each.
    pub(crate) const fn nothing_waits(&self) -> Proof {
        Proof(())
    }
}

/// One past the highest number of a flush that has succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedByNow(u64);

impl ServedByNow {
    /// Whether something may still wait in a queue whose entries have numbers below `noted_below`.
    pub(crate) const fn leaves(self, noted_below: u64) -> bool {
        noted_below > self.0
    }

    /// The proof for something that was queued when `begun` flushes had begun, if a flush that began later has
    /// succeeded.
    pub(crate) fn proof(self, begun: u64) -> Option<Proof> {
        (begun < self.0).then_some(Proof(()))
    }
}
