//! The share of the unprotected rate as a range, over all that is not known.

/// How far a share may be off because a capture of pages has no directions: batches end elsewhere without them. This is
/// half of what the advice calls a tie.
const OFF_BY: f64 = 0.01;

/// The widest range over the lengths of buffers. Where a third of the length would give a wider one, which is so where
/// all CPUs wait for one queue, the shortest buffers are taken to be longer.
const WIDTH_MAX: f64 = 0.35;

/// The least and the greatest of `shares`.
pub(crate) fn range(shares: impl IntoIterator<Item = f64>) -> [f64; 2] {
    let mut range = [f64::INFINITY, f64::NEG_INFINITY];
    for share in shares {
        range = [range[0].min(share), range[1].max(share)];
    }
    range
}

/// The range of a capture of pages, from the shares for the shortest and the longest buffers. A rate that is not
/// reduced at all is exact.
pub(crate) fn of_pages([low, high]: [f64; 2]) -> [f64; 2] {
    if low == 1.0 { [low, high] } else { [(low - OFF_BY).max(0.0), (high + OFF_BY).min(1.0)] }
}

/// The least part of the way from the shortest to the longest buffers at which the range is not too wide. `low` has the
/// share for a part, and grows with it.
pub(crate) fn narrowed(high: f64, low: impl Fn(f64) -> f64) -> f64 {
    let is_narrow = |part| high - low(part) <= WIDTH_MAX - 2.0 * OFF_BY;
    if is_narrow(0.0) {
        return 0.0;
    }
    let (mut wide, mut narrow) = (0.0, 1.0);
    // To a millionth.
    for _ in 0..20 {
        let middle = (wide + narrow) / 2.0;
        if is_narrow(middle) { narrow = middle } else { wide = middle }
    }
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_over_lengths_is_never_wider_than_its_limit() {
        // The share grows with the length, as where one queue is the limit.
        for (third, whole) in [(0.25, 0.75), (0.2, 0.4), (0.0, 1.0)] {
            let low = |part: f64| third + (whole - third) * part;
            let least = low(narrowed(whole, low));
            let [low, high] = of_pages([least, whole]);
            assert!(high - low <= WIDTH_MAX + 1e-9 && low <= least && high >= whole, "{low} to {high}");
            assert!(whole - third > 0.33 || least == third, "{least} of {third}: not narrowed without need");
        }
        assert_eq!(of_pages([1.0, 1.0]), [1.0, 1.0]);
        assert_eq!(of_pages([0.9, 0.995])[1], 1.0);
    }
}
