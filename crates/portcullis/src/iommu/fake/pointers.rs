//! Table pointers that the fake has cached. Its walks begin at them.

use super::{DomainId, Invalidation};
use crate::address::PhysAddr;
use crate::entry::LEVEL_BITS;
use std::collections::BTreeMap;

/// Every table pointer that a walk has followed, by domain, level of the table, and index of the table in that level.
#[derive(Debug, Default)]
pub(super) struct Pointers(BTreeMap<(DomainId, u32, u64), PhysAddr>);

/// The index of the table of `level` that translates page `pfn`.
const fn number(pfn: u64, level: u32) -> u64 {
    pfn >> (LEVEL_BITS * level)
}

impl Pointers {
    /// The lowest table with a cached pointer that translates page `pfn`, and its level, which is below `levels`.
    pub(super) fn lowest(&self, domain: DomainId, pfn: u64, levels: u32) -> Option<(PhysAddr, u32)> {
        (1..levels).find_map(|level| Some((*self.0.get(&(domain, level, number(pfn, level)))?, level)))
    }

    /// Caches that `table` is the table of `level` for page `pfn`.
    pub(super) fn insert(&mut self, domain: DomainId, pfn: u64, level: u32, table: PhysAddr) {
        self.0.insert((domain, level, number(pfn, level)), table);
    }

    /// Whether a walk may start at, or pass through, the table page `frame`.
    #[cfg(not(loom))]
    pub(super) fn lead_to(&self, frame: PhysAddr) -> bool {
        self.0.values().any(|table| *table == frame)
    }

    /// Drops the pointers that a command names. A page-selective command drops all pointers on the path to its pages,
    /// unless it is for leaves only.
    pub(super) fn invalidate(&mut self, command: Invalidation) {
        match command {
            Invalidation::Pages { leaf_only: true, .. } => {}
            Invalidation::Pages { domain, first, mask, leaf_only: false } => {
                let (first, last) = (first.pfn(), first.pfn() + (1 << mask) - 1);
                let is_on_the_way = |level, at| (number(first, level)..=number(last, level)).contains(&at);
                self.0.retain(|&(owner, level, at), _| owner != domain || !is_on_the_way(level, at));
            }
            Invalidation::Domain(domain) => self.forget(domain),
            Invalidation::Global => self.0.clear(),
        }
    }

    /// Drops all pointers of a domain.
    pub(super) fn forget(&mut self, domain: DomainId) {
        self.0.retain(|&(owner, ..), _| owner != domain);
    }
}
