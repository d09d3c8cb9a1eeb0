//! How long handed-back buffers stay within the device's reach: the stale window, seen from outside the design.

use super::over_time::OverTime;
use portcullis::{DomainId, IovaRange};
use portcullis_model::Scope;

/// Number of a mapping in a run.
pub(super) type Slot = u32;

/// A mapping between the clearing of its entries and the end of its invalidation.
struct Pending {
    slot: Slot,
    domain: DomainId,
    range: IovaRange,
    bytes: u64,
    cleared_ps: u64,
    /// Pages that no completed invalidation has covered yet.
    uncovered: u64,
    /// When the buffer went back to its owner, once it has.
    handed_back_ps: Option<u64>,
}

/// What the windows came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Windows {
    pub(super) count: u64,
    pub(super) sum_ps: u128,
    pub(super) max_ps: u64,
    pub(super) bytes_ps: u128,
    pub(super) over_invalidated_pages: u64,
}

/// Watches unmaps and completed invalidations.
#[derive(Default)]
pub(super) struct Exposure {
    pending: Vec<Pending>,
    windows: Windows,
    over_time: OverTime,
}

impl Exposure {
    /// The entries of the mapping have been cleared. A slot may be used again while an older window of its is open.
    pub(super) fn cleared(&mut self, slot: Slot, domain: DomainId, range: IovaRange, bytes: u64, cleared_ps: u64) {
        let uncovered = range.pages();
        self.pending.push(Pending { slot, domain, range, bytes, cleared_ps, uncovered, handed_back_ps: None });
    }

    /// An invalidation has completed.
    pub(super) fn invalidated(&mut self, at_ps: u64, scope: Scope) {
        let mut covered = 0;
        let mut oldest_ps = u64::MAX;
        let windows = &mut self.windows;
        self.pending.retain_mut(|pending| {
            let pages = match scope {
                // It was over before there was anything to invalidate.
                _ if at_ps < pending.cleared_ps => 0,
                Scope::Global => pending.uncovered,
                Scope::Domain(domain) if domain == pending.domain => pending.uncovered,
                Scope::Pages { domain, first_pfn, pages } if domain == pending.domain => {
                    let first = first_pfn.max(pending.range.first_pfn());
                    let end = (first_pfn + pages).min(pending.range.end_pfn());
                    end.saturating_sub(first).min(pending.uncovered)
                }
                _ => 0,
            };
            covered += pages;
            pending.uncovered -= pages;
            match pending.handed_back_ps {
                Some(handed_back_ps) if pending.uncovered == 0 => {
                    windows.add(pending.bytes, at_ps.saturating_sub(handed_back_ps));
                    oldest_ps = oldest_ps.min(handed_back_ps);
                    false
                }
                _ => true,
            }
        });
        self.over_time.add(oldest_ps, at_ps);
        if let Scope::Pages { pages, .. } = scope {
            windows.over_invalidated_pages += pages.saturating_sub(covered);
        }
    }

    /// The buffer has gone back to its owner.
    pub(super) fn handed_back(&mut self, slot: Slot, at_ps: u64) {
        let latest = |pending: &Pending| pending.slot == slot && pending.handed_back_ps.is_none();
        let Some(index) = self.pending.iter().rposition(latest) else { return };
        if self.pending[index].uncovered == 0 {
            let pending = self.pending.swap_remove(index);
            self.windows.add(pending.bytes, 0);
        } else {
            self.pending[index].handed_back_ps = Some(at_ps);
        }
    }

    /// Mappings whose buffers are back while their translations may still be cached.
    pub(super) fn open(&self) -> usize {
        self.pending.iter().filter(|pending| pending.handed_back_ps.is_some()).count()
    }

    pub(super) fn windows(&self) -> Windows {
        self.windows
    }

    /// How the windows developed since the last reset.
    pub(super) fn over_time(&self) -> &OverTime {
        &self.over_time
    }

    /// Forgets the windows so far: warm-up is over at `now_ps`.
    pub(super) fn reset(&mut self, now_ps: u64) {
        self.windows = Windows::default();
        self.over_time = OverTime::from(now_ps);
    }
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

    fn range(first: u64, pages: u64) -> IovaRange {
        IovaRange::new(first, pages).expect("a range")
    }

    #[test]
    fn a_window_runs_from_hand_back_to_the_last_page() {
        let mut exposure = Exposure::default();
        exposure.cleared(1, DOMAIN, range(16, 2), 5000, 90);
        exposure.handed_back(1, 100);
        exposure.invalidated(150, Scope::Pages { domain: DOMAIN, first_pfn: 16, pages: 1 });
        assert_eq!(exposure.open(), 1, "one page is still out");
        exposure.invalidated(170, Scope::Pages { domain: DomainId(5), first_pfn: 17, pages: 1 });
        assert_eq!(exposure.open(), 1, "another domain's invalidation is none of ours");
        exposure.invalidated(400, Scope::Domain(DOMAIN));
        let windows = exposure.windows();
        assert_eq!((windows.count, windows.max_ps, windows.bytes_ps), (1, 300, 1_500_000));
        assert_eq!(windows.over_invalidated_pages, 1);
    }

    #[test]
    fn a_slot_used_again_keeps_its_older_window() {
        let mut exposure = Exposure::default();
        for (cleared_ps, first) in [(10, 16), (110, 32)] {
            exposure.cleared(1, DOMAIN, range(first, 1), 1, cleared_ps);
            exposure.handed_back(1, cleared_ps + 10);
        }
        exposure.invalidated(220, Scope::Global);
        let windows = exposure.windows();
        assert_eq!((windows.count, windows.sum_ps, windows.max_ps), (2, 200 + 100, 200));
    }

    #[test]
    fn an_invalidation_older_than_the_unmap_covers_nothing() {
        let mut exposure = Exposure::default();
        exposure.cleared(1, DOMAIN, range(16, 1), 1, 100);
        exposure.invalidated(99, Scope::Global);
        exposure.handed_back(1, 110);
        assert_eq!(exposure.open(), 1);
        exposure.invalidated(130, Scope::Global);
        assert_eq!(exposure.windows().max_ps, 20);
    }

    #[test]
    fn an_invalidation_before_hand_back_leaves_no_window() {
        let mut exposure = Exposure::default();
        exposure.cleared(1, DOMAIN, range(16, 1), 100, 40);
        exposure.invalidated(50, Scope::Pages { domain: DOMAIN, first_pfn: 16, pages: 4 });
        exposure.handed_back(1, 100);
        let windows = exposure.windows();
        assert_eq!((windows.count, windows.max_ps, exposure.open()), (1, 0, 0));
        assert_eq!(windows.over_invalidated_pages, 3);
    }
}
