//! Where unmaps lie that wait for a flush, so that it need not take the whole domain out.

use crate::address::IovaRange;

/// The run of pages around unmaps that wait.
#[derive(Clone, Copy)]
struct Run {
    first_pfn: u64,
    /// Not above `first_pfn` where there are none.
    end_pfn: u64,
    /// Flushes that had begun when the latest of them was queued. Once a later one has succeeded, none of them waits.
    begun: u64,
}

/// The runs around all unmaps of a queue.
///
/// Two, for there is always an unmap that comes while a flush is under way: what came before that is forgotten with the flush.
pub(super) struct Extent {
    earlier: Run,
    /// All of these have noted the same flushes.
    latest: Run,
}

impl Run {
    /// No pages.
    const fn none(begun: u64) -> Self {
        Self { first_pfn: u64::MAX, end_pfn: 0, begun }
    }

    fn around(self, first_pfn: u64, end_pfn: u64) -> Self {
        Self { first_pfn: self.first_pfn.min(first_pfn), end_pfn: self.end_pfn.max(end_pfn), ..self }
    }
}

impl Extent {
    /// Of no unmaps.
    pub(super) const fn new() -> Self {
        Self { earlier: Run::none(0), latest: Run::none(0) }
    }

    /// Adds `range`, which waits for a flush that begins as number `begun` or later. Those below `served` have succeeded.
    #[inline]
    pub(super) fn add(&mut self, range: IovaRange, begun: u64, served: u64) {
        if self.latest.begun < begun {
            let earlier = if self.earlier.begun < served { Run::none(0) } else { self.earlier };
            // Of both, the latest that came tells when all have been served.
            self.earlier = self.latest.around(earlier.first_pfn, earlier.end_pfn);
            self.latest = Run::none(begun);
        }
        self.latest = self.latest.around(range.first_pfn(), range.end_pfn());
    }

    /// The pages around all that flushes below `served` have left, if they have left any.
    pub(super) fn waiting(&self, served: u64) -> Option<IovaRange> {
        let left = [self.earlier, self.latest].into_iter().filter(|run| run.begun >= served);
        let around = left.fold(Run::none(0), |around, run| around.around(run.first_pfn, run.end_pfn));
        IovaRange::new(around.first_pfn, around.end_pfn.saturating_sub(around.first_pfn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Step {
        /// Unmaps pages from the first on, so many.
        Add(u64, u64),
        /// A flush begins.
        Begin,
        /// So many of those that have begun last are still under way.
        Succeed(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..1000u64, 1..20u64).prop_map(|(first, pages)| Step::Add(first, pages)),
            1 => Just(Step::Begin),
            1 => (0..4u64).prop_map(Step::Succeed),
        ]
    }

    proptest! {
        /// All that no flush has served is in it; and nothing else, as long as flushes come one after the other.
        #[test]
        fn all_that_waits(steps in proptest::collection::vec(step(), 1..200), one_by_one: bool) {
            let (mut extent, mut begun, mut served) = (Extent::new(), 0u64, 0u64);
            let mut all = Vec::<(IovaRange, u64)>::new();
            for step in steps {
                match step {
                    Step::Add(first, pages) => {
                        let range = IovaRange::new(first, pages).unwrap();
                        extent.add(range, begun, served);
                        all.push((range, begun));
                    }
                    Step::Begin => {
                        served = if one_by_one { begun } else { served };
                        begun += 1;
                    }
                    Step::Succeed(under_way) => served = served.max(begun.saturating_sub(under_way)),
                }
                let unserved = all.iter().filter(|(_, noted)| *noted >= served).map(|(range, _)| *range);
                let (found, expected) = (extent.waiting(served), unserved.reduce(IovaRange::around));
                prop_assert_eq!(found.is_some(), expected.is_some());
                prop_assert!(found.zip(expected).is_none_or(|(found, expected)| found.around(expected) == found));
                prop_assert!(!one_by_one || found == expected);
            }
        }
    }
}
