//! Taking translations away: what an unmap leaves to be invalidated, who is told of it, and when.
//!
//! What goes back afterwards goes back against a [`Proof`](crate::proof::Proof).

mod core_queues;
mod flush_queue;
mod policy;
mod strict;
mod unawaited;

pub use core_queues::{CORE_QUEUE_CAPACITY, CoreQueues};
pub use flush_queue::{FlushQueue, QUEUE_CAPACITY, QUEUE_TIMEOUT_US};
pub(crate) use policy::Policy;
pub use policy::{Commands, Deferral, Flushes, Submissions};
pub use unawaited::{UNAWAITED_CAPACITY, UnawaitedQueue};

use crate::address::{Iova, IovaRange};
use crate::iommu::{Capabilities, DomainId, Invalidation};
use crate::table::FreedTables;
use arrayvec::ArrayVec;

/// Unmaps that one commit takes at most.
pub const BATCH_MAX: usize = 64;

/// A mapping that was unmapped, and whose translations may still be cached.
#[derive(Clone, Copy, Debug)]
pub struct Revoked {
    /// Its pages.
    pub range: IovaRange,
    /// Whether a translation went. Otherwise every page has other mappings at the same address, and there is nothing to
    /// invalidate.
    pub cleared: bool,
    /// Whether no table page went with it, so that the invalidation may leave cached table pointers alone.
    pub leaf_only: bool,
}

/// What a batch of unmaps leaves to be invalidated, up to [`BATCH_MAX`] of them.
///
/// Dropping it leaks addresses and table pages, which is safe; [`Mapper::commit`](crate::design::Mapper::commit) is what
/// should happen to it.
#[must_use = "addresses and buffers come back only through a commit"]
#[derive(Debug, Default)]
pub struct Revocation {
    pub(crate) revoked: ArrayVec<Revoked, BATCH_MAX>,
    pub(crate) tables: FreedTables,
    /// The address space that its unmaps belong to, once there is one.
    owner: Option<u64>,
}

impl Revocation {
    /// Nothing to invalidate.
    pub const fn new() -> Self {
        Self { revoked: ArrayVec::new_const(), tables: FreedTables::new(), owner: None }
    }

    /// Makes it the revocation of the space `tag`. Returns whether it is: while it holds another's unmaps it cannot be.
    pub(crate) fn belongs_to(&mut self, tag: u64) -> bool {
        if self.revoked.is_empty() {
            self.owner = Some(tag);
        }
        self.owner == Some(tag)
    }

    /// Whether there is nothing to invalidate.
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty()
    }

    /// Whether another unmap fits.
    pub fn is_full(&self) -> bool {
        self.revoked.is_full()
    }

    /// The mappings, in the order of their unmaps.
    pub fn revoked(&self) -> &[Revoked] {
        &self.revoked
    }
}

/// The command that covers `range`: the smallest aligned power of two of pages around it, or the whole domain where the
/// hardware has no such command. A domain-selective command takes all levels, so it serves either hint.
#[inline]
pub(crate) fn page_selective(
    domain: DomainId,
    range: IovaRange,
    leaf_only: bool,
    capabilities: &Capabilities,
) -> Invalidation {
    let differing = range.first_pfn() ^ (range.end_pfn() - 1);
    let mask = (u64::BITS - differing.leading_zeros()) as u8;
    match capabilities.address_mask_max {
        Some(max) if mask <= max => {
            Invalidation::Pages { domain, first: Iova::from_pfn(range.first_pfn() >> mask << mask), mask, leaf_only }
        }
        _ => Invalidation::Domain(domain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iommu::Iommu;
    use crate::iommu::fake::FakeIommu;
    use crate::platform::fake::FakeHost;

    /// Wherever a range begins: the command covers it, is aligned, and half of it would not do.
    #[test]
    fn page_selective_commands_are_the_smallest_that_cover() {
        let host = FakeHost::default();
        let capabilities = FakeIommu::new(&host).capabilities();
        for first in 0..70 {
            for pages in 1..70 {
                let range = IovaRange::new(0x1000 + first, pages).unwrap();
                let command = page_selective(DomainId(1), range, true, &capabilities);
                let Invalidation::Pages { first, mask, .. } = command else { panic!("{command:?}") };
                let end = first.pfn() + (1 << mask);
                assert!(first.pfn() % (1 << mask) == 0 && first <= range.start() && range.end_pfn() <= end, "{range}");
                let half = |pfn: u64| pfn >> mask.saturating_sub(1);
                assert!(mask == 0 || half(range.first_pfn()) != half(range.end_pfn() - 1), "{range}: {command:?}");
            }
        }
    }
}
