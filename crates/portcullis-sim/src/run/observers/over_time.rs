//! How the stale window develops over a run: the age of the oldest handed-back buffer that is still within the
//! device's reach, as a bounded series.

/// The largest number of points of a series. If a run has more pieces than that, pieces become twice as long.
const PIECES_MAX: usize = 100;
/// The initial length of a piece: a microsecond.
const PIECE_PS: u64 = 1_000_000;

/// The greatest age in each piece of the time since `start_ps`. Pieces have equal length, a power of two of
/// microseconds.
#[derive(Clone, Debug)]
pub(in crate::run) struct OverTime {
    start_ps: u64,
    piece_ps: u64,
    /// By piece, in picoseconds; 0 if nothing was stale.
    ages_ps: Vec<u64>,
}

impl Default for OverTime {
    fn default() -> Self {
        Self::from(0)
    }
}

impl OverTime {
    /// A series that begins at `start_ps`.
    pub(in crate::run) fn from(start_ps: u64) -> Self {
        Self { start_ps, piece_ps: PIECE_PS, ages_ps: Vec::new() }
    }

    /// Adds the window of a buffer that was handed back at `handed_back_ps` and taken out of reach by an invalidation
    /// at `closed_ps`. For an invalidation that ends several windows, the oldest buffer is enough: younger ones add
    /// nothing.
    pub(in crate::run) fn add(&mut self, handed_back_ps: u64, closed_ps: u64) {
        if closed_ps <= handed_back_ps.max(self.start_ps) {
            return;
        }
        // A window that ends exactly at the end of a piece belongs to that piece, not to the next.
        let last = |piece_ps| ((closed_ps - self.start_ps - 1) / piece_ps) as usize;
        while last(self.piece_ps) >= PIECES_MAX {
            let pairs = self.ages_ps.chunks(2);
            self.ages_ps = pairs.map(|pair| pair.iter().copied().max().unwrap_or(0)).collect();
            self.piece_ps *= 2;
        }
        let last = last(self.piece_ps);
        if self.ages_ps.len() <= last {
            self.ages_ps.resize(last + 1, 0);
        }
        let first = (handed_back_ps.saturating_sub(self.start_ps) / self.piece_ps) as usize;
        for piece in first..=last {
            let end_ps = self.start_ps + (piece as u64 + 1) * self.piece_ps;
            let age_ps = closed_ps.min(end_ps) - handed_back_ps;
            self.ages_ps[piece] = self.ages_ps[piece].max(age_ps);
        }
    }

    /// The length of a piece, in picoseconds.
    pub(in crate::run) fn piece_ps(&self) -> u64 {
        self.piece_ps
    }

    /// The greatest age in each piece, in picoseconds, up to the last window.
    pub(in crate::run) fn ages_ps(&self) -> &[u64] {
        &self.ages_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000_000;

    #[test]
    fn the_age_grows_until_the_window_closes() {
        let mut series = OverTime::from(10 * US);
        series.add(12 * US, 15 * US + US / 2);
        assert_eq!(series.ages_ps(), [0, 0, US, 2 * US, 3 * US, 3 * US + US / 2]);
    }

    #[test]
    fn the_oldest_counts() {
        let mut series = OverTime::from(0);
        series.add(0, 3 * US);
        series.add(2 * US, 4 * US);
        assert_eq!(series.ages_ps(), [US, 2 * US, 3 * US, 2 * US]);
    }

    #[test]
    fn a_window_from_before_the_start_keeps_its_age() {
        let mut series = OverTime::from(10 * US);
        series.add(4 * US, 12 * US);
        assert_eq!(series.ages_ps(), [7 * US, 8 * US]);
        series.add(4 * US, 10 * US);
        assert_eq!(series.ages_ps().len(), 2, "it was over before the start");
    }

    #[test]
    fn a_longer_run_has_wider_pieces_and_no_lower_ages() {
        let mut series = OverTime::from(0);
        for window in 0..1000 {
            series.add(10 * window * US, (10 * window + 7) * US);
        }
        assert_eq!((series.piece_ps(), series.ages_ps().len()), (128 * US, 10_000usize.div_ceil(128)));
        assert!(series.ages_ps().iter().all(|age_ps| *age_ps == 7 * US), "{:?}", series.ages_ps());
    }

    #[test]
    fn where_nothing_is_stale_there_is_nothing() {
        let mut series = OverTime::from(0);
        series.add(5 * US, 5 * US);
        assert!(series.ages_ps().is_empty());
        series.add(300 * US, 301 * US);
        let stale: Vec<usize> = (0..series.ages_ps().len()).filter(|piece| series.ages_ps()[*piece] > 0).collect();
        assert_eq!((series.piece_ps(), stale), (4 * US, vec![75]));
    }
}
