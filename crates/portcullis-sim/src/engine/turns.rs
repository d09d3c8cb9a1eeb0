//! The turns of the cores that can continue.

use super::Core;

/// Up to so many turns, one place is found faster by looking at each than by halves.
const FEW: usize = 8;

/// Turns, each with its time. There are as many as ready cores, so nearly always few.
#[derive(Default)]
pub(super) struct Turns {
    /// Ordered by time and core. The first turn is at the end, because most changes are near it.
    latest_first: Vec<(u64, Core)>,
}

impl Turns {
    /// The earliest turn. Of turns at the same time, it is that of the lowest core.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, Core)> {
        self.latest_first.last().copied()
    }

    pub(super) fn remove_first(&mut self) {
        self.latest_first.pop();
    }

    /// Sets the turn of a core, which replaces the one at `before_ps`.
    pub(super) fn set(&mut self, core: Core, before_ps: Option<u64>, at_ps: u64) {
        if let Some(before) = before_ps.map(|before_ps| self.place((before_ps, core))) {
            self.latest_first.remove(before);
        }
        self.latest_first.insert(self.place((at_ps, core)), (at_ps, core));
    }

    pub(super) fn clear(&mut self) {
        self.latest_first.clear();
    }

    fn place(&self, turn: (u64, Core)) -> usize {
        let later = |other: &(u64, Core)| *other > turn;
        if self.latest_first.len() <= FEW {
            self.latest_first.iter().rposition(later).map_or(0, |last_later| last_later + 1)
        } else {
            self.latest_first.partition_point(later)
        }
    }
}
