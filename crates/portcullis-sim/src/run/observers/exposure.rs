//! How long handed-back buffers stay within the device's reach: the stale window, measured outside the design.

use super::over_time::OverTime;
use crate::run::event::RunEvent;
use crate::run::live::{Live, Slot};
use crate::run::ranges::{Key, Ranges};
use crate::run::world::{Observer, World};
use portcullis::iommu::rings::RING_ADDRESS_MASK;
use portcullis::mapper::Addressing;
use portcullis::{DomainId, Iova, IovaRange, Protection, Rule};
use portcullis_model::Scope;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The event that ends a window.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum End {
    /// The invalidation of its last page, because the unmap cleared the entries.
    #[default]
    Invalidated,
    /// The return of the map that reuses its last page. The entries stay in the table until then, so an invalidation
    /// alone does not end the window. The map invalidates the page before it returns.
    UsedAgain,
    /// Where the unmap leaves the entries in the table: the return of a map of the same page, which has the same
    /// address, or the invalidation after the design has cleared the entries. Elsewhere as [`Self::Invalidated`].
    UsedAgainOrInvalidated,
}

/// A mapping between its unmap and the end of its window.
struct Pending {
    bytes: u64,
    unmapped_ps: u64,
    /// The number of pages of its ranges that are within reach.
    pages: u64,
    /// Whether its entries are still in the table.
    stays: bool,
    /// When the buffer was handed back to its owner, if it was.
    handed_back_ps: Option<u64>,
}

/// The sums over all windows.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::run) struct Windows {
    pub(in crate::run) count: u64,
    pub(in crate::run) sum_ps: u128,
    pub(in crate::run) max_ps: u64,
    pub(in crate::run) bytes_ps: u128,
    pub(in crate::run) over_invalidated_pages: u64,
}

/// Watches unmaps and completed invalidations.
#[derive(Default)]
pub(in crate::run) struct Exposure {
    end: End,
    /// By number, in the order of the unmaps.
    pending: BTreeMap<u64, Pending>,
    /// The pages within reach, each with the number of its former mapping.
    within_reach: Ranges<DomainId, u64>,
    /// The mappings whose buffers are not handed back yet.
    not_back: FxHashMap<Slot, u64>,
    unmaps: u64,
    windows: Windows,
    over_time: OverTime,
}

impl Observer for Exposure {
    fn note(&mut self, world: &World, event: &RunEvent<'_>) {
        let now_ps = world.engine.now_ps();
        match *event {
            RunEvent::WarmedUp => {
                self.settle(world);
                self.reset(now_ps);
            }
            RunEvent::Mapped { live, .. } if self.end != End::Invalidated => {
                self.settle(world);
                self.used_again(world.domains[live.device].id(), live.ranges[0], now_ps);
            }
            // With physical addresses, nothing is ever out of reach.
            RunEvent::Cleared { slot, live, announced } if !world.info.physical_addresses() => {
                let stays = announced.is_none() && is_in_tables(world, live);
                match announced.unwrap_or(!stays || self.end != End::Invalidated) {
                    true => {
                        let domain = world.domains[live.device].id();
                        self.unmapped(slot, domain, live.ranges[0], live.bytes(), now_ps);
                        self.stays(slot, stays && self.end == End::UsedAgainOrInvalidated);
                    }
                    false => self.kept(live.bytes()),
                }
            }
            RunEvent::HandedBack { slot, live } => {
                self.settle(world);
                let is_shared =
                    || live.pages().iter().any(|page| world.mapped.borrow().has(live.device, page.iova.pfn()));
                if self.end == End::UsedAgainOrInvalidated && is_shared() {
                    self.used_again(world.domains[live.device].id(), live.ranges[0], now_ps);
                }
                self.handed_back(slot, now_ps);
            }
            RunEvent::Ticked | RunEvent::Ended => self.settle(world),
            _ => {}
        }
    }
}

impl Exposure {
    /// An empty observer whose windows end with `end`.
    fn new(end: End) -> Self {
        Self { end, ..Self::default() }
    }

