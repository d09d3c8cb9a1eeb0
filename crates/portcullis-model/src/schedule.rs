//! Things to come, by time.

use std::collections::VecDeque;

/// How many things are looked at and moved one by one, which is the fastest way for few.
const FEW: usize = 4;

/// Things that are due, by time. Things due at the same time are in the order in which they were added.
///
/// It is a sorted queue: what is added is mostly due either soon or last, so few others are looked at or have to move.
pub(crate) struct Schedule<T>(VecDeque<(u64, T)>);

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Schedule<T> {
    #[inline]
    pub(crate) fn add(&mut self, at_ps: u64, what: T) {
        if self.last_ps().is_none_or(|last_ps| last_ps <= at_ps) {
            return self.0.push_back((at_ps, what));
        }
        let is_before = |(other_ps, _): &(u64, T)| *other_ps <= at_ps;
        match self.0.iter().take(FEW).position(|other| !is_before(other)) {
            Some(place) => {
                self.0.push_front((at_ps, what));
                (0..place).for_each(|before| self.0.swap(before, before + 1));
            }
            None => self.0.insert(self.0.partition_point(is_before), (at_ps, what)),
        }
    }

    /// When the first is due.
    #[inline]
    pub(crate) fn first_ps(&self) -> Option<u64> {
        self.0.front().map(|(at_ps, _)| *at_ps)
    }

    /// When the last is due.
    #[inline]
    pub(crate) fn last_ps(&self) -> Option<u64> {
        self.0.back().map(|(at_ps, _)| *at_ps)
    }

    /// Takes the first, with its time, if it is due by `now_ps`.
    #[inline]
    pub(crate) fn take(&mut self, now_ps: u64) -> Option<(u64, T)> {
        self.first_ps().filter(|at_ps| *at_ps <= now_ps)?;
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn whatever_the_order_of_addition_the_earliest_comes_first() {
        let (mut schedule, times) = (Schedule::default(), [70, 20, 90, 10, 40, 60, 30, 80, 50, 45, 5, 75]);
        times.iter().for_each(|at_ps| schedule.add(*at_ps, *at_ps));
        let all: Vec<u64> = std::iter::from_fn(|| schedule.take(100)).map(|(_, what)| what).collect();
        assert!(all.is_sorted() && all.len() == times.len(), "{all:?}");
    }

    #[test]
    fn the_same_time_is_in_the_order_of_addition() {
        let mut schedule = Schedule::default();
        for (at_ps, what) in [(30, 'a'), (10, 'b'), (30, 'c'), (10, 'd'), (20, 'e')] {
            schedule.add(at_ps, what);
        }
        assert_eq!((schedule.first_ps(), schedule.last_ps(), schedule.take(9)), (Some(10), Some(30), None));
        let all: String = std::iter::from_fn(|| schedule.take(30)).map(|(_, what)| what).collect();
        assert_eq!(all, "bdeac");
    }
}
