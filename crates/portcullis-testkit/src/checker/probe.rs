//! The device's part: it tries every address, and the results are compared with the reference.

use super::reference::{InOrder, Reference, Returned};
use super::{Checker, DEVICE, Violation, fail};
use portcullis::Rule;
use portcullis::mapper::Mapper;
use portcullis::table::Rights;
use std::collections::BTreeSet;

impl<M: Mapper + ?Sized> Checker<'_, M> {
    /// Pages of buffers that were handed back, which the device may still reach, unless another mapping uses them.
    pub(super) fn stale(&self) -> impl Iterator<Item = (u64, &Returned)> {
        let returned = self.reference.returned.iter().map(|(pfn, returned)| (*pfn, returned));
        returned.filter(|(pfn, _)| self.is_cached(*pfn) && !self.reference.is_held(*pfn))
    }

    /// Lets the device try every address.
    pub(super) fn probe(&mut self) -> Result<(), Violation> {
        let Reference { live, uncommitted, lost, ever, .. } = &self.reference;
        // Pages are only ever added.
        if self.pages.len() != ever.len() {
            self.pages = ever.iter().copied().collect();
        }
        let (mut live, mut not_back) = (InOrder::new(live), InOrder::new(uncommitted.iter().chain(lost)));
        let found = self.bench.hardware.access_pages(DEVICE, &self.pages);
        for at in 0..found.len() {
            let pfn = self.pages[at];
            let (live, not_back) = (live.at(pfn), not_back.at(pfn));
            if live.is_none() && found[at].is_none() {
                continue;
            }
            for rights in [Rights::READ, Rights::WRITE] {
                let reached = found[at].filter(|(_, granted)| granted.allows(rights)).map(|(phys_pfn, _)| phys_pfn);
                match (live, reached) {
                    (Some(page), Some(phys_pfn)) if page.phys_pfn != phys_pfn => {
                        return fail(Rule::Reach, format!("live page {pfn:#x} leads to {phys_pfn:#x}: {page:?}"));
                    }
                    (Some(page), None) if page.grants(rights) => {
                        return fail(
                            Rule::Reach,
                            format!("live page {pfn:#x} is not reached for {rights:?}: {page:?}"),
                        );
                    }
                    (Some(page), Some(_)) if !page.grants(rights) && !self.unprotected() => {
                        return fail(Rule::Rights, format!("page {pfn:#x} is reached for {rights:?}: {page:?}"));
                    }
                    (Some(_), _) | (None, None) => {}
                    (None, Some(phys_pfn)) => {
                        let found = || format!("page {pfn:#x} leads to {phys_pfn:#x}, but is not mapped");
                        if self.unprotected() {
                            self.breach(Rule::Reach, found)?;
                        } else if not_back.is_some_and(|page| page.allows(rights, phys_pfn)) {
                            // No buffer has been handed back yet.
                        } else if self
                            .reference
                            .returned
                            .get(&pfn)
                            .is_some_and(|page| page.reach.allows(rights, phys_pfn))
                        {
                            self.breach(Rule::Strict, found)?;
                        } else {
                            return fail(Rule::Reach, found());
                        }
                    }
                }
            }
        }
        // The commit makes visible the entries that a batch has cleared. Until then, the walker may see either value:
        // no buffer has been handed back.
        if self.reference.uncommitted.is_empty()
            && let Some((table, entry)) = self.bench.host.unflushed()
        {
            return fail(Rule::Reach, format!("entry {entry} of table page {table} is not visible to the walker"));
        }
        if let Some(table) = self.bench.host.take_freed_while_walked() {
            return fail(Rule::Tables, format!("table page {table} was freed while the hardware could walk it"));
        }
        let (hardware, id) = (self.bench.hardware, self.domain.id());
        self.reference.returned.retain(|pfn, _| hardware.is_cached(id, *pfn));
        self.bounds()
    }

    /// The mappings that were handed back and that the device may still reach, given that it has cached every page in
    /// `returned`.
    fn stale_mappings(&self) -> usize {
        let mut stale = BTreeSet::new();
        for (pfn, Returned { mapping, .. }) in &self.reference.returned {
            if !stale.contains(mapping) && !self.reference.is_held(*pfn) {
                stale.insert(*mapping);
            }
        }
        stale.len()
    }

    /// S7: the number of ranges in use is within the limits, and at least the number known to be in use.
    fn bounds(&self) -> Result<(), Violation> {
        let usage = self.domain.usage();
        let stale = usage.window_us_max.map_or(0, |_| self.stale_mappings());
        let waiting = stale.max(usage.queued_unmaps);
        if waiting > usage.queued_unmaps_max && !self.poisoned {
            return fail(Rule::Bounds, format!("{waiting} unmaps may still be used: {usage:?}"));
        }
        if usage.kept_ranges_max.is_some_and(|most| usage.kept_ranges > most) {
            return fail(Rule::Bounds, format!("more ranges are kept than allowed: {usage:?}"));
        }
        if usage.table_pages > self.bench.host.frames_lent() {
            return fail(Rule::Bounds, format!("more table pages than the host has lent: {usage:?}"));
        }
        let known = self.reference.live.len() + self.reference.uncommitted.len();
        let most = known + self.reference.lost.len() + self.quarantined + usage.queued_unmaps;
        if !self.info.physical_addresses() && !(known..=most).contains(&usage.live_ranges) {
            return fail(Rule::Bounds, format!("between {known} and {most} ranges should be in use: {usage:?}"));
        }
        Ok(())
    }
}
