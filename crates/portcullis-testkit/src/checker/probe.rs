//! The device's part: it tries every address, and the results are compared with the reference.

use super::reference::{Returned, reach};
use super::{Checker, DEVICE, Violation, fail};
use portcullis::design::Design;
use portcullis::table::Rights;
use portcullis::{Iommu, Iova, PhysAddr, Platform, Rule};
use std::collections::BTreeSet;

impl<D: Design<P, I>, P: Platform, I: Iommu> Checker<'_, D, P, I> {
    /// Pages of buffers that were handed back, which the device may still reach, unless another mapping uses them.
    pub(super) fn stale(&self) -> impl Iterator<Item = (u64, &Returned)> {
        let returned = self.reference.returned.iter().map(|(pfn, returned)| (*pfn, returned));
        returned.filter(|(pfn, _)| self.is_cached(*pfn) && !self.reference.is_held(*pfn))
    }

    /// Lets the device try every address.
    pub(super) fn probe(&mut self) -> Result<(), Violation> {
        let live = reach(&self.reference.live);
        let mut not_back = reach(&self.reference.uncommitted);
        not_back.extend(reach(&self.reference.lost));
        let ever: Vec<u64> = self.reference.ever.iter().copied().collect();
        for pfn in ever {
            for rights in [Rights::READ, Rights::WRITE] {
                let reached = self.bench.hardware.access(DEVICE, Iova::from_pfn(pfn), rights).map(PhysAddr::pfn);
                match (live.get(&pfn), reached) {
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
                        } else if not_back.get(&pfn).is_some_and(|page| page.allows(rights, phys_pfn)) {
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
        self.bounds()?;
        let (hardware, id) = (self.bench.hardware, self.domain.id());
        self.reference.returned.retain(|pfn, _| hardware.is_cached(id, *pfn));
        Ok(())
    }

    /// S7: the number of ranges in use is within the limits, and at least the number known to be in use.
    fn bounds(&self) -> Result<(), Violation> {
        let usage = self.domain.usage();
        let stale = self.stale().map(|(_, returned)| returned.mapping).collect::<BTreeSet<_>>().len();
        let waiting = if usage.window_us_max.is_some() { stale.max(usage.queued_unmaps) } else { usage.queued_unmaps };
        if waiting > usage.queued_unmaps_max && !self.poisoned {
            return fail(Rule::Bounds, format!("{stale} unmaps may still be used: {usage:?}"));
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
