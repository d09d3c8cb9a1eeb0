//! What the hardware has confirmed, as a type.
//!
//! A buffer goes back to its owner, an address to its allocator and a table page to the host only against a [`Proof`] (S2, S3, S4,
//! S11). There are three kinds. One is that the hardware has said so: `Proof::ask`, `Proof::of_one` and `Proof::close` put the question and make
//! a proof of the answer, so that no other safe code can. The second is a reason with a name, for what no invalidation is needed for.
//! The third is the word of a mapper that is written outside, which is unsafe.
//!
//! A proof is not copied: it is lent to those who give something back, by the commit that it belongs to. It names no range, so the
//! commit answers for what it is used on. Two things outlast a commit: a flush that serves what other CPUs have queued (`Served`),
//! and table pages that have left the hardware and wait for walks of software.

use crate::iommu::{AttachError, DomainId, HandedIn, Invalidation, Iommu, QueueError};
use crate::safety::{Breach, Rule};
use crate::sync::{AtomicU64, Ordering};

/// That the device no longer reaches something by the mapping that it belonged to.
#[derive(Debug)]
#[must_use = "what it proves may go back now"]
pub struct Proof(());

impl Proof {
    /// Asks the hardware whether what was submitted under `ticket` has taken effect. `None` where it has not, yet.
    ///
    /// # Errors
    /// Those of [`Iommu::is_done`].
    #[inline(always)]
    pub(crate) fn ask<I: Iommu>(iommu: &I, ticket: I::Ticket) -> Result<Option<Self>, QueueError> {
        Ok(if iommu.is_done(ticket)? { Some(Self(())) } else { None })
    }

    /// Hands in a command, and asks at once whether it has taken effect.
    ///
    /// # Errors
    /// Those of [`Iommu::try_invalidate`]: what was handed in, where it has not yet.
    #[inline(always)]
    pub(crate) fn of_one<I: Iommu>(iommu: &I, command: Invalidation) -> Result<Self, HandedIn<I::Ticket>> {
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
    pub(crate) unsafe fn close<I: Iommu>(iommu: &I, domain: DomainId) -> Result<Self, AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { iommu.close_domain(domain) }.map(|()| Self(()))
    }

    /// The caller's word, for a [`Mapper`](crate::design::Mapper) that is not put together from the parts of this crate.
    ///
    /// # Safety
    /// The device no longer reaches any of what the proof is used for, which is all that the [`Committed`] covers that it goes into, by
    /// the mapping that this belonged to: an invalidation of it has ended, or the caller knows it from elsewhere. For memory, and for
    /// no address or table page, it is enough that no code of the program relies on what it holds.
    #[allow(unsafe_code, reason = "buffers are freed on this word")]
    pub unsafe fn trusted() -> Self {
        Self(())
    }

    /// The reason that no hardware has ever seen it: no translation led to it.
    pub(crate) const fn never_visible() -> Self {
        Self(())
    }

    /// The reason that other mappings have it at the same address, with the same rights. What goes back is a share: the memory and
    /// the address stay in use, and the last of those mappings has them invalidated.
    pub(crate) const fn still_shared() -> Self {
        Self(())
    }

    /// The reason that the next map of the address invalidates it before it returns, which `declared` says of the design.
    ///
    /// # Panics
    /// If what is declared is another breach.
    pub(crate) const fn by_next_map(declared: &Breach) -> Self {
        assert!(
            matches!(declared.rule, Rule::Strict),
            "a design that leaves invalidations to its maps says that it breaks S2"
        );
        Self(())
    }
}

/// What has become of a batch of unmaps.
#[derive(Debug)]
#[must_use = "buffers go back only against a proof"]
pub enum Committed {
    /// The device has lost the buffers.
    Lost(Proof),
    /// It may keep them for as long as the design declares.
    Deferred,
}

/// Which flushes have succeeded, by number: the proof for what any CPU had queued before one of them began.
#[derive(Debug)]
pub(crate) struct Served(AtomicU64);

impl Served {
    /// None yet.
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Notes that the flush called `number` has succeeded.
    pub(crate) fn note(&self, number: u64, _proof: &Proof) {
        // Release: who finds its entries served knows that the flush is over.
        self.0.fetch_max(number + 1, Ordering::Release);
    }

    /// What is served by now.
    pub(crate) fn by_now(&self) -> ServedByNow {
        // Acquire: pairs with `note`.
        ServedByNow(self.0.load(Ordering::Acquire))
    }

    /// The proof for a flush that finds nothing that waits: others have served all that was queued before it began. The caller has
    /// looked into every queue in which something may wait, with its lock held.
    pub(crate) const fn nothing_waits(&self) -> Proof {
        Proof(())
    }
}

/// What is served for sure: one past the highest number of a flush that has succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedByNow(u64);

impl ServedByNow {
    /// Whether something may wait in a queue whose entries note less than `noted_below`.
    pub(crate) const fn leaves(self, noted_below: u64) -> bool {
        noted_below > self.0
    }

    /// The proof for what was queued when `begun` flushes had begun, if one that began later has succeeded.
    pub(crate) fn proof(self, begun: u64) -> Option<Proof> {
        (begun < self.0).then_some(Proof(()))
    }
}
