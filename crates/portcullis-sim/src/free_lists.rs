//! How long the lists of free addresses are, at every allocation and free.

/// The lists of all sizes together. A design without lists leaves them empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeLists {
    /// Addresses on the lists now. A core may take what another core put there, so the number of one core may be
    /// negative.
    now: i64,
    longest: i64,
    /// The sum of the lengths after each allocation and free.
    sum: i64,
    allocations: u64,
    frees: u64,
    /// Allocations that a list satisfied.
    satisfied: u64,
}

impl FreeLists {
    /// An allocation, which a list satisfied or not.
    pub(crate) fn allocated(&mut self, from_list: bool) {
        self.allocations += 1;
        self.satisfied += u64::from(from_list);
        self.changed(-i64::from(from_list));
    }

    /// A free, after which the address is on a list or not.
    pub(crate) fn freed(&mut self, to_list: bool) {
        self.frees += 1;
        self.changed(i64::from(to_list));
    }

    fn changed(&mut self, by: i64) {
        self.now += by;
        self.sum += self.now;
        self.longest = self.longest.max(self.now);
    }

    pub(crate) fn forget_longest(&mut self) {
        self.longest = self.now;
    }

    /// Adds the lists of another core.
    pub(crate) fn add(&mut self, other: &Self) {
        self.now += other.now;
        self.longest += other.longest;
        self.sum += other.sum;
        self.allocations += other.allocations;
        self.frees += other.frees;
        self.satisfied += other.satisfied;
    }

    /// What has happened since `earlier`. The longest lists are not changed.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            sum: self.sum - earlier.sum,
            allocations: self.allocations - earlier.allocations,
            frees: self.frees - earlier.frees,
            satisfied: self.satisfied - earlier.satisfied,
            ..*self
        }
    }

    /// The share of allocations that a list satisfied.
    pub fn satisfied(&self) -> f64 {
        self.satisfied as f64 / self.allocations as f64
    }

    /// The average length after each allocation and free. Exact for one core.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / (self.allocations + self.frees) as f64
    }

    /// The most addresses on the lists at once. Exact for one core.
    pub fn longest(&self) -> i64 {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_one_is_half_full_on_average() {
        let mut lists = FreeLists::default();
        lists.freed(true);
        let before = lists;
        for _ in 0..10 {
            lists.allocated(true);
            lists.freed(true);
        }
        let since = lists.since(&before);
        assert_eq!((since.satisfied(), since.mean(), since.longest()), (1.0, 0.5, 1));
    }

    #[test]
    fn what_the_tree_does_counts_and_leaves_the_lists_alone() {
        let mut lists = FreeLists::default();
        (0..4).for_each(|_| lists.freed(true));
        (0..4).for_each(|_| lists.freed(false));
        assert_eq!((lists.longest(), lists.mean()), (4, 26.0 / 8.0));
        lists.allocated(false);
        lists.allocated(true);
        assert_eq!(lists.satisfied(), 0.5);
        lists.forget_longest();
        assert_eq!(lists.longest(), 3);
    }
}