    /// The observer of a run under `protection`. The hardware reports its invalidations from now on.
    pub(in crate::run) fn of(world: &World, protection: Protection) -> Self {
        world.vtd.record_invalidations(true);
        // Only entries that stay in the table make a window without a bound.
        let stay = world.info.breaks(protection, Rule::Strict) && world.bound_us().is_none();
        Self::new(match world.info.addressing {
            _ if !stay => End::Invalidated,
            // A map of the same memory finds its old address.
            Addressing::Shared => End::UsedAgainOrInvalidated,
            _ => End::UsedAgain,
        })
    }

    /// Records the invalidations that have completed by now.
    fn settle(&mut self, world: &World) {
        let now_ps = world.engine.now_ps();
        if self.end != End::UsedAgainOrInvalidated {
            world.vtd.drain_completed(now_ps, |at_ps, scope| self.invalidated(at_ps, scope));
            return;
        }
        let mut completed = Vec::new();
        world.vtd.drain_completed(now_ps, |at_ps, scope| completed.push((at_ps, scope)));
        for (at_ps, scope) in completed {
            self.look_for_cleared(world, scope);
            self.invalidated(at_ps, scope);
        }
    }

    /// Looks which of the pages that a completed invalidation covers are no longer in the tables.
    fn look_for_cleared(&mut self, world: &World, scope: Scope) {
        let touched: Vec<_> = match scope {
            Scope::Pages { domain, first_pfn, pages } => {
                self.within_reach.overlapping(domain, first_pfn, first_pfn + pages).collect()
            }
            Scope::Domain(domain) => self.within_reach.overlapping(domain, 0, u64::MAX).collect(),
            Scope::Global => self.within_reach.all().collect(),
        };
        for ((domain, _, number), range) in touched {
            let device = world.domains.iter().position(|other| other.id() == domain);
            let source = device.map(|device| world.devices.borrow()[device].source());
            let is_in_tables = |source| {
                world.vtd.in_tables(world.engine.now_ps(), source, Iova::from_pfn(range.first_pfn())).is_some()
            };
            if let Some(pending) = self.pending.get_mut(&number) {
                pending.stays &= source.is_some_and(is_in_tables);
            }
        }
    }

    /// Records an unmap. A slot may be reused while an older window of it is open.
    fn unmapped(&mut self, slot: Slot, domain: DomainId, range: IovaRange, bytes: u64, unmapped_ps: u64) {
        self.unmaps += 1;
        let pending = Pending { bytes, unmapped_ps, pages: range.pages(), stays: false, handed_back_ps: None };
        self.pending.insert(self.unmaps, pending);
        self.within_reach.insert(domain, range, self.unmaps);
        self.not_back.insert(slot, self.unmaps);
    }

    /// Records whether the last unmap of a slot has left its entries in the table.
    fn stays(&mut self, slot: Slot, stays: bool) {
        let pending = self.not_back.get(&slot).and_then(|number| self.pending.get_mut(number));
        if let Some(pending) = pending {
            pending.stays = stays;
        }
    }

    /// Records an unmap whose pages all stay mapped for other mappings, so that there is nothing to invalidate.
    fn kept(&mut self, bytes: u64) {
        self.windows.add(bytes, 0);
    }

