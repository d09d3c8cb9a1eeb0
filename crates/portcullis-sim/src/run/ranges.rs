//! Address ranges, searched by overlap.

use portcullis::IovaRange;
use std::collections::BTreeMap;

/// The key of a range in the index: its address space, its first page, and the number to which it belongs.
pub(super) type Key<S, N> = (S, u64, N);

/// Ranges in the address spaces `S`, each with a number `N`. Ranges may overlap.
pub(super) struct Ranges<S, N> {
    /// Pages by key.
    pages: BTreeMap<Key<S, N>, u64>,
    /// Pages of the longest range that was ever inserted: a range that holds an address begins at most this far before
    /// it.
    longest: u64,
}

impl<S, N> Default for Ranges<S, N> {
    fn default() -> Self {
        Self { pages: BTreeMap::new(), longest: 0 }
    }
}

impl<S: Copy + Ord, N: Copy + Ord + Default> Ranges<S, N> {
    pub(super) fn insert(&mut self, space: S, range: IovaRange, number: N) {
        self.pages.insert((space, range.first_pfn(), number), range.pages());
        self.longest = self.longest.max(range.pages());
    }

    pub(super) fn remove(&mut self, (space, first_pfn, number): Key<S, N>) {
        self.pages.remove(&(space, first_pfn, number));
    }

    /// Every range, with its key.
    pub(super) fn all(&self) -> impl Iterator<Item = (Key<S, N>, IovaRange)> {
        self.pages.iter().map(|(key, pages)| (*key, IovaRange::new(key.1, *pages).expect("it was inserted as one")))
    }

    /// The ranges of `space` that have a page in `[first_pfn, end_pfn)`, with their keys.
    pub(super) fn overlapping(
        &self,
        space: S,
        first_pfn: u64,
        end_pfn: u64,
    ) -> impl Iterator<Item = (Key<S, N>, IovaRange)> {
        let from = (space, first_pfn.saturating_sub(self.longest), N::default());
        let near = self.pages.range(from..(space, end_pfn, N::default()));
        let ranges = near.map(|(key, pages)| (*key, IovaRange::new(key.1, *pages).expect("it was inserted as one")));
        ranges.filter(move |(_, range)| range.end_pfn() > first_pfn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_overlaps_and_nothing_else() {
        let mut ranges = Ranges::<u16, u32>::default();
        // First page and pages of each range. Two begin at the same page.
        let all = [(0, 1), (4, 60), (10, 2), (10, 5), (12, 1), (64, 4), (4000, 1)];
        for (number, (first, pages)) in (1..).zip(all) {
            ranges.insert(1, IovaRange::new(first, pages).expect("a range"), number);
            ranges.insert(2, IovaRange::new(first + 1, pages).expect("a range"), number);
        }
        for first in 0..70 {
            for end in first + 1..72 {
                let found: Vec<u32> = ranges.overlapping(1, first, end).map(|((_, _, number), _)| number).collect();
                let overlaps = |(number, (begins, pages)): (u32, (u64, u64))| {
                    (begins < end && first < begins + pages).then_some(number)
                };
                assert_eq!(found, (1..).zip(all).filter_map(overlaps).collect::<Vec<_>>(), "[{first}, {end})");
            }
        }
        ranges.remove((1, 10, 3));
        assert_eq!(ranges.overlapping(1, 11, 12).map(|((_, _, number), _)| number).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(ranges.all().count(), 2 * all.len() - 1);
    }
}
