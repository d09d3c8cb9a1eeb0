//! The share of the unprotected rate as a range, over all that is not known.

/// How far a share may be off because a capture of pages has no directions: batches end elsewhere without them. This is
/// half of what the advice calls a tie.
const OFF_BY: f64 = 0.01;

/// The widest range over the lengths of buffers. Without this limit, ranges would be up to .5 wide where all CPUs wait
/// for one queue. Then the low end stands for longer buffers than the shortest that are thought possible.
const WIDTH_MAX: f64 = 0.35;

/// The least and the greatest of `shares`.
pub(crate) fn range(shares: impl IntoIterator<Item = f64>) -> [f64; 2] {
    let mut range = [f64::INFINITY, f64::NEG_INFINITY];
    for share in shares {
        range = [range[0].min(share), range[1].max(share)];
    }
    range
}

/// The range of a capture of pages, from the shares for the shortest and the longest buffers. If the lengths do not
/// matter, the share is exact.
pub(crate) fn over_lengths([low, high]: [f64; 2]) -> [f64; 2] {
    if low == high {
        return [low, high];
    }
    let high = (high + OFF_BY).min(1.0);
    [(low - OFF_BY).max(high - WIDTH_MAX).max(0.0), high]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_over_lengths_is_never_wider_than_its_limit() {
        let off = |[low, high]: [f64; 2], wanted: [f64; 2]| (low - wanted[0]).abs().max((high - wanted[1]).abs());
        assert!(off(over_lengths([0.2, 0.4]), [0.19, 0.41]) < 1e-12);
        assert!(off(over_lengths([0.25, 0.75]), [0.41, 0.76]) < 1e-12);
        assert!(off(over_lengths([0.0, 0.005]), [0.0, 0.015]) < 1e-12);
        assert_eq!(over_lengths([1.0, 1.0]), [1.0, 1.0]);
        assert_eq!(over_lengths([0.9, 0.995])[1], 1.0);
    }
}