    /// Records a completed invalidation.
    fn invalidated(&mut self, at_ps: u64, scope: Scope) {
        let ends = self.end != End::UsedAgain;
        let touched: Vec<(Key<DomainId, u64>, IovaRange)> = match scope {
            Scope::Pages { domain, first_pfn, pages } => {
                self.within_reach.overlapping(domain, first_pfn, first_pfn + pages).collect()
            }
            _ if !ends => return,
            Scope::Domain(domain) => self.within_reach.overlapping(domain, 0, u64::MAX).collect(),
            Scope::Global => self.within_reach.all().collect(),
        };
        let mut covered = 0;
        for (key, range) in touched {
            // The invalidation had completed before this unmap, or the page is still in the table.
            let pending = &self.pending[&key.2];
            if at_ps < pending.unmapped_ps || pending.stays {
                continue;
            }
            let (first, end) = match scope {
                Scope::Pages { first_pfn, pages, .. } => {
                    (first_pfn.max(range.first_pfn()), (first_pfn + pages).min(range.end_pfn()))
                }
                _ => (range.first_pfn(), range.end_pfn()),
            };
            covered += end - first;
            if ends {
                self.lose(key, range, first, end, at_ps);
            }
        }
        // An invalidation of a whole ring spans its addresses, but at most two entries are cached, so it is not
        // counted.
        if let Scope::Pages { pages, .. } = scope
            && pages < 1 << RING_ADDRESS_MASK
        {
            self.windows.over_invalidated_pages += pages.saturating_sub(covered);
        }
    }

    /// Records that a map has returned with `range`.
    fn used_again(&mut self, domain: DomainId, range: IovaRange, at_ps: u64) {
        let (first_pfn, end_pfn) = (range.first_pfn(), range.end_pfn());
        let touched: Vec<_> = self.within_reach.overlapping(domain, first_pfn, end_pfn).collect();
        for (key, range) in touched {
            self.lose(key, range, first_pfn.max(range.first_pfn()), end_pfn.min(range.end_pfn()), at_ps);
        }
    }

    /// Removes pages `[first, end)` of `range` from the device's reach.
    fn lose(&mut self, key: Key<DomainId, u64>, range: IovaRange, first: u64, end: u64, at_ps: u64) {
        let (domain, _, number) = key;
        self.within_reach.remove(key);
        let left = first.checked_sub(range.first_pfn()).and_then(|pages| IovaRange::new(range.first_pfn(), pages));
        let right = range.end_pfn().checked_sub(end).and_then(|pages| IovaRange::new(end, pages));
        for rest in left.into_iter().chain(right) {
            self.within_reach.insert(domain, rest, number);
        }
        let pending = self.pending.get_mut(&number).expect("its pages are within reach");
        pending.pages -= end - first;
        if let (0, Some(handed_back_ps)) = (pending.pages, pending.handed_back_ps) {
            self.windows.add(pending.bytes, at_ps.saturating_sub(handed_back_ps));
            self.over_time.add(handed_back_ps, at_ps);
            self.pending.remove(&number);
        }
    }

    /// Records that the buffer has been handed back to its owner.
    fn handed_back(&mut self, slot: Slot, at_ps: u64) {
        let Some(number) = self.not_back.remove(&slot) else { return };
        let pending = self.pending.get_mut(&number).expect("it stays until its buffer is back");
        if pending.pages == 0 {
            self.windows.add(pending.bytes, 0);
            self.pending.remove(&number);
        } else {
            pending.handed_back_ps = Some(at_ps);
        }
    }

    /// The windows. Open ones are counted as if they ended at `end_ps`.
    pub(in crate::run) fn windows(&self, end_ps: u64) -> Windows {
        let mut windows = self.windows;
        for pending in self.pending.values() {
            if let Some(handed_back_ps) = pending.handed_back_ps {
                windows.add(pending.bytes, end_ps.saturating_sub(handed_back_ps));
            }
        }
        windows
    }

    /// How the windows developed since the last reset. Open ones are counted as if they ended at `end_ps`.
    pub(in crate::run) fn over_time(&self, end_ps: u64) -> OverTime {
        let mut over_time = self.over_time.clone();
        for handed_back_ps in self.pending.values().filter_map(|pending| pending.handed_back_ps) {
            over_time.add(handed_back_ps, end_ps);
        }
        over_time
    }

    /// Drops the windows that have ended, because warm-up ends at `now_ps`.
    fn reset(&mut self, now_ps: u64) {
        self.windows = Windows::default();
        self.over_time = OverTime::from(now_ps);
    }
}

