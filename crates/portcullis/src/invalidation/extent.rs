//! Where unmaps lie that wait for a flush, so that it need not take the whole domain out.

use crate::address::IovaRange;

/// The run of pages around unmaps that wait.
#[derive(Clone, Copy)]
struct Run {
    pages: IovaRange,
    /// Flushes that had begun when the latest of them was queued. Once a later one has succeeded, none of them waits.
    begun: u64,
}

/// The runs around all unmaps of a queue.
///
/// Two, for there is always an unmap that comes while a flush is under way: what came before that is forgotten with the flush.
#[derive(Default)]
pub(super) struct Extent {
    earlier: Option<Run>,
    /// All of these have noted the same flushes.
    latest: Option<Run>,
}

impl Extent {
    /// Adds `range`, which waits for a flush that begins as number `begun` or later. Those below `served` have succeeded.
    pub(super) fn add(&mut self, range: IovaRange, begun: u64, served: u64) {
        let latest = self.latest.take_if(|latest| latest.begun < begun);
        if latest.is_some() {
            // Of those before, the latest that came tells when all have been served.
            let earlier = self.earlier.filter(|earlier| earlier.begun >= served);
            self.earlier =
                latest.map(|run| Run { pages: join(earlier.map(|earlier| earlier.pages), run.pages), ..run });
        }
        self.latest = Some(Run { pages: join(self.latest.map(|latest| latest.pages), range), begun });
    }

    /// The pages around all that flushes below `served` have left, if they have left any.
    pub(super) fn waiting(&self, served: u64) -> Option<IovaRange> {
        let runs = [self.earlier, self.latest].into_iter().flatten();
        runs.filter(|run| run.begun >= served).map(|run| run.pages).reduce(IovaRange::around)
    }
}

fn join(run: Option<IovaRange>, pages: IovaRange) -> IovaRange {
    run.map_or(pages, |run| run.around(pages))
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
            let (mut extent, mut begun, mut served) = (Extent::default(), 0u64, 0u64);
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
