//! The prefetcher of a unit at run time: its buffer, and the flaws that tests plant in it.

use super::Counters;
use super::caches::Leaves;
use super::walk::Leaf;
use crate::cache::Replacement;
use crate::prefetch::{Covered, Page, Prefetcher, PrefetcherSpec};
use portcullis::Iova;
use portcullis::table::Rights;
use portcullis_vtd::spec::faults::FaultReason;

/// A flaw in the prefetching of a unit, for tests of the checks that must detect it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefetchFlaw {
    /// A page that is invalidated while its walk is under way still goes into the buffer.
    LandsAfterInvalidation,
    /// Page-selective invalidations do not reach the buffer.
    BufferIsSpared,
    /// A leaf from the buffer is not checked against the rights of the request.
    RightsAreSkipped,
}

/// A prefetcher with its buffer.
pub(super) struct Prefetching {
    /// None if only the driver prefetches.
    prefetcher: Option<Box<dyn Prefetcher>>,
    buffer: Leaves,
    pub(super) flaw: Option<PrefetchFlaw>,
}

impl Prefetching {
    pub(super) fn new(spec: &PrefetcherSpec) -> Self {
        Self { prefetcher: spec.build(), buffer: Leaves::new(spec.buffer(), 0, Replacement::Lru), flaw: None }
    }

    /// A request for `page` was not served by the IOTLB. Returns the predicted pages.
    pub(super) fn missed(&mut self, page: Page) -> Vec<Page> {
        let mut predicted = Vec::new();
        if let Some(prefetcher) = &mut self.prefetcher {
            prefetcher.missed(page, &mut predicted);
        }
        // More pages than the buffer holds would only evict each other.
        predicted.truncate(self.buffer.capacity());
        predicted
    }

    /// A page was evicted from the IOTLB to make room.
    pub(super) fn evicted(&mut self, page: Page) {
        if let Some(prefetcher) = &mut self.prefetcher {
            prefetcher.evicted(page);
        }
    }

    /// The leaf that the buffer holds for `iova`. Changes nothing.
    pub(super) fn peek(&self, domain: u16, iova: Iova) -> Option<Leaf> {
        self.buffer.peek(domain, iova)
    }

    /// Takes the leaf for `iova` out of the buffer, if the request may use it.
    pub(super) fn take(&mut self, domain: u16, iova: Iova, rights: Rights) -> Option<Result<Leaf, FaultReason>> {
        let leaf = self.buffer.peek(domain, iova)?;
        if self.flaw != Some(PrefetchFlaw::RightsAreSkipped)
            && let Err(reason) = leaf.admit(iova, rights)
        {
            return Some(Err(reason));
        }
        self.buffer.remove(domain, iova, leaf);
        Some(Ok(leaf))
    }

    /// Stores a leaf whose walk has completed.
    pub(super) fn fill(&mut self, counters: &mut Counters, domain: u16, iova: Iova, leaf: Leaf) {
        let before = self.buffer.len();
        self.buffer.insert(domain, iova, leaf);
        // The buffer was full, so another leaf was evicted.
        counters.prefetches_useless += u64::from(self.buffer.len() == before);
    }

    /// Executes an invalidation. `dropped` are the pages that it drops from the IOTLB.
    pub(super) fn invalidated(
        &mut self,
        counters: &mut Counters,
        covered: Covered,
        dropped: &mut dyn Iterator<Item = Page>,
    ) {
        let before = self.buffer.len();
        if covered.pages.is_none() || self.flaw != Some(PrefetchFlaw::BufferIsSpared) {
            self.buffer.invalidate(covered);
        }
        counters.prefetches_useless += (before - self.buffer.len()) as u64;
        if let Some(prefetcher) = &mut self.prefetcher {
            prefetcher.invalidated(covered, dropped);
        }
    }
}