/// Whether a mapping that was unmapped without an announcement is still in the tables. If it is not, only caches can
/// hold it. If it is, other mappings share its pages, or the design leaves it there.
fn is_in_tables(world: &World, live: &Live) -> bool {
    let (now_ps, source) = (world.engine.now_ps(), world.devices.borrow()[live.device].source());
    live.pages().iter().all(|page| world.vtd.in_tables(now_ps, source, page.iova) == Some(page.phys))
}

impl Windows {
    fn add(&mut self, bytes: u64, window_ps: u64) {
        self.count += 1;
        self.sum_ps += u128::from(window_ps);
        self.max_ps = self.max_ps.max(window_ps);
        self.bytes_ps += u128::from(bytes) * u128::from(window_ps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: DomainId = DomainId(4);
    /// The end of a run, long after all other events.
    const END_PS: u64 = 1_000_000;

    fn range(first: u64, pages: u64) -> IovaRange {
        IovaRange::new(first, pages).expect("a range")
    }

    const fn pages(first_pfn: u64, pages: u64) -> Scope {
        Scope::Pages { domain: DOMAIN, first_pfn, pages }
    }

    impl Exposure {
        /// The number of handed-back buffers that the device may still reach.
        fn open(&self) -> usize {
            self.pending.values().filter(|pending| pending.handed_back_ps.is_some()).count()
        }
    }

    #[test]
    fn a_window_runs_from_hand_back_to_the_last_page() {
        let mut exposure = Exposure::default();
        exposure.unmapped(1, DOMAIN, range(16, 2), 5000, 90);
        exposure.handed_back(1, 100);
        for at_ps in [150, 160] {
            exposure.invalidated(at_ps, pages(16, 1));
            assert_eq!(exposure.open(), 1, "one page is still out");
        }
        exposure.invalidated(170, Scope::Pages { domain: DomainId(5), first_pfn: 17, pages: 1 });
        exposure.invalidated(180, Scope::Domain(DomainId(5)));
        assert_eq!(exposure.open(), 1, "another domain's invalidation is none of ours");
        exposure.invalidated(400, Scope::Domain(DOMAIN));
        let windows = exposure.windows(END_PS);
        assert_eq!((windows.count, windows.max_ps, windows.bytes_ps), (1, 300, 1_500_000));
        assert_eq!(windows.over_invalidated_pages, 2);
    }

    #[test]
    fn a_slot_used_again_keeps_its_older_window() {
        let mut exposure = Exposure::default();
        for (unmapped_ps, first) in [(10, 16), (110, 32)] {
            exposure.unmapped(1, DOMAIN, range(first, 1), 1, unmapped_ps);
            exposure.handed_back(1, unmapped_ps + 10);
        }
        exposure.invalidated(220, Scope::Global);
        let windows = exposure.windows(END_PS);
        assert_eq!((windows.count, windows.sum_ps, windows.max_ps), (2, 200 + 100, 200));
    }

    #[test]
    fn an_invalidation_older_than_the_unmap_covers_nothing() {
        let mut exposure = Exposure::default();
        exposure.unmapped(1, DOMAIN, range(16, 1), 1, 100);
        exposure.invalidated(99, Scope::Global);
        exposure.handed_back(1, 110);
        assert_eq!(exposure.open(), 1);
        exposure.invalidated(130, Scope::Global);
        assert_eq!(exposure.windows(END_PS).max_ps, 20);
    }

    #[test]
    fn an_invalidation_before_hand_back_leaves_no_window() {
        let mut exposure = Exposure::default();
        exposure.unmapped(1, DOMAIN, range(16, 1), 100, 40);
        exposure.invalidated(50, pages(16, 4));
        exposure.handed_back(1, 100);
        let windows = exposure.windows(END_PS);
        assert_eq!((windows.count, windows.max_ps, exposure.open()), (1, 0, 0));
        assert_eq!(windows.over_invalidated_pages, 3);
    }

    #[test]
    fn a_window_that_is_open_ends_with_the_run() {
        let mut exposure = Exposure::default();
        for slot in 0..3 {
            exposure.unmapped(slot, DOMAIN, range(16 + u64::from(slot), 1), 1000, 100);
        }
        exposure.handed_back(0, 200);
        exposure.handed_back(1, 300);
        exposure.invalidated(500, pages(17, 1));
        // The third buffer is not handed back, so its window has not begun.
        let windows = exposure.windows(1200);
        assert_eq!((windows.count, windows.sum_ps, windows.max_ps), (2, 200 + 1000, 1000));
        assert_eq!(windows.bytes_ps, 1000 * 1200);
        assert_eq!(exposure.windows(150).max_ps, 200, "none is shorter than nothing");
        // Warm-up ends, and the open window continues.
        exposure.reset(500);
        let windows = exposure.windows(1700);
        assert_eq!((windows.count, windows.max_ps), (1, 1500));
    }

    #[test]
    fn what_stays_in_the_table_is_lost_when_it_is_used_again() {
        let mut exposure = Exposure::new(End::UsedAgain);
        exposure.unmapped(1, DOMAIN, range(16, 4), 10, 90);
        exposure.handed_back(1, 100);
        exposure.invalidated(110, Scope::Global);
        exposure.invalidated(120, Scope::Domain(DOMAIN));
        // Five pages, four of them within reach; then the same page twice.
        exposure.invalidated(130, pages(15, 5));
        exposure.used_again(DOMAIN, range(15, 2), 200);
        exposure.used_again(DOMAIN, range(16, 1), 210);
        exposure.used_again(DomainId(5), range(16, 4), 220);
        assert_eq!((exposure.open(), exposure.windows(0).over_invalidated_pages), (1, 1));
        // One of the remaining pages, then the two behind it. Each of these calls reaches one page beyond.
        exposure.used_again(DOMAIN, range(18, 1), 300);
        exposure.invalidated(310, pages(16, 4));
        assert_eq!(exposure.windows(0).over_invalidated_pages, 1 + 2, "two of the four are still within reach");
        exposure.used_again(DOMAIN, range(17, 1), 320);
        assert_eq!(exposure.open(), 1);
        exposure.used_again(DOMAIN, range(10, 100), 400);
        let windows = exposure.windows(END_PS);
        assert_eq!((windows.count, windows.max_ps, exposure.open()), (1, 300, 0));
    }

    #[test]
    fn a_page_that_stays_in_the_table_outlives_invalidations_of_its_neighbours() {
        let mut exposure = Exposure::new(End::UsedAgainOrInvalidated);
        for (slot, first) in [(1, 16), (2, 17), (3, 18)] {
            exposure.unmapped(slot, DOMAIN, range(first, 1), 10, 90);
            exposure.stays(slot, slot != 3);
            exposure.handed_back(slot, 100);
        }
        exposure.invalidated(110, pages(16, 4));
        assert_eq!((exposure.open(), exposure.windows(0).over_invalidated_pages), (2, 3), "one was cleared");
        exposure.used_again(DOMAIN, range(16, 1), 200);
        exposure.pending.values_mut().for_each(|pending| pending.stays = false);
        exposure.invalidated(300, pages(17, 1));
        let windows = exposure.windows(END_PS);
        assert_eq!((windows.count, windows.sum_ps, exposure.open()), (3, 10 + 100 + 200, 0));
    }

    #[test]
    fn an_address_used_again_before_hand_back_leaves_no_window() {
        let mut exposure = Exposure::new(End::UsedAgain);
        exposure.unmapped(1, DOMAIN, range(16, 1), 10, 90);
        exposure.used_again(DOMAIN, range(16, 1), 95);
        // The other mapping at the address is unmapped too.
        exposure.unmapped(2, DOMAIN, range(16, 1), 10, 97);
        exposure.handed_back(1, 100);
        exposure.handed_back(2, 100);
        exposure.used_again(DOMAIN, range(16, 1), 130);
        let windows = exposure.windows(END_PS);
        assert_eq!((windows.count, windows.sum_ps), (2, 30));
    }
}
